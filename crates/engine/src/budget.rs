//! Bytes that all parts of an engine may use together. Principal types: [`Budget`] and [`Share`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// At most `MOST` bytes, and how many of them are in use.
#[derive(Default)]
pub(crate) struct Budget<const MOST: usize>(AtomicUsize);

impl<const MOST: usize> Budget<MOST> {
    /// Takes bytes, if so many are left.
    fn take(&self, bytes: usize) -> bool {
        let taken = |all: usize| all.checked_add(bytes).filter(|all| *all <= MOST);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// How many bytes are in use.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes of a budget. They are given back when it is dropped.
pub(crate) struct Share<const MOST: usize> {
    budget: Arc<Budget<MOST>>,
    bytes: usize,
}

impl<const MOST: usize> Share<MOST> {
    /// Takes bytes of a budget, if so many are left.
    pub(crate) fn of(budget: &Arc<Budget<MOST>>, bytes: usize) -> Option<Self> {
        budget.take(bytes).then(|| Self { budget: Arc::clone(budget), bytes })
    }

    /// How many bytes it is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more bytes of the same budget; returns false if not so many are left.
    pub(crate) fn extend(&mut self, bytes: usize) -> bool {
        let more = self.budget.take(bytes);
        if more {
            self.bytes += bytes;
        }
        more
    }
}

impl<const MOST: usize> Drop for Share<MOST> {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_limited_together_and_give_back_what_they_took() {
        let budget = Arc::<Budget<100>>::default();
        let mut one = Share::of(&budget, 60).expect("60 of 100");
        assert!(Share::of(&budget, 41).is_none() && Share::of(&budget, usize::MAX).is_none());
        assert!(!one.extend(41) && one.extend(10));
        let other = Share::of(&budget, 30).expect("the rest");
        assert_eq!((one.bytes(), other.bytes(), budget.used()), (70, 30, 100));
        drop(one);
        assert_eq!(budget.used(), 30);
        drop(other);
        assert_eq!(budget.used(), 0);
    }
}
