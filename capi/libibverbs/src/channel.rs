//! Completion channels and their events. The principal type is [`ChannelObject`].

use crate::context::OpenContext;
use crate::cq::CqObject;
use crate::entry::{self, Attempt};
use crate::first;
use crate::layout::{CompChannel, Context, Cq};
use crate::object::{Object, from_cookie, get, set};
use engine::Channel;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// `struct ibv_comp_channel` and the engine's channel.
pub(crate) type ChannelObject = Object<CompChannel, Arc<Channel>>;

/// `ibv_create_comp_channel`. Programs of the first interface call it too, because its version has
/// never changed.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn create(context: *mut Context) -> *mut CompChannel {
    entry::pointer("ibv_create_comp_channel", || {
        let context = first::todays(context);
        // SAFETY: the caller's promise.
        let open = unsafe { OpenContext::of(context) }?;
        let channel = open.engine.create_channel()?;
        let fd = channel.fd().as_raw_fd();
        Ok(ChannelObject::create(CompChannel { context, fd, refcnt: 0 }, channel).cast())
    })
}

/// `ibv_destroy_comp_channel`.
///
/// # Safety
/// `channel` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy(channel: *mut CompChannel) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_destroy_comp_channel", || unsafe {
        ChannelObject::end(channel, |object| Ok(object.inner.destroy()?))
    })
}

/// `ibv_get_cq_event`: waits unless the channel's descriptor has O_NONBLOCK.
///
/// # Safety
/// `channel` is live; `cq` and `cq_context` are valid.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    entry::waiting("ibv_get_cq_event", || {
        entry::not_null(cq)?;
        entry::not_null(cq_context)?;
        // SAFETY: the caller's promise.
        let object = unsafe { ChannelObject::live(channel) }?;
        let Some(cookie) = object.inner.try_event()? else {
            return Ok(Attempt::Counter(object.inner.fd().as_raw_fd()));
        };
        let found: *mut Cq = from_cookie(cookie);
        // SAFETY: not NULL, and the caller's to write.
        unsafe { cq.write(found) };
        // The CQ is live: `ibv_destroy_cq` waits until this event is acknowledged.
        let named = get!(found, cq_context);
        // SAFETY: as above.
        unsafe { cq_context.write(named) };
        Ok(Attempt::Done)
    })
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut Cq, count: c_uint) {
    entry::value("ibv_ack_cq_events", || {
        // SAFETY: the caller's promise.
        if let Ok(object) = unsafe { CqObject::of(cq) } {
            set!(object.c(), comp_events_completed, object.inner.acks.completion(count));
        }
    });
}
