//! Segment runs of a requester: the middle packets of a message, polled many at a time. From one
//! middle packet to the next, [`Requester::poll_transmit`] changes only the number, the offset and
//! the request for an acknowledgement. First and last packets are not in a run. Principal type:
//! [`SegmentRun`].

use crate::qp::Service;
use crate::requester::Requester;
use crate::time::Time;
use wire::Psn;

/// Consecutive middle packets of one message. Each has one MTU of payload and only the headers of a
/// middle packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRun {
    /// The number of the first packet.
    pub first: Psn,
    /// How many packets.
    pub count: u32,
    /// Whether the last packet requests an acknowledgement; the others do not.
    pub asks: bool,
    /// The caller's name for the request.
    pub slot: u32,
    /// Where in the message the first packet's payload begins.
    pub offset: u32,
}

impl SegmentRun {
    /// The first `most` packets of the run.
    #[must_use]
    pub fn at_most(self, most: u32) -> SegmentRun {
        SegmentRun { count: self.count.min(most), asks: self.asks && self.count <= most, ..self }
    }
}

impl Requester {
    /// The packets that [`Requester::poll_transmit`] would return next, if they are middle packets
    /// of a message that has begun. The caller reports with [`Requester::sent_segment_run`] how
    /// many it sends. `None` says nothing about other packets.
    pub fn next_segment_run(&mut self, now: Time) -> Option<SegmentRun> {
        let packet = self.cursor.packet;
        if self.service != Service::Rc || packet == 0 || !self.may_poll(now) {
            return None;
        }
        let entry = self.ops.at(self.cursor.op);
        if entry.op.operation.is_read_or_atomic() || !self.has_credit(entry) {
            return None;
        }
        let (first, slot) = (entry.first + packet, entry.op.slot);
        let left = entry.op.length.div_ceil(self.config.mtu).saturating_sub(packet + 1);
        let (room, fills) = self.room_for_segment_run(first);
        let until_asked = self.ask_every.saturating_sub(self.cursor.unasked).max(1);
        let count = left.min(room).min(until_asked);
        let asks = count == until_asked || (count == room && fills);
        (count > 0).then_some(SegmentRun { first, count, asks, slot, offset: packet << self.mtu_shift })
    }

    /// Reports that these packets, which [`Requester::next_segment_run`] has just returned, or the
    /// first of them, were sent. Together they count as returned by [`Requester::poll_transmit`].
    pub fn sent_segment_run(&mut self, now: Time, sent: &SegmentRun) {
        self.note_undo();
        let before = self.cursor;
        self.cursor.unasked = if sent.asks { 0 } else { before.unasked + sent.count };
        self.advance(sent.first - before.packet, before.packet + sent.count, false);
        self.note_sent(now, sent.first + (sent.count - 1), sent.asks, before);
    }
}
