//! Completion counters, which count completions instead of listing them in a CQ. softhca does not
//! offer them, because then every completion on the data path would have to look for a counter.
//! Programs get the answer of any device without counters.

use crate::entry::{self, Refusal, refuse};
use std::ffi::{c_int, c_void};

fn not_offered() -> Refusal {
    refuse!(EOPNOTSUPP, "completion counters are not offered")
}

/// `ibv_create_comp_cntr`.
pub(crate) extern "C" fn create() -> *mut c_void {
    entry::pointer("ibv_create_comp_cntr", || Err(not_offered()))
}

/// All other functions of completion counters return an errno value.
pub(crate) extern "C" fn refused() -> c_int {
    entry::code("a function of completion counters", || Err(not_offered()))
}
