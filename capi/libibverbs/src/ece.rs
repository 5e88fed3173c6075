//! Enhanced connection establishment: options that one vendor's devices agree on. softhca has none to offer.

use crate::entry::{self, Refusal};
use crate::layout::{Ece, Qp};
use std::ffi::c_int;

/// `ibv_query_ece`.
pub(crate) extern "C" fn query(_qp: *mut Qp, _ece: *mut Ece) -> c_int {
    entry::code("ibv_query_ece", || Err(Refusal(libc::EOPNOTSUPP)))
}

/// `ibv_set_ece`.
pub(crate) extern "C" fn set(_qp: *mut Qp, _ece: *mut Ece) -> c_int {
    entry::code("ibv_set_ece", || Err(Refusal(libc::EOPNOTSUPP)))
}
