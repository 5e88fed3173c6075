//! Writing files in a process that has a limit on file size (`ulimit -f`): an error instead of a
//! signal.
//!
//! The kernel answers a write or an `ftruncate` beyond the limit with EFBIG and with SIGXFSZ, which
//! ends the process. A library must not end its program for a line of a log, and must not change
//! the program's signal handling either. [`without_signal`] blocks the signal for the calling
//! thread, and consumes it if it came.

use std::mem::MaybeUninit;

use rustix::process::{Resource, getrlimit};

use crate::cancellation::without_cancellation;

/// Calls `act`, which may write files and get EFBIG, or be cancelled. If no limit is set this costs
/// one system call.
pub fn without_signal<T>(act: impl FnOnce() -> T) -> T {
    let _blocked = getrlimit(Resource::Fsize).current.and_then(|_| Blocked::new());
    without_cancellation(act)
}

/// Blocks SIGXFSZ for the calling thread as long as the value lives.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    /// `None`: the signal is blocked already, so there is nothing to do.
    fn new() -> Option<Self> {
        let mut before = MaybeUninit::uninit();
        let set = only();
        // SAFETY: both sets are valid for the call, which writes the second one.
        let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: the call has succeeded and written it.
        let before = unsafe { before.assume_init() };
        // SAFETY: the set is initialised.
        let was_blocked = unsafe { libc::sigismember(&raw const before, libc::SIGXFSZ) } == 1;
        (!was_blocked).then_some(Self { before })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let (set, now) = (only(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the set and the time are valid for the call, which writes nothing else. The call
        // takes the signal if it is pending for this thread.
        unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now) };
        // SAFETY: the set is the one that was in effect before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// The set of SIGXFSZ.
fn only() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was initialised by the call above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: the set is valid, and the signal has a number.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGXFSZ) };
    set
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::process::{Rlimit, setrlimit};
    use std::io::{ErrorKind, Write};

    /// The environment variable that makes the test below run as the limited process.
    const LIMITED: &str = "SOFTHCA_TEST_LIMITED";

    fn write() -> std::io::Result<()> {
        tempfile::tempfile()?.write_all(&[1; 5000])
    }

    /// Runs in a separate process, because the limit applies to the whole process.
    #[test]
    fn a_file_that_gets_too_long_is_an_error_and_no_signal() {
        if std::env::var_os(LIMITED).is_none() {
            let exe = std::env::current_exe().expect("this program");
            let name = "file_limit::tests::a_file_that_gets_too_long_is_an_error_and_no_signal";
            let mut limited = std::process::Command::new(exe);
            let output = limited.args([name, "--exact"]).env(LIMITED, "1").output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            return;
        }
        setrlimit(Resource::Fsize, Rlimit { current: Some(4096), maximum: Some(4096) }).expect("limited");
        for _ in 0..2 {
            let refused = without_signal(write).expect_err("it is too long");
            assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
        }
        let Err(refused) = crate::Region::create("softhca-test", 1 << 20) else { panic!("it is too long") };
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
        // Nested calls: the outer one consumes the signal.
        without_signal(|| without_signal(write).expect_err("too long"));
    }
}
