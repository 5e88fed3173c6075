//! Packets of the middle of a message, on their way out: of what [`Requester::poll_transmit`] says about each, only the number, the place
//! and the wish for an acknowledgement change from one to the next. Principal type: [`Middle`].

use crate::{Requester, Service, Time};
use wire::Psn;

/// A packet of the middle of a message: as long as the MTU, and nothing of a first or last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Middle {
    /// Its number.
    pub psn: Psn,
    /// Whether it asks for an acknowledgement.
    pub ack_req: bool,
    /// The caller's name for the request.
    pub slot: u32,
    /// Where in the message its payload begins.
    pub offset: u32,
}

impl Requester {
    /// What [`Requester::poll_transmit`] would return, if that is a packet of the middle of a message that has begun; it counts as returned
    /// by that. `None` says nothing about other packets.
    pub fn poll_middle(&mut self, now: Time) -> Option<Middle> {
        let packet = self.cursor.packet;
        if self.service != Service::Rc || packet == 0 || !self.may_poll(now) {
            return None;
        }
        let entry = self.ops.at(self.cursor.op);
        let (first, slot, offset) = (entry.first, entry.op.slot, packet << self.mtu_shift);
        let is_middle = !entry.op.operation.is_read_or_atomic() && entry.op.length - offset > self.config.mtu;
        if !is_middle || !self.fits_window(entry) || !self.has_credit(entry) {
            return None;
        }
        self.note_undo();
        let before = self.cursor;
        let psn = first + packet;
        self.cursor.unasked += 1;
        let ack_req = self.must_ask(psn);
        if ack_req {
            self.cursor.unasked = 0;
        }
        self.advance(first, packet + 1, false);
        self.note_sent(now, psn, ack_req, before);
        Some(Middle { psn, ack_req, slot, offset })
    }
}
