//! The private interface between rdma-core's library and vendors' drivers. Vendors' libraries
//! (`libmlx5`, `libefa` …) are linked into ordinary programs and look these names up when the
//! program starts, so each name must exist. softhca has no vendor drivers: registering one does
//! nothing, and every other function answers EOPNOTSUPP. A vendor's own calls give the same answer
//! for a device of another vendor.

use crate::entry::{self, Refusal, refuse};
use std::ffi::{c_int, c_uint, c_void};

fn no_driver() -> Refusal {
    refuse!(EOPNOTSUPP, "a vendor driver function was called; softhca does not support vendor operations")
}

/// Functions of the private interface that return an errno value.
pub(crate) extern "C" fn refused_code() -> c_int {
    entry::code("a driver function", || Err(no_driver()))
}

/// Functions of the private interface that return a pointer.
pub(crate) extern "C" fn refused_pointer() -> *mut c_void {
    entry::pointer("a driver function", || Err(no_driver()))
}

/// Functions of the private interface that return a count or -1.
pub(crate) extern "C" fn refused_minus_one() -> c_int {
    entry::or_minus_one("a driver function", || Err(no_driver()))
}

/// Functions of the private interface that return nothing: registration, log lines, tables of
/// operations.
pub(crate) extern "C" fn ignored() {}

/// `__ioctl_final_num_attrs`: the number of attributes of a command buffer. No buffer is ever
/// extended here.
pub(crate) extern "C" fn final_num_attrs(count: c_uint, _link: *const c_void) -> c_uint {
    count
}
