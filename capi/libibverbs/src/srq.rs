//! Shared receive queues: creating, modifying, querying, destroying, posting. The principal type is
//! [`SrqObject`].

use crate::acks::Acks;
use crate::context::OpenContext;
use crate::entry::{self, Outcome, Refusal};
use crate::layout::{Pd, RecvWr, Srq, SrqAttr, SrqInitAttr};
use crate::lists;
use crate::object::{Object, cookie, get, set};
use crate::pd::PdObject;
use abi::srq::attr as change;
use bytemuck::Zeroable;
use engine::{Engine, Srq as EngineSrq, SrqSpec};
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

/// `struct ibv_srq` and the engine's SRQ.
pub(crate) type SrqObject = Object<Srq, SrqState>;

/// This library's data about an SRQ.
pub(crate) struct SrqState {
    /// Set once, before the program gets the pointer.
    queue: OnceLock<Arc<EngineSrq>>,
    /// Events that the program has acknowledged.
    pub(crate) acks: Acks,
}

impl SrqState {
    /// The engine's SRQ.
    pub(crate) fn queue(&self) -> Result<&Arc<EngineSrq>, Refusal> {
        self.queue.get().ok_or(Refusal(libc::EINVAL))
    }
}

/// `ibv_create_srq`: stores the actual sizes in `init.attr`.
///
/// # Safety
/// `pd` is live, `init` valid.
pub(crate) unsafe extern "C" fn create(pd: *mut Pd, init: *mut SrqInitAttr) -> *mut Srq {
    entry::pointer("ibv_create_srq", || {
        entry::not_null(init)?;
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::live(pd) }?;
        // SAFETY: the caller's promise.
        unsafe { build(pd, init, |engine, spec| engine.create_srq(&domain.inner, spec)) }
    })
}

/// Makes an SRQ of any type.
///
/// # Safety
/// `pd` is live, `init` valid.
pub(crate) unsafe fn build(
    pd: *mut Pd,
    init: *mut SrqInitAttr,
    make: impl FnOnce(&Arc<Engine>, &SrqSpec) -> engine::Result<Arc<EngineSrq>>,
) -> Outcome<*mut Srq> {
    let attr = get!(init, attr);
    let context = get!(pd, context);
    let c = Srq { context, srq_context: get!(init, srq_context), pd, ..Srq::zeroed() };
    let object = SrqObject::create(c, SrqState { queue: OnceLock::new(), acks: Acks::default() });
    // The limit in `attr` is ignored: only ibv_modify_srq arms it.
    let spec = SrqSpec { max_wr: attr.max_wr, max_sge: attr.max_sge, cookie: cookie(object) };
    // SAFETY: the context of a live PD is open.
    let made = unsafe { OpenContext::of(context) }.and_then(|open| Ok(make(&open.engine, &spec)?));
    // SAFETY: just made, and nothing else refers to it.
    let whole = unsafe { SrqObject::of(object) }?;
    match made {
        Ok(queue) => {
            set!(init, attr, SrqAttr { max_wr: queue.max_wr(), max_sge: queue.max_sge(), srq_limit: attr.srq_limit });
            set!(whole.c(), handle, queue.handle());
            whole.named();
            let _ = whole.inner.queue.set(queue);
            Ok(whole.c())
        }
        Err(refusal) => {
            // SAFETY: nothing else refers to it.
            unsafe { SrqObject::free(object) };
            Err(refusal)
        }
    }
}

/// `ibv_modify_srq`.
///
/// # Safety
/// `srq` is live, `attr` valid.
pub(crate) unsafe extern "C" fn modify(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    entry::code("ibv_modify_srq", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::live(srq) }?;
        let mask = mask.cast_unsigned();
        // Fields that the mask does not select may be uninitialized.
        let max_wr = if mask & change::MAX_WR != 0 { get!(attr, max_wr) } else { 0 };
        let limit = if mask & change::LIMIT != 0 { get!(attr, srq_limit) } else { 0 };
        Ok(object.inner.queue()?.modify(mask, max_wr, limit)?)
    })
}

/// `ibv_query_srq`.
///
/// # Safety
/// `srq` is live, `attr` valid.
pub(crate) unsafe extern "C" fn query(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    entry::code("ibv_query_srq", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let answer = unsafe { SrqObject::live(srq) }?.inner.queue()?.query()?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { attr.write(SrqAttr { max_wr: answer.max_wr, max_sge: answer.max_sge, srq_limit: answer.srq_limit }) };
        Ok(())
    })
}

/// `ibv_destroy_srq`: waits until every event that was read is acknowledged.
///
/// # Safety
/// `srq` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy(srq: *mut Srq) -> c_int {
    let work = |object: &SrqObject| {
        let read = object.inner.queue()?.destroy()?;
        // SAFETY: the context of a live SRQ is open.
        let lint = unsafe { OpenContext::of(get!(srq, context)) }?.engine.lint();
        object.inner.acks.wait_for(lint, "ibv_destroy_srq", 0, read);
        Ok(())
    };
    // SAFETY: the caller's promise; and no event refers to the SRQ any more.
    entry::code("ibv_destroy_srq", || unsafe { SrqObject::end(srq, work) })
}

/// `post_srq_recv` of the context's operations.
///
/// # Safety
/// `srq` is live, `wr` is a list of valid work requests, `bad` valid.
pub(crate) unsafe extern "C" fn post(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    entry::quick_code("ibv_post_srq_recv", || {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) }?;
        let queue = object.inner.queue()?;
        // SAFETY: the caller's promise.
        unsafe { lists::each_recv(wr, bad, |request| Ok(queue.post(request)?)) }
    })
}
