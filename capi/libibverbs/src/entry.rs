//! The entry to the library: every exported function and every function in an operations table does
//! its work inside one of these wrappers. Each wrapper is named after the way in which the C
//! function reports failure. A panic ends the process with a sentence, because unwinding into C is
//! undefined. A refusal becomes the return value and `errno` that the manual page promises.
//!
//! The principal type is [`Refusal`]. This file does not decide what a function does.

use std::ffi::c_int;
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
    match shielded(name, body) {
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
    shielded(name, body).unwrap_or_else(|refusal| {
        set_errno(refusal);
        -(refusal.0 as isize)
    })
}

/// For functions that cannot fail.
pub(crate) fn value<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    shielded(name, body)
}

/// Makes a refusal that this library decides, and notes the reason. (The engine notes the reasons
/// of its own refusals.)
macro_rules! refuse {
    ($errno:ident, $($why:tt)+) => {{
        engine::reason::note(engine::reason::Note::new(engine::reason::Kind::Refused), format_args!($($why)+));
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

/// Runs `body`. A panic in it is a bug in softhca, and ends the process with a sentence that says
/// so.
fn shielded<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        engine::reason::say(format_args!("{name} met an internal error (above); the program cannot go on"));
        std::process::abort()
    })
}
