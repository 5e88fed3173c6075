//! Completion queues: creating, polling, arming, destroying. The extended polling functions are in
//! `cq_ex`. The principal type is [`CqObject`].

use crate::acks::Acks;
use crate::channel::ChannelObject;
use crate::context::OpenContext;
use crate::cq_ex::Cursor;
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{CompChannel, Context, Cq, CqEx, ModifyCqAttr, Wc};
use crate::object::{Object, cookie, get, set};
use bytemuck::Zeroable;
use engine::{Cq as EngineCq, CqSpec, Pd as EnginePd};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

/// `struct ibv_cq_ex`, which begins with `struct ibv_cq`, and the engine's CQ.
pub(crate) type CqObject = Object<CqEx, CqState>;

/// This library's data about a CQ.
pub(crate) struct CqState {
    /// Set once, before the program gets the pointer: the engine's CQ stores the address of this
    /// object as its cookie.
    queue: OnceLock<Arc<EngineCq>>,
    /// Events that the program has acknowledged.
    pub(crate) acks: Acks,
    /// The cursor of extended polling.
    pub(crate) cursor: Cursor,
}

impl CqState {
    /// The engine's CQ.
    pub(crate) fn queue(&self) -> Outcome<&Arc<EngineCq>> {
        self.queue.get().ok_or(Refusal(libc::EINVAL))
    }
}

const _: () = assert!(size_of::<Wc>() == size_of::<abi::cq::Wc>());

/// `ibv_create_cq`.
///
/// # Safety
/// `context` is open, `channel` is NULL or live.
pub(crate) unsafe extern "C" fn create(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: c_int,
) -> *mut Cq {
    entry::pointer("ibv_create_cq", || {
        let (Ok(entries), Ok(vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
            return Err(refuse!(EINVAL, "ibv_create_cq: {cqe} entries, completion vector {comp_vector}"));
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { build(context, None, entries, cq_context, channel, vector) }?.cast())
    })
}

/// Makes a CQ whose extended functions are not filled in.
///
/// # Safety
/// `context` is open, `channel` is NULL or live.
pub(crate) unsafe fn build(
    context: *mut Context,
    domain: Option<&Arc<EnginePd>>,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: u32,
) -> Outcome<*mut CqEx> {
    // SAFETY: the caller's promise.
    let open = unsafe { OpenContext::of(context) }?;
    let notified = if channel.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(&unsafe { ChannelObject::live(channel) }?.inner)
    };
    let state = CqState { queue: OnceLock::new(), acks: Acks::default(), cursor: Cursor::default() };
    let object = CqObject::create(CqEx { context, channel, cq_context, ..CqEx::zeroed() }, state);
    let spec = CqSpec { cqe, channel: notified, comp_vector, cookie: cookie(object) };
    let made = open.engine.create_cq_in(domain, &spec);
    // SAFETY: just made, and nothing else refers to it.
    let whole = unsafe { CqObject::of(object) }?;
    match made {
        Ok(queue) => {
            set!(whole.c(), handle, queue.handle());
            whole.named();
            set!(whole.c(), cqe, queue.entries().cast_signed());
            let _ = whole.inner.queue.set(queue);
            Ok(whole.c())
        }
        Err(error) => {
            // SAFETY: nothing else refers to it.
            unsafe { CqObject::free(object) };
            Err(error.into())
        }
    }
}

/// `ibv_resize_cq`.
///
/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn resize(cq: *mut Cq, cqe: c_int) -> c_int {
    entry::code("ibv_resize_cq", || {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::live(cq) }?;
        let wanted = u32::try_from(cqe).map_err(|_| refuse!(EINVAL, "ibv_resize_cq: {cqe} entries"))?;
        let entries = object.inner.queue()?.resize(wanted)?;
        set!(object.c(), cqe, entries.cast_signed());
        Ok(())
    })
}

/// `modify_cq` of the extended context: moderation.
///
/// # Safety
/// `cq` is live, `attr` valid.
pub(crate) unsafe extern "C" fn modify(cq: *mut Cq, attr: *mut ModifyCqAttr) -> c_int {
    /// `IBV_CQ_ATTR_MODERATE`.
    const MODERATE: u32 = 1;
    entry::code("ibv_modify_cq", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::live(cq) }?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let ModifyCqAttr { attr_mask, moderate } = unsafe { attr.read() };
        if attr_mask & !MODERATE != 0 {
            return Err(refuse!(EINVAL, "ibv_modify_cq: attr_mask {attr_mask:#x}: IBV_CQ_ATTR_MODERATE (1) is known"));
        }
        if attr_mask & MODERATE != 0 {
            object.inner.queue()?.moderate(moderate.cq_count, moderate.cq_period)?;
        }
        Ok(())
    })
}

/// `ibv_destroy_cq`: waits until every event that was read is acknowledged.
///
/// # Safety
/// `cq` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy(cq: *mut Cq) -> c_int {
    let work = |object: &CqObject| {
        let read = object.inner.queue()?.destroy()?;
        // SAFETY: the context of a live CQ is open.
        let lint = unsafe { OpenContext::of(get!(cq, context)) }?.engine.lint();
        object.inner.acks.wait_for(lint, "ibv_destroy_cq", read.completion, read.asynchronous);
        Ok(())
    };
    // SAFETY: the caller's promise; and no event refers to the CQ any more.
    entry::code("ibv_destroy_cq", || unsafe { CqObject::end(cq, work) })
}

/// `poll_cq` of the context's operations: the number of completions, or a negative errno value.
///
/// # Safety
/// `cq` is live, `wc` has room for `count` completions.
pub(crate) unsafe extern "C" fn poll(cq: *mut Cq, count: c_int, wc: *mut Wc) -> c_int {
    let polled = entry::quick_or_negative("ibv_poll_cq", || {
        let count = usize::try_from(count).map_err(|_| refuse!(EINVAL, "ibv_poll_cq: {count} completions"))?;
        if count == 0 {
            return Ok(0);
        }
        entry::not_null(wc)?;
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) }?;
        // SAFETY: the caller's array, which nothing else uses during the call. The two records
        // have the same layout (asserted above and by the ABI crate), and any bytes are a valid
        // record.
        let room = unsafe { std::slice::from_raw_parts_mut(wc.cast::<abi::cq::Wc>(), count) };
        Ok(object.inner.queue()?.poll(room)?.cast_signed())
    });
    c_int::try_from(polled).unwrap_or(c_int::MAX)
}

/// `req_notify_cq` of the context's operations.
///
/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn req_notify(cq: *mut Cq, solicited_only: c_int) -> c_int {
    entry::quick_code("ibv_req_notify_cq", || {
        // SAFETY: the caller's promise.
        let object = unsafe { CqObject::of(cq) }?;
        Ok(object.inner.queue()?.req_notify(solicited_only != 0)?)
    })
}

/// The engine's CQ behind a program's pointer.
///
/// # Safety
/// `cq` is NULL or live.
pub(crate) unsafe fn queue<'a>(cq: *mut Cq) -> Outcome<&'a Arc<EngineCq>> {
    // SAFETY: the caller's promise.
    unsafe { CqObject::live(cq) }?.inner.queue()
}

/// Whether a CQ is given and belongs to a context: objects of different devices never mix. A CQ
/// that is not live is refused.
pub(crate) fn belongs(cq: *mut Cq, context: *mut Context) -> Outcome<bool> {
    if cq.is_null() {
        return Ok(false);
    }
    // SAFETY: the reference lives only during this function.
    Ok(get!(unsafe { CqObject::live(cq) }?.c(), context) == context)
}
