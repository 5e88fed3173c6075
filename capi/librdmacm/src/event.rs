//! Events as programs have them: acknowledged, named, written. They are fetched in `get_event.rs`.
//!
//! The principal type is [`EventObject`]. An event that was handed out counts against its id (and
//! its membership) until it is acknowledged. Ending the id waits for this.

use crate::cma::{CmEvent, CmId};
use crate::entry::{self, refuse};
use crate::id::{self, IdObject};
use crate::membership::Membership;
use crate::object::{Named, Object, get, set};
use crate::registry;
use cm::EventKind;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;

/// `struct rdma_cm_event` and the data that belongs to it.
pub(crate) type EventObject = Object<CmEvent, EventState>;

impl Named for CmEvent {
    const NAME: &'static str = "rdma_cm_event";

    fn name(_c: *const Self) -> u32 {
        0
    }
}

/// This library's data about an event.
pub(crate) struct EventState {
    /// The id that counts the event. For a connection request, this is the listening id.
    pub(crate) id: *mut CmId,
    /// The membership that counts the event, or NULL.
    pub(crate) group: *mut Membership,
    /// The private data that the event points to.
    pub(crate) _private_data: Box<[u8]>,
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// `event` is NULL or was given out, and is not used afterwards.
pub(crate) unsafe extern "C" fn ack(event: *mut CmEvent) -> c_int {
    entry::or_minus_one("rdma_ack_cm_event", || {
        // SAFETY: the reference is used only here.
        unsafe { EventObject::live(event) }?;
        // SAFETY: the caller's promise.
        unsafe { acknowledge(event) };
        Ok(0)
    })
}

/// # Safety
/// `event` is live, and is not used afterwards.
pub(crate) unsafe fn acknowledge(event: *mut CmEvent) {
    // SAFETY: the caller's promise. The event's id is live, because ending it waits for this
    // acknowledgement.
    unsafe {
        if let Ok(object) = EventObject::live(event) {
            let (id, group) = (object.inner.id, object.inner.group);
            EventObject::free(event.cast());
            // After the agent has ended, no call waits for events, and the id or membership of an
            // event may already be gone.
            if !group.is_null() && registry::is_joined(group) {
                (*group).complete_event();
            }
            if let Ok(id) = id::live(id) {
                id.complete_event();
            }
        }
    }
}

/// Acknowledges the event that a synchronous id keeps, if there is one.
///
/// # Safety
/// The program does not use the event afterwards.
pub(crate) unsafe fn let_go(object: &IdObject) {
    let kept = get!(object.c(), event);
    if !kept.is_null() {
        set!(object.c(), event, null_mut());
        // SAFETY: the caller's promise.
        unsafe { acknowledge(kept) };
    }
}

/// `rdma_write_cm_event`: programs may write only events of the kind `USER`.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn write(id: *mut CmId, event: c_uint, status: c_int, arg: u64) -> c_int {
    entry::or_minus_one("rdma_write_cm_event", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        if EventKind(event) != EventKind::USER {
            return Err(refuse!(
                EINVAL,
                "rdma_write_cm_event: {} is not an event that programs write",
                EventKind(event)
            ));
        }
        object.channel()?.write_event(object.inner.handle, EventKind::USER, status, arg)?;
        Ok(0)
    })
}

/// `rdma_event_str`: the name in `rdma_cma.h`, as rdma-core returns it.
pub(crate) extern "C" fn name(event: c_uint) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 18] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    ];
    let index = usize::try_from(event).unwrap_or(usize::MAX);
    NAMES.get(index).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn names_are_those_of_the_kinds() {
        for number in 0..20 {
            // SAFETY: a C string that is never freed.
            let name = unsafe { CStr::from_ptr(name(number)) }.to_str().expect("ASCII");
            match EventKind(number).name() {
                Some(kind) if number < 18 => assert_eq!(name, format!("RDMA_CM_EVENT_{kind}")),
                _ => assert_eq!(name, "UNKNOWN EVENT"),
            }
        }
    }
}
