//! How much a reliable requester has under way, and when it must ask for an acknowledgement so that it gets on. What is counted
//! are packet numbers, from the oldest without an answer up to the cursor: the answers to a READ are under way as soon as they are
//! asked for. Whoever knows the path sets the window. Adds to [`Requester`].
//!
//! A window never stops a requester for good. With nothing under way the next packet or piece is always admitted; the packet that
//! fills the window asks for an acknowledgement; and should the window be made smaller meanwhile, one more packet is admitted to
//! ask, for as long as nobody has asked for the end of what is under way. Where a path is shared, what others have under way may keep a requester
//! from sending that packet, so that it has to ask for its end each time; where it is alone, it waits for the answer to what it has asked for before.

use crate::ring::Entry;
use crate::{Operation, Requester};
use wire::Psn;

/// How often to ask when the caller does not care: long messages free the window as they go.
const ASK_EVERY: u32 = 32;

impl Requester {
    /// RC: at most so many packets may be under way from now on, the answers to READs included. At least one packet or piece
    /// always may. Half of the numbers is the most there is, for the answers must be told apart.
    pub fn set_window(&mut self, packets: u32) {
        self.window = packets.clamp(1, Psn::WINDOW);
        let wanted = if self.config.ack_every == 0 { ASK_EVERY } else { self.config.ack_every };
        self.ask_every = wanted.min(self.window.div_ceil(4));
        self.alone = false;
    }

    /// The same for who is alone on a path that takes `whole` packets: at most `packets` now. Since each answer costs both sides a call, it asks only
    /// so often that the path stays full.
    pub fn set_window_alone(&mut self, packets: u32, whole: u32) {
        self.set_window(packets);
        if self.config.ack_every == 0 {
            self.ask_every = (whole / 4).clamp(1, Psn::WINDOW / 4);
        }
        self.alone = true;
    }

    /// RC: packets that are sent, or asked for, and not answered. What is to be sent again does not count.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        if !self.service.is_reliable() || self.is_stopped() {
            return 0;
        }
        let begun = self.cursor.op != self.cursor.started;
        let next = if begun { self.ops.at(self.cursor.op).first + self.cursor.packet } else { self.cursor.high };
        next - self.rc.unacked
    }

    /// How often something was sent again because it, or its answer, was lost. Only ever goes up (and wraps).
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// Whether the next packet of `entry`, or the answer that it asks for, may be under way too.
    pub(crate) fn fits_window(&self, entry: &Entry) -> bool {
        let (op, packet) = (&entry.op, self.cursor.packet);
        let takes = if op.operation == Operation::Read { self.piece_end(op, packet) - packet } else { 1 };
        let under_way = entry.first + packet - self.rc.unacked;
        // Nobody asked for the last packets: with nothing else under way, nothing would ever be heard.
        let unheard = under_way <= self.cursor.unasked;
        under_way + takes <= if unheard { Psn::WINDOW } else { self.window() }
    }

    /// Whether the packet `psn` of a SEND or WRITE must ask for an acknowledgement, wherever in its message it is.
    pub(crate) fn must_ask(&self, psn: Psn) -> bool {
        let under_way = psn + 1 - self.rc.unacked;
        // An answer to something that is under way, and with it the next chance to ask, is awaited.
        let is_heard = self.alone && self.cursor.unasked < under_way;
        self.cursor.unasked >= self.ask_every || (under_way >= self.window() && !is_heard)
    }

    /// For how many packets from `psn` on the window has room, and whether the one that fills it must ask for an acknowledgement.
    pub(crate) fn room_for_segment_run(&self, psn: Psn) -> (u32, bool) {
        let under_way = psn - self.rc.unacked;
        let is_heard = self.alone && self.cursor.unasked < under_way;
        // Where nobody asked for what is under way, one more may.
        let least = u32::from(under_way <= self.cursor.unasked && under_way < Psn::WINDOW);
        (self.window().saturating_sub(under_way).max(least), !is_heard)
    }

    /// While probing, one packet is enough.
    fn window(&self) -> u32 {
        if self.rc.probing { 1 } else { self.window }
    }

    /// Whether the responder can remember one more atomic, or piece of a READ.
    pub(crate) fn may_ask(&self) -> bool {
        // What has begun may end even if the limit was set to nothing meanwhile.
        self.cursor.reads < u32::from(self.config.max_rd_atomic).max(1)
    }
}
