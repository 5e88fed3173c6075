//! The wake word: one word per sleeper, in a region that only the sleeper can write, by which posters learn whether it has to
//! be woken. It does not wake anybody: that is [`crate::Doorbell`]. Principal types: [`Bell`] and [`BellView`].
//!
//! The protocol, for any number of posters and lanes:
//!
//! ```text
//! poster                               sleeper
//! push the record                      arm()
//! poster_fence()                       sleeper_barrier()
//! armed()? ring the doorbell           look at all rings once more: something there? disarm() and work
//!                                      sleep on the doorbell; disarm()
//! ```
//!
//! Either the poster sees the word armed, or the sleeper's last look sees the record. That takes a full barrier on both
//! sides; since posts are many and sleeps are few, the sleeper's membarrier(2) executes the poster's barrier for it, in
//! every process that has registered. A process that could not register pays for a fence with each post instead.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::memory::{Memory, Window};
use crate::region::Region;

/// Bytes of a bell's region: a page.
pub const BELL_LEN: usize = 4096;

const WORD: usize = 0;

/// The sleeper's word. Odd means armed; every arming has a number of its own, so that a poster needs to ring only once for it.
#[derive(Debug)]
pub struct Bell<M: Memory = Window> {
    memory: M,
}

impl Bell {
    /// Makes a disarmed bell, and the memfd by which others can look at it but not write it.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (region, fd) = Region::create_published("softhca-bell", BELL_LEN)?;
        Ok((Self::in_memory(Window::new(Arc::new(region), 0, BELL_LEN)), fd))
    }
}

impl<M: Memory> Bell<M> {
    pub(crate) fn in_memory(memory: M) -> Self {
        Self { memory }
    }

    /// Asks to be woken from now on; returns the new word, which is odd. Follow with [`sleeper_barrier`] and a last look.
    pub fn arm(&self) -> u32 {
        // Relaxed: `sleeper_barrier` orders it.
        self.memory.update(WORD, |word| word.wrapping_add(1) | 1)
    }

    /// Takes the wish back: we are awake.
    pub fn disarm(&self) {
        // Relaxed: a poster that still sees the word armed rings once too often, which is harmless.
        self.memory.update(WORD, |word| word.wrapping_add(1) & !1);
    }
}

/// A poster's view of somebody's bell.
#[derive(Debug)]
pub struct BellView<M: Memory = Window> {
    memory: M,
}

impl BellView {
    /// Maps the memfd of a [`Bell`].
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let region = Region::map_read_only(fd, BELL_LEN)?;
        Ok(Self::of_memory(Window::new(Arc::new(region), 0, BELL_LEN)))
    }
}

impl<M: Memory> BellView<M> {
    pub(crate) fn of_memory(memory: M) -> Self {
        Self { memory }
    }

    /// The word, if the sleeper wants to be woken. Ask after pushing and [`poster_fence`].
    pub fn armed(&self) -> Option<u32> {
        // Relaxed: `poster_fence` orders it.
        let word = self.memory.load(WORD, Ordering::Relaxed);
        (word & 1 == 1).then_some(word)
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

/// The poster's side of the barrier, between pushing and looking at the bell.
#[inline]
pub fn poster_fence() {
    if REGISTERED.load(Ordering::Relaxed) {
        // Pairs with `sleeper_barrier`, whose system call puts a barrier here in our stead; only the compiler has to be kept
        // from moving the load of the bell before the push.
        compiler_fence(Ordering::SeqCst);
    } else {
        // Pairs with `sleeper_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// The sleeper's side of the barrier, between arming and the last look. False means that posters who rely on it may
/// miss the bell: sleep only with a timeout then.
#[must_use]
pub fn sleeper_barrier() -> bool {
    // Pairs with `poster_fence`: of the two parties (the poster pushes, then loads the bell; the sleeper arms, then looks at
    // the rings) at least one sees what the other stored.
    fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}
