//! Segment runs: middle packets of one message that were received together. Most packets of long
//! messages are of this kind.
//!
//! What all packets of a run share is determined once: the locked QP, the key, the memory, and most
//! of the headers. The rest is checked for each packet: that its headers are the expected next
//! ones, its length, and its ICRC. The first packet that differs in anything ends the run and goes
//! the general path ([`crate::net::deliver`]), which finds the reason. So this file refuses no
//! packet. Adds to [`Packets`] and [`Qp`].

use abi::mr::access as right;
use protocol::{AwaitedSegmentRun, Place};
use wire::bth::{LEN as BTH, SegmentRunHeader};
use wire::{Psn, Qpn};

use crate::access::{self, Stretch, Use};
use crate::net::batch::ICRC;
use crate::net::deliver::Packets;
use crate::qp::{Inner, Qp};
use crate::special::Special;

impl Packets<'_> {
    /// How many packets of `size` bytes come next, by their lengths.
    fn coming(&self, size: usize) -> u32 {
        if self.segment == size { ((self.bytes.len() - self.at) / size) as u32 } else { 0 }
    }

    /// Takes the next packets that belong to the run and are intact, at most `most`. `place` stores
    /// the payload of packet number `n`, or fails. Returns how many packets were taken, and whether
    /// one of them requests an acknowledgement.
    fn take_segment_run(
        &mut self,
        header: SegmentRunHeader,
        first: Psn,
        most: u32,
        mut place: impl FnMut(u32, &[u8]) -> bool,
    ) -> (u32, bool) {
        let size = self.segment;
        let measured = self.envelope.of_length(size - ICRC);
        let mut asked = false;
        for number in 0..most {
            let Some(packet) = self.bytes.get(self.at..self.at + size) else { return (number, asked) };
            let Some((head, rest)) = packet.split_first_chunk::<BTH>() else { return (number, asked) };
            let Some(asks) = header.ack_req(head, first + number) else { return (number, asked) };
            if !measured.fits(packet, self.id) || !place(number, &rest[..rest.len() - ICRC]) {
                return (number, asked);
            }
            asked |= asks;
            self.at += size;
            self.id = self.id.wrapping_add(1);
        }
        (most, asked)
    }
}

impl Qp {
    /// Takes the packets after one that this QP has just taken, as long as they make a segment run.
    pub(crate) fn take_segment_run(&self, inner: &mut Inner, packets: &mut Packets<'_>) {
        // Tracing, captures and fault rules must see each packet.
        const SUPPORTED: Special = Special::WIRE.and(Special::PACED).and(Special::STRICT);
        let is_special = self.special(inner).has_beside(SUPPORTED);
        if tracing::enabled!(tracing::Level::TRACE) || is_special || !inner.awaits_next() {
            return;
        }
        let Some(run) = inner.responder.awaited_segment_run() else { return };
        let most = run.most.min(packets.coming(BTH + run.len as usize + ICRC));
        if most == 0 {
            return;
        }
        let Some((stretch, most)) = self.room(inner, &run, most) else { return };
        let header = SegmentRunHeader::new(run.opcode, Qpn::new(self.qpn()));
        let (taken, asked) = packets.take_segment_run(header, run.first, most, |number, payload| {
            stretch.write((number * run.len) as usize, payload).is_ok()
        });
        inner.responder.finish_segment_run(taken, asked);
    }

    /// The contiguous memory for the next packets of a run, at most `most`, and how many fit.
    fn room(&self, inner: &Inner, run: &AwaitedSegmentRun, most: u32) -> Option<(Stretch<'_>, u32)> {
        match run.place {
            Place::Write { va, rkey } => {
                let place = (rkey, va, u64::from(most * run.len));
                Some((access::hold(self.engine(), self.remote(self.pd, right::REMOTE_WRITE), place)?, most))
            }
            Place::Receive { offset } => {
                let receive = inner.incoming.receive.as_ref()?;
                let most = most.min(receive.length.checked_sub(offset)? / run.len);
                let (pd, found) = match receive.index {
                    Some(index) => {
                        let count = receive.num_sge as usize;
                        let elements = (0..count).map(|number| inner.queues.rq.element(index, number));
                        (self.pd, access::piece(elements, offset)?)
                    }
                    None => {
                        let pd = self.srq.as_ref().map_or(self.pd, |srq| srq.pd());
                        (pd, access::piece(inner.incoming.shared.iter().copied(), offset)?)
                    }
                };
                let most = most.min(found.length / run.len);
                let place = (found.lkey, found.addr, u64::from(most * run.len));
                let wanted = Use { pd, right: right::LOCAL_WRITE, qpn: 0 };
                (most > 0).then_some((access::hold(self.engine(), wanted, place)?, most))
            }
        }
    }
}
