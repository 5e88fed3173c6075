//! Sends the middle packets of a long message. It determines once what all these packets share, as
//! [`crate::net::segment_run`] does for received ones. The memory is looked up once and held while
//! packets are sent from it. For each packet, the engine asks for and writes only the parts that
//! differ. Principal type: [`NextSegments`].

use abi::post::Sge;
use protocol::{SegmentRun, Time, Transmit};
use wire::bth::SegmentRunHeader;
use wire::{Opcode, Operation};

use crate::access::{self, Stretch, Use};
use crate::exit::Sent;
use crate::extent::LOCAL_READ;
use crate::net::batch::Batch;
use crate::qp::{Flow, Inner, Qp};
use crate::special::Special;
use crate::wqe::SendBrief;

/// The memory after a packet, as far as it is contiguous. The packets that follow probably come
/// from there.
pub(crate) struct NextSegments<'a> {
    slot: u32,
    /// The offset in the message at which the memory begins, and its length.
    offset: u32,
    len: u32,
    stretch: Stretch<'a>,
}

impl<'a> NextSegments<'a> {
    /// The memory after a packet of the request `entry`, if the message goes on and the memory may
    /// be read.
    #[inline(never)]
    pub(crate) fn find(qp: &'a Qp, inner: &Inner, transmit: &Transmit, entry: &SendBrief) -> Option<Self> {
        let (slot, offset) = (transmit.slot, transmit.offset + transmit.len);
        if entry.inline != 0 || offset >= entry.length {
            return None;
        }
        let elements = (0..usize::from(entry.num_sge)).map(|number| inner.queues.sq.element(slot, number));
        let Sge { addr, length, lkey } = access::piece(elements, offset)?;
        let len = length.min(entry.length - offset);
        let stretch =
            access::hold(qp.engine(), Use { pd: qp.pd, right: LOCAL_READ, qpn: 0 }, (lkey, addr, len.into()))?;
        Some(Self { slot, offset, len, stretch })
    }

    /// Where in this memory `len` bytes of a message lie, if all of them do.
    pub(crate) fn place(&self, slot: u32, offset: u32, len: u32) -> Option<(&Stretch<'a>, usize)> {
        let at = offset.checked_sub(self.offset).filter(|_| slot == self.slot)?;
        (at <= self.len && len <= self.len - at).then_some((&self.stretch, at as usize))
    }

    /// Where in this memory consecutive packets of `len` bytes lie, and how many of them: at least
    /// one.
    fn places(&self, slot: u32, offset: u32, len: u32) -> Option<(&Stretch<'a>, usize, u32)> {
        let (stretch, at) = self.place(slot, offset, len)?;
        Some((stretch, at, (self.len - at as u32) / len))
    }
}

/// What a segment run supports. Tracing, fault rules and rate limits must see each packet.
const SUPPORTED: Special = Special::WIRE.and(Special::CAPTURED).and(Special::STRICT);

impl Qp {
    /// Sends the packets that follow the one just sent, as long as they are middle packets of the
    /// same message and lie in `next_segments`.
    #[inline(never)]
    pub(crate) fn send_segment_run(
        &self,
        inner: &mut Inner,
        (flow, batch): (&Flow, &mut Batch),
        before: &Transmit,
        next_segments: &NextSegments<'_>,
        now: Time,
    ) -> Sent {
        let opcode = before.headers.opcode;
        let operation = match opcode.operation {
            Operation::SendFirst | Operation::SendMiddle => Operation::SendMiddle,
            Operation::WriteFirst | Operation::WriteMiddle => Operation::WriteMiddle,
            _ => return Sent::Yes,
        };
        if tracing::enabled!(tracing::Level::TRACE) || self.special(inner).has_beside(SUPPORTED) {
            return Sent::Yes;
        }
        let header = SegmentRunHeader::new(Opcode::new(opcode.transport, operation), before.headers.dest_qp)
            .migrated(before.headers.migrated);
        let (pkey, len) = (before.headers.pkey, before.len);
        let way = (&flow.target, &flow.envelope);
        loop {
            let (mut writer, sent) = batch.segment_run(&*flow.port.outlet, way, len as usize);
            if let Err(error) = sent {
                // Lost, as on any network.
                flow.complain(&error);
            }
            while writer.room() > 0 {
                let Some(next) = inner.requester.next_segment_run(now) else { return Sent::Yes };
                let Some((stretch, at, there)) = next_segments.places(next.slot, next.offset, len) else {
                    return Sent::Yes;
                };
                let next = next.at_most(writer.room().min(there));
                for number in 0..next.count {
                    let put = writer.put(
                        |head| header.emit(pkey, next.first + number, next.asks && number + 1 == next.count, head),
                        |to, folding| {
                            let at = at + (number * len) as usize;
                            match folding {
                                Some(folding) => stretch.read_folding(at, to, folding),
                                None => stretch.read(at, to),
                            }
                        },
                    );
                    if let Err(refusal) = put {
                        // The packets before this one are sent. This one counts as sent, and could
                        // not be built.
                        if number > 0 {
                            inner.requester.sent_segment_run(now, &next.at_most(number));
                        }
                        let refused = SegmentRun { first: next.first + number, count: 1, asks: false, ..next };
                        inner.requester.sent_segment_run(now, &refused);
                        return Sent::Refused(refusal);
                    }
                }
                inner.requester.sent_segment_run(now, &next);
            }
        }
    }
}
