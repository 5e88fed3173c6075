//! The QP of an id, and the completion queues and channels that are made with it if the program
//! gives none (`rdma_create_qp(3)`). The inline functions of `rdma_verbs.h` read all of them from
//! `struct rdma_cm_id`.

use crate::attributes;
use crate::cma::{CmId, qpt};
use crate::ece;
use crate::entry::{self, Outcome, refuse};
use crate::id::{self, IdObject};
use crate::layout::{CompChannel, Cq, Pd, QpInitAttr, QpInitAttrEx};
use crate::object::{get, set};
use crate::verbs::{self, QP_INIT_PD, QP_INIT_XRCD, made};
use bytemuck::Zeroable;
use std::ffi::c_int;
use std::ptr::null_mut;

/// `rdma_create_qp`: makes the QP on `pd`, or on the id's default PD. Stores the actual values in
/// `init`.
///
/// # Safety
/// `id` is live, `pd` NULL or live, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create(id: *mut CmId, pd: *mut Pd, init: *mut QpInitAttr) -> c_int {
    // SAFETY: the caller's promise.
    entry::or_minus_one("rdma_create_qp", || unsafe { build(id, pd, init) }.map(|()| 0))
}

/// # Safety
/// As for [`create`].
pub(crate) unsafe fn build(id: *mut CmId, pd: *mut Pd, init: *mut QpInitAttr) -> Outcome<()> {
    entry::not_null(init)?;
    // SAFETY: the caller's promise.
    let object = unsafe { id::live(id) }?;
    // SAFETY: not NULL, and valid by the caller's promise.
    let wanted = unsafe { init.read() };
    let mut extended = QpInitAttrEx {
        qp_context: wanted.qp_context,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: wanted.srq,
        cap: wanted.cap,
        qp_type: wanted.qp_type,
        sq_sig_all: wanted.sq_sig_all,
        comp_mask: QP_INIT_PD,
        pd: if pd.is_null() { get!(object.c(), pd) } else { pd },
        ..QpInitAttrEx::zeroed()
    };
    // SAFETY: the caller's promise; `extended` is a local variable.
    let built = unsafe { build_ex(object, &raw mut extended) };
    let plain = QpInitAttr {
        send_cq: extended.send_cq,
        recv_cq: extended.recv_cq,
        srq: extended.srq,
        cap: extended.cap,
        ..wanted
    };
    // SAFETY: not NULL, and the caller's to write.
    unsafe { init.write(plain) };
    built
}

/// `rdma_create_qp_ex`.
///
/// # Safety
/// `id` is live, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create_ex(id: *mut CmId, init: *mut QpInitAttrEx) -> c_int {
    entry::or_minus_one("rdma_create_qp_ex", || {
        entry::not_null(init)?;
        // SAFETY: the caller's promise.
        unsafe { build_ex(id::live(id)?, init) }.map(|()| 0)
    })
}

/// # Safety
/// `init` is valid, and the objects in it live.
unsafe fn build_ex(object: &IdObject, init: *mut QpInitAttrEx) -> Outcome<()> {
    let c = object.c();
    if !get!(c, qp).is_null() {
        return Err(refuse!(EINVAL, "the rdma_cm_id has a QP already"));
    }
    let device = object.device()?;
    if get!(init, comp_mask) & QP_INIT_PD == 0 || get!(init, pd).is_null() {
        set!(init, comp_mask, get!(init, comp_mask) | QP_INIT_PD);
        set!(init, pd, get!(c, pd));
    } else if get!(get!(init, pd), context) != get!(c, verbs) {
        return Err(refuse!(EINVAL, "the PD is not of the device that the rdma_cm_id is bound to"));
    }
    let differs = |own: *mut Cq, given: *mut Cq| !own.is_null() && !given.is_null() && own != given;
    if differs(get!(c, recv_cq), get!(init, recv_cq)) || differs(get!(c, send_cq), get!(init, send_cq)) {
        return Err(refuse!(EINVAL, "the rdma_cm_id has CQs of its own, and others were given"));
    }
    if get!(c, qp_type) == qpt::XRC_RECV && (get!(init, comp_mask) & QP_INIT_XRCD == 0 || get!(init, xrcd).is_null()) {
        set!(init, xrcd, device.xrcd()?.cast());
        set!(init, comp_mask, get!(init, comp_mask) | QP_INIT_XRCD);
    }
    let size = |own: *mut Cq, given: *mut Cq, size: u32| if own.is_null() && given.is_null() { size } else { 0 };
    let send = size(get!(c, send_cq), get!(init, send_cq), get!(init, cap.max_send_wr));
    let receive = size(get!(c, recv_cq), get!(init, recv_cq), get!(init, cap.max_recv_wr));
    create_cqs(object, send, receive)?;
    if get!(init, send_cq).is_null() {
        set!(init, send_cq, get!(c, send_cq));
    }
    if get!(init, recv_cq).is_null() {
        set!(init, recv_cq, get!(c, recv_cq));
    }
    if get!(init, srq).is_null() {
        set!(init, srq, get!(c, srq));
    }
    // SAFETY: the caller's promise; the id's device is open.
    let built = unsafe { verbs::create_qp_ex(get!(c, verbs), init) }.and_then(|qp| {
        // SAFETY: just made.
        let begun = unsafe { attributes::begin(object, qp) };
        if begun.is_err() {
            // SAFETY: just made, and nothing else refers to it.
            unsafe { verbs::ibv_destroy_qp(qp) };
        }
        begun.map(|()| {
            // SAFETY: just made.
            unsafe { ece::begin(object, qp) };
            qp
        })
    });
    match built {
        Ok(qp) => {
            // Not the QP's own: an XRC target has none.
            set!(c, pd, get!(init, pd));
            set!(c, qp, qp);
            Ok(())
        }
        Err(refusal) => {
            destroy_cqs(object);
            Err(refusal)
        }
    }
}

/// `rdma_destroy_qp`: destroys the QP with the queues that were made for it.
///
/// # Safety
/// `id` is live, and nothing uses its QP any more.
pub(crate) unsafe extern "C" fn destroy(id: *mut CmId) {
    entry::value("rdma_destroy_qp", || {
        // SAFETY: the caller's promise.
        if let Ok(object) = unsafe { id::live(id) } {
            let qp = get!(object.c(), qp);
            if !qp.is_null() {
                // SAFETY: the id's own QP, which nothing uses any more.
                unsafe { verbs::ibv_destroy_qp(qp) };
                set!(object.c(), qp, null_mut());
            }
            destroy_cqs(object);
        }
    });
}

/// Makes completion queues of these sizes, each with a channel. Size 0 makes none.
pub(crate) fn create_cqs(object: &IdObject, send: u32, receive: u32) -> Outcome<()> {
    let c = object.c();
    let built = || {
        if receive > 0 {
            set!(c, recv_cq_channel, create_channel(object)?);
            set!(c, recv_cq, create_cq(object, receive, get!(c, recv_cq_channel))?);
        }
        if send > 0 {
            set!(c, send_cq_channel, create_channel(object)?);
            set!(c, send_cq, create_cq(object, send, get!(c, send_cq_channel))?);
        }
        Ok(())
    };
    let built = built();
    if built.is_err() {
        destroy_cqs(object);
    }
    built
}

fn create_channel(object: &IdObject) -> Outcome<*mut CompChannel> {
    // SAFETY: the id's device is open.
    made(unsafe { verbs::ibv_create_comp_channel(get!(object.c(), verbs)) })
}

fn create_cq(object: &IdObject, size: u32, channel: *mut CompChannel) -> Outcome<*mut Cq> {
    let size = c_int::try_from(size).unwrap_or(c_int::MAX);
    // SAFETY: the id's device is open, and `channel` just made; the CQ's context is the id, as the
    // manual page says.
    made(unsafe { verbs::ibv_create_cq(get!(object.c(), verbs), size, object.c().cast(), channel, 0) })
}

/// Destroys the completion queues and channels that were made for the id.
pub(crate) fn destroy_cqs(object: &IdObject) {
    let c = object.c();
    if get!(c, qp_type) == qpt::XRC_RECV && !get!(c, srq).is_null() {
        return;
    }
    let (receive, send) = (get!(c, recv_cq), get!(c, send_cq));
    for cq in [receive, if send == receive { null_mut() } else { send }] {
        if !cq.is_null() {
            // SAFETY: made in `create_cqs`, and no QP of the id uses it any more.
            unsafe { verbs::ibv_destroy_cq(cq) };
        }
    }
    let (receive, send) = (get!(c, recv_cq_channel), get!(c, send_cq_channel));
    for channel in [receive, if send == receive { null_mut() } else { send }] {
        if !channel.is_null() {
            // SAFETY: made in `create_cqs`, and no CQ uses it any more.
            unsafe { verbs::ibv_destroy_comp_channel(channel) };
        }
    }
    set!(c, recv_cq, null_mut());
    set!(c, send_cq, null_mut());
    set!(c, recv_cq_channel, null_mut());
    set!(c, send_cq_channel, null_mut());
}
