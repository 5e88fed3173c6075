//! Ids: `struct rdma_cm_id` and this library's data about it. The calls that make, move and end ids
//! are in `id_life.rs`. The principal types are [`IdObject`] and [`State`].

use crate::channel::ChannelObject;
use crate::cma::{AddrInfo, CmId, EventChannel, qpt};
use crate::devices::Opened;
use crate::entry::{self, Outcome, refuse};
use crate::layout::QpInitAttr;
use crate::membership::Membership;
use crate::object::{Named, Object, get};
use crate::registry;
use bytemuck::Zeroable;
use cm::{Channel, Ece, Id, Known, PortSpace, QpAttributes, QpKind};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ffi::{c_uint, c_void};
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
    /// On iWARP, the number of the QP that the program has made itself for the connection. `None`
    /// when the connection has ended: the program may use the QP for another one.
    pub(crate) external: Option<u32>,
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
    pub(crate) groups: Vec<*mut Membership>,
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
    pub(crate) fn renewable(&self) -> Option<(PortSpace, QpKind)> {
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
    pub(crate) fn wait_for_events(&self, reported: u32) {
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
            external: None,
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
