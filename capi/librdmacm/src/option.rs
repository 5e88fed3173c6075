//! Options of ids (`rdma_set_option(3)`). The agent interprets them, not this file.

use crate::cma::CmId;
use crate::entry;
use crate::id;
use cm::SetOption;
use std::ffi::{c_int, c_void};

/// `rdma_set_option`.
///
/// # Safety
/// `id` is live, `value` valid for `len` bytes.
pub(crate) unsafe extern "C" fn set(
    id: *mut CmId,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    entry::or_minus_one("rdma_set_option", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        let value: &[u8] = if value.is_null() {
            &[]
        } else {
            // SAFETY: not NULL, and valid by the caller's promise.
            unsafe { std::slice::from_raw_parts(value.cast(), len) }
        };
        let option = SetOption::Raw { level: level.cast_unsigned(), name: name.cast_unsigned(), value };
        {
            let mut state = object.state();
            (state.attributes, state.optioned) = ([const { None }; 3], true);
        }
        object.channel()?.set_option(object.inner.handle, option)?;
        Ok(0)
    })
}
