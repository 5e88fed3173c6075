//! Endpoints (`rdma_create_ep(3)`): a synchronous id with its QP, made from the result of
//! `rdma_getaddrinfo(3)`, and the requests that arrive at a listening endpoint.

use crate::address::{bind_to, resolve_to};
use crate::cma::{AddrInfo, CmEvent, CmId};
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::event;
use crate::get_event;
use crate::id::{self, IdObject};
use crate::id_life;
use crate::layout::{Pd, QpInitAttr};
use crate::object::{get, set};
use crate::qp;
use crate::sockaddr;
use crate::srq;
use cm::{EventKind, SetOption};
use std::ffi::c_int;

/// `RAI_PASSIVE`.
const PASSIVE: c_int = 1;

/// The time limit for resolving an endpoint's addresses and routes.
const PATIENCE_MS: c_int = 2000;

/// `rdma_create_ep`.
///
/// # Safety
/// `id` is valid, `info` came from `rdma_getaddrinfo` (or has the same form), `pd` is NULL or live,
/// `init` NULL or valid.
pub(crate) unsafe extern "C" fn create(
    id: *mut *mut CmId,
    info: *const AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> c_int {
    entry::or_minus_one("rdma_create_ep", || {
        entry::not_null(id)?;
        entry::not_null(info)?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let info = unsafe { &*info };
        let (space, qp_type) = (info.ai_port_space.cast_unsigned(), info.ai_qp_type.cast_unsigned());
        // SAFETY: a synchronous id needs no channel.
        let made = unsafe { id_life::make(std::ptr::null_mut(), std::ptr::null_mut(), space, qp_type) }?;
        // SAFETY: just made; the rest is the caller's promise.
        let ready = unsafe {
            id::live(made).and_then(|object| {
                if info.ai_flags & PASSIVE == 0 {
                    active(object, info, pd, init)
                } else {
                    passive(object, info, pd, init)
                }
            })
        };
        if let Err(refusal) = ready {
            // SAFETY: nothing else refers to it.
            unsafe { destroy(made) };
            return Err(refusal);
        }
        // SAFETY: not NULL, and the caller's to write.
        unsafe { id.write(made) };
        Ok(0)
    })
}

/// # Safety
/// `info`'s addresses and route, `pd` and `init` are as for [`create`].
unsafe fn active(object: &IdObject, info: &AddrInfo, pd: *mut Pd, init: *mut QpInitAttr) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (source, destination) = unsafe { (sockaddr::read(info.ai_src_addr)?, sockaddr::read(info.ai_dst_addr)?) };
    let destination = destination.ok_or_else(|| refuse!(EINVAL, "rdma_create_ep: there is no destination address"))?;
    resolve_to(object, source.as_ref(), &destination, PATIENCE_MS)?;
    if info.ai_route_len > 0 && !info.ai_route.is_null() {
        // SAFETY: the caller's promise.
        let route = unsafe { std::slice::from_raw_parts(info.ai_route.cast::<u8>(), info.ai_route_len) };
        object.channel()?.set_option(object.inner.handle, SetOption::IbPath(route))?;
    } else {
        object.channel()?.resolve_route(object.inner.handle, PATIENCE_MS.cast_unsigned())?;
    }
    get_event::wait_if_sync(object)?;
    if !init.is_null() {
        set!(init, qp_type, info.ai_qp_type.cast_unsigned());
        // SAFETY: the caller's promise.
        unsafe { qp::build(object.c(), pd, init) }?;
    }
    if info.ai_connect_len > 0 && !info.ai_connect.is_null() {
        // SAFETY: the caller's promise.
        let connect = unsafe { std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len) };
        object.state().connect = connect.to_vec();
    }
    Ok(())
}

/// # Safety
/// `info`'s address, `pd` and `init` are as for [`create`].
unsafe fn passive(object: &IdObject, info: &AddrInfo, pd: *mut Pd, init: *mut QpInitAttr) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let source = unsafe { sockaddr::read(info.ai_src_addr) }?;
    bind_to(object, &source.ok_or_else(|| refuse!(EINVAL, "rdma_create_ep: there is no address to listen on"))?)?;
    if !pd.is_null() {
        set!(object.c(), pd, pd);
    }
    if !init.is_null() {
        // SAFETY: not NULL, and valid by the caller's promise.
        let wanted = unsafe { init.read() };
        object.state().qp_init = Some(QpInitAttr { qp_type: info.ai_qp_type.cast_unsigned(), ..wanted });
    }
    Ok(())
}

/// `rdma_destroy_ep`: destroys the id with its QP and SRQ.
///
/// # Safety
/// `id` is live, and neither it nor what belongs to it is used afterwards.
pub(crate) unsafe extern "C" fn destroy(id: *mut CmId) {
    entry::value("rdma_destroy_ep", || {
        if id.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            if !get!(id, qp).is_null() {
                qp::destroy(id);
            }
            if !get!(id, srq).is_null() {
                srq::destroy(id);
            }
            // An id that cannot be ended stays, because the function cannot report a failure.
            let _ = id_life::end(id);
        }
    });
}

/// `rdma_get_request`: waits for the next request to a synchronous listening id.
///
/// # Safety
/// `listener` is live, `id` valid.
pub(crate) unsafe extern "C-unwind" fn get_request(listener: *mut CmId, id: *mut *mut CmId) -> c_int {
    let begin = || {
        entry::not_null(id)?;
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(listener) }?;
        if !object.state().sync {
            return Err(refuse!(EINVAL, "rdma_get_request is for synchronous ids; this one has an event channel"));
        }
        // SAFETY: a synchronous id's event is valid until the next call on the id.
        unsafe { event::let_go(object) };
        Ok(get!(object.c(), channel))
    };
    let end = |event| {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(listener) }?;
        // SAFETY: the event was just handed out.
        match unsafe { requested(object, event) } {
            Ok(new) => {
                set!(new, event, event);
                // SAFETY: not NULL, and the caller's to write.
                unsafe { id.write(new) };
                Ok(())
            }
            Err(refusal) => {
                set!(object.c(), event, event);
                Err(refusal)
            }
        }
    };
    // SAFETY: the channel is the id's own.
    unsafe { get_event::waiting("rdma_get_request", begin, end) }
}

/// The id of a request, with a QP made from the listening endpoint's attributes.
///
/// # Safety
/// `event` is live.
unsafe fn requested(listener: &IdObject, event: *mut CmEvent) -> Outcome<*mut CmId> {
    let (kind, status) = (EventKind(get!(event, event)), get!(event, status));
    if kind == EventKind::REJECTED {
        return Err(Refusal(libc::ECONNREFUSED));
    }
    if status != 0 {
        return Err(Refusal(status.saturating_abs()));
    }
    if kind == EventKind::DEVICE_REMOVAL {
        return Err(Refusal(libc::ENODEV));
    }
    if kind != EventKind::CONNECT_REQUEST {
        return Err(refuse!(EINVAL, "a listening rdma_cm_id got {kind} instead of a request"));
    }
    let new = get!(event, id);
    let wanted = listener.state().qp_init;
    if let Some(mut wanted) = wanted {
        // SAFETY: the id just made; PD and queues are live by the promise of `rdma_create_ep`.
        unsafe { qp::build(new, get!(listener.c(), pd), &raw mut wanted) }?;
    }
    Ok(new)
}
