//! `softhca_why`: the sentence that says why a request failed. Not of rdma-core; a program finds it by `dlsym` or goes without.

use crate::entry;
use crate::layout::Qp;
use crate::qp::QpObject;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

/// `const char *softhca_why(struct ibv_qp *qp, uint64_t wr_id)`: why the last request of that name on this QP ended with an error, or
/// was refused; of one that was flushed, why the QP went to the error state first. NULL where nothing has failed. The string is the
/// thread's, until it asks again.
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
        let sentence = unsafe { QpObject::of(qp) }.ok().and_then(|object| object.inner.queue().ok()?.why(wr_id));
        let Some(sentence) = sentence else { return std::ptr::null() };
        // Nothing that a sentence is made of may hold a NUL, but names from elsewhere.
        let sentence = CString::new(sentence.replace('\0', "?")).unwrap_or_default();
        TOLD.try_with(|told| {
            told.replace(sentence);
            told.borrow().as_ptr()
        })
        .unwrap_or(std::ptr::null())
    })
}
