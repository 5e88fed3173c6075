//! The first interface's devices and contexts: listing, opening, querying, events. The principal
//! type is [`Device`].

use super::structs::{Context, ContextOps, Cq, Device, First};
use super::{OldObject, end, forward, last_refusal, now, work, wrap};
use crate::entry::{self, Outcome};
use crate::events::Subject;
use crate::layout::{self, AsyncEvent, CompChannel, DeviceAttr, Gid, PortAttr, Qp, Srq};
use crate::object::get;
use crate::{channel, device, devices, events, query};
use bytemuck::Zeroable;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The first interface's device for each of today's devices that a program has seen. Both stay
/// until the process ends.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Known(&'static Device);

// SAFETY: a device is never written after it was made.
unsafe impl Send for Known {}

/// The first interface's device for one of today's devices.
fn old(now: *mut layout::Device) -> *mut Device {
    let mut all = KNOWN.lock();
    let found = all.iter().find(|known| known.0.now == now).copied();
    let known = found.unwrap_or_else(|| {
        let made = Known(Box::leak(Box::new(Device { now, ..Device::zeroed() })));
        all.push(made);
        made
    });
    std::ptr::from_ref(known.0).cast_mut()
}

/// Today's device.
///
/// # Safety
/// `device` is NULL or came from [`get_list`].
unsafe fn today(device: *mut Device) -> Outcome<*mut layout::Device> {
    entry::not_null(device)?;
    Ok(get!(device, now))
}

/// `ibv_get_device_list`: today's function frees the list, because only the elements differ.
///
/// # Safety
/// `count` is NULL or valid.
pub(crate) unsafe extern "C" fn get_list(count: *mut c_int) -> *mut *mut Device {
    entry::pointer("ibv_get_device_list", || {
        // SAFETY: the caller's promise.
        let list = unsafe { devices::get_device_list(count) };
        if list.is_null() {
            return Err(last_refusal());
        }
        let mut place = list;
        // SAFETY: within the list, which NULL ends.
        while let device = unsafe { place.read() }
            && !device.is_null()
        {
            // SAFETY: as above.
            unsafe { place.cast::<*mut Device>().write(old(device)) };
            place = place.wrapping_add(1);
        }
        Ok(list.cast())
    })
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` came from [`get_list`].
pub(crate) unsafe extern "C" fn get_name(device: *mut Device) -> *const c_char {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_get_device_name", || Ok(unsafe { devices::get_device_name(today(device)?) }.cast_mut()))
}

/// `ibv_get_device_guid`.
///
/// # Safety
/// `device` came from [`get_list`].
pub(crate) unsafe extern "C" fn get_guid(device: *mut Device) -> u64 {
    // SAFETY: the caller's promise.
    entry::value("ibv_get_device_guid", || unsafe { today(device).map_or(0, |now| devices::get_device_guid(now)) })
}

/// `ibv_open_device`.
///
/// # Safety
/// `device` came from [`get_list`].
pub(crate) unsafe extern "C" fn open(device: *mut Device) -> *mut Context {
    entry::pointer("ibv_open_device", || {
        // SAFETY: the caller's promise.
        let now = unsafe { device::open_device(today(device)?) };
        if now.is_null() {
            return Err(last_refusal());
        }
        let ops = ContextOps {
            poll_cq: work::poll as *const _,
            req_notify_cq: work::req_notify as *const _,
            post_srq_recv: work::post_srq as *const _,
            post_send: work::send as *const _,
            post_recv: work::recv as *const _,
            ..ContextOps::zeroed()
        };
        let (cmd_fd, async_fd) = (get!(now, cmd_fd), get!(now, async_fd));
        wrap(Context { device, ops, cmd_fd, async_fd, num_comp_vectors: get!(now, num_comp_vectors) }, now)
    })
}

/// `ibv_close_device`.
///
/// # Safety
/// `context` is open, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn close(context: *mut Context) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_close_device", context, device::close_device) }
}

forward! {
    code query_device(context: Context, attr: *mut DeviceAttr) = query::query_device;
    code query_port(context: Context, port: u8, attr: *mut PortAttr) = query::query_port_compat;
    or_minus_one query_gid(context: Context, port: u8, index: c_int, gid: *mut Gid) = query::query_gid;
    or_minus_one query_pkey(context: Context, port: u8, index: c_int, pkey: *mut u16) = query::query_pkey;
}

/// `ibv_get_async_event`: reports the objects of the first interface.
///
/// # Safety
/// `context` is open, `event` valid.
pub(crate) unsafe extern "C-unwind" fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    let mut today = std::ptr::null_mut();
    let found = entry::or_minus_one("ibv_get_async_event", || {
        // SAFETY: the caller's promise.
        today = unsafe { now(context) }?;
        Ok(0)
    });
    // SAFETY: the caller's promise.
    if found != 0 || unsafe { events::get_async_event(today, event) } != 0 {
        return -1;
    }
    entry::or_minus_one("ibv_get_async_event", || {
        let element = get!(event, element);
        // The object is live: its destroy function waits until this event is acknowledged.
        let old = match Subject::of(get!(event, event_type)) {
            Subject::Cq => get!(element.cast::<layout::Cq>(), cq_context),
            Subject::Qp => get!(element.cast::<Qp>(), qp_context),
            Subject::Srq => get!(element.cast::<Srq>(), srq_context),
            Subject::Other => element,
        };
        crate::object::set!(event, element, old);
        Ok(0)
    })
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` came from [`get_async_event`] and is acknowledged once.
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut AsyncEvent) {
    let translate = || {
        entry::not_null(event)?;
        let (element, event_type) = (get!(event, element), get!(event, event_type));
        // SAFETY: the caller's promise.
        let element: *mut c_void = unsafe {
            match Subject::of(event_type) {
                Subject::Cq => now::<Cq>(element.cast())?.cast(),
                Subject::Qp => now::<First<Qp>>(element.cast())?.cast(),
                Subject::Srq => now::<First<Srq>>(element.cast())?.cast(),
                Subject::Other => element,
            }
        };
        let mut event = AsyncEvent { element, event_type };
        // SAFETY: the caller's promise.
        unsafe { events::ack_async_event(&raw mut event) };
        Outcome::Ok(())
    };
    entry::code("ibv_ack_async_event", translate);
}

/// `ibv_get_cq_event`.
///
/// # Safety
/// `channel` is live; `cq` and `cq_context` are valid.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let (mut now, mut old) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's promise.
    if !cq.is_null() && unsafe { channel::get_cq_event(channel, &raw mut now, &raw mut old) } != 0 {
        return -1;
    }
    entry::or_minus_one("ibv_get_cq_event", || {
        entry::not_null(cq)?;
        let old: *mut Cq = old.cast();
        // SAFETY: not NULL, and the caller's to write.
        unsafe { cq.write(old) };
        if !cq_context.is_null() {
            // SAFETY: as above.
            unsafe { cq_context.write(get!(old, cq_context)) };
        }
        Ok(0)
    })
}

/// `ibv_ack_cq_events`.
///
/// # Safety
/// `cq` is live.
pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut Cq, count: c_uint) {
    // SAFETY: the caller's promise.
    if let Ok(object) = unsafe { OldObject::<Cq>::of(cq) } {
        // SAFETY: as above.
        unsafe { channel::ack_cq_events(object.inner, count) };
    }
}
