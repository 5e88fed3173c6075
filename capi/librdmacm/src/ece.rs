//! Enhanced connection establishment (`rdma_set_local_ece(3)`, `rdma_get_remote_ece(3)`): carries a
//! vendor's options to the peer and shows the peer's. Programs with their own QPs set the options;
//! an id with a QP offers the options that the verbs report. The verbs library decides what the
//! options mean.

use crate::cma::CmId;
use crate::entry::{self, refuse};
use crate::id::{self, IdObject};
use crate::layout::{Ece, Qp};
use crate::object::{get, set};
use crate::verbs;
use bytemuck::Zeroable;
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

/// After a QP was made for an id: notes the options to offer to the peer, or the accepted part of
/// the peer's options.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn begin(object: &IdObject, qp: *mut Qp) {
    let remote = object.state().remote_ece;
    let mut offered = Ece::zeroed();
    // SAFETY: the caller's promise, and a local struct. Without options there is nothing to offer.
    if unsafe { verbs::ibv_query_ece(qp, &raw mut offered) } != 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let accepted = unsafe { agree(qp, remote) };
    object.state().local_ece = cm::Ece { vendor_id: offered.vendor_id, options: accepted.unwrap_or(offered.options) };
}

/// Sets the peer's options on the QP, and returns the accepted ones. Another vendor's options do
/// not prevent a connection: without options, the devices do what all devices do.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn agree(qp: *mut Qp, remote: cm::Ece) -> Option<u32> {
    let mut wanted = Ece { vendor_id: remote.vendor_id, options: remote.options, comp_mask: 0 };
    // SAFETY: the caller's promise, and a local struct.
    (remote.vendor_id != 0 && unsafe { verbs::ibv_set_ece(qp, &raw mut wanted) } == 0).then_some(wanted.options)
}
