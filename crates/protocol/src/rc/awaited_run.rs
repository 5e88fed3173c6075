//! Packets of the middle of a message, many at once. All that tells one from the next is its number and whether it asks for an
//! acknowledgement, so a caller that has several in hand can be told beforehand which ones are welcome, and where their bytes go, and
//! say afterwards how many of them it has carried out. It comes to the same as [`Responder::handle`] and [`Responder::finish`] for each;
//! whatever is not in a run goes that way. Principal type: [`AwaitedSegmentRun`].

use crate::{Access, MAX_MESSAGE, Open, Responder, Service};
use wire::{Opcode, Operation, Psn, Transport};

/// The packets that may come next, as long as they are of a message's middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedSegmentRun {
    /// What each of them is.
    pub opcode: Opcode,
    /// The number of the first one; they are numbered on from there.
    pub first: Psn,
    /// Bytes of payload in each.
    pub len: u32,
    /// So many, at most: one of another kind has to come then.
    pub most: u32,
    /// Where the payload of the first one goes; that of the others goes behind it.
    pub place: Place,
}

/// Where a run's payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Into the receive request at hand.
    Receive {
        /// Where in the message.
        offset: u32,
    },
    /// Into memory.
    Write {
        /// The address.
        va: u64,
        /// The key that opens it.
        rkey: u32,
    },
}

impl Responder {
    /// The run that is awaited. None: only [`Responder::handle`] can tell what may come.
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
                // At least a byte is left for the last packet.
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

    /// The first `packets` of the run that is awaited have come and are carried out; `asked`: one of them asks for an acknowledgement.
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
