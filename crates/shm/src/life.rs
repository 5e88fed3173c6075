//! A word of shared memory that shows to everybody that a thread has ended, however it ended. The
//! kernel itself writes the word when the thread's process is killed or executes another program,
//! before anybody can learn of it in another way. Principal type: [`Life`].
//!
//! A thread has only one list of robust futexes (get_robust_list(2)). While a [`Life`] exists, its
//! list replaces the C library's list, so the thread must not lock robust mutexes.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Region;

/// The bit that the kernel sets in the word when the thread has ended (FUTEX_OWNER_DIED).
pub const ENDED: u32 = 0x4000_0000;

/// `struct robust_list` of `linux/futex.h`.
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    first: Entry,
    /// Distance from an entry to its word.
    offset: isize,
    pending: *const Entry,
}
const _: () = assert!(size_of::<Head>() == 24);

/// A list of one.
struct List {
    head: Head,
    entry: Entry,
}

/// Registers the calling thread for a word. Only this thread may drop the value; otherwise the
/// value must never be dropped.
pub struct Life {
    list: *mut List,
    /// The C library's list.
    before: (*mut Head, usize),
    region: Arc<Region>,
    offset: usize,
    _of_one_thread: PhantomData<*const ()>,
}

impl Life {
    /// Starts a `Life`: from now on the word at `offset` shows whether the calling thread has
    /// ended.
    ///
    /// # Errors
    /// The kernel does not support robust futexes.
    pub fn begin(region: Arc<Region>, offset: usize) -> io::Result<Self> {
        let mut before = (std::ptr::null_mut::<Head>(), 0usize);
        // SAFETY: the kernel writes two words, for which there is room.
        let known = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before.0, &raw mut before.1) };
        if known != 0 {
            return Err(io::Error::last_os_error());
        }
        let word = region.word(offset);
        word.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::SeqCst);
        let nothing = std::ptr::null();
        let head = Head { first: Entry { next: nothing }, offset: 0, pending: nothing };
        let list = Box::into_raw(Box::new(List { head, entry: Entry { next: nothing } }));
        // SAFETY: `list` is a fresh allocation, nobody else's yet.
        let list_ref = unsafe { &mut *list };
        list_ref.entry.next = &raw const list_ref.head.first;
        list_ref.head.first.next = &raw const list_ref.entry;
        list_ref.head.offset = word.as_ptr().addr().wrapping_sub((&raw const list_ref.entry).addr()).cast_signed();
        // Created here, so that its drop undoes the registration on every path.
        let life = Self { list, before, region, offset, _of_one_thread: PhantomData };
        set_list(list.cast(), size_of::<Head>()).map(|()| life)
    }
}

/// Tells the kernel where the calling thread's list is.
fn set_list(head: *mut Head, len: usize) -> io::Result<()> {
    // SAFETY: the kernel only looks there when the thread ends, and survives what it finds.
    match unsafe { libc::syscall(libc::SYS_set_robust_list, head, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.region.word(self.offset).store(ENDED, Ordering::SeqCst);
        // Restores the previous list.
        let _ = set_list(self.before.0, self.before.1);
        // SAFETY: made by `Box::into_raw`, and the kernel does not know the list any more.
        drop(unsafe { Box::from_raw(self.list) });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_thread_that_ends_is_seen_to_have_ended() {
        let (region, _fd) = Region::create("life", 4096).expect("a region");
        let region = Arc::new(region);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let life = Life::begin(Arc::clone(&region), 8).expect("a life");
                assert!(region.word(8).load(Ordering::SeqCst) & ENDED == 0);
                drop(life);
                // The thread can have another life afterwards.
                let life = Life::begin(Arc::clone(&region), 12).expect("a life");
                assert!(region.word(12).load(Ordering::SeqCst) & ENDED == 0);
                drop(life);
            });
        });
        assert_eq!([8, 12].map(|at| region.word(at).load(Ordering::SeqCst)), [ENDED; 2]);
    }

    #[test]
    fn a_process_that_is_killed_is_seen_to_have_ended_before_its_parent_knows() {
        let (region, fd) = Region::create("life", 4096).expect("a region");
        // SAFETY: the child calls nothing that needs a lock of another thread, except the
        // allocator, which survives forks.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Mappings of regions are not inherited.
            let own = Region::map(fd.as_fd(), 4096).expect("the same region");
            let _life = Life::begin(Arc::new(own), 16).expect("a life");
            // SAFETY: the calling process ends here.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            std::process::abort();
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL);
        assert_eq!(region.word(16).load(Ordering::SeqCst), ENDED);
    }
}
