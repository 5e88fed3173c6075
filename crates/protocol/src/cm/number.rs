//! Our communication ids: index and generation, mixed so that a peer that knows some ids cannot
//! guess another. This is a small 32-bit cipher. It does not protect against somebody who reads the
//! packets. Principal type: [`Numbers`].

/// Bits of a number that are the index; the rest are the low bits of the generation.
pub(super) const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Turns an index and a generation into a number, and back.
#[derive(Debug)]
pub(super) struct Numbers {
    keys: [u16; 4],
}

impl Numbers {
    /// Creates the numbers of this secret.
    pub(super) fn new(secret: u64) -> Numbers {
        let [a, b, c, d, e, f, g, h] = secret.to_be_bytes();
        Numbers { keys: [[a, b], [c, d], [e, f], [g, h]].map(u16::from_be_bytes) }
    }

    /// The number for an index and a generation.
    pub(super) fn number(&self, index: u32, generation: u32) -> u32 {
        let plain = generation << INDEX_BITS | index & INDEX_MASK;
        let (left, right) =
            self.keys.iter().fold(halves(plain), |(left, right), key| (right, left ^ scatter(right, *key)));
        u32::from(left) << 16 | u32::from(right)
    }

    /// The index in a number, if it is one of ours.
    pub(super) fn index(&self, number: u32) -> u32 {
        let round = |(left, right): (u16, u16), key: &u16| (right ^ scatter(left, *key), left);
        let (left, right) = self.keys.iter().rev().fold(halves(number), round);
        (u32::from(left) << 16 | u32::from(right)) & INDEX_MASK
    }
}

fn halves(word: u32) -> (u16, u16) {
    let [a, b, c, d] = word.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// A function of half a number and a key that looks random.
fn scatter(half: u16, key: u16) -> u16 {
    let word = (u32::from(half ^ key) | u32::from(key) << 16).wrapping_mul(0x9e37_79b1);
    let word = (word ^ word >> 15).wrapping_mul(0x85eb_ca77);
    halves(word ^ word >> 13).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_index_and_they_look_like_chance() {
        let numbers = Numbers::new(0x1234_5678_9abc_def0);
        let mut seen = std::collections::HashSet::new();
        let mut differences = std::collections::HashSet::new();
        for generation in 0..4 {
            for index in (0..1 << INDEX_BITS).step_by(97) {
                let number = numbers.number(index, generation);
                assert_eq!(numbers.index(number), index);
                assert!(seen.insert(number));
                differences.insert(number ^ numbers.number(index ^ 1, generation));
            }
        }
        assert!(differences.len() > seen.len() / 2, "the next number follows from this one");
        assert_ne!(Numbers::new(1).number(5, 0), numbers.number(5, 0));
    }
}
