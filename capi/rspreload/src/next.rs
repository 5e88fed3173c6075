//! The functions that stand here, by name, and the next one of each name: the C library's, or another preloaded library's. They are
//! looked up when they are first needed, and all at once when the library is loaded. The principal type is [`Function`].

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! functions {
    ($($name:ident),+ $(,)?) => {
        /// A function of the C library that takes a socket.
        #[derive(Debug, Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the names are the C library's")]
        #[repr(usize)]
        pub(crate) enum Function { $(#[allow(missing_docs, reason = "each is what its manual page says")] $name),+ }

        const NAMES: &[&CStr] = &[$(
            // The literal ends in the only zero byte.
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        ),+];
    };
}

functions!(
    // Making and ending.
    socket,
    bind,
    listen,
    accept,
    accept4,
    connect,
    shutdown,
    close,
    getsockname,
    getpeername,
    setsockopt,
    getsockopt,
    // Data.
    read,
    __read_chk,
    readv,
    recv,
    __recv_chk,
    recvfrom,
    __recvfrom_chk,
    recvmsg,
    write,
    writev,
    send,
    sendto,
    sendmsg,
    sendfile,
    sendfile64, // Waiting.
    poll,
    __poll_chk,
    ppoll,
    __ppoll_chk,
    select,
    pselect,
    epoll_ctl,
    epoll_wait,
    epoll_pwait,
    // As files.
    fcntl,
    fcntl64,
    ioctl,
    dup,
    dup2,
    dup3,
    fstat,
    fstat64,
    __fxstat,
    __fxstat64,
);

static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

impl Function {
    /// The next function of this name; `None` when there is none.
    ///
    /// # Safety
    /// `F` is the function's type, as a pointer to an `extern "C"` function.
    pub(crate) unsafe fn next<F: Copy>(self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let index = self as usize;
        let slot = NEXT.get(index)?;
        // The address is all there is to see: nothing is published with it.
        let mut found = slot.load(Ordering::Relaxed);
        if found.is_null() {
            found = look_up(index);
        }
        // SAFETY: an address of a function of the caller's type, which has the size of an address.
        (!found.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&found) })
    }
}

/// Looks one function up and keeps it.
fn look_up(index: usize) -> *mut c_void {
    let (Some(name), Some(slot)) = (NAMES.get(index), NEXT.get(index)) else { return null_mut() };
    // SAFETY: a C string; RTLD_NEXT means the libraries behind this one.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // What went wrong here is not for the program to read.
        // SAFETY: takes nothing; the text stays the C library's.
        unsafe { libc::dlerror() };
    }
    slot.store(found, Ordering::Relaxed);
    found
}

/// Looks all of them up, when the library is loaded: the look-up takes a lock that no signal handler may take.
extern "C" fn look_up_all() {
    for index in 0..NAMES.len() {
        look_up(index);
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls what stands in this section when it has loaded the library.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look_up_all;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_has_them_all() {
        look_up_all();
        for (name, slot) in NAMES.iter().zip(&NEXT) {
            assert!(!slot.load(Ordering::Relaxed).is_null(), "{name:?}");
        }
    }
}
