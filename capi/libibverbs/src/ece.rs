//! Enhanced connection establishment (`ibv_query_ece(3)`, `ibv_set_ece(3)`): options that the
//! devices of one vendor agree on. The engine decides which options exist.

use crate::entry::{self, refuse};
use crate::layout::{Ece, Qp};
use crate::object::set;
use crate::qp::QpObject;
use std::ffi::c_int;

/// `ibv_query_ece`.
///
/// # Safety
/// `qp` is live, `ece` valid.
pub(crate) unsafe extern "C" fn query(qp: *mut Qp, ece: *mut Ece) -> c_int {
    entry::code("ibv_query_ece", || {
        entry::not_null(ece)?;
        // SAFETY: the caller's promise.
        let engine::Ece { vendor_id, options } = unsafe { QpObject::live(qp) }?.inner.queue()?.ece();
        // SAFETY: not NULL, and the caller's to write.
        unsafe { ece.write(Ece { vendor_id, options, comp_mask: 0 }) };
        Ok(())
    })
}

/// `ibv_set_ece`: stores the accepted options in `ece.options`.
///
/// # Safety
/// `qp` is live, `ece` valid.
pub(crate) unsafe extern "C" fn set(qp: *mut Qp, ece: *mut Ece) -> c_int {
    entry::code("ibv_set_ece", || {
        entry::not_null(ece)?;
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::live(qp) }?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let Ece { vendor_id, options, comp_mask } = unsafe { ece.read() };
        if comp_mask != 0 {
            return Err(refuse!(EINVAL, "ibv_set_ece: comp_mask {comp_mask:#x} is not known"));
        }
        let accepted = object.inner.queue()?.set_ece(engine::Ece { vendor_id, options })?;
        set!(ece, options, accepted.options);
        Ok(())
    })
}
