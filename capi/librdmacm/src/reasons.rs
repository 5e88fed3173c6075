//! Reasons of this library: they go to the verbs library, where those of the device are.

use engine::reason::{self, Kind};
use std::ffi::{CString, c_char};

/// `softhca_note` of softhca's libibverbs; another one has none.
type Note = unsafe extern "C" fn(u32, *const c_char);

/// From now on reasons are noted by the verbs library.
pub(crate) fn forward() {
    reason::forward(to_verbs);
}

fn to_verbs(kind: Kind, sentence: &str) -> bool {
    // SAFETY: a string, and the library that this code is in looks in its own scope.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"softhca_note".as_ptr()) };
    if found.is_null() {
        return false;
    }
    // SAFETY: nothing else has this name, and libibverbs is never unloaded.
    let note = unsafe { std::mem::transmute::<*mut libc::c_void, Note>(found) };
    let Ok(sentence) = CString::new(sentence) else { return false };
    // SAFETY: a string.
    unsafe { note(kind as u32, sentence.as_ptr()) };
    true
}
