//! Completion counters, which count completions where a CQ lists them: not offered, for every completion on the data path would have to
//! look for one. Programs are answered as by any device that has none.

use crate::entry::{self, Refusal, refuse};
use std::ffi::{c_int, c_void};

fn not_offered() -> Refusal {
    refuse!(EOPNOTSUPP, "completion counters are not offered")
}

/// `ibv_create_comp_cntr`.
pub(crate) extern "C" fn create() -> *mut c_void {
    entry::pointer("ibv_create_comp_cntr", || Err(not_offered()))
}

/// All other functions of completion counters: an errno value.
pub(crate) extern "C" fn refused() -> c_int {
    entry::code("a function of completion counters", || Err(not_offered()))
}
