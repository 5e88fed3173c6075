//! The window of a reliable requester: how many packets may be under way, and when the requester
//! must request an acknowledgement in order to continue. Packet numbers are counted, from the
//! oldest one without an answer up to the cursor. The answers to a READ are under way as soon as
//! they are requested. The caller, which knows the path, sets the window. Adds to [`Requester`].
//!
//! A window never stops a requester for good. With nothing under way, the next packet or piece is
//! always admitted. The packet that fills the window requests an acknowledgement. If the window
//! becomes smaller later, the last packets under way may not have requested one. Then one more
//! packet is admitted, which requests an acknowledgement.
//!
//! On a shared path, the packets of other requesters may keep a requester from sending that packet.
//! So there, every packet at the end of the window requests an acknowledgement. On a path of its
//! own, a requester that awaits an answer does not request another one.

use crate::operation::Operation;
use crate::requester::Requester;
use crate::ring::Entry;
use wire::Psn;

/// How often to request an acknowledgement if the caller does not say: long messages free the
/// window as they go.
const ASK_EVERY: u32 = 32;

impl Requester {
    /// RC: sets how many packets may be under way, including the answers to READs. At least one
    /// packet or piece always may. The maximum is half of all numbers, because answers must be told
    /// apart.
    pub fn set_window(&mut self, packets: u32) {
        self.window = packets.clamp(1, Psn::WINDOW);
        let wanted = if self.config.ack_every == 0 { ASK_EVERY } else { self.config.ack_every };
        self.ask_every = wanted.min(self.window.div_ceil(4));
        self.is_exclusive = false;
    }

    /// Like [`Requester::set_window`], for the only requester on a path that takes `whole` packets:
    /// at most `packets` may be under way now. Each answer costs both sides a call. So the
    /// requester requests only as many as keep the path full.
    pub fn set_exclusive_window(&mut self, packets: u32, whole: u32) {
        self.set_window(packets);
        if self.config.ack_every == 0 {
            self.ask_every = (whole / 4).clamp(1, Psn::WINDOW / 4);
        }
        self.is_exclusive = true;
    }

    /// RC: packets that are sent or requested, and not answered. Packets that are to be
    /// retransmitted do not count.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        if !self.service.is_reliable() || self.is_stopped() {
            return 0;
        }
        let begun = self.cursor.op != self.cursor.started;
        let next = if begun { self.ops.at(self.cursor.op).first + self.cursor.packet } else { self.cursor.high };
        next - self.rc.unacked
    }

    /// Retransmissions because a packet, or its answer, was lost. Only goes up (and wraps).
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// Whether the window has room for the next packet of `entry`, or for the answer that it
    /// requests.
    pub(crate) fn fits_window(&self, entry: &Entry) -> bool {
        let (op, packet) = (&entry.op, self.cursor.packet);
        let takes = if op.operation == Operation::Read { self.piece_end(op, packet) - packet } else { 1 };
        let under_way = entry.first + packet - self.rc.unacked;
        // The last packets under way have not requested an acknowledgement. If no other packet was
        // under way, no answer would ever come.
        let none_requested = under_way <= self.cursor.since_ack_req;
        under_way + takes <= if none_requested { Psn::WINDOW } else { self.window() }
    }

    /// SEND and WRITE: how many packets from `psn` on fit into the window, and whether the packet
    /// that fills it must request an acknowledgement.
    #[inline(always)]
    pub(crate) fn room(&self, psn: Psn) -> (u32, bool) {
        let under_way = psn - self.rc.unacked;
        // An answer is already awaited. When it comes, the requester can request the next one.
        let is_ack_due = self.is_exclusive && self.cursor.since_ack_req < under_way;
        // If no packet under way has requested an acknowledgement, one more packet may.
        let least = u32::from(under_way <= self.cursor.since_ack_req && under_way < Psn::WINDOW);
        (self.window().saturating_sub(under_way).max(least), !is_ack_due)
    }

    /// While probing, the window is one packet.
    #[inline]
    fn window(&self) -> u32 {
        if self.rc.probing { 1 } else { self.window }
    }

    /// Whether the responder can remember one more atomic or piece of a READ.
    pub(crate) fn may_ask(&self) -> bool {
        // An operation that has begun may end even if the limit was set to 0 meanwhile.
        self.cursor.reads < u32::from(self.config.max_rd_atomic).max(1)
    }
}
