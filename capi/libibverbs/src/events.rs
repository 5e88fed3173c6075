//! Asynchronous events: events of a QP, CQ, SRQ, port or device that are not completions. The
//! principal type is [`Subject`].

use crate::context::OpenContext;
use crate::cq::CqObject;
use crate::entry::{self, Attempt};
use crate::layout::{AsyncEvent, Context, Qp};
use crate::object::{from_cookie, get, set};
use crate::qp::QpObject;
use crate::srq::SrqObject;
use abi::event::kind;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

/// The kind of object that an event is about.
pub(crate) enum Subject {
    Cq,
    Srq,
    Qp,
    /// A port or the device.
    Other,
}

impl Subject {
    /// The kind of object for this kind of event.
    pub(crate) fn of(event_type: u32) -> Self {
        match event_type {
            kind::CQ_ERR => Self::Cq,
            kind::SRQ_ERR | kind::SRQ_LIMIT_REACHED => Self::Srq,
            kind::QP_FATAL
            | kind::QP_REQ_ERR
            | kind::QP_ACCESS_ERR
            | kind::COMM_EST
            | kind::SQ_DRAINED
            | kind::PATH_MIG
            | kind::PATH_MIG_ERR
            | kind::QP_LAST_WQE_REACHED => Self::Qp,
            _ => Self::Other,
        }
    }
}

/// `ibv_get_async_event`: waits unless the context's `async_fd` has O_NONBLOCK.
///
/// # Safety
/// `context` is open, `event` valid.
pub(crate) unsafe extern "C-unwind" fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    entry::waiting("ibv_get_async_event", || {
        entry::not_null(event)?;
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        let Some(found) = engine.try_async_event()? else {
            return Ok(Attempt::Counter(engine.async_fd().as_raw_fd()));
        };
        // An object's event carries the object's address. A port's event carries the port number in
        // its first four bytes.
        let element: *mut c_void = from_cookie(found.element);
        // SAFETY: not NULL, and the caller's to write.
        unsafe { event.write(AsyncEvent { element, event_type: found.kind }) };
        Ok(Attempt::Done)
    })
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// `event` came from `ibv_get_async_event` and is acknowledged once.
pub(crate) unsafe extern "C" fn ack_async_event(event: *mut AsyncEvent) {
    entry::value("ibv_ack_async_event", || {
        if event.is_null() {
            return;
        }
        let element = get!(event, element);
        match Subject::of(get!(event, event_type)) {
            Subject::Cq => {
                // SAFETY: the CQ is live: `ibv_destroy_cq` waits for this acknowledgement.
                if let Ok(object) = unsafe { CqObject::of(element) } {
                    set!(object.c(), async_events_completed, object.inner.acks.asynchronous());
                }
            }
            Subject::Srq => {
                // SAFETY: as above.
                if let Ok(object) = unsafe { SrqObject::of(element) } {
                    set!(object.c(), events_completed, object.inner.acks.asynchronous());
                }
            }
            Subject::Qp => {
                // SAFETY: as above.
                if let Ok(object) = unsafe { QpObject::of(element) } {
                    let count = object.inner.acks.asynchronous();
                    set!(object.c().cast::<Qp>(), events_completed, count);
                }
            }
            Subject::Other => {}
        }
    });
}
