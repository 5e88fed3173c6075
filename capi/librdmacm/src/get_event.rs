//! Fetches events. The work that an event does on its id is in [`arrival`]. The principal function
//! is [`next`].

use crate::arrival;
use crate::channel::{ChannelObject, Waiting};
use crate::cma::{CmEvent, EventChannel};
use crate::entry::{self, Outcome, Refusal};
use crate::event::let_go;
use crate::id::IdObject;
use crate::object::{get, set};
use cm::EventKind;
use std::ffi::c_int;

/// `rdma_get_cm_event`: waits unless the channel's descriptor has O_NONBLOCK.
///
/// # Safety
/// `channel` is live, `event` valid.
pub(crate) unsafe extern "C" fn get(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
    entry::or_minus_one("rdma_get_cm_event", || {
        entry::not_null(event)?;
        // SAFETY: the caller's promise.
        let next = unsafe { next(channel) }?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { event.write(next) };
        Ok(0)
    })
}

/// The next event that concerns the program. When the agent ends, its devices go. The program then
/// gets a DEVICE_REMOVAL event for each id with a device, as when a device is unplugged, and EIO
/// after that.
///
/// # Safety
/// `channel` is live.
pub(crate) unsafe fn next(channel: *mut EventChannel) -> Outcome<*mut CmEvent> {
    // SAFETY: the caller's promise.
    let object = unsafe { ChannelObject::live(channel) }?;
    let _waiting = Waiting::on(object);
    loop {
        let event = match object.inner.next_event() {
            Ok(event) => event,
            Err(error) if error.errno == abi::Errno::EIO && object.inner.is_over() => {
                return arrival::removal(channel).ok_or_else(|| error.into());
            }
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the event came from this channel just now.
        if let Some(arrived) = unsafe { arrival::process(&event) } {
            return Ok(arrived);
        }
    }
}

/// Called after a call that began an operation. A synchronous id waits for the event that ends the
/// operation, keeps the event, and turns its status into the result of the call.
pub(crate) fn wait_if_sync(object: &IdObject) -> Outcome<()> {
    if !object.state().sync {
        return Ok(());
    }
    // SAFETY: a synchronous id's event is valid until the next call on the id; the channel is the
    // id's own.
    let event = unsafe {
        let_go(object);
        next(get!(object.c(), channel))
    }?;
    set!(object.c(), event, event);
    let kind = EventKind(get!(event, event));
    match get!(event, status) {
        _ if kind == EventKind::DEVICE_REMOVAL => Err(Refusal(libc::ENODEV)),
        0 => Ok(()),
        _ if kind == EventKind::REJECTED => Err(Refusal(libc::ECONNREFUSED)),
        status => Err(Refusal(status.saturating_abs())),
    }
}
