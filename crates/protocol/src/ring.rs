//! The send operations of one queue pair, oldest to newest. Each operation has a running number
//! that wraps. The requester keeps the positions, the ring keeps the operations. The first post
//! allocates memory. The memory doubles while the queue fills, up to the depth. So an idle or
//! little used queue pair stays small. Principal type: [`Ring`].

use crate::operation::SendOp;
use wire::Psn;

/// Entries that the first post allocates.
const FIRST: u32 = 8;

/// An operation. Once it has begun, also the number of its first packet, and its message number,
/// counted from 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) op: SendOp,
    pub(crate) first: Psn,
    pub(crate) number: u32,
}

#[derive(Debug)]
pub(crate) struct Ring {
    /// Its length is 0 or a power of two.
    entries: Box<[Entry]>,
    depth: u32,
}

impl Ring {
    pub(crate) fn new(depth: u32) -> Ring {
        Ring { entries: Box::default(), depth }
    }

    fn capacity(&self) -> u32 {
        // At most the next power of two of a u32 depth, see `grow`.
        self.entries.len() as u32
    }

    /// Puts `op` at `head`. `tail` is the oldest entry in use. Returns false if the queue is full.
    #[inline]
    pub(crate) fn put(&mut self, tail: u32, head: u32, op: SendOp) -> bool {
        let used = head.wrapping_sub(tail);
        if used >= self.depth {
            return false;
        }
        if used == self.capacity() {
            self.grow(tail, head);
        }
        *self.at_mut(head) = Entry { op, ..Entry::default() };
        true
    }

    #[cold]
    fn grow(&mut self, tail: u32, head: u32) {
        let capacity = (self.capacity() * 2).max(FIRST);
        let mut larger = Ring { entries: vec![Entry::default(); capacity as usize].into(), depth: self.depth };
        let mut index = tail;
        while index != head {
            *larger.at_mut(index) = *self.at(index);
            index = index.wrapping_add(1);
        }
        *self = larger;
    }

    /// The entry with a number that was put and is still in use.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &Entry {
        let mask = self.entries.len() - 1;
        &self.entries[index as usize & mask]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut Entry {
        let mask = self.entries.len() - 1;
        &mut self.entries[index as usize & mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(slot: u32) -> SendOp {
        SendOp { slot, ..SendOp::default() }
    }

    #[test]
    fn grows_with_what_is_in_it_and_stops_at_the_depth() {
        let mut ring = Ring::new(20);
        assert_eq!(ring.capacity(), 0, "nothing before the first post");
        let (mut tail, mut head) = (u32::MAX - 5, u32::MAX - 5);
        // Entries keep their numbers while the ring grows, also across the wrap of the numbers.
        for round in 0..1000u32 {
            while ring.put(tail, head, op(head)) {
                head = head.wrapping_add(1);
            }
            assert_eq!(head.wrapping_sub(tail), 20);
            for _ in 0..1 + round % 20 {
                assert_eq!(ring.at(tail).op.slot, tail);
                tail = tail.wrapping_add(1);
            }
        }
        assert_eq!(ring.capacity(), 32);
    }
}
