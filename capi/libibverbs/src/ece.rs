//! Enhanced connection establishment: options that one vendor's devices agree on. softhca has none to offer.

use crate::entry::{self, refuse};
use crate::layout::{Ece, Qp};
use std::ffi::c_int;

/// `ibv_query_ece`.
pub(crate) extern "C" fn query(_qp: *mut Qp, _ece: *mut Ece) -> c_int {
    entry::code("ibv_query_ece", || Err(refuse!(EOPNOTSUPP, "connection options of vendors are not offered")))
}

/// `ibv_set_ece`.
pub(crate) extern "C" fn set(_qp: *mut Qp, _ece: *mut Ece) -> c_int {
    entry::code("ibv_set_ece", || Err(refuse!(EOPNOTSUPP, "connection options of vendors are not offered")))
}
