//! The shared receive queue of an id (`rdma_create_srq(3)`). The QP is in `qp`.

use crate::cma::{CmId, qpt};
use crate::entry::{self, Outcome, refuse};
use crate::id::{self, IdObject};
use crate::layout::{Pd, SrqInitAttr, SrqInitAttrEx};
use crate::object::{get, set};
use crate::qp::{create_cqs, destroy_cqs};
use crate::verbs::{self, SRQ_INIT_CQ, SRQ_INIT_PD, SRQ_INIT_TYPE, SRQ_INIT_XRCD, SRQT_BASIC, SRQT_XRC};
use bytemuck::Zeroable;
use std::ffi::c_int;
use std::ptr::null_mut;

/// `rdma_create_srq`: makes the SRQ on `pd`, or on the id's default PD. Stores the actual sizes in
/// `init`.
///
/// # Safety
/// `id` is live, `pd` NULL or live, `init` valid.
pub(crate) unsafe extern "C" fn create(id: *mut CmId, pd: *mut Pd, init: *mut SrqInitAttr) -> c_int {
    entry::or_minus_one("rdma_create_srq", || {
        entry::not_null(init)?;
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        let mut extended = SrqInitAttrEx {
            srq_context: get!(init, srq_context),
            attr: get!(init, attr),
            comp_mask: SRQ_INIT_TYPE | SRQ_INIT_PD,
            srq_type: if get!(object.c(), qp_type) == qpt::XRC_RECV { SRQT_XRC } else { SRQT_BASIC },
            pd,
            ..SrqInitAttrEx::zeroed()
        };
        // SAFETY: the caller's promise; `extended` is a local variable.
        let built = unsafe { build(object, &raw mut extended) };
        set!(init, attr, extended.attr);
        built.map(|()| 0)
    })
}

/// `rdma_create_srq_ex`.
///
/// # Safety
/// `id` is live, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create_ex(id: *mut CmId, init: *mut SrqInitAttrEx) -> c_int {
    entry::or_minus_one("rdma_create_srq_ex", || {
        entry::not_null(init)?;
        // SAFETY: the caller's promise.
        unsafe { build(id::live(id)?, init) }.map(|()| 0)
    })
}

/// # Safety
/// `init` is valid, and the objects in it live.
unsafe fn build(object: &IdObject, init: *mut SrqInitAttrEx) -> Outcome<()> {
    let c = object.c();
    if get!(init, comp_mask) & SRQ_INIT_TYPE == 0 {
        return Err(refuse!(EINVAL, "rdma_create_srq_ex: comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE"));
    }
    let device = object.device()?;
    if get!(init, comp_mask) & SRQ_INIT_PD == 0 || get!(init, pd).is_null() {
        set!(init, pd, get!(c, pd));
        set!(init, comp_mask, get!(init, comp_mask) | SRQ_INIT_PD);
    }
    if get!(init, srq_type) == SRQT_XRC {
        if get!(init, comp_mask) & SRQ_INIT_XRCD == 0 || get!(init, xrcd).is_null() {
            set!(init, xrcd, device.xrcd()?.cast());
        }
        if get!(init, comp_mask) & SRQ_INIT_CQ == 0 || get!(init, cq).is_null() {
            // The id's QP may have been created before, with the CQ of the id.
            if get!(c, recv_cq).is_null() {
                create_cqs(object, 0, get!(init, attr.max_wr))?;
            }
            set!(init, cq, get!(c, recv_cq));
        }
        set!(init, comp_mask, get!(init, comp_mask) | SRQ_INIT_XRCD | SRQ_INIT_CQ);
    }
    // SAFETY: the caller's promise; the id's device is open.
    match unsafe { verbs::create_srq_ex(get!(c, verbs), init) } {
        Ok(srq) => {
            if get!(c, pd).is_null() {
                set!(c, pd, get!(init, pd));
            }
            set!(c, srq, srq);
            Ok(())
        }
        Err(refusal) => {
            destroy_cqs(object);
            Err(refusal)
        }
    }
}

/// `rdma_destroy_srq`: destroys the SRQ with the queues that were made for it.
///
/// # Safety
/// `id` is live, and nothing uses its SRQ any more.
pub(crate) unsafe extern "C" fn destroy(id: *mut CmId) {
    entry::value("rdma_destroy_srq", || {
        // SAFETY: the caller's promise.
        if let Ok(object) = unsafe { id::live(id) } {
            let srq = get!(object.c(), srq);
            if !srq.is_null() {
                // SAFETY: the id's own SRQ, which nothing uses any more.
                unsafe { verbs::ibv_destroy_srq(srq) };
                set!(object.c(), srq, null_mut());
            }
            // An existing QP still uses the queues.
            if get!(object.c(), qp).is_null() {
                destroy_cqs(object);
            }
        }
    });
}
