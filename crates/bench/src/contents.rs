//! The contents of messages: bytes that depend on the message, so that a check finds a message that
//! is lost, late, torn or from another queue pair.
//!
//! The last byte is the message's mark, which is never 0. A side that polls memory sees by the mark
//! that a message has arrived. The principal type is [`Pattern`].

use crate::error::{Error, Result};

/// Marks repeat after this many messages.
const MARKS: u64 = 255;

/// The mark of a message.
pub(crate) fn mark(number: u64) -> u8 {
    (number % MARKS) as u8 + 1
}

/// Generates and checks contents, in a reused buffer.
#[derive(Default)]
pub(crate) struct Pattern {
    made: Vec<u8>,
    came: Vec<u8>,
}

impl Pattern {
    /// The contents of a message of queue pair `lane` with this number.
    pub(crate) fn make(&mut self, size: usize, lane: usize, number: u64) -> &[u8] {
        self.made.clear();
        let mut word = (number ^ (lane as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while self.made.len() < size {
            word = word.wrapping_mul(0xd129_42f0_a6c6_4a3d).rotate_left(29).wrapping_add(number);
            let left = size - self.made.len();
            self.made.extend_from_slice(&word.to_le_bytes()[..left.min(8)]);
        }
        if let Some(last) = self.made.last_mut() {
            *last = mark(number);
        }
        &self.made
    }

    /// Checks that `fill` returns these contents.
    pub(crate) fn check(&mut self, size: usize, lane: usize, number: u64, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        self.came.resize(size, 0);
        fill(&mut self.came);
        let came = std::mem::take(&mut self.came);
        let expected = self.make(size, lane, number);
        let differs = (0..size).find(|at| came[*at] != expected[*at]);
        let told = differs.map(|at| {
            Error::Contents(format!(
                "message {number} of queue pair {lane}: byte {at} of {size} is {:#04x} and should be {:#04x}",
                came[at], expected[at]
            ))
        });
        self.came = came;
        told.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::{Pattern, mark};

    #[test]
    fn another_message_shows() {
        let mut pattern = Pattern::default();
        for size in [1, 3, 8, 100] {
            let made = pattern.make(size, 2, 7).to_vec();
            assert_eq!((made.len(), made[size - 1]), (size, mark(7)));
            pattern.check(size, 2, 7, |into| into.copy_from_slice(&made)).expect("the same");
            pattern.check(size, 2, 8, |into| into.copy_from_slice(&made)).expect_err("another number");
        }
        let mut torn = pattern.make(100, 0, 1).to_vec();
        torn[50] ^= 1;
        let told = pattern.check(100, 0, 1, |into| into.copy_from_slice(&torn)).expect_err("torn").to_string();
        assert!(told.contains("byte 50 of 100"), "{told}");
    }

    #[test]
    fn marks_are_never_nothing() {
        assert!((0..1000).all(|number| mark(number) != 0 && mark(number) != mark(number + 1)));
    }
}
