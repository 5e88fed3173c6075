//! Segment runs of a responder: the middle packets of a message, handled many at a time. One middle
//! packet differs from the next only in its number and in whether it requests an acknowledgement.
//! So a caller that holds several packets asks beforehand which ones are expected and where their
//! bytes go, and reports afterwards how many it has carried out. The result is the same as
//! [`Responder::handle`] and [`Responder::finish`] for each packet. Packets outside a run take that
//! path. Principal type: [`AwaitedSegmentRun`].

use crate::operation::MAX_MESSAGE;
use crate::qp::Service;
use crate::rc::standing::Open;
use crate::responder::{Access, Responder};
use wire::{Opcode, Operation, Psn, Transport};

/// The packets that may come next, as long as they are middle packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedSegmentRun {
    /// The opcode of each packet.
    pub opcode: Opcode,
    /// The number of the first packet; the others follow it.
    pub first: Psn,
    /// Bytes of payload in each packet.
    pub len: u32,
    /// The maximum number of middle packets. After that, a packet of another kind must come.
    pub most: u32,
    /// Where the first packet's payload goes. The payload of the others goes behind it.
    pub place: Place,
}

/// Where a run's payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Into the current receive request.
    Receive {
        /// The offset in the message.
        offset: u32,
    },
    /// Into memory.
    Write {
        /// The address.
        va: u64,
        /// The rkey.
        rkey: u32,
    },
}

impl Responder {
    /// The run that is expected. `None`: only [`Responder::handle`] can tell which packet may come.
    #[must_use]
    pub fn awaited_segment_run(&self) -> Option<AwaitedSegmentRun> {
        if self.service != Service::Rc || self.dead.is_some() || self.pending.is_some() {
            return None;
        }
        let len = self.config.mtu;
        let (operation, most, place) = match self.message {
            Open::None => return None,
            Open::Send { done } => (Operation::SendMiddle, (MAX_MESSAGE - done) / len, Place::Receive { offset: done }),
            Open::Write { va, rkey, total, done } => {
                if !self.config.access.allows(Access::REMOTE_WRITE) {
                    return None;
                }
                // At least one byte must be left for the last packet.
                (
                    Operation::WriteMiddle,
                    total.saturating_sub(done + 1) / len,
                    Place::Write { va: va.wrapping_add(done.into()), rkey },
                )
            }
        };
        let opcode = Opcode::new(Transport::Rc, operation);
        (most > 0).then_some(AwaitedSegmentRun { opcode, first: self.expected, len, most, place })
    }

    /// The first `packets` of the expected run have arrived and are carried out. `asked`: one of
    /// them requests an acknowledgement.
    pub fn finish_segment_run(&mut self, packets: u32, asked: bool) {
        if packets == 0 {
            return;
        }
        self.nak_sent = false;
        self.answers.take_back_nak();
        self.expected += packets;
        let bytes = packets * self.config.mtu;
        match &mut self.message {
            Open::None => {}
            Open::Send { done } | Open::Write { done, .. } => *done += bytes,
        }
        if asked {
            self.answers.acknowledge();
        }
    }
}
