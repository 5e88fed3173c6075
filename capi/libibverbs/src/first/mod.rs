//! The first interface of libibverbs, from 2006, whose functions have the version `IBVERBS_1.0`.
//! Its contexts and some of its objects are other structs than today's. Each object here is such an
//! old struct with today's object behind it, and each function calls today's function with that
//! object.
//!
//! The principal type is [`Old`]. The export list is in `exports_first`.

pub(crate) mod devices;
pub(crate) mod objects;
mod structs;
pub(crate) mod work;

use crate::entry::{self, Outcome, Refusal};
use crate::layout;
use crate::object::{Named, Object};
use std::ffi::c_int;

/// A struct of the first interface.
pub(crate) trait Old: Named + 'static {
    /// Today's struct of the same object.
    type Now: 'static;
}

/// An object of the first interface: the old struct and today's object.
type OldObject<C> = Object<C, *mut <C as Old>::Now>;

/// Makes the old object for one of today's objects. NULL means that today's function failed and set
/// `errno`.
fn wrap<C: Old>(c: C, now: *mut C::Now) -> Outcome<*mut C> {
    if now.is_null() { Err(last_refusal()) } else { Ok(OldObject::<C>::create(c, now).cast()) }
}

/// Today's object. Refuses as [`Object::live`].
///
/// # Safety
/// The object is not freed while the result is used.
unsafe fn now<C: Old>(old: *mut C) -> Outcome<*mut C::Now> {
    // SAFETY: the caller's promise.
    Ok(unsafe { OldObject::<C>::live(old) }?.inner)
}

/// As [`now`], for an object that may be NULL.
///
/// # Safety
/// As [`now`].
unsafe fn now_or_null<C: Old>(old: *mut C) -> Outcome<*mut C::Now> {
    // SAFETY: the caller's promise.
    if old.is_null() { Ok(std::ptr::null_mut()) } else { unsafe { now(old) } }
}

/// As [`now`], for posting and polling, which refuse only NULL.
///
/// # Safety
/// `old` is NULL or live.
unsafe fn now_unchecked<C: Old>(old: *mut C) -> Outcome<*mut C::Now> {
    // SAFETY: the caller's promise.
    Ok(unsafe { OldObject::<C>::of(old) }?.inner)
}

/// Ends an object after today's function has ended today's object.
///
/// # Safety
/// `old` is live, and is not used afterwards when this succeeds.
unsafe fn end<C: Old>(name: &'static str, old: *mut C, with: unsafe extern "C" fn(*mut C::Now) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    entry::code(name, || unsafe { OldObject::<C>::end(old, |object| answer::code(with(object.inner))) })
}

/// Today's context, for functions whose version has never changed and which a program of the first
/// interface also calls.
pub(crate) fn todays(context: *mut layout::Context) -> *mut layout::Context {
    let old: *mut structs::Context = context.cast();
    // SAFETY: read only if it is live.
    if OldObject::<structs::Context>::is_live(old) { unsafe { now(old) }.unwrap_or(context) } else { context }
}

/// Turns the return value of today's function into an outcome again.
mod answer {
    use super::{Outcome, Refusal, c_int, last_refusal};

    pub(super) fn code(code: c_int) -> Outcome<()> {
        if code == 0 { Ok(()) } else { Err(Refusal(code)) }
    }

    pub(super) fn or_minus_one(value: c_int) -> Outcome<c_int> {
        if value == -1 { Err(last_refusal()) } else { Ok(value) }
    }
}

/// The reason why today's function failed.
fn last_refusal() -> Refusal {
    Refusal(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
}

/// Functions of the first interface that only call today's function with today's object.
macro_rules! forward {
    ($($outcome:ident $name:ident($object:ident: $old:ty $(, $argument:ident: $type:ty)*) = $function:path;)+) => {$(
        /// Calls the function of this name with today's object.
        ///
        /// # Safety
        /// The object is live, and the pointers are valid.
        pub(crate) unsafe extern "C" fn $name($object: *mut $old $(, $argument: $type)*) -> std::ffi::c_int {
            $crate::entry::$outcome(stringify!($function), || {
                // SAFETY: the caller's promise.
                let now = unsafe { $crate::first::now($object) }?;
                // SAFETY: the caller's promise.
                $crate::first::answer::$outcome(unsafe { $function(now $(, $argument)*) })
            })
        }
    )+};
}
use forward;
