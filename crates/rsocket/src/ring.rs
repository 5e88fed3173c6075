//! A ring of bytes that is filled at one end and emptied at the other, in order: the place for the
//! next bytes, and how many fit. The bytes themselves are elsewhere. An empty ring starts again at
//! offset 0. So a program that sends little uses little memory, and this memory stays in the
//! processor's caches. The principal type is [`Ring`].

/// The place of a range of bytes in a ring: one piece, or two pieces if the range wraps around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pieces {
    /// The first piece: offset and length.
    pub first: (u32, u32),
    /// The length of the second piece, which begins at offset 0. Mostly 0.
    pub second: u32,
}

impl Pieces {
    /// The pieces of `length` bytes from `offset` on in a ring of `size` bytes.
    #[must_use]
    pub fn of(offset: u32, length: u32, size: u32) -> Self {
        let first = length.min(size.saturating_sub(offset));
        Self { first: (offset, first), second: length - first }
    }

    /// The length of both pieces together.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.first.1 + self.second
    }
}

/// Positions in a ring of bytes.
#[derive(Debug, Clone)]
pub struct Ring {
    size: u32,
    head: u32,
    free: u32,
}

impl Ring {
    /// Makes an empty ring.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self { size, head: 0, free: size }
    }

    /// How many bytes fit.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// How many bytes fit if the ring may hold at most `limit` bytes.
    #[must_use]
    pub fn free_within(&self, limit: u32) -> u32 {
        self.free.saturating_sub(self.size.saturating_sub(limit))
    }

    /// The size of the ring in bytes.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Takes space for `length` bytes, but no more than are free.
    pub fn take(&mut self, length: u32) -> Pieces {
        if self.free == self.size {
            self.head = 0;
        }
        let length = length.min(self.free);
        let pieces = Pieces::of(self.head, length, self.size);
        self.free -= length;
        self.head = if pieces.second > 0 {
            pieces.second
        } else if self.head + length == self.size {
            0
        } else {
            self.head + length
        };
        pieces
    }

    /// Frees the oldest bytes.
    pub fn give_back(&mut self, length: u32) {
        self.free = (self.free + length).min(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn a_piece_over_the_end_continues_at_the_start() {
        let mut ring = Ring::new(10);
        assert_eq!(ring.take(7), Pieces { first: (0, 7), second: 0 });
        ring.give_back(5);
        assert_eq!(ring.take(6), Pieces { first: (7, 3), second: 3 });
        assert_eq!(ring.free(), 2);
        assert_eq!(ring.take(9), Pieces { first: (3, 2), second: 0 });
        assert_eq!(ring.take(1).length(), 0);
    }

    #[test]
    fn an_empty_ring_begins_at_its_start() {
        let mut ring = Ring::new(10);
        for length in [3, 10, 1] {
            assert_eq!(ring.take(length), Pieces { first: (0, length), second: 0 });
            ring.give_back(length);
        }
        // The ring does not start again while it holds a byte.
        ring.take(4);
        ring.give_back(3);
        assert_eq!(ring.take(2), Pieces { first: (4, 2), second: 0 });
    }

    #[test]
    fn a_limit_leaves_room_unused() {
        let mut ring = Ring::new(10);
        ring.take(3);
        assert_eq!([0, 3, 4, 9, 10, 11].map(|limit| ring.free_within(limit)), [0, 0, 1, 6, 7, 7]);
    }

    proptest! {
        #[test]
        fn bytes_stay_until_they_are_given_back(size in 1_u32..40, steps in prop::collection::vec(0_u32..50, 0..200)) {
            let mut ring = Ring::new(size);
            let mut memory = vec![None; size as usize];
            let mut oracle = VecDeque::new();
            for (number, step) in steps.into_iter().enumerate() {
                if number % 2 == 0 {
                    let pieces = ring.take(step);
                    let (offset, length) = pieces.first;
                    let places: Vec<u32> = (offset..offset + length).chain(0..pieces.second).collect();
                    prop_assert_eq!(places.len() as u32, pieces.length());
                    for place in places {
                        prop_assert_eq!(memory[place as usize], None);
                        memory[place as usize] = Some(number);
                        oracle.push_back(place);
                    }
                } else {
                    let length = step.min(oracle.len() as u32);
                    for place in oracle.drain(..length as usize) {
                        memory[place as usize] = None;
                    }
                    ring.give_back(length);
                }
                prop_assert_eq!(ring.free() as usize, size as usize - oracle.len());
            }
        }
    }
}
