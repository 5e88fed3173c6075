//! The entry to the library: every exported function and every function in an operations table does
//! its work inside one of these wrappers. Each wrapper is named after the way in which the C
//! function reports failure. A panic ends the process with a sentence, because unwinding into C is
//! undefined. A refusal becomes the return value and `errno` that the manual page promises.
//!
//! A thread that another one cancels (`pthread_cancel`) leaves a function only where it waits for
//! an event ([`waiting`]): the C library ends it there by unwinding, which must meet no code of
//! this library that has something to drop. Everywhere else, the cancellation waits until the
//! function has returned.
//!
//! The principal type is [`Refusal`]. This file does not decide what a function does.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call was refused: an errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) c_int);

impl From<abi::Errno> for Refusal {
    fn from(errno: abi::Errno) -> Self {
        Self(errno.0)
    }
}

impl From<engine::PostError> for Refusal {
    fn from(error: engine::PostError) -> Self {
        error.errno().into()
    }
}

impl From<engine::Error> for Refusal {
    fn from(error: engine::Error) -> Self {
        Self(error.errno.0)
    }
}

/// The result of an exported function's body.
pub(crate) type Outcome<T> = Result<T, Refusal>;

/// For functions that return a pointer: the pointer, or NULL and `errno`.
pub(crate) fn pointer<T>(name: &'static str, body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    shielded(name, body).unwrap_or_else(|refusal| {
        set_errno(refusal);
        std::ptr::null_mut()
    })
}

/// For functions that return 0 or a positive errno value (which is put in `errno` as well).
pub(crate) fn code(name: &'static str, body: impl FnOnce() -> Outcome<()>) -> c_int {
    as_code(shielded(name, body))
}

/// The same for functions of the data path. They call nothing in which a thread can be cancelled,
/// except when they note a reason, and then the thread is not cancelled.
#[inline]
pub(crate) fn quick_code(name: &'static str, body: impl FnOnce() -> Outcome<()>) -> c_int {
    as_code(caught(name, body))
}

#[inline]
fn as_code(outcome: Outcome<()>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(refusal) => {
            set_errno(refusal);
            refusal.0
        }
    }
}

/// For functions that return a value that is not negative, or -1 and `errno`.
pub(crate) fn or_minus_one(name: &'static str, body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    shielded(name, body).unwrap_or_else(|refusal| {
        set_errno(refusal);
        -1
    })
}

/// For functions that return a count, or a negative errno value (which is put in `errno` as well).
pub(crate) fn or_negative(name: &'static str, body: impl FnOnce() -> Outcome<isize>) -> isize {
    as_negative(shielded(name, body))
}

/// The same for functions of the data path.
#[inline]
pub(crate) fn quick_or_negative(name: &'static str, body: impl FnOnce() -> Outcome<isize>) -> isize {
    as_negative(caught(name, body))
}

#[inline]
fn as_negative(outcome: Outcome<isize>) -> isize {
    outcome.unwrap_or_else(|refusal| {
        set_errno(refusal);
        -(refusal.0 as isize)
    })
}

/// For functions that cannot fail.
pub(crate) fn value<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    shielded(name, body)
}

/// The same for functions of the data path.
#[inline]
pub(crate) fn quick_value<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    caught(name, body)
}

/// Makes a refusal that this library decides, and notes the reason. (The engine notes the reasons
/// of its own refusals.)
macro_rules! refuse {
    ($errno:ident, $($why:tt)+) => {{
        engine::reason::note(engine::reason::Note::new(engine::reason::ReasonKind::Refused), format_args!($($why)+));
        $crate::entry::Refusal(libc::$errno)
    }};
}
pub(crate) use refuse;

/// Refuses NULL with EINVAL where a pointer is required.
pub(crate) fn not_null<T>(pointer: *const T) -> Outcome<()> {
    if pointer.is_null() {
        let name = std::any::type_name::<T>();
        return Err(refuse!(EINVAL, "a NULL pointer was given for a {}", name.rsplit("::").next().unwrap_or(name)));
    }
    Ok(())
}

/// Stores a refusal in the calling thread's `errno`.
pub(crate) fn set_errno(refusal: Refusal) {
    // SAFETY: the C library gives every thread an `errno`, and its address is valid for as long as
    // the thread lives.
    unsafe { *libc::__errno_location() = refusal.0 };
}

/// The result of one attempt of a function that waits.
#[allow(dead_code, reason = "shared with librdmacm, which waits for messages")]
pub(crate) enum Attempt {
    /// The function is over, and returns 0.
    Done,
    /// Wait until the counter of this eventfd is not 0, and take it.
    Counter(c_int),
    /// Wait until this socket has a message.
    Message(c_int),
}

unsafe extern "C-unwind" {
    /// The C library's functions, in which a waiting thread can be cancelled.
    fn read(fd: c_int, buffer: *mut c_void, size: usize) -> isize;
    fn recv(fd: c_int, buffer: *mut c_void, size: usize, flags: c_int) -> isize;
}

/// For functions that wait for an event, and return 0, or -1 and `errno`. `attempt` does not wait.
/// The wait returns EAGAIN if the program has set O_NONBLOCK. After a signal it restarts or returns
/// EINTR, as the handler's flags say.
#[inline(always)]
pub(crate) fn waiting(name: &'static str, mut attempt: impl FnMut() -> Outcome<Attempt>) -> c_int {
    loop {
        let mut counter = [0_u8; 8];
        let room = (&raw mut counter).cast();
        let waited = match shielded(name, &mut attempt) {
            Ok(Attempt::Done) => return 0,
            // SAFETY: room for eight bytes.
            Ok(Attempt::Counter(fd)) => unsafe { read(fd, room, counter.len()) },
            // SAFETY: room for one byte.
            Ok(Attempt::Message(fd)) => unsafe { recv(fd, room, 1, libc::MSG_PEEK) },
            Err(refusal) => {
                set_errno(refusal);
                return -1;
            }
        };
        if waited < 0 {
            return -1;
        }
    }
}

/// Runs `body`, in which the thread cannot be cancelled.
fn shielded<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    engine::without_cancellation(|| caught(name, body))
}

/// Runs `body`. A panic in it is a bug in softhca, and ends the process with a sentence that says
/// so.
#[inline]
fn caught<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        engine::reason::say(format_args!("{name} met an internal error (above); the program cannot go on"));
        std::process::abort()
    })
}
