//! `softhca_why` returns the sentence that says why a request failed. `softhca_note` adds a
//! sentence, so that librdmacm's reasons are in the same place as the others. rdma-core has neither
//! function. A program finds them by `dlsym` and must work without them.

use crate::entry;
use crate::layout::Qp;
use crate::qp::QpObject;
use engine::reason::{self, Note, ReasonKind};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

/// `const char *softhca_why(struct ibv_qp *qp, uint64_t wr_id)`: why the last request with this
/// `wr_id` on this QP ended with an error or was refused. For a flushed request, it says why the QP
/// first went to the error state. NULL if nothing has failed. The string belongs to the calling
/// thread and is valid until the thread's next call.
///
/// # Safety
/// `qp` is live, or NULL.
pub(crate) unsafe extern "C" fn why(qp: *mut Qp, wr_id: u64) -> *const c_char {
    thread_local! {
        static TOLD: RefCell<CString> = RefCell::default();
    }
    entry::value("softhca_why", || {
        if qp.is_null() {
            return std::ptr::null();
        }
        // SAFETY: the caller's promise.
        let sentence = unsafe { QpObject::live(qp) }.ok().and_then(|object| object.inner.queue().ok()?.why(wr_id));
        let Some(sentence) = sentence else { return std::ptr::null() };
        // softhca's own text contains no NUL, but names from elsewhere may.
        let sentence = CString::new(sentence.replace('\0', "?")).unwrap_or_default();
        TOLD.try_with(|told| {
            told.replace(sentence);
            told.borrow().as_ptr()
        })
        .unwrap_or(std::ptr::null())
    })
}

/// `void softhca_note(uint32_t kind, const char *sentence)`: notes a sentence as if this library
/// had found the reason; `kind` as in `abi::reason::ReasonKind`.
///
/// # Safety
/// `sentence` is a string, or NULL.
pub(crate) unsafe extern "C" fn note(kind: u32, sentence: *const c_char) {
    entry::value("softhca_note", || {
        if !sentence.is_null() {
            // SAFETY: the caller's promise.
            let sentence = unsafe { CStr::from_ptr(sentence) }.to_string_lossy();
            reason::note(Note::new(ReasonKind::of_number(kind)), format_args!("{sentence}"));
        }
    });
}
