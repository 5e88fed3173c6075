//! How much of the send ring is used. If sender and receiver run at the same time, a small part is
//! faster, because the same memory stays in the processor's caches. If they share a processor, each
//! time slice moves as much data as is used, so a large part is faster. The time that a sender
//! waits for room shows which case it is. The principal type is [`Window`].
//!
//! A large window makes waits long by itself, so long waits do not show when the programs stop
//! sharing a processor. After [`TRIAL`] long waits, the window starts again with the least size.

/// The size that is used at first, and the least size.
pub const LEAST: u32 = 1 << 17;
/// The number of long waits with the whole ring after which a smaller window is tried again.
pub const TRIAL: u32 = 64;

/// How many bytes of a ring may be used.
#[derive(Debug, Clone)]
pub struct Window {
    limit: u32,
    size: u32,
    /// The number of long waits with the whole ring.
    long: u32,
}

impl Window {
    /// Makes a window for a ring of this size.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self { limit: LEAST.min(size), size, long: 0 }
    }

    /// The number of bytes that may be used.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Notes that a thread has waited for room. `long`: it waited longer than a running receiver
    /// needs.
    pub fn waited(&mut self, long: bool) {
        let least = LEAST.min(self.size);
        if !long {
            self.limit = (self.limit / 2).max(least);
        } else if self.limit < self.size {
            self.limit = self.limit.saturating_mul(2).min(self.size);
        } else {
            self.long += 1;
            if self.long >= TRIAL {
                self.limit = least;
            }
        }
        if self.limit < self.size {
            self.long = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_widen_it_and_short_ones_narrow_it() {
        let mut window = Window::new(LEAST * 3);
        let mut after = |long| (window.waited(long), window.limit()).1;
        assert_eq!([true, true, true].map(&mut after), [LEAST * 2, LEAST * 3, LEAST * 3]);
        assert_eq!([false, false, false].map(&mut after), [LEAST * 3 / 2, LEAST, LEAST]);
    }

    #[test]
    fn after_many_long_waits_less_is_tried() {
        let mut window = Window::new(LEAST * 2);
        for _ in 0..3 {
            window.waited(true);
            for _ in 0..TRIAL {
                assert_eq!(window.limit(), LEAST * 2);
                window.waited(true);
            }
            assert_eq!(window.limit(), LEAST);
        }
    }

    #[test]
    fn a_small_ring_is_used_whole() {
        let mut window = Window::new(3000);
        for long in [true, false, true] {
            window.waited(long);
            assert_eq!(window.limit(), 3000);
        }
    }
}
