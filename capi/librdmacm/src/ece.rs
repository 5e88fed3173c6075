//! Enhanced connection establishment (`rdma_set_local_ece(3)`, `rdma_get_remote_ece(3)`): options of a vendor are carried to the peer and
//! shown. Programs that have QPs of their own set them; an id with a QP offers what the verbs say of that. What they mean is the
//! verbs' affair.

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

/// A QP was made for an id: what is offered to the peer, and of what a peer has asked for, what is accepted.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn begin(object: &IdObject, qp: *mut Qp) {
    let remote = object.state().remote_ece;
    let mut offered = Ece::zeroed();
    // SAFETY: the caller's promise, and a struct of ours. Without any options there is nothing to offer.
    if unsafe { verbs::ibv_query_ece(qp, &raw mut offered) } != 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let accepted = unsafe { agree(qp, remote) };
    object.state().local_ece = cm::Ece { vendor_id: offered.vendor_id, options: accepted.unwrap_or(offered.options) };
}

/// Sets what the peer has offered, and says what of it is accepted. Another vendor's options are no reason not to connect: without
/// them, the devices do what all do.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe fn agree(qp: *mut Qp, remote: cm::Ece) -> Option<u32> {
    let mut wanted = Ece { vendor_id: remote.vendor_id, options: remote.options, comp_mask: 0 };
    // SAFETY: the caller's promise, and a struct of ours.
    (remote.vendor_id != 0 && unsafe { verbs::ibv_set_ece(qp, &raw mut wanted) } == 0).then_some(wanted.options)
}
