//! The first interface's objects: PD, MR, CQ, SRQ, QP and AH. The structs are in `structs`; the
//! principal type is [`First`].

use super::structs::{Context, Cq, First, Mr};
use super::{answer, end, forward, now, now_or_null, wrap};
use crate::entry;
use crate::layout::{self, Ah, AhAttr, CompChannel, Gid, Pd, Qp, QpAttr, QpInitAttr, Srq, SrqAttr, SrqInitAttr};
use crate::object::{get, set};
use crate::{address, cq, mcast, memory, pd, qp, srq};
use bytemuck::Zeroable;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut First<Pd> {
    entry::pointer("ibv_alloc_pd", || {
        // SAFETY: the caller's promise.
        let made = unsafe { pd::alloc(now(context)?) };
        let handle = if made.is_null() { 0 } else { get!(made, handle) };
        wrap(First(Pd { context: context.cast(), handle }), made)
    })
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// `pd` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut First<Pd>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_dealloc_pd", pd, pd::dealloc) }
}

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn reg_mr(pd: *mut First<Pd>, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    entry::pointer("ibv_reg_mr", || {
        // SAFETY: the caller's promise.
        let made = unsafe { memory::reg(now(pd)?, addr, length, access) };
        let mut mr = Mr { context: get!(pd, 0.context).cast(), pd: pd.cast(), ..Mr::zeroed() };
        if !made.is_null() {
            (mr.handle, mr.lkey, mr.rkey) = (get!(made, handle), get!(made, lkey), get!(made, rkey));
        }
        wrap(mr, made)
    })
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// `mr` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_dereg_mr", mr, memory::dereg) }
}

/// `ibv_create_cq`. Today's CQ has the old CQ as its context, so that events lead to the old CQ.
///
/// # Safety
/// `context` is open, `channel` NULL or live.
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    entry::pointer("ibv_create_cq", || {
        // SAFETY: the caller's promise.
        let made: *mut layout::Cq = unsafe { cq::create(now(context)?, cqe, null_mut(), channel, vector) };
        let mut old = Cq { context, cq_context, ..Cq::zeroed() };
        if !made.is_null() {
            (old.handle, old.cqe) = (get!(made, handle), get!(made, cqe));
        }
        let old = wrap(old, made)?;
        set!(made, cq_context, old.cast());
        Ok(old)
    })
}

/// `ibv_resize_cq`.
///
/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
    entry::code("ibv_resize_cq", || {
        // SAFETY: the caller's promise.
        let now = unsafe { now(cq) }?;
        // SAFETY: as above.
        answer::code(unsafe { cq::resize(now, cqe) })?;
        set!(cq, cqe, get!(now, cqe));
        Ok(())
    })
}

/// `ibv_destroy_cq`.
///
/// # Safety
/// `cq` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_cq", cq, cq::destroy) }
}

/// `ibv_create_srq`.
///
/// # Safety
/// `pd` is live, `init` valid.
pub(crate) unsafe extern "C" fn create_srq(pd: *mut First<Pd>, init: *mut SrqInitAttr) -> *mut First<Srq> {
    entry::pointer("ibv_create_srq", || {
        // SAFETY: the caller's promise.
        let made = unsafe { srq::create(now(pd)?, init) };
        let mut old = Srq { context: get!(pd, 0.context), pd: pd.cast(), ..Srq::zeroed() };
        if !made.is_null() {
            (old.srq_context, old.handle) = (get!(made, srq_context), get!(made, handle));
        }
        let old = wrap(First(old), made)?;
        set!(made, srq_context, old.cast());
        Ok(old)
    })
}

/// `ibv_destroy_srq`.
///
/// # Safety
/// `srq` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut First<Srq>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_srq", srq, srq::destroy) }
}

forward! {
    code modify_srq(srq: First<Srq>, attr: *mut SrqAttr, mask: c_int) = srq::modify;
    code query_srq(srq: First<Srq>, attr: *mut SrqAttr) = srq::query;
    code attach_mcast(qp: First<Qp>, gid: *const Gid, lid: u16) = mcast::attach;
    code detach_mcast(qp: First<Qp>, gid: *const Gid, lid: u16) = mcast::detach;
}

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` is live, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create_qp(pd: *mut First<Pd>, init: *mut First<QpInitAttr>) -> *mut First<Qp> {
    entry::pointer("ibv_create_qp", || {
        entry::not_null(init)?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let asked = unsafe { init.cast::<QpInitAttr>().read() };
        // SAFETY: the caller's promise.
        let mut todays = unsafe {
            QpInitAttr {
                send_cq: now_or_null::<Cq>(asked.send_cq.cast())?,
                recv_cq: now_or_null::<Cq>(asked.recv_cq.cast())?,
                srq: now_or_null::<First<Srq>>(asked.srq.cast())?,
                ..asked
            }
        };
        // SAFETY: the caller's promise.
        let made = unsafe { qp::create(now(pd)?, &raw mut todays) };
        let QpInitAttr { qp_context, send_cq, recv_cq, srq, qp_type, .. } = asked;
        let context = get!(pd, 0.context);
        let mut old = Qp { context, qp_context, pd: pd.cast(), send_cq, recv_cq, srq, qp_type, ..Qp::zeroed() };
        if !made.is_null() {
            (old.handle, old.qp_num, old.state) = (get!(made, handle), get!(made, qp_num), get!(made, state));
        }
        let old = wrap(First(old), made)?;
        set!(made, qp_context, old.cast());
        set!(init.cast::<QpInitAttr>(), cap, todays.cap);
        Ok(old)
    })
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` is live, `attr` valid.
pub(crate) unsafe extern "C" fn modify_qp(qp: *mut First<Qp>, attr: *mut QpAttr, mask: c_int) -> c_int {
    entry::code("ibv_modify_qp", || {
        // SAFETY: the caller's promise.
        let now = unsafe { now(qp) }?;
        // SAFETY: as above.
        answer::code(unsafe { qp::modify(now, attr, mask) })?;
        set!(qp.cast::<Qp>(), state, get!(now, state));
        Ok(())
    })
}

/// `ibv_query_qp`.
///
/// # Safety
/// `qp` is live, `attr` and `init` valid.
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut First<Qp>,
    attr: *mut QpAttr,
    mask: c_int,
    init: *mut First<QpInitAttr>,
) -> c_int {
    entry::code("ibv_query_qp", || {
        // SAFETY: the caller's promise.
        let now = unsafe { now(qp) }?;
        // SAFETY: as above.
        answer::code(unsafe { qp::query(now, attr, mask, init.cast()) })?;
        set!(init.cast::<QpInitAttr>(), qp_context, get!(qp, 0.qp_context));
        set!(init.cast::<QpInitAttr>(), send_cq, get!(qp, 0.send_cq));
        set!(init.cast::<QpInitAttr>(), recv_cq, get!(qp, 0.recv_cq));
        set!(init.cast::<QpInitAttr>(), srq, get!(qp, 0.srq));
        set!(qp.cast::<Qp>(), state, get!(now, state));
        Ok(())
    })
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// `qp` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut First<Qp>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_qp", qp, qp::destroy) }
}

/// `ibv_create_ah`.
///
/// # Safety
/// `pd` is live, `attr` valid.
pub(crate) unsafe extern "C" fn create_ah(pd: *mut First<Pd>, attr: *mut AhAttr) -> *mut First<Ah> {
    entry::pointer("ibv_create_ah", || {
        // SAFETY: the caller's promise.
        let made = unsafe { address::create(now(pd)?, attr) };
        let handle = if made.is_null() { 0 } else { get!(made, handle) };
        wrap(First(Ah { context: get!(pd, 0.context), pd: pd.cast(), handle }), made)
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `ah` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut First<Ah>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_ah", ah, address::destroy) }
}
