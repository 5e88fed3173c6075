//! The caller: which process it is, and which signals its thread blocks. Every post and poll begins
//! with both.
//!
//! [`ForkMark`] distinguishes the process that made an object from a child that inherited the
//! object by fork. Engines do not survive a fork: the child has no helper thread, and its mappings
//! are gone. So the engine must refuse every call on an inherited object before it touches
//! anything. The check uses a page that the kernel empties in the child (MADV_WIPEONFORK, Linux
//! 4.14), which costs one load. Without that page, it compares process ids, which costs a system
//! call.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// Knows which process made it.
#[derive(Debug)]
pub struct ForkMark {
    /// Holds [`MARKED`] in the process that made it and 0 in its children.
    page: Option<NonNull<AtomicU32>>,
    creator: u32,
}

// SAFETY: the page holds one atomic word that nobody changes, and it is unmapped only when the mark
// is dropped.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

const MARKED: u32 = 1;
/// Rounded up to a page by the kernel.
const LENGTH: usize = size_of::<AtomicU32>();

impl ForkMark {
    /// Marks this process as the creator.
    #[must_use]
    pub fn new() -> ForkMark {
        ForkMark { page: marked_page(), creator: std::process::id() }
    }

    /// A mark without a page, as on a kernel that does not empty pages.
    #[cfg(test)]
    pub(super) fn by_process_id() -> ForkMark {
        ForkMark { page: None, creator: std::process::id() }
    }

    /// Whether the caller is the process that made the mark. The child of a vfork, which shares its
    /// memory, also counts until it calls exec.
    #[inline]
    #[must_use]
    pub fn made_here(&self) -> bool {
        match self.page {
            // SAFETY: the page stays mapped as long as the mark lives, in children too.
            Some(page) => unsafe { page.as_ref() }.load(Ordering::Relaxed) == MARKED,
            None => std::process::id() == self.creator,
        }
    }
}

impl Default for ForkMark {
    fn default() -> Self {
        ForkMark::new()
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: mapped by `marked_page` with this length, and nobody can use it after this.
            unsafe { libc::munmap(page.as_ptr().cast(), LENGTH) };
        }
    }
}

fn marked_page() -> Option<NonNull<AtomicU32>> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping of its own, wherever the kernel likes.
    let page = unsafe { libc::mmap(ptr::null_mut(), LENGTH, rights, kind, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped above and no other code knows it.
    if unsafe { libc::madvise(page, LENGTH, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(page, LENGTH) };
        return None;
    }
    let page = NonNull::new(page.cast::<AtomicU32>())?;
    // SAFETY: mapped, writable, aligned to a page, and living until the mark is dropped.
    unsafe { page.as_ref() }.store(MARKED, Ordering::Relaxed);
    Some(page)
}

/// Unblocks SIGSEGV and SIGBUS in the calling thread, once per thread.
///
/// If a thread faults while it has the signal blocked, the kernel ends the process, with or without
/// a handler. Programs that handle signals in one thread often block all signals in the others. So
/// every engine call that copies begins with this function. After the first time, it only reads a
/// thread-local flag.
#[inline]
pub fn prepare_thread() {
    thread_local!(static PREPARED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    PREPARED.with(|prepared| {
        if !prepared.replace(true) {
            unblock();
        }
    });
}

#[cold]
fn unblock() {
    change_mask(libc::SIG_UNBLOCK, &fault_signals());
}

/// Blocks all signals except SIGSEGV and SIGBUS in the calling thread. The engine's own threads
/// begin with this, so that the program's signals are never handled on them. The two signals stay
/// unblocked, because a fault with its signal blocked would end the process.
pub fn block_other_signals() {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that it is given.
    unsafe { libc::sigfillset(mask.as_mut_ptr()) };
    // SAFETY: initialised by the line before.
    let mut mask = unsafe { mask.assume_init() };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the set is initialised and the signal number is one that exists.
        unsafe { libc::sigdelset(&mut mask, signal) };
    }
    change_mask(libc::SIG_SETMASK, &mask);
}

fn fault_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line before.
    let mut set = unsafe { set.assume_init() };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the set is initialised and the signal number is one that exists.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: the set is initialised and the old mask is not requested. It fails only for an
    // unknown `how`.
    unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
}
