//! Threads that another one cancels (`pthread_cancel`). The C library ends such a thread at a
//! cancellation point, and many functions of the standard library are one.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of the C library.
const CANCEL_DISABLE: c_int = 1;

/// Calls `act`, in which the thread cannot be cancelled (`pthread_cancel`). Many functions of the
/// standard library are cancellation points: they would unwind through Rust code.
pub fn without_cancellation<T>(act: impl FnOnce() -> T) -> T {
    let mut state = 0;
    // SAFETY: a place for the present state.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut state) };
    let result = act();
    // SAFETY: it was the state before; the old one is not asked for.
    unsafe { pthread_setcancelstate(state, std::ptr::null_mut()) };
    result
}
