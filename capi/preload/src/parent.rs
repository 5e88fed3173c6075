//! Ends the program with the `softhca run` that started it.
//!
//! `softhca run` passes signals on, but SIGKILL cannot be caught. Without this, a program whose
//! `softhca run` is killed, for example by `timeout -s KILL`, would run on, and one that polls
//! would keep a processor busy. Only the program itself asks the kernel for this (prctl(2),
//! PR_SET_PDEATHSIG). Its children do not inherit the request, so a daemon that leaves its parent
//! lives on. Principal function: [`follow`].

use std::ffi::c_ulong;

use libc::pid_t;

use crate::entry;

/// Asks the kernel to end this process with SIGTERM when its parent ends, if the parent is the
/// `softhca run` that the environment names.
pub(crate) fn follow() {
    let Some(run) = entry::environment(c"SOFTHCA_PARENT", |value| value.and_then(number)) else { return };
    if !is_parent(run) {
        return;
    }
    // SAFETY: this request takes a signal number, and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as c_ulong) };
    if !is_parent(run) {
        // It ended before the request.
        // SAFETY: no memory is touched.
        unsafe { libc::raise(libc::SIGTERM) };
    }
}

fn is_parent(process: pid_t) -> bool {
    // SAFETY: no memory is touched.
    unsafe { libc::getppid() == process }
}

/// A process id in decimal digits.
fn number(value: &[u8]) -> Option<pid_t> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_process_id_has_only_digits() {
        assert_eq!(number(b"4711"), Some(4711));
        assert_eq!([&b""[..], b"x", b"99999999999", b"47 ", b"\xff"].map(number), [None; 5]);
    }
}
