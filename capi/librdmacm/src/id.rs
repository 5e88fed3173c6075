//! Ids: `struct rdma_cm_id` and this library's data about it; making an id, moving it to another
//! channel, ending it.
//!
//! An id for which the program gave no channel is *synchronous*: it has its own channel, and its
//! calls wait until the operation that they began has ended. Ending an id waits until every event
//! of it that was handed out is acknowledged (`rdma_destroy_id(3)`). The principal types are
//! [`IdObject`] and [`State`].

use crate::addrinfo;
use crate::channel::{self, ChannelObject};
use crate::cma::{AddrInfo, CmId, EventChannel, ps, qpt};
use crate::devices::Opened;
use crate::entry::{self, Outcome, refuse};
use crate::event;
use crate::group::Group;
use crate::layout::QpInitAttr;
use crate::object::{Named, Object, get, set};
use crate::registry;
use bytemuck::Zeroable;
use cm::{Channel, Ece, Id, Known, PortSpace, QpAttributes, QpKind};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// `struct rdma_cm_id` and this library's data.
pub(crate) type IdObject = Object<CmId, IdState>;

impl Named for CmId {
    const NAME: &'static str = "rdma_cm_id";

    fn name(_c: *const Self) -> u32 {
        0
    }
}

/// The constant part of an id, and its changing part.
pub(crate) struct IdState {
    /// The agent's handle of the id.
    pub(crate) handle: Id,
    /// The cookie that the id's events carry.
    pub(crate) cookie: u64,
    /// The device that the id's address resolved to.
    pub(crate) device: OnceLock<&'static Opened>,
    /// Whether events may name the id: the program made it, or it is a request that the program has
    /// accepted.
    pub(crate) named: AtomicBool,
    /// Whether the program has been told that the device is gone.
    pub(crate) removed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// The changing part of an id.
pub(crate) struct State {
    /// The number of acknowledged events.
    pub(crate) completed: u32,
    /// Whether calls wait until their operation has ended.
    pub(crate) sync: bool,
    /// The response was good, but modifying our QP failed. Later events of the connection do not
    /// concern the program.
    pub(crate) connect_error: bool,
    /// Whether this side asked for the connection.
    pub(crate) has_asked: bool,
    /// Whether the program knows, or learns now, that the connection is established.
    pub(crate) established: bool,
    /// Our READs and atomics, as asked for or as agreed.
    pub(crate) initiator_depth: u8,
    /// The peer's READs and atomics.
    pub(crate) responder_resources: u8,
    /// Attributes for the QP's next states, which came with an event. They are invalid once
    /// anything has been asked for or set.
    pub(crate) attributes: [Option<Box<QpAttributes>>; 3],
    /// Whether an option was set. Events may have been under way then, so their attributes for the
    /// QP's next states are ignored.
    pub(crate) optioned: bool,
    /// Enhanced connection establishment, ours and the peer's.
    pub(crate) local_ece: Ece,
    pub(crate) remote_ece: Ece,
    /// The data that `rdma_getaddrinfo` puts at the beginning of the private data.
    pub(crate) connect: Vec<u8>,
    /// The attributes for QPs of requests to a listening endpoint.
    pub(crate) qp_init: Option<QpInitAttr>,
    /// The memberships in multicast groups.
    pub(crate) groups: Vec<*mut Group>,
    /// The result of `rdma_resolve_addrinfo`, which the program takes once.
    pub(crate) resolved: *mut AddrInfo,
    /// Whether `rdma_resolve_addrinfo` was called. It may be called only once.
    pub(crate) resolving: bool,
}

/// The id behind a program's pointer. Fails with ENOENT, as the kernel does for an id that it does
/// not know, if the pointer is not (or no longer) an id.
///
/// # Safety
/// The id is not destroyed while the result is used.
pub(crate) unsafe fn live<'a>(id: *mut CmId) -> Outcome<&'a IdObject> {
    entry::not_null(id)?;
    if !registry::is_live(id) {
        return Err(refuse!(ENOENT, "a call was made with an rdma_cm_id that is destroyed or not valid"));
    }
    // SAFETY: it was live just now, and stays so by the caller's promise.
    unsafe { IdObject::of(id) }
}

impl IdObject {
    /// The changing part.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock()
    }

    /// The id's current channel.
    pub(crate) fn channel(&self) -> Outcome<&Channel> {
        // SAFETY: the program keeps the channel while ids are on it; a synchronous id has its own.
        unsafe { ChannelObject::live(get!(self.c(), channel)) }.map(|channel| &channel.inner)
    }

    /// The device. Fails with EINVAL if the id has no device yet.
    pub(crate) fn device(&self) -> Outcome<&'static Opened> {
        self.inner
            .device
            .get()
            .copied()
            .ok_or_else(|| refuse!(EINVAL, "the rdma_cm_id has no device yet: its address is not resolved"))
    }

    /// Keeps an event's attributes for the QP's next states.
    pub(crate) fn keep_attributes(&self, known: &Known) {
        let mut state = self.state();
        state.attributes = if state.optioned { [const { None }; 3] } else { known.attributes.clone() };
    }

    /// Whether the program must be told that the device is gone. Marks the program as told.
    pub(crate) fn take_removal(&self) -> bool {
        let inner = &self.inner;
        inner.device.get().is_some()
            && inner.named.load(Ordering::Relaxed)
            && !inner.removed.swap(true, Ordering::Relaxed)
    }

    /// Whether its QP is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        get!(self.c(), qp_type) == qpt::UD
    }

    /// The port space and QP type of the next id, which can be made while this one is destroyed. A
    /// program that has connected once will mostly connect again in the same way.
    fn renewable(&self) -> Option<(PortSpace, QpKind)> {
        let state = self.state();
        let number = |value: c_uint| u16::try_from(value).ok();
        let kind = number(get!(self.c(), qp_type)).and_then(|kind| u8::try_from(kind).ok()).map(QpKind);
        let space = number(get!(self.c(), ps)).map(PortSpace);
        space.zip(kind).filter(|_| state.has_asked && state.established && !state.sync)
    }

    /// Counts one acknowledged event of the id.
    pub(crate) fn complete_event(&self) {
        self.state().completed += 1;
        self.inner.changed.notify_all();
    }

    /// Waits until as many events are acknowledged as were handed out.
    fn wait_for_events(&self, reported: u32) {
        let mut state = self.state();
        while reported.wrapping_sub(state.completed).cast_signed() > 0 {
            self.inner.changed.wait(&mut state);
        }
    }

    /// Waits until `ready`, which runs under the id's lock.
    pub(crate) fn wait_until(&self, mut ready: impl FnMut(&State) -> bool) {
        let mut state = self.state();
        while !ready(&state) {
            self.inner.changed.wait(&mut state);
        }
    }
}

/// The initial values of an id.
pub(crate) struct Beginning {
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) space: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) sync: bool,
    pub(crate) named: bool,
}

impl Beginning {
    /// Makes the id for this handle, whose events carry `cookie`.
    pub(crate) fn publish(self, handle: Id, cookie: u64) -> *mut CmId {
        let c = CmId {
            channel: self.channel,
            context: self.context,
            ps: self.space,
            qp_type: self.qp_type,
            ..CmId::zeroed()
        };
        let state = State {
            completed: 0,
            sync: self.sync,
            connect_error: false,
            has_asked: false,
            established: false,
            initiator_depth: 0,
            responder_resources: 0,
            attributes: [const { None }; 3],
            optioned: false,
            local_ece: Ece::default(),
            remote_ece: Ece::default(),
            connect: Vec::new(),
            qp_init: None,
            groups: Vec::new(),
            resolved: std::ptr::null_mut(),
            resolving: false,
        };
        let inner = IdState {
            handle,
            cookie,
            device: OnceLock::new(),
            named: AtomicBool::new(self.named),
            removed: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        let id: *mut CmId = IdObject::create(c, inner).cast();
        registry::name_id(cookie, id);
        id
    }
}

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
    let object = unsafe { live(id) }?;
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
    // SAFETY: the id's own event, if it keeps one.
    unsafe { event::let_go(object) };
    object.wait_for_events(reported);
    registry::forget_id(object.inner.cookie, object.inner.handle.0);
    let (sync, resolved) = {
        let mut state = object.state();
        for group in state.groups.drain(..) {
            // SAFETY: the id's own memberships; their events are the id's events too, and are
            // acknowledged.
            unsafe { Group::free(group) };
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
    let object = unsafe { live(id) }?;
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
