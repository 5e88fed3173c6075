//! Free-running indices of a ring whose size need not be a power of two. The ring's memory is not
//! here. Principal type: [`Wheel`].
//!
//! An index wraps so that index modulo size remains the slot: at the end of the word for powers of
//! two, otherwise at the largest multiple of the size that fits the word. A full ring differs from
//! an empty one. The constructor precomputes what would need divisions.

/// The arithmetic of one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wheel {
    size: u32,
    wrap: u32,
    /// `size - 1`, if the size is a power of two.
    mask: Option<u32>,
}

impl Wheel {
    pub(crate) fn new(size: u32) -> Self {
        // 0 stands for 2^32, where powers of two wrap.
        let wrap = if size.is_power_of_two() { 0 } else { u32::MAX.checked_div(size).unwrap_or(0) * size };
        Self { size, wrap, mask: size.is_power_of_two().then(|| size - 1) }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The slot of `index`.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> usize {
        match self.mask {
            Some(mask) => (index & mask) as usize,
            None => (index % self.size) as usize,
        }
    }

    /// The index after `index`.
    #[inline]
    pub(crate) fn next(&self, index: u32) -> u32 {
        let next = index.wrapping_add(1);
        if next == self.wrap { 0 } else { next }
    }

    /// The number of indices in `[from, to)`.
    #[inline]
    pub(crate) fn between(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.wrap.wrapping_sub(from).wrapping_add(to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_each_other_over_the_wrap() {
        for size in [1, 2, 3, 7, 8, 1000, 4096] {
            let wheel = Wheel::new(size);
            let mut index = wheel.wrap.wrapping_sub(size + 1);
            let mut slot = wheel.slot(index);
            for _ in 0..2 * size + 3 {
                let next = wheel.next(index);
                assert_eq!(wheel.slot(next), (slot + 1) % size as usize, "size {size}");
                assert_eq!(wheel.between(index, next), 1);
                (index, slot) = (next, wheel.slot(next));
            }
        }
    }

    #[test]
    fn a_full_ring_is_not_an_empty_one() {
        for size in [3, 4] {
            let wheel = Wheel::new(size);
            let from = wheel.wrap.wrapping_sub(2);
            let to = (0..size).fold(from, |index, _| wheel.next(index));
            assert_eq!((wheel.between(from, to), wheel.between(from, from)), (size, 0));
        }
    }
}
