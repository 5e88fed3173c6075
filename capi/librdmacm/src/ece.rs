//! Enhanced connection establishment for programs that have QPs of their own (`rdma_set_local_ece(3)`, `rdma_get_remote_ece(3)`):
//! options of a vendor are carried to the peer and shown, and mean nothing here.

use crate::cma::CmId;
use crate::entry::{self, refuse};
use crate::id;
use crate::layout::Ece;
use crate::object::{get, set};
use std::ffi::c_int;

/// `rdma_set_local_ece`.
///
/// # Safety
/// `id` is NULL or live, `ece` NULL or valid.
pub(crate) unsafe extern "C" fn set_local(id: *mut CmId, ece: *const Ece) -> c_int {
    entry::or_minus_one("rdma_set_local_ece", || {
        entry::not_null(ece)?;
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        let (vendor_id, options) = (get!(ece, vendor_id), get!(ece, options));
        if !get!(object.c(), qp).is_null() || vendor_id == 0 || get!(ece, comp_mask) != 0 {
            return Err(refuse!(
                EINVAL,
                "rdma_set_local_ece is for ids without a QP, and needs a vendor and an empty comp_mask"
            ));
        }
        object.state().local_ece = cm::Ece { vendor_id, options };
        Ok(0)
    })
}

/// `rdma_get_remote_ece`.
///
/// # Safety
/// `id` is NULL or live, `ece` NULL or valid.
pub(crate) unsafe extern "C" fn get_remote(id: *mut CmId, ece: *mut Ece) -> c_int {
    entry::or_minus_one("rdma_get_remote_ece", || {
        entry::not_null(ece)?;
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        if !get!(object.c(), qp).is_null() {
            return Err(refuse!(EINVAL, "rdma_get_remote_ece is for ids without a QP"));
        }
        let remote = object.state().remote_ece;
        set!(ece, vendor_id, remote.vendor_id);
        set!(ece, options, remote.options);
        set!(ece, comp_mask, 0);
        Ok(0)
    })
}
