//! How much of the send ring is used. Where sender and receiver run at the same time, little of it is faster: the same memory again and
//! again, which the processor's caches hold. Where they take turns on a processor, each turn moves as much as is used, and more is
//! faster. Who waits for room finds out which it is by how long that takes. The principal type is [`Window`].
//!
//! A large window makes waits long by itself, and so they do not tell when turns are over: after [`TRIAL`] of them it begins anew.

/// What is used at first, and at least.
pub const LEAST: u32 = 1 << 17;
/// After so many long waits with all of the ring it is found out anew whether less will do.
pub const TRIAL: u32 = 64;

/// How many bytes of a ring may be used.
#[derive(Debug, Clone)]
pub struct Window {
    limit: u32,
    size: u32,
    /// Long waits with all of the ring.
    long: u32,
}

impl Window {
    /// For a ring of this size.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self { limit: LEAST.min(size), size, long: 0 }
    }

    /// The bytes.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Somebody has waited for room: for longer than a receiver needs that runs, or not.
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
