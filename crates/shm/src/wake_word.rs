//! The wake word: one word per sleeper, in a region that only the sleeper can write, by which posters learn whether it has to
//! be woken. It does not wake anybody: that is [`crate::Notifier`]. Principal types: [`WakeWord`] and [`WakeWordView`].
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
//! Either the poster sees the word armed, or the sleeper's last look sees the record. That takes a full barrier on both
//! sides; since posts are many and sleeps are few, the sleeper's membarrier(2) executes the poster's barrier for it, in
//! every process that has registered. A process that could not register pays for a fence with each post instead.
//!
//! A sleeper that sleeps again and again for moments pays too much that way, for the system call interrupts every processor that runs one of
//! those processes. It says so in the word: it is *restless*. Once a barrier has followed that, every poster sees it, makes a fence of its own
//! and looks again; then a fence is all that the sleeper needs as well ([`sleeper_fence`]).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::memory::{Memory, Window};
use crate::region::Region;

/// Bytes of a wake word's region: a page.
pub const WAKE_WORD_LEN: usize = 4096;

const WORD: usize = 0;

/// The sleeper is about to sleep, or sleeps.
const ARMED: u32 = 1;
/// Posters make a fence of their own.
const RESTLESS: u32 = 2;
/// What is above is the number of the arming.
const ARMING: u32 = 4;

/// The sleeper's word. Odd means armed; every arming has a number of its own, so that a poster needs to notify only once for it.
#[derive(Debug)]
pub struct WakeWord<M: Memory = Window> {
    memory: M,
}

impl WakeWord {
    /// Makes a disarmed wake word, and the memfd by which others can look at it but not write it.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (region, fd) = Region::create_published("softhca-wake-word", WAKE_WORD_LEN)?;
        Ok((Self::in_memory(Window::new(Arc::new(region), 0, WAKE_WORD_LEN)), fd))
    }
}

impl<M: Memory> WakeWord<M> {
    pub(crate) fn in_memory(memory: M) -> Self {
        Self { memory }
    }

    /// Asks to be woken from now on; returns the new word, which is odd. Follow with [`sleeper_barrier`], or [`sleeper_fence`] where posters
    /// know us as restless, and a last look.
    pub fn arm(&self) -> u32 {
        // Relaxed: what follows orders it.
        self.memory.update(WORD, |word| word.wrapping_add(ARMING) | ARMED)
    }

    /// Takes the wish back: we are awake.
    pub fn disarm(&self) {
        // Relaxed: a poster that still sees the word armed notifies once too often, which is harmless.
        self.memory.update(WORD, |word| word & !ARMED);
    }

    /// Whether we have asked to be woken.
    pub fn is_armed(&self) -> bool {
        // Relaxed: the word is ours.
        self.memory.load(WORD, Ordering::Relaxed) & ARMED != 0
    }

    /// Says whether we are restless. Posters know when a [`sleeper_barrier`] has followed.
    pub fn set_restless(&self, restless: bool) {
        // Relaxed: the barrier orders it.
        self.memory.update(WORD, |word| if restless { word | RESTLESS } else { word & !RESTLESS });
    }
}

/// A poster's view of somebody's wake word.
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

    /// The word, if the sleeper wants to be woken. Ask after pushing and [`poster_fence`].
    #[inline]
    pub fn armed(&self) -> Option<u32> {
        // Relaxed: `poster_fence` orders it.
        let word = self.memory.load(WORD, Ordering::Relaxed);
        if word & (ARMED | RESTLESS) == 0 { None } else { self.is_armed_after_all(word) }
    }

    #[cold]
    fn is_armed_after_all(&self, word: u32) -> Option<u32> {
        let word = if word & RESTLESS == 0 {
            word
        } else {
            // Pairs with `sleeper_fence`: the first look came before the push could be seen, maybe; this one does not.
            self.memory.fence();
            self.memory.load(WORD, Ordering::Relaxed)
        };
        (word & ARMED != 0).then_some(word & !RESTLESS)
    }
}

/// Has this process asked the kernel to execute its posters' fences? A fact about the process, hence a static.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process, so that its [`poster_fence`] costs nothing. Call before the first post; again after a fork.
/// Returns whether it worked; if not, everything still does, only slower.
pub fn register_barrier() -> bool {
    let registered = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
    REGISTERED.store(registered, Ordering::SeqCst);
    registered
}

/// The poster's side of the barrier, between pushing and looking at the wake word.
#[inline]
pub fn poster_fence() {
    if REGISTERED.load(Ordering::Relaxed) {
        // Pairs with `sleeper_barrier`, whose system call puts a barrier here in our stead; only the compiler has to be kept
        // from moving the load of the wake word before the push.
        compiler_fence(Ordering::SeqCst);
    } else {
        // Pairs with `sleeper_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// The sleeper's side of the barrier, between arming and the last look. False means that posters who rely on it may
/// miss the wake word: sleep only with a timeout then.
#[must_use]
pub fn sleeper_barrier() -> bool {
    // Pairs with `poster_fence`: of the two parties (the poster pushes, then loads the wake word; the sleeper arms, then looks at
    // the rings) at least one sees what the other stored.
    fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// The same for a sleeper that posters know as restless.
pub fn sleeper_fence() {
    // Pairs with the fence in `WakeWordView::armed`, which every poster makes who sees that the sleeper is restless.
    fence(Ordering::SeqCst);
}
