//! Making an id, moving it to another channel, ending it.
//!
//! An id for which the program gave no channel is *synchronous*: it has its own channel, and its
//! calls wait until the operation that they began has ended. Ending an id waits until every event
//! of it that was handed out is acknowledged (`rdma_destroy_id(3)`). The principal functions are
//! [`create`] and [`destroy`].

use crate::addrinfo;
use crate::attributes;
use crate::channel::{self, ChannelObject};
use crate::cma::{CmId, EventChannel, ps, qpt};
use crate::entry::{self, Outcome, refuse};
use crate::event;
use crate::id::{self, Beginning, IdObject};
use crate::membership::Membership;
use crate::object::{get, set};
use crate::registry;
use cm::{PortSpace, QpKind};
use std::ffi::{c_int, c_uint, c_void};

/// `rdma_create_id`: without a channel the id is synchronous.
///
/// # Safety
/// `channel` is NULL or live, `id` valid.
pub(crate) unsafe extern "C" fn create(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    entry::or_minus_one("rdma_create_id", || {
        entry::not_null(id)?;
        let qp_type = if matches!(space, ps::IPOIB | ps::UDP) { qpt::UD } else { qpt::RC };
        // SAFETY: the caller's promise.
        let made = unsafe { make(channel, context, space, qp_type) }?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { id.write(made) };
        Ok(0)
    })
}

/// Makes an id for QPs of any type.
///
/// # Safety
/// `channel` is NULL or live.
pub(crate) unsafe fn make(
    given: *mut EventChannel,
    context: *mut c_void,
    space: c_uint,
    qp_type: c_uint,
) -> Outcome<*mut CmId> {
    let unknown = || refuse!(EINVAL, "port space {space:#x} with QP type {qp_type} is not known");
    let number = PortSpace(u16::try_from(space).map_err(|_| unknown())?);
    let kind = QpKind(u8::try_from(qp_type).map_err(|_| unknown())?);
    let sync = given.is_null();
    let channel = if sync { channel::open()? } else { given };
    // SAFETY: live by the caller's promise, or just opened.
    let created = unsafe { ChannelObject::live(channel) }.and_then(|object| {
        if let Some(kept) = object.inner.kept_id(number, kind) {
            return Ok(kept);
        }
        let cookie = registry::fresh();
        Ok((cookie, object.inner.create_id(cookie, number, kind)?))
    });
    match created {
        Ok((cookie, handle)) => {
            Ok(Beginning { channel, context, space, qp_type, sync, named: true }.publish(handle, cookie))
        }
        Err(refusal) => {
            if sync {
                // SAFETY: just opened, and nothing else refers to it.
                unsafe { ChannelObject::free(channel.cast()) };
            }
            Err(refusal)
        }
    }
}

/// `rdma_destroy_id`: waits until every event that was handed out is acknowledged.
///
/// # Safety
/// `id` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy(id: *mut CmId) -> c_int {
    // SAFETY: the caller's promise.
    entry::or_minus_one("rdma_destroy_id", || unsafe { end(id) }.map(|()| 0))
}

/// # Safety
/// As for [`destroy`].
pub(crate) unsafe fn end(id: *mut CmId) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let object = unsafe { id::live(id) }?;
    let (channel, handle) = (object.channel()?, object.inner.handle);
    let ended = match object.renewable() {
        Some((space, kind)) => channel.renew_id(handle, registry::fresh(), space, kind),
        None => channel.destroy_id(handle),
    };
    let reported = match ended {
        Ok(reported) => reported,
        // When the agent ends, the id and its events are gone as well.
        Err(error) if error.errno == abi::Errno::EIO => 0,
        Err(error) => return Err(error.into()),
    };
    attributes::fail_external(object);
    // SAFETY: the id's own event, if it keeps one.
    unsafe { event::let_go(object) };
    object.wait_for_events(reported);
    registry::forget_id(object.inner.cookie, object.inner.handle.0);
    let (sync, resolved) = {
        let mut state = object.state();
        for group in state.groups.drain(..) {
            // SAFETY: the id's own memberships; their events are the id's events too, and are
            // acknowledged.
            unsafe { Membership::free(group) };
        }
        (state.sync, state.resolved)
    };
    let c = object.c();
    // SAFETY: allocated with calloc; NULL is allowed.
    unsafe { libc::free(get!(c, route.path_rec).cast()) };
    if sync {
        // SAFETY: the id's own channel, which nothing else uses.
        unsafe { ChannelObject::free(get!(c, channel).cast()) };
    }
    // SAFETY: a list of this library that the program has not taken; NULL is allowed.
    unsafe { addrinfo::release(resolved) };
    // SAFETY: the caller's promise.
    unsafe { IdObject::free(id.cast()) };
    Ok(())
}

/// `rdma_migrate_id`: moves an id to another channel, or to its own if `channel` is NULL.
///
/// # Safety
/// `id` is live, and no other call with it is under way; `channel` is NULL or live.
pub(crate) unsafe extern "C" fn migrate(id: *mut CmId, channel: *mut EventChannel) -> c_int {
    // SAFETY: the caller's promise.
    entry::or_minus_one("rdma_migrate_id", || unsafe { move_to(id, channel) }.map(|()| 0))
}

/// # Safety
/// As for [`migrate`].
pub(crate) unsafe fn move_to(id: *mut CmId, given: *mut EventChannel) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let object = unsafe { id::live(id) }?;
    let (was_sync, sync) = (object.state().sync, given.is_null());
    if was_sync && sync {
        return Err(refuse!(EINVAL, "the rdma_cm_id is synchronous already"));
    }
    let to = if sync { channel::open()? } else { given };
    // SAFETY: live by the caller's promise, or just opened.
    let moved = unsafe { ChannelObject::live(to) }
        .and_then(|channel| Ok(channel.inner.migrate_id(object.inner.handle, object.channel()?)?));
    let reported = match moved {
        Ok(reported) => reported,
        Err(refusal) => {
            if sync {
                // SAFETY: just opened, and nothing else refers to it.
                unsafe { ChannelObject::free(to.cast()) };
            }
            return Err(refusal);
        }
    };
    let from = get!(object.c(), channel);
    if was_sync {
        // SAFETY: the id's own event, if it keeps one.
        unsafe { event::let_go(object) };
        // SAFETY: the id's own channel, which nothing uses any more.
        unsafe { ChannelObject::free(from.cast()) };
    }
    set!(object.c(), channel, to);
    object.state().sync = sync;
    object.wait_for_events(reported);
    Ok(())
}
