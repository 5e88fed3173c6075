//! fork: nothing has to be prepared, because children never inherit engine memory and registered
//! memory is not pinned. A child gets errors from inherited objects and may open the device again.

use std::ffi::{c_int, c_uint, c_void};

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_uint = 2;

/// `ibv_fork_init`.
pub(crate) extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub(crate) extern "C" fn is_fork_initialized() -> c_uint {
    UNNEEDED
}

/// `ibv_dontfork_range`: a range needs no protection from copy-on-write.
pub(crate) extern "C" fn dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`.
pub(crate) extern "C" fn dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
