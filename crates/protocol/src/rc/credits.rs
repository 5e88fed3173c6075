//! End-to-end credits, sending side: a responder may say in each acknowledgement how many messages more would find a receive request. Adds to
//! [`Requester`]. IBA 9.7.7.2.
//!
//! Messages are numbered as they are begun. Who has completed `msn` of them and has receive requests for so many more takes those up to
//! their sum, the limit; what needs no receive request goes whatever it is. A message beyond the limit is sent all the same, but *limited*:
//! when everything before it is answered, and at first one packet of it, which asks. So nothing ever stops, and a receiver that is not ready gets
//! one packet in vain, not a window of them. Our own responders say nothing about credits (code 31), for what they have is asked of
//! a program's memory at the last moment; and while nobody says anything there is no limit.

use crate::ring::Entry;
use crate::{Operation, Requester};
use wire::{Headers, Syndrome, aeth};

/// Numbers of messages have so many bits.
const BITS: u32 = 24;

impl Requester {
    /// The messages that an operation is: a READ is one for each of its pieces.
    pub(crate) fn messages(&self, entry: &Entry) -> u32 {
        match entry.op.operation {
            operation if operation.is_local() => 0,
            Operation::Read if self.config.read_piece > 0 => self.packets(&entry.op).div_ceil(self.config.read_piece),
            _ => 1,
        }
    }

    /// An answer that is not a ghost, or that repeats the last one, says how far messages may go.
    pub(super) fn note_credits(&mut self, headers: &Headers) {
        let Syndrome::Ack(code) = headers.aeth.syndrome else { return };
        if !headers.opcode.has_aeth() {
            return;
        }
        let Some(credits) = aeth::credits(code) else {
            self.rc.limit = None;
            return;
        };
        let limit = headers.aeth.msn.wrapping_add(credits);
        // Codes are rounded down, so a later limit may look smaller. What was promised stays.
        if self.rc.limit.is_none_or(|before| is_beyond(limit, before)) {
            self.rc.limit = Some(limit);
        }
    }

    /// Whether the next packet of `entry` would find a receive request, for all that is known.
    pub(crate) fn has_credit(&self, entry: &Entry) -> bool {
        let Some(limit) = self.rc.limit else { return true };
        let takes = matches!(
            entry.op.operation,
            Operation::Send | Operation::SendImm | Operation::SendInv | Operation::WriteImm
        );
        // Of a message that has begun to arrive the rest will.
        !takes || !is_beyond(entry.number, limit) || entry.first.is_before(self.rc.unacked)
    }

    /// Whether it may be sent: with a credit, or limited.
    pub(crate) fn may_carry(&self, entry: &Entry) -> bool {
        self.rc.limit.is_none() || entry.first + self.cursor.packet == self.rc.unacked || self.has_credit(entry)
    }
}

/// Whether message `a` comes after message `b`.
fn is_beyond(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b) << (u32::BITS - BITS);
    ahead.cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::is_beyond;

    #[test]
    fn message_numbers_wrap() {
        assert!(is_beyond(1, 0) && !is_beyond(0, 0) && !is_beyond(0, 1));
        assert!(is_beyond(3, 0xff_ffff) && !is_beyond(0xff_ffff, 3));
        assert!(is_beyond(0x100_0000, 0xff_ffff), "whoever counts on beyond 24 bits");
    }
}
