//! Forwards the reasons of this library to the verbs library, which stores the device's reasons.

use engine::reason::{self, ReasonKind};
use std::ffi::{CString, c_char};

/// `softhca_note` of softhca's libibverbs. Other verbs libraries do not have it.
type Note = unsafe extern "C" fn(u32, *const c_char);

/// From now on, the verbs library stores the reasons.
pub(crate) fn forward() {
    reason::forward(to_verbs);
}

fn to_verbs(kind: ReasonKind, sentence: &str) -> bool {
    // SAFETY: a string; the look-up uses the scope of the library that this code is in.
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
