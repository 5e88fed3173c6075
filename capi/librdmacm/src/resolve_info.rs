//! `rdma_resolve_addrinfo(3)` looks names up for an id and ends with an event.
//! `rdma_query_addrinfo(3)` takes the result. The look-up itself is that of `rdma_getaddrinfo`. Its
//! event goes through the agent to the id's own channel.

use crate::addrinfo::{self, Found};
use crate::arrival::{FAILED, RESOLVED};
use crate::cma::{AddrInfo, CmId};
use crate::entry::{self, Outcome, refuse};
use crate::get_event;
use crate::id::{self, IdObject};
use cm::EventKind;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// Hint flags: ask the subnet administrator; ask the host's resolver.
const SA: c_int = 0x10;
const DNS: c_int = 0x20;

/// `rdma_resolve_addrinfo`: ADDRINFO_RESOLVED or ADDRINFO_ERROR follows; a synchronous id waits for
/// it.
///
/// # Safety
/// `id` is live; `node` and `service` are NULL or C strings, `hints` is NULL or valid.
pub(crate) unsafe extern "C" fn resolve(
    id: *mut CmId,
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
) -> c_int {
    entry::or_minus_one("rdma_resolve_addrinfo", || {
        // SAFETY: the caller's promise.
        let (object, hints) = unsafe { (id::live(id)?, hints.as_ref()) };
        {
            let mut state = object.state();
            if state.resolving {
                return Err(refuse!(EBUSY, "the rdma_cm_id resolves names already, or nobody has taken what it found"));
            }
            state.resolving = true;
        }
        // SAFETY: the caller's promise.
        let begun = unsafe { begin(object, node, service, hints) };
        if begun.is_err() {
            object.state().resolving = false;
        }
        begun?;
        get_event::wait_if_sync(object)?;
        Ok(0)
    })
}

/// # Safety
/// As for [`resolve`].
unsafe fn begin(
    object: &IdObject,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&AddrInfo>,
) -> Outcome<()> {
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    if flags & SA != 0 {
        let both =
            if flags & DNS != 0 { "together with RAI_DNS" } else { "on Ethernet, which has no subnet administrator" };
        return Err(refuse!(ENOTSUP, "rdma_resolve_addrinfo: RAI_SA {both}"));
    }
    // SAFETY: the caller's promise.
    let (arg, status) = match unsafe { addrinfo::look_up(node, service, hints) }? {
        Found::Info(info) => {
            object.state().resolved = info;
            (RESOLVED, 0)
        }
        Found::Code(code) => (FAILED, -errno(code)),
    };
    let told = object.channel()?.write_event(object.inner.handle, EventKind::INTERNAL, status, arg);
    told.map_err(|error| {
        let info = std::mem::replace(&mut object.state().resolved, null_mut());
        // SAFETY: made just now, and not handed to the program.
        unsafe { addrinfo::release(info) };
        error.into()
    })
}

/// `rdma_query_addrinfo`: returns the result once. The program must free it.
///
/// # Safety
/// `id` is live, `info` valid.
pub(crate) unsafe extern "C" fn query(id: *mut CmId, info: *mut *mut AddrInfo) -> c_int {
    entry::or_minus_one("rdma_query_addrinfo", || {
        entry::not_null(info)?;
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        let mut state = object.state();
        if !state.resolving || state.resolved.is_null() {
            return Err(refuse!(ENOENT, "the rdma_cm_id has found no addresses that nobody has taken"));
        }
        state.resolving = false;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { info.write(std::mem::replace(&mut state.resolved, null_mut())) };
        Ok(0)
    })
}

/// Translates a code of `getaddrinfo(3)` to an error number for an event's status.
fn errno(code: c_int) -> c_int {
    match code {
        libc::EAI_AGAIN => libc::EAGAIN,
        libc::EAI_MEMORY => libc::ENOMEM,
        libc::EAI_FAMILY => libc::EAFNOSUPPORT,
        libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_FAIL | libc::EAI_SERVICE => libc::ENOENT,
        _ => libc::EINVAL,
    }
}
