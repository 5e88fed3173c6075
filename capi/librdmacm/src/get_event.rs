//! Fetches events. The work that an event does on its id is in [`arrival`]. The principal function
//! is [`next`].

use crate::arrival;
use crate::channel::{ChannelObject, Waiting};
use crate::cma::{CmEvent, EventChannel};
use crate::entry::{self, Attempt, Outcome, Refusal};
use crate::event::let_go;
use crate::id::IdObject;
use crate::object::{get, set};
use cm::EventKind;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// `rdma_get_cm_event`: waits unless the channel's descriptor has O_NONBLOCK.
///
/// # Safety
/// `channel` is live, `event` valid.
pub(crate) unsafe extern "C-unwind" fn get(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
    let take = || {
        entry::not_null(event)?;
        Ok(channel)
    };
    let give = |next| {
        // SAFETY: not NULL, and the caller's to write.
        unsafe { event.write(next) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { waiting("rdma_get_cm_event", take, give) }
}

/// For functions that wait for an event of a channel: `begin` returns the channel, before the first
/// attempt; `end` gets the event. A thread that is cancelled while it waits counts as waiting for
/// ever, so its channel stays.
///
/// # Safety
/// The channel is live.
#[inline(always)]
pub(crate) unsafe fn waiting(
    name: &'static str,
    begin: impl Fn() -> Outcome<*mut EventChannel>,
    end: impl Fn(*mut CmEvent) -> Outcome<()>,
) -> c_int {
    let mut channel: *mut EventChannel = null_mut();
    let result = entry::waiting(name, || {
        let is_first = channel.is_null();
        if is_first {
            channel = begin()?;
            // SAFETY: the caller's promise.
            Waiting::begin(unsafe { ChannelObject::live(channel) }?);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { ChannelObject::live(channel) }?;
        let look = || if is_first { object.inner.look_for_event() } else { object.inner.try_event() };
        // SAFETY: as above.
        match unsafe { found(channel, object, look) }? {
            Some(event) => end(event).map(|()| Attempt::Done),
            None => Ok(Attempt::Message(object.inner.fd().as_raw_fd())),
        }
    });
    if !channel.is_null() {
        // SAFETY: the channel stays as long as this thread counts.
        let _ = unsafe { ChannelObject::live(channel) }.map(Waiting::end);
    }
    result
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
    // SAFETY: as above.
    let event = unsafe { found(channel, object, || object.inner.next_event().map(Some)) }?;
    event.ok_or(Refusal(libc::EAGAIN))
}

/// Calls `next` until it returns an event that concerns the program, or none.
///
/// # Safety
/// `channel` is live; `object` is its object.
unsafe fn found(
    channel: *mut EventChannel,
    object: &ChannelObject,
    mut next: impl FnMut() -> cm::Result<Option<cm::Event>>,
) -> Outcome<Option<*mut CmEvent>> {
    loop {
        let event = match next() {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(None),
            Err(error) if error.errno == abi::Errno::EIO && object.inner.is_over() => {
                return arrival::removal(channel).map(Some).ok_or_else(|| error.into());
            }
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the event came from this channel just now.
        if let Some(arrived) = unsafe { arrival::process(&event) } {
            return Ok(Some(arrived));
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
