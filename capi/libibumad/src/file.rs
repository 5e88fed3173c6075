//! The open files of this process, by descriptor. What a file does is in crate [`umad`]. The
//! exported functions are in [`crate::port`] and [`crate::transfer`].
//!
//! The principal function is [`open`].

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use abi::umad::client::{LABEL, label};
use abi::umad::ioctl;
use engine::rundir;
use parking_lot::Mutex;
use umad::File;

use crate::entry::{Outcome, Refusal};

static FILES: Mutex<BTreeMap<c_int, Arc<File>>> = Mutex::new(BTreeMap::new());

/// The errno of a failed call; EIO without one.
pub(crate) fn told(error: &std::io::Error) -> Refusal {
    Refusal(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Opens `umadN`. Headers have a P_Key index. As with the kernel, the descriptor does not wait, and
/// stays open after `exec`.
pub(crate) fn open(number: u32) -> Outcome<c_int> {
    let file = File::open(&rundir::default(), number).map_err(|error| told(&error))?;
    let failed = |errno: rustix::io::Errno| Refusal(errno.raw_os_error());
    rustix::io::ioctl_fionbio(&file, true).map_err(failed)?;
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(failed)?;
    let fd = file.as_fd().as_raw_fd();
    show(fd, &file);
    FILES.lock().insert(fd, Arc::new(file));
    Ok(fd)
}

/// Shows the file to the path redirector, if it is loaded: programs may call `read`, `write` and
/// `ioctl` on the descriptor then. The request has no effect, and the kernel refuses it.
fn show(fd: c_int, file: &File) {
    let mut filter: [u64; LABEL] = label(file.key());
    let program = libc::sock_fprog { len: LABEL as u16, filter: filter.as_mut_ptr().cast() };
    let length = size_of::<libc::sock_fprog>() as u32;
    // SAFETY: the program is local, and its instructions have 8 bytes each.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast::<c_void>(), length)
    };
    // SAFETY: a request without an argument.
    unsafe { libc::ioctl(fd, ioctl::ENABLE_PKEY.into(), std::ptr::null_mut::<c_void>()) };
}

/// Closes a file.
pub(crate) fn close(fd: c_int) -> Outcome<()> {
    FILES.lock().remove(&fd).map(drop).ok_or(Refusal(libc::EBADF))
}

/// An open file.
pub(crate) fn file(fd: c_int) -> Outcome<Arc<File>> {
    FILES.lock().get(&fd).cloned().ok_or(Refusal(libc::EBADF))
}

/// Calls `ioctl` on a file. The argument changes, also when the call fails.
pub(crate) fn control(fd: c_int, request: u32, argument: &mut [u8]) -> Outcome<()> {
    file(fd)?.control(request, argument).map_err(|error| told(&error))
}
