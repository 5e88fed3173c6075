//! End-to-end credits, sending side: in each acknowledgement, a responder may say how many more
//! messages would find a receive request. Adds to [`Requester`]. softhca's responders send no
//! credits. IBA 9.7.7.2.
//!
//! Messages are numbered as they begin. A responder that has completed `msn` messages and has `n`
//! receive requests takes messages up to `msn + n`, the limit. Messages that need no receive
//! request are not limited. The requester also sends a message beyond the limit, but *limited*: the
//! message waits until everything before it is answered. Then only one packet is sent, which
//! requests an acknowledgement. So a queue never stops for good, and a receiver that is not ready
//! gets one useless packet instead of a whole window. softhca's responders use code 31, no credits,
//! because the executor looks for a receive request only when it carries out the message. While no
//! credits arrive, there is no limit.

use crate::operation::Operation;
use crate::requester::Requester;
use crate::ring::Entry;
use wire::{Headers, Syndrome, aeth};

/// Bits of a message number.
const BITS: u32 = 24;

impl Requester {
    /// The number of messages in an operation that has packets. Each piece of a READ is one
    /// message.
    #[inline]
    pub(crate) fn messages(&self, entry: &Entry) -> u32 {
        match entry.op.operation {
            Operation::Read if self.config.read_piece > 0 => self.packets(&entry.op).div_ceil(self.config.read_piece),
            _ => 1,
        }
    }

    /// Reads the credits in a response. The caller passes no ghost answers, except a repetition of
    /// the last answer.
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
        // Codes are rounded down, so a later limit may look smaller. An earlier promise stays
        // valid.
        if self.rc.limit.is_none_or(|before| is_beyond(limit, before)) {
            self.rc.limit = Some(limit);
        }
    }

    /// Whether the next packet of `entry` would find a receive request, as far as is known.
    #[inline]
    pub(crate) fn has_credit(&self, entry: &Entry) -> bool {
        let Some(limit) = self.rc.limit else { return true };
        let takes = matches!(
            entry.op.operation,
            Operation::Send | Operation::SendImm | Operation::SendInv | Operation::WriteImm
        );
        // If the beginning of a message has arrived, the rest will find its receive request.
        !takes || !is_beyond(entry.number, limit) || entry.first.is_before(self.rc.unacked)
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
