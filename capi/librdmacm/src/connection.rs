//! Connections: listen, connect, accept, reject, disconnect.
//!
//! This module fills in values that the program leaves open: the QP number, and as many READs and
//! atomics as the device has.

use crate::address;
use crate::attributes;
use crate::cma::{CmId, ConnParam, DEPTH_MAX, ps};
use crate::devices::Opened;
use crate::entry::{self, Outcome, refuse};
use crate::event;
use crate::get_event;
use crate::id::{self, IdObject};
use crate::object::get;
use crate::shown;
use cm::Ece;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

/// The default number of retransmissions, and of retries after an RNR NAK (7: for ever).
const RETRIES: u8 = 7;

/// The IBA's reject reason for vendor options that are not understood (volume 1, 12.6.7.2).
const VENDOR_OPTION: u8 = 35;

/// `rdma_listen`.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn listen(id: *mut CmId, backlog: c_int) -> c_int {
    entry::or_minus_one("rdma_listen", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        object.channel()?.listen(object.inner.handle, backlog)?;
        // A bound id listens on its address, which is shown already.
        if !address::is_bound(object) {
            let found = object.channel()?.query_addresses(object.inner.handle)?;
            shown::show_addresses(object, &found)?;
        }
        Ok(0)
    })
}

/// `rdma_connect`: ESTABLISHED or the reason for a failure follows as an event; a synchronous id
/// waits for it.
///
/// # Safety
/// `id` is live, `param` NULL or valid.
pub(crate) unsafe extern "C" fn connect(id: *mut CmId, param: *const ConnParam) -> c_int {
    entry::or_minus_one("rdma_connect", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        // SAFETY: NULL or valid by the caller's promise.
        let param = unsafe { param.as_ref() };
        check(object, param)?;
        let device = object.device()?;
        let (responder_resources, initiator_depth, local_ece, mut private_data) = {
            let mut state = object.state();
            state.initiator_depth = chosen(param.map(|param| param.initiator_depth), device.max_initiator_depth);
            state.responder_resources =
                chosen(param.map(|param| param.responder_resources), device.max_responder_resources);
            (state.responder_resources, state.initiator_depth, state.local_ece, state.connect.clone())
        };
        // SAFETY: the caller's promise.
        private_data.extend_from_slice(unsafe { private(param) });
        let asked = asked(object, param, responder_resources, initiator_depth, local_ece, &private_data);
        let external = external(object, param, device)?;
        let before = {
            // Before the request: its events may come at once, on another thread.
            let mut state = object.state();
            state.attributes = [const { None }; 3];
            let before = (state.has_asked, state.external);
            (state.has_asked, state.external) = (true, external);
            before
        };
        if let Err(error) = object.channel()?.connect(object.inner.handle, &asked) {
            let mut state = object.state();
            (state.has_asked, state.external) = before;
            return Err(error.into());
        }
        object.state().connect.clear();
        get_event::wait_if_sync(object)?;
        Ok(0)
    })
}

/// `rdma_accept`: the id's QP goes to RTS; a synchronous id waits until the connection is
/// established.
///
/// # Safety
/// `id` is live, `param` NULL or valid.
pub(crate) unsafe extern "C" fn accept(id: *mut CmId, param: *const ConnParam) -> c_int {
    entry::or_minus_one("rdma_accept", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        // SAFETY: NULL or valid by the caller's promise.
        let param = unsafe { param.as_ref() };
        if param.is_none() && get!(object.c(), qp).is_null() {
            return Err(refuse!(EINVAL, "rdma_accept: neither the rdma_cm_id nor the parameters name a QP"));
        }
        check(object, param)?;
        let device = object.device()?;
        let (responder_resources, initiator_depth, ece) = {
            let mut state = object.state();
            let (depth, resources) = (state.initiator_depth, state.responder_resources);
            state.initiator_depth =
                chosen(param.map(|param| param.initiator_depth), depth.min(device.max_initiator_depth));
            state.responder_resources =
                chosen(param.map(|param| param.responder_resources), resources.min(device.max_responder_resources));
            // The vendor is that of the side that asked for the connection.
            let ece = Ece { vendor_id: state.remote_ece.vendor_id, options: state.local_ece.options };
            (state.responder_resources, state.initiator_depth, ece)
        };
        let external = external(object, param, device)?;
        let before = std::mem::replace(&mut object.state().external, external);
        // A QP of iWARP gets its connection when the request is accepted.
        if !object.is_datagram() && !device.is_iwarp {
            attributes::connect(object, responder_resources, initiator_depth)?;
        }
        // SAFETY: the caller's promise.
        let private_data = unsafe { private(param) };
        let asked = asked(object, param, responder_resources, initiator_depth, ece, private_data);
        if let Err(error) = object.channel()?.accept(object.inner.handle, object.inner.cookie, &asked) {
            let _ = attributes::fail(object);
            object.state().external = before;
            return Err(error.into());
        }
        object.inner.named.store(true, Ordering::Relaxed);
        if device.is_iwarp
            && let Err(error) = attributes::connect(object, responder_resources, initiator_depth)
        {
            let _ = object.channel()?.disconnect_quietly(object.inner.handle);
            return Err(error);
        }
        if object.is_datagram() {
            if object.state().sync {
                // SAFETY: the id's own event, which is valid until the program's next call on the
                // id.
                unsafe { event::let_go(object) };
            }
        } else {
            get_event::wait_if_sync(object)?;
        }
        Ok(0)
    })
}

/// `rdma_establish`: for an active side whose id has no QP and whose program has taken its own QP
/// to RTS.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn establish(id: *mut CmId) -> c_int {
    entry::or_minus_one("rdma_establish", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        if !get!(object.c(), qp).is_null() {
            return Err(refuse!(EINVAL, "rdma_establish is for ids without a QP"));
        }
        object.channel()?.establish(object.inner.handle)?;
        object.state().established = true;
        Ok(0)
    })
}

/// `rdma_reject`.
///
/// # Safety
/// `id` is live, `data` NULL or valid for `len` bytes.
pub(crate) unsafe extern "C" fn reject(id: *mut CmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    entry::or_minus_one("rdma_reject", || unsafe { refuse_with(id, data, len, 0) })
}

/// `rdma_reject_ece`: rejects because of a vendor's options.
///
/// # Safety
/// As for [`reject`].
pub(crate) unsafe extern "C" fn reject_ece(id: *mut CmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    entry::or_minus_one("rdma_reject_ece", || unsafe { refuse_with(id, data, len, VENDOR_OPTION) })
}

/// # Safety
/// As for [`reject`].
unsafe fn refuse_with(id: *mut CmId, data: *const c_void, len: u8, reason: u8) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let (object, data) = unsafe { (id::live(id)?, bytes(data, len)) };
    object.channel()?.reject(object.inner.handle, reason, data)?;
    Ok(0)
}

/// `rdma_notify`: reports an asynchronous event of the QP that the connection manager may not have
/// seen.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn notify(id: *mut CmId, event: c_uint) -> c_int {
    entry::or_minus_one("rdma_notify", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        object.channel()?.notify(object.inner.handle, event)?;
        Ok(0)
    })
}

/// `rdma_disconnect`: the id's QP goes to the error state; a synchronous id waits until the
/// connection has ended.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn disconnect(id: *mut CmId) -> c_int {
    entry::or_minus_one("rdma_disconnect", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        object.device()?;
        attributes::fail(object)?;
        attributes::fail_external(object);
        // The agent cannot refuse this for a connection that is or was established.
        if object.state().established && !object.is_datagram() {
            object.channel()?.disconnect_quietly(object.inner.handle)?;
        } else {
            object.channel()?.disconnect(object.inner.handle)?;
        }
        get_event::wait_if_sync(object)?;
        Ok(0)
    })
}

/// Checks the parameters of a connection as the manual pages demand.
fn check(object: &IdObject, param: Option<&ConnParam>) -> Outcome<()> {
    if get!(object.c(), ps) != ps::TCP {
        return Ok(());
    }
    let Some(param) = param else {
        let missing = get!(object.c(), qp).is_null();
        return if missing {
            Err(refuse!(EINVAL, "neither the rdma_cm_id nor the parameters name a QP"))
        } else {
            Ok(())
        };
    };
    let device = object.device()?;
    for (what, asked, most) in [
        ("responder_resources", param.responder_resources, device.max_responder_resources),
        ("initiator_depth", param.initiator_depth, device.max_initiator_depth),
    ] {
        if asked != DEPTH_MAX && asked > most {
            return Err(refuse!(EINVAL, "{what} {asked} is more than the device has ({most})"));
        }
    }
    Ok(())
}

/// The number of the program's own QP, if this library moves it: on iWARP.
fn external(object: &IdObject, param: Option<&ConnParam>, device: &Opened) -> Outcome<Option<u32>> {
    let is_external = device.is_iwarp && get!(object.c(), qp).is_null();
    let named = param.filter(|_| is_external).map(|param| param.qp_num);
    attributes::check_external(named)?;
    Ok(named)
}

/// The program's choice, or else the maximum.
fn chosen(asked: Option<u8>, most: u8) -> u8 {
    asked.filter(|asked| *asked != DEPTH_MAX).unwrap_or(most)
}

fn asked<'a>(
    object: &IdObject,
    param: Option<&ConnParam>,
    responder_resources: u8,
    initiator_depth: u8,
    ece: Ece,
    private_data: &'a [u8],
) -> cm::ConnParam<'a> {
    let qp = get!(object.c(), qp);
    let (qp_num, srq) = if qp.is_null() {
        param.map_or((0, false), |param| (param.qp_num, param.srq != 0))
    } else {
        (get!(qp, qp_num), !get!(qp, srq).is_null())
    };
    cm::ConnParam {
        qp_num,
        qkey: 0,
        srq,
        responder_resources,
        initiator_depth,
        flow_control: param.is_some_and(|param| param.flow_control != 0),
        retry_count: param.map_or(RETRIES, |param| param.retry_count),
        rnr_retry_count: param.map_or(RETRIES, |param| param.rnr_retry_count),
        private_data,
        ece,
    }
}

/// # Safety
/// `param`'s private data is NULL or valid.
unsafe fn private(param: Option<&ConnParam>) -> &[u8] {
    // SAFETY: the caller's promise.
    param.map_or(&[], |param| unsafe { bytes(param.private_data, param.private_data_len) })
}

/// # Safety
/// `data` is NULL or valid for `len` bytes.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }
}
