//! Posting and polling for programs of the first interface. Its work requests are other structs
//! than today's. Each request is translated and posted separately, without allocation.

use super::now_unchecked;
use super::structs::{Cq, First, RecvWr, SendWr};
use crate::entry::{self, Outcome};
use crate::layout::{self, Ah, Qp, Srq, Wc, WrTarget, WrUd};
use crate::object::get;
use crate::{cq, post, srq};
use abi::qp::kind::UD;
use bytemuck::Zeroable;
use std::ffi::c_int;

/// `poll_cq` of the context's operations.
///
/// # Safety
/// `cq` is live, `wc` has room for `count`.
pub(crate) unsafe extern "C" fn poll(cq: *mut Cq, count: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { now_unchecked(cq).map_or(-1, |now| cq::poll(now, count, wc)) }
}

/// `req_notify_cq` of the context's operations.
///
/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn req_notify(cq: *mut Cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { now_unchecked(cq).map_or_else(|refusal| refusal.0, |now| cq::req_notify(now, solicited_only)) }
}

/// `post_send` of the context's operations.
///
/// # Safety
/// `qp` is live, `wr` is a list of valid work requests, `bad` valid.
pub(crate) unsafe extern "C" fn send(qp: *mut First<Qp>, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let each = |request: *mut SendWr| {
        // SAFETY: the caller's promise.
        let (now, mut request) =
            unsafe { (now_unchecked(qp)?, todays(request, get!(qp, 0.qp_type) == u32::from(UD))?) };
        let mut unused = std::ptr::null_mut();
        // SAFETY: a list of one request.
        super::answer::code(unsafe { post::send(now, &raw mut request, &raw mut unused) })
    };
    post_each("ibv_post_send", wr, bad, |request| get!(request, next), each)
}

/// `post_recv` of the context's operations.
///
/// # Safety
/// `qp` is live, `wr` is a list of valid work requests, `bad` valid.
pub(crate) unsafe extern "C" fn recv(qp: *mut First<Qp>, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    let each = |request: *mut RecvWr| {
        // SAFETY: the caller's promise.
        let now: *mut Qp = unsafe { now_unchecked(qp) }?;
        let (mut request, mut unused) = (receive(request), std::ptr::null_mut());
        // SAFETY: a list of one request.
        super::answer::code(unsafe { post::recv(now, &raw mut request, &raw mut unused) })
    };
    post_each("ibv_post_recv", wr, bad, |request| get!(request, next), each)
}

/// `post_srq_recv` of the context's operations.
///
/// # Safety
/// `srq` is live, `wr` is a list of valid work requests, `bad` valid.
pub(crate) unsafe extern "C" fn post_srq(srq: *mut First<Srq>, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    let each = |request: *mut RecvWr| {
        // SAFETY: the caller's promise.
        let now: *mut Srq = unsafe { now_unchecked(srq) }?;
        let (mut request, mut unused) = (receive(request), std::ptr::null_mut());
        // SAFETY: a list of one request.
        super::answer::code(unsafe { srq::post(now, &raw mut request, &raw mut unused) })
    };
    post_each("ibv_post_srq_recv", wr, bad, |request| get!(request, next), each)
}

/// Posts the requests of a list in order. Stops at the first refused request and stores it in
/// `bad`.
fn post_each<W>(
    name: &'static str,
    wr: *mut W,
    bad: *mut *mut W,
    next: impl Fn(*mut W) -> *mut W,
    each: impl Fn(*mut W) -> Outcome<()>,
) -> c_int {
    entry::code(name, || {
        let mut request = wr;
        while !request.is_null() {
            each(request).inspect_err(|_| {
                if !bad.is_null() {
                    // SAFETY: not NULL, and the caller's to write.
                    unsafe { bad.write(request) };
                }
            })?;
            request = next(request);
        }
        Ok(())
    })
}

/// Today's form of a send request.
///
/// # Safety
/// `request` is valid, and the AH in it live.
unsafe fn todays(request: *mut SendWr, datagram: bool) -> Outcome<layout::SendWr> {
    // SAFETY: the caller's promise.
    let SendWr { wr_id, sg_list, num_sge, opcode, send_flags, imm_data, mut wr, .. } = unsafe { request.read() };
    if datagram {
        // SAFETY: requests of datagram QPs use this member; any bytes are a valid value of it.
        let ud = unsafe { wr.ud };
        // SAFETY: the caller's promise.
        let ah: *mut Ah = unsafe { now_unchecked::<First<Ah>>(ud.ah.cast()) }?;
        wr = WrTarget { ud: WrUd { ah, ..ud } };
    }
    Ok(layout::SendWr { wr_id, sg_list, num_sge, opcode, send_flags, imm_data, wr, ..layout::SendWr::zeroed() })
}

/// Today's form of a receive request.
fn receive(request: *mut RecvWr) -> layout::RecvWr {
    layout::RecvWr {
        wr_id: get!(request, wr_id),
        next: std::ptr::null_mut(),
        sg_list: get!(request, sg_list),
        num_sge: get!(request, num_sge),
    }
}
