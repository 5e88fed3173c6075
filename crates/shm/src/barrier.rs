//! The barriers between posters and sleepers, which make a wake word safe: who executes which, and
//! when, is in [`crate::wake_word`]. Principal functions: [`poster_fence`] and [`sleeper_barrier`].

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Whether this process has asked the kernel to execute its posters' barriers. It is a property of
/// the process, hence a static.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process, so that its [`poster_fence`] costs nothing. Call it before the first
/// post, and again after a fork. Returns whether it worked; if not, everything still works, only
/// slower.
pub fn register_barrier() -> bool {
    let registered = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
    REGISTERED.store(registered, Ordering::SeqCst);
    registered
}

/// The poster's side of the barrier, between pushing and loading the wake word.
#[inline]
pub fn poster_fence() {
    if REGISTERED.load(Ordering::Relaxed) {
        // Pairs with `sleeper_barrier`, whose system call executes a barrier here for this thread.
        // Only the compiler must be kept from moving the load of the wake word before the push.
        compiler_fence(Ordering::SeqCst);
    } else {
        // Pairs with `sleeper_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// The sleeper's side of the barrier, between arming and the last check. False means that posters
/// that rely on it may miss the wake word: sleep only with a timeout then.
#[must_use]
pub fn sleeper_barrier() -> bool {
    // Pairs with `poster_fence`. The poster pushes, then loads the wake word; the sleeper arms,
    // then checks the rings. At least one of them sees what the other stored.
    fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// The sleeper's side of the barrier if its wake word has the restless bit and every poster sees
/// that bit.
pub fn sleeper_fence() {
    // Pairs with the fence in `WakeWordView::armed`, which every poster executes that sees the
    // restless bit.
    fence(Ordering::SeqCst);
}
