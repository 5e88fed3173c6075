//! The wake word: one word per sleeper, in a region that only the sleeper can write. It tells
//! posters whether they must wake the sleeper. It does not wake anybody itself: [`crate::Notifier`]
//! does. Principal types: [`WakeWord`] and [`WakeWordView`].
//!
//! The protocol, for any number of posters and lanes:
//!
//! ```text
//! poster                               sleeper
//! push the record                      arm()
//! poster_fence()                       sleeper_barrier()
//! armed()? notify           look at all rings once more: something there? disarm() and work
//!                                      sleep on the notifier; disarm()
//! ```
//!
//! Either the poster sees the word armed, or the sleeper's last check sees the record. This needs a
//! full barrier on both sides. Posts are frequent and sleeps are rare. So the sleeper's
//! membarrier(2) executes the barrier for the posters, in every process that has registered. A
//! process that could not register executes a fence in each post instead.
//!
//! For a sleeper that often sleeps for a short time this costs too much, because the system call
//! interrupts every processor that runs one of those processes. Such a sleeper sets a bit in the
//! word: the word is *fenced*. After one more barrier every poster sees the bit, executes its own
//! fence and checks again. From then on the sleeper, too, needs only a fence
//! ([`crate::sleeper_fence`]).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::memory::{Memory, Window};
use crate::region::Region;

/// Length of a wake word's region: a page.
pub const WAKE_WORD_LEN: usize = 4096;

const WORD: usize = 0;

/// Set while the sleeper sleeps or is about to sleep.
const ARMED: u32 = 1;
/// Set while posters must execute their own fence.
const FENCED: u32 = 2;
/// The bits from here up are the number of the arming.
const ARMING: u32 = 4;

/// The sleeper's word. An odd value means armed. Every arming has its own number, so that a poster
/// notifies only once for each arming.
#[derive(Debug)]
pub struct WakeWord<M: Memory = Window> {
    memory: M,
}

impl WakeWord {
    /// Creates a disarmed wake word, and the memfd with which other processes can read but not
    /// write it.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (region, fd) = Region::create_published("softhca-wake-word", WAKE_WORD_LEN)?;
        Ok((Self::in_memory(Window::new(Arc::new(region), 0, WAKE_WORD_LEN)), fd))
    }
}

impl<M: Memory> WakeWord<M> {
    pub(crate) fn in_memory(memory: M) -> Self {
        Self { memory }
    }

    /// Asks posters to wake the sleeper from now on; returns the new word, which is odd. Call
    /// [`crate::sleeper_barrier`] next, or [`crate::sleeper_fence`] if posters know that the
    /// word is fenced, and then check all rings once more.
    pub fn arm(&self) -> u32 {
        // Relaxed: the barrier or fence that follows orders the store.
        self.memory.update(WORD, |word| word.wrapping_add(ARMING) | ARMED)
    }

    /// Tells posters that the sleeper is awake.
    pub fn disarm(&self) {
        // Relaxed: a poster that still sees the word armed notifies once too often, which is
        // harmless.
        self.memory.update(WORD, |word| word & !ARMED);
    }

    /// Whether the wake word is armed.
    pub fn is_armed(&self) -> bool {
        // Relaxed: only this side writes the word.
        self.memory.load(WORD, Ordering::Relaxed) & ARMED != 0
    }

    /// Sets or clears the fenced bit. Posters see the change after the next
    /// [`crate::sleeper_barrier`].
    pub fn set_fenced(&self, fenced: bool) {
        // Relaxed: the barrier orders the store.
        self.memory.update(WORD, |word| if fenced { word | FENCED } else { word & !FENCED });
    }
}

/// A poster's view of a sleeper's wake word.
#[derive(Debug)]
pub struct WakeWordView<M: Memory = Window> {
    memory: M,
}

impl WakeWordView {
    /// Maps the memfd of a [`WakeWord`].
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let region = Region::map_read_only(fd, WAKE_WORD_LEN)?;
        Ok(Self::of_memory(Window::new(Arc::new(region), 0, WAKE_WORD_LEN)))
    }
}

impl<M: Memory> WakeWordView<M> {
    pub(crate) fn of_memory(memory: M) -> Self {
        Self { memory }
    }

    /// Returns the word if it is armed. Call it after pushing and [`crate::poster_fence`].
    #[inline]
    pub fn armed(&self) -> Option<u32> {
        // Relaxed: `poster_fence` orders it.
        let word = self.memory.load(WORD, Ordering::Relaxed);
        if word & (ARMED | FENCED) == 0 { None } else { self.is_armed_after_all(word) }
    }

    #[cold]
    fn is_armed_after_all(&self, word: u32) -> Option<u32> {
        let word = if word & FENCED == 0 {
            word
        } else {
            // Pairs with `sleeper_fence`: the first load may have come before the push became
            // visible; the second load comes after it.
            self.memory.fence();
            self.memory.load(WORD, Ordering::Relaxed)
        };
        (word & ARMED != 0).then_some(word & !FENCED)
    }
}
