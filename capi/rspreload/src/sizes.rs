//! The sizes of rsockets that the environment asks for. The principal function is [`apply_sizes`].

use crate::rdma::call;
use interpose::{errno, set_errno};
use libc::{c_int, socklen_t};
use std::ffi::CStr;

/// `SOL_RDMA` of `rsocket.h`, and the options that the environment sets.
const SOL_RDMA: c_int = 0x10000;
const SIZES: [(&CStr, c_int); 3] = [(c"RS_SQ_SIZE", 0), (c"RS_RQ_SIZE", 1), (c"RS_INLINE", 2)];

/// Sets the sizes from the environment. Invalid ones are ignored.
pub(crate) fn apply_sizes(inner: c_int) {
    let before = errno();
    for (variable, option) in SIZES {
        // SAFETY: a C string.
        let text = unsafe { libc::getenv(variable.as_ptr()) };
        if !text.is_null() {
            // SAFETY: a C string of the environment.
            let value: c_int = unsafe { libc::atoi(text) };
            let length = socklen_t::try_from(size_of::<c_int>()).unwrap_or(4);
            if value > 0 {
                let _: c_int = call!(rsetsockopt(inner, SOL_RDMA, option, (&raw const value).cast(), length));
            }
        }
    }
    set_errno(before);
}
