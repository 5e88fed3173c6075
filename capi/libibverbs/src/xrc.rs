//! Extended reliable connections (XRC): domains, their shared receive queues, and target QPs that
//! another process made. The principal type is [`XrcdObject`].

use crate::context::OpenContext;
use crate::cq;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Context, Pd, Qp, QpOpenAttr, Srq, SrqInitAttrEx, Xrcd, XrcdInitAttr};
use crate::object::{Object, get, set};
use crate::pd::PdObject;
use crate::qp;
use crate::srq::{self, SrqObject};
use engine::Xrcd as EngineXrcd;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// `struct ibv_xrcd` and the engine's domain.
pub(crate) type XrcdObject = Object<Xrcd, Arc<EngineXrcd>>;

/// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`.
const XRCD_WHOLE: u32 = 3;
/// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`, `_XRCD`, `_CQ`.
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 2;
const SRQ_XRCD: u32 = 4;
const SRQ_CQ: u32 = 8;
/// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`.
const BASIC: u32 = 0;
const XRC: u32 = 1;
/// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD`, `_CONTEXT`, `_TYPE`.
const OPEN_NEEDED: u32 = 1 | 2 | 8;
const OPEN_CONTEXT: u32 = 4;

/// `open_xrcd` of the extended context.
///
/// # Safety
/// `context` is open, `init` valid.
pub(crate) unsafe extern "C" fn open(context: *mut Context, init: *mut XrcdInitAttr) -> *mut Xrcd {
    entry::pointer("ibv_open_xrcd", || {
        entry::not_null(init)?;
        let (mask, fd, oflags) = (get!(init, comp_mask), get!(init, fd), get!(init, oflags));
        if mask & !XRCD_WHOLE != 0 {
            return Err(refuse!(EOPNOTSUPP, "ibv_open_xrcd: comp_mask {mask:#x} has more than file and flags"));
        }
        if mask != XRCD_WHOLE {
            return Err(refuse!(EINVAL, "ibv_open_xrcd: comp_mask {mask:#x}: both file and flags must be given"));
        }
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        let file = match fd {
            -1 => None,
            fd if fd < -1 => return Err(refuse!(EBADF, "ibv_open_xrcd: {fd} is not a file descriptor")),
            // SAFETY: the program's descriptor, open during this call; if it is not open, sending
            // it fails with EBADF.
            fd => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
        };
        if let Some(file) = file {
            // The control socket takes a failing send for the end of the agent. So a wrong
            // descriptor of the program must be found before.
            file.try_clone_to_owned().map_err(|_| refuse!(EBADF, "ibv_open_xrcd: {fd} is not a file descriptor"))?;
        }
        let xrcd = engine.open_xrcd(file, oflags.cast_unsigned())?;
        Ok(XrcdObject::create(Xrcd { context }, xrcd).cast())
    })
}

/// `close_xrcd` of the extended context.
///
/// # Safety
/// `xrcd` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn close(xrcd: *mut Xrcd) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_close_xrcd", || unsafe { XrcdObject::end(xrcd, |object| Ok(object.inner.close()?)) })
}

/// `create_srq_ex` of the extended context: an SRQ of an XRC domain, or the same as
/// `ibv_create_srq`.
///
/// # Safety
/// `context` is open, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create_srq(context: *mut Context, init: *mut SrqInitAttrEx) -> *mut Srq {
    entry::pointer("ibv_create_srq_ex", || {
        entry::not_null(init)?;
        let mask = get!(init, comp_mask);
        let srq_type = if mask & SRQ_TYPE != 0 { get!(init, srq_type) } else { BASIC };
        if mask & !(SRQ_TYPE | SRQ_PD | SRQ_XRCD | SRQ_CQ) != 0 || srq_type > XRC {
            return Err(refuse!(EOPNOTSUPP, "ibv_create_srq_ex: comp_mask {mask:#x}, type {srq_type}: not offered"));
        }
        if mask & SRQ_PD == 0 {
            return Err(refuse!(EINVAL, "ibv_create_srq_ex: comp_mask {mask:#x} lacks IBV_SRQ_INIT_ATTR_PD"));
        }
        let pd: *mut Pd = get!(init, pd);
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::live(pd) }?;
        if srq_type == BASIC {
            // SAFETY: the caller's promise; the extended attributes begin with the plain ones.
            return unsafe { srq::build(pd, init.cast(), |engine, spec| engine.create_srq(&domain.inner, spec)) };
        }
        if mask & (SRQ_XRCD | SRQ_CQ) != SRQ_XRCD | SRQ_CQ {
            return Err(refuse!(EINVAL, "ibv_create_srq_ex: an XRC SRQ needs a domain and a CQ"));
        }
        let given = get!(init, cq);
        if !cq::belongs(given, context)? {
            return Err(refuse!(EINVAL, "ibv_create_srq_ex: the CQ must be of the same open device"));
        }
        // SAFETY: the caller's promise.
        let (xrcd, queue) = unsafe { (XrcdObject::live::<Xrcd>(get!(init, xrcd).cast())?, cq::queue(given)?) };
        // SAFETY: the caller's promise; the extended attributes begin with the plain ones.
        unsafe {
            srq::build(pd, init.cast(), |engine, spec| engine.create_xrc_srq(&domain.inner, &xrcd.inner, queue, spec))
        }
    })
}

/// `get_srq_num` of the extended context: only XRC SRQs have a number, because only peers of XRC
/// name an SRQ.
///
/// # Safety
/// `srq` is live, `number` valid.
pub(crate) unsafe extern "C" fn srq_number(srq: *mut Srq, number: *mut u32) -> c_int {
    entry::code("ibv_get_srq_num", || {
        entry::not_null(number)?;
        // SAFETY: the caller's promise.
        let queue = unsafe { SrqObject::live(srq) }?.inner.queue()?;
        if !queue.is_xrc() {
            return Err(refuse!(EINVAL, "ibv_get_srq_num: only an XRC SRQ has a number"));
        }
        // SAFETY: not NULL, and the caller's to write.
        unsafe { number.write(queue.number()) };
        Ok(())
    })
}

/// `open_qp` of the extended context.
///
/// # Safety
/// `context` is open, `attr` valid, and the domain in it live.
pub(crate) unsafe extern "C" fn open_qp(context: *mut Context, attr: *mut QpOpenAttr) -> *mut Qp {
    entry::pointer("ibv_open_qp", || {
        entry::not_null(attr)?;
        let mask = get!(attr, comp_mask);
        if mask & !(OPEN_NEEDED | OPEN_CONTEXT) != 0 {
            return Err(refuse!(EOPNOTSUPP, "ibv_open_qp: comp_mask {mask:#x} has unknown bits"));
        }
        if mask & OPEN_NEEDED != OPEN_NEEDED {
            return Err(refuse!(EINVAL, "ibv_open_qp: comp_mask {mask:#x}: number, domain and type must be given"));
        }
        let (qp_type, qpn) = (get!(attr, qp_type), get!(attr, qp_num));
        if qp_type != u32::from(abi::qp::kind::XRC_TGT) {
            return Err(refuse!(EINVAL, "ibv_open_qp: QP type {qp_type}: only XRC_RECV (10) can be opened"));
        }
        let qp_context = if mask & OPEN_CONTEXT != 0 { get!(attr, qp_context) } else { std::ptr::null_mut() };
        // SAFETY: the caller's promise.
        let xrcd = unsafe { XrcdObject::live::<Xrcd>(get!(attr, xrcd).cast()) }?;
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        let c = Qp { context, qp_context, qp_type, ..bytemuck::Zeroable::zeroed() };
        let opened = qp::held(c, |cookie| engine.open_target(&xrcd.inner, qpn, cookie))?;
        // SAFETY: just made, and nothing else refers to it.
        let queue = unsafe { qp::QpObject::of(opened) }?.inner.queue()?;
        set!(opened, state, queue.state());
        Ok(opened)
    })
}

/// The engine's domain behind a program's pointer.
///
/// # Safety
/// `xrcd` is NULL or live.
pub(crate) unsafe fn domain<'a>(xrcd: *mut Xrcd) -> Outcome<&'a Arc<EngineXrcd>> {
    // SAFETY: the caller's promise.
    Ok(&unsafe { XrcdObject::live(xrcd) }?.inner)
}
