//! Ids: `struct rdma_cm_id` and what this library keeps about one; made, moved to another channel, ended.
//!
//! An id without a channel of its program's is *synchronous*: it has one of its own, and its calls wait until what they began has
//! ended. Ending an id waits until every event of it that was given out is acknowledged (`rdma_destroy_id(3)`). The principal types
//! are [`IdObject`] and [`State`].

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

/// `struct rdma_cm_id` and what this library keeps.
pub(crate) type IdObject = Object<CmId, IdState>;

impl Named for CmId {
    const NAME: &'static str = "rdma_cm_id";

    fn name(_c: *const Self) -> u32 {
        0
    }
}

/// What does not change, and what does.
pub(crate) struct IdState {
    /// The agent's name for it.
    pub(crate) handle: Id,
    /// By which its events name it.
    pub(crate) cookie: u64,
    /// The device that its address has led to.
    pub(crate) device: OnceLock<&'static Opened>,
    /// Events may name it: it was made by the program, or is a request that it has accepted.
    pub(crate) named: AtomicBool,
    /// Its program has been told that the device is gone.
    pub(crate) removed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// What changes.
pub(crate) struct State {
    /// Events that the program is done with.
    pub(crate) completed: u32,
    /// Calls wait for what they began.
    pub(crate) sync: bool,
    /// The response was good and our QP was not: what still comes of the connection is not the program's business.
    pub(crate) connect_error: bool,
    /// It was this side that asked for the connection.
    pub(crate) has_asked: bool,
    /// The program has heard, or hears now, that the connection stands.
    pub(crate) established: bool,
    /// READs and atomics of ours, as asked for or as agreed.
    pub(crate) initiator_depth: u8,
    /// READs and atomics of the peer's.
    pub(crate) responder_resources: u8,
    /// For the QP's next states, as they came with an event; of no use once anything has been asked for or set.
    pub(crate) attributes: [Option<Box<QpAttributes>>; 3],
    /// An option was set, and events may have been on their way already: what they say of the QP's next states is of no use.
    pub(crate) optioned: bool,
    /// Enhanced connection establishment, ours and the peer's.
    pub(crate) local_ece: Ece,
    pub(crate) remote_ece: Ece,
    /// What `rdma_getaddrinfo` wants at the beginning of the private data.
    pub(crate) connect: Vec<u8>,
    /// For the QPs of those who connect to a listening endpoint.
    pub(crate) qp_init: Option<QpInitAttr>,
    /// Memberships.
    pub(crate) groups: Vec<*mut Group>,
    /// What `rdma_resolve_addrinfo` has found; the program takes it once.
    pub(crate) resolved: *mut AddrInfo,
    /// It was called, and nothing may be asked again.
    pub(crate) resolving: bool,
}

/// The id behind a program's pointer; EINVAL for what is none (any more).
///
/// # Safety
/// The id is not destroyed while the result is used.
pub(crate) unsafe fn live<'a>(id: *mut CmId) -> Outcome<&'a IdObject> {
    entry::not_null(id)?;
    if !registry::is_live(id) {
        return Err(refuse!(
            EINVAL,
            "a call was made with an rdma_cm_id that is none: it has been destroyed, or was never made"
        ));
    }
    // SAFETY: it is live, as was just seen, and stays so by the caller's promise.
    unsafe { IdObject::of(id) }
}

impl IdObject {
    /// The changing part.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock()
    }

    /// The channel that the id is on now.
    pub(crate) fn channel(&self) -> Outcome<&Channel> {
        // SAFETY: the program keeps the channel while ids are on it; a synchronous id has its own.
        unsafe { ChannelObject::live(get!(self.c(), channel)) }.map(|channel| &channel.inner)
    }

    /// The device; EINVAL before there is one.
    pub(crate) fn device(&self) -> Outcome<&'static Opened> {
        self.inner
            .device
            .get()
            .copied()
            .ok_or_else(|| refuse!(EINVAL, "the rdma_cm_id has no device yet: its address is not resolved"))
    }

    /// Keeps what an event tells of the QP's next states.
    pub(crate) fn keep_attributes(&self, known: &Known) {
        let mut state = self.state();
        state.attributes = if state.optioned { [const { None }; 3] } else { known.attributes.clone() };
    }

    /// Whether its program is to be told that the device is gone, and has not been; it is from now on.
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

    /// Who has connected once will connect again, mostly in the same way: as what another id is to be made at once.
    fn renewable(&self) -> Option<(PortSpace, QpKind)> {
        let state = self.state();
        let number = |value: c_uint| u16::try_from(value).ok();
        let kind = number(get!(self.c(), qp_type)).and_then(|kind| u8::try_from(kind).ok()).map(QpKind);
        let space = number(get!(self.c(), ps)).map(PortSpace);
        space.zip(kind).filter(|_| state.has_asked && state.established && !state.sync)
    }

    /// One event of the id is done with.
    pub(crate) fn complete_event(&self) {
        self.state().completed += 1;
        self.inner.changed.notify_all();
    }

    /// Waits until as many events are done with as were given out.
    fn wait_for_events(&self, reported: u32) {
        let mut state = self.state();
        while reported.wrapping_sub(state.completed).cast_signed() > 0 {
            self.inner.changed.wait(&mut state);
        }
    }

    /// Waits, with the id's lock, until `ready`.
    pub(crate) fn wait_until(&self, mut ready: impl FnMut(&State) -> bool) {
        let mut state = self.state();
        while !ready(&state) {
            self.inner.changed.wait(&mut state);
        }
    }
}

/// What an id begins with.
pub(crate) struct Beginning {
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) space: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) sync: bool,
    pub(crate) named: bool,
}

impl Beginning {
    /// The id of this handle, whose events carry `cookie`.
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
                // SAFETY: just opened, and nobody else has it.
                unsafe { ChannelObject::free(channel.cast()) };
            }
            Err(refusal)
        }
    }
}

/// `rdma_destroy_id`: waits until every event that was given out is acknowledged.
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
        // With the agent the id is gone as well, and so are its events.
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
            // SAFETY: the id's own memberships, and their events are acknowledged: they are the id's as well.
            unsafe { Group::free(group) };
        }
        (state.sync, state.resolved)
    };
    let c = object.c();
    // SAFETY: allocated with calloc; NULL is allowed.
    unsafe { libc::free(get!(c, route.path_rec).cast()) };
    if sync {
        // SAFETY: the id's own channel, on which nothing else is.
        unsafe { ChannelObject::free(get!(c, channel).cast()) };
    }
    // SAFETY: a list of ours that the program has not taken; NULL is allowed.
    unsafe { addrinfo::release(resolved) };
    // SAFETY: the caller's promise.
    unsafe { IdObject::free(id.cast()) };
    Ok(())
}

/// `rdma_migrate_id`: to another channel, or to one of its own.
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
                // SAFETY: just opened, and nobody else has it.
                unsafe { ChannelObject::free(to.cast()) };
            }
            return Err(refusal);
        }
    };
    let from = get!(object.c(), channel);
    if was_sync {
        // SAFETY: the id's own event, if it keeps one.
        unsafe { event::let_go(object) };
        // SAFETY: the id's own channel, on which nothing is any more.
        unsafe { ChannelObject::free(from.cast()) };
    }
    set!(object.c(), channel, to);
    object.state().sync = sync;
    object.wait_for_events(reported);
    Ok(())
}
