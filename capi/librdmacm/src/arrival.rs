//! The work that an event does on its id before the program sees the event. Addresses and paths are
//! shown. A request becomes an id. A response takes the QP to RTS and is answered. A join attaches
//! the QP. Some events do not concern the program and end here. The principal type is [`Arrival`].

use crate::attributes;
use crate::cma::{CmEvent, CmId, ConnParam, DEPTH_MAX, EventChannel, EventParam, UdParam};
use crate::ece;
use crate::entry::{Outcome, Refusal};
use crate::event::{EventObject, EventState};
use crate::id::{Beginning, IdObject};
use crate::id_life;
use crate::layout::AhAttr;
use crate::membership::Membership;
use crate::object::get;
use crate::registry::{self, Named};
use crate::shown;
use crate::verbs;
use bytemuck::Zeroable;
use cm::{Event, EventKind};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// The argument of the internal event: which event the program must see.
pub(crate) const RESOLVED: u64 = 16;
pub(crate) const FAILED: u64 = 17;

/// Processes an event: returns the program's struct, or `None` if the program need not know.
///
/// # Safety
/// The event was just taken from its channel, so that its id, which counts the event, is live.
pub(crate) unsafe fn process(event: &Event) -> Option<*mut CmEvent> {
    let (id, group) = match registry::find(event.cookie) {
        Some(Named::Id(id)) => (id, null_mut()),
        // SAFETY: a membership lives as long as unacknowledged events count against it.
        Some(Named::Group(group)) => (unsafe { (*group).id }, group),
        None => {
            // A request has no name until the program accepts it. An event other than ESTABLISHED
            // that comes before that ends the request, and accepting it will fail.
            let id = registry::find_handle(event.id.0)?;
            if event.kind != EventKind::ESTABLISHED {
                // SAFETY: as above.
                unsafe { IdObject::of(id) }.ok()?.complete_event();
                return None;
            }
            (id, null_mut())
        }
    };
    // SAFETY: as above.
    let object = unsafe { IdObject::of(id) }.ok()?;
    let mut arrival = Arrival {
        c: CmEvent { id, event: event.kind.0, status: event.status, ..CmEvent::zeroed() },
        private_data: Box::default(),
    };
    // SAFETY: as above.
    let told = unsafe { arrival.take(event, object, group) };
    if !told {
        object.complete_event();
        return None;
    }
    Some(arrival.publish(id, group))
}

/// The agent has ended, so the devices are gone. Returns the event for the channel's next id that
/// has a device and whose program does not know yet, or `None` when all ids have been told.
pub(crate) fn removal(channel: *mut EventChannel) -> Option<*mut CmEvent> {
    let id = registry::find_id(|id| {
        // SAFETY: the registry shows only ids that cannot be freed meanwhile.
        unsafe { IdObject::of(id) }.is_ok_and(|object| get!(id, channel) == channel && object.take_removal())
    })?;
    let c = CmEvent { id, event: EventKind::DEVICE_REMOVAL.0, ..CmEvent::zeroed() };
    Some(Arrival { c, private_data: Box::default() }.publish(id, null_mut()))
}

/// An event while it is processed.
struct Arrival {
    c: CmEvent,
    private_data: Box<[u8]>,
}

impl Arrival {
    /// Whether the program must see the event.
    ///
    /// # Safety
    /// `group` is NULL or live.
    unsafe fn take(&mut self, event: &Event, object: &IdObject, group: *mut Membership) -> bool {
        match event.kind {
            EventKind::ADDR_RESOLVED => self.outcome(resolved(event, object), EventKind::ADDR_ERROR),
            EventKind::ROUTE_RESOLVED => self.outcome(shown::show_known(object, &event.known), EventKind::ROUTE_ERROR),
            EventKind::CONNECT_REQUEST => {
                self.parameters(event, object);
                let Ok(new) = self.request(event, object) else { return false };
                self.c.listen_id = self.c.id;
                self.c.id = new;
            }
            EventKind::CONNECT_RESPONSE => {
                self.connection(event);
                self.response(event, object);
            }
            // As when the agent ends: each id is told once.
            EventKind::DEVICE_REMOVAL => return object.take_removal(),
            EventKind::REJECTED => return self.rejected(event, object),
            EventKind::ESTABLISHED => {
                object.state().established = true;
                self.parameters(event, object);
            }
            EventKind::DISCONNECTED => {
                object.state().external = None;
                if object.state().connect_error {
                    return false;
                }
                self.parameters(event, object);
            }
            EventKind::CONNECT_ERROR | EventKind::UNREACHABLE => {
                object.state().external = None;
                self.parameters(event, object);
            }
            EventKind::MULTICAST_JOIN | EventKind::MULTICAST_ERROR if !group.is_null() => {
                // SAFETY: the caller's promise.
                let group = unsafe { &*group };
                if event.kind == EventKind::MULTICAST_JOIN {
                    self.datagram(event);
                    self.outcome(group.joined(event, object), EventKind::MULTICAST_ERROR);
                }
                // The struct's only pointer holds the program's own context here.
                self.c.param.ud.private_data = group.context;
            }
            EventKind::ADDRINFO_ERROR => object.state().resolving = false,
            EventKind::USER => self.c.param = EventParam { arg: event.arg() },
            // Written by `rdma_resolve_addrinfo`, whose answer already waits.
            EventKind::INTERNAL if event.arg() == RESOLVED => {
                self.c.event = EventKind::ADDRINFO_RESOLVED.0;
            }
            EventKind::INTERNAL if event.arg() == FAILED => {
                object.state().resolving = false;
                self.c.event = EventKind::ADDRINFO_ERROR.0;
            }
            EventKind::INTERNAL => return false,
            _ => self.parameters(event, object),
        }
        true
    }

    /// The peer has rejected the connection. Returns whether the program must see it.
    fn rejected(&mut self, event: &Event, object: &IdObject) -> bool {
        let (failed, established) = {
            let mut state = object.state();
            state.external = None;
            (state.connect_error, state.established)
        };
        if failed {
            return false;
        }
        if established && !object.is_datagram() {
            // It crossed our last message: the program already knows that the connection is
            // established.
            self.c.event = EventKind::DISCONNECTED.0;
            self.c.status = 0;
            return true;
        }
        self.parameters(event, object);
        // Requests posted on the QP end. If the QP cannot be modified, it is gone.
        let _ = attributes::fail(object);
        true
    }

    /// If the work for the event failed, the event reports the failure instead.
    fn outcome(&mut self, done: Outcome<()>, failure: EventKind) {
        if let Err(Refusal(errno)) = done {
            self.c.event = failure.0;
            self.c.status = -errno;
        }
    }

    fn parameters(&mut self, event: &Event, object: &IdObject) {
        if object.is_datagram() { self.datagram(event) } else { self.connection(event) }
    }

    fn connection(&mut self, event: &Event) {
        let told = event.conn();
        let conn = ConnParam {
            private_data: self.keep(told.private_data),
            private_data_len: length(told.private_data),
            responder_resources: told.responder_resources,
            initiator_depth: told.initiator_depth,
            flow_control: told.flow_control.into(),
            retry_count: told.retry_count,
            rnr_retry_count: told.rnr_retry_count,
            srq: told.srq.into(),
            qp_num: told.qp_num,
        };
        // The rest of the union stays zero.
        self.c.param.conn = conn;
    }

    fn datagram(&mut self, event: &Event) {
        let told = event.ud();
        let mut ah_attr = AhAttr::zeroed();
        // SAFETY: the record is `struct ib_uverbs_ah_attr`, and `ah_attr` is ours.
        unsafe { verbs::ibv_copy_ah_attr_from_kern(&raw mut ah_attr, (&raw const told.ah).cast()) };
        self.c.param.ud = UdParam {
            private_data: self.keep(told.private_data),
            private_data_len: length(told.private_data),
            ah_attr,
            qp_num: told.qp_num,
            qkey: told.qkey,
        };
    }

    /// Keeps private data as long as the event lives. Returns NULL for empty data.
    fn keep(&mut self, data: &[u8]) -> *const c_void {
        if data.is_empty() {
            return null();
        }
        self.private_data = data.into();
        self.private_data.as_ptr().cast()
    }

    /// Makes the id of a connection request.
    fn request(&self, event: &Event, listener: &IdObject) -> Outcome<*mut CmId> {
        let c = listener.c();
        let channel = get!(c, channel);
        let (context, space, qp_type) = (get!(c, context), get!(c, ps), get!(c, qp_type));
        let new = Beginning { channel, context, space, qp_type, sync: false, named: false }
            .publish(event.id, registry::fresh());
        registry::name_handle(event.id.0, new);
        // SAFETY: just made.
        let object = unsafe { IdObject::of(new) }?;
        if !listener.is_datagram() {
            let told = event.conn();
            let mut state = object.state();
            state.initiator_depth = told.initiator_depth;
            state.responder_resources = told.responder_resources;
            state.remote_ece = event.ece;
        }
        let ready = || {
            if listener.state().sync {
                // SAFETY: just made, and nothing else refers to it.
                unsafe { id_life::move_to(new, null_mut()) }?;
            }
            shown::show_known(object, &event.known)
        };
        ready().map(|()| new).inspect_err(|_| {
            // The program has never seen the id. Ending it rejects the request.
            // SAFETY: just made, and nothing else refers to it.
            let _ = unsafe { id_life::end(new) };
        })
    }

    /// The peer has accepted: takes the QP to RTS and tells the peer. If the id has no QP, the
    /// program does this.
    fn response(&mut self, event: &Event, object: &IdObject) {
        object.state().remote_ece = event.ece;
        object.keep_attributes(&event.known);
        if get!(object.c(), qp).is_null() {
            return;
        }
        match established(event, object) {
            Ok(()) => {
                object.state().established = true;
                self.c.event = EventKind::ESTABLISHED.0;
            }
            Err(Refusal(errno)) => {
                object.state().connect_error = true;
                let _ = attributes::fail(object);
                self.c.event = EventKind::CONNECT_ERROR.0;
                self.c.status = -errno;
            }
        }
    }

    fn publish(self, id: *mut CmId, group: *mut Membership) -> *mut CmEvent {
        // Moving the box does not move the buffer.
        EventObject::create(self.c, EventState { id, group, _private_data: self.private_data }).cast()
    }
}

fn resolved(event: &Event, object: &IdObject) -> Outcome<()> {
    shown::show_known(object, &event.known)?;
    object.device().map(drop)
}

/// Takes the QP to RTS and tells the peer.
fn established(event: &Event, object: &IdObject) -> Outcome<()> {
    // SAFETY: the id's own QP.
    unsafe { ece::agree(get!(object.c(), qp), event.ece) };
    attributes::connect(object, DEPTH_MAX, DEPTH_MAX)?;
    Ok(object.channel()?.establish_quietly(object.inner.handle)?)
}

fn length(data: &[u8]) -> u8 {
    u8::try_from(data.len()).unwrap_or(u8::MAX)
}
