//! Addresses and routes of ids: binding and resolving. The id itself is in [`id`]; the fields of it
//! that show both are set in [`shown`].

use crate::cma::CmId;
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::get_event::wait_if_sync;
use crate::id::{self, IdObject};
use crate::object::get;
use crate::shown::{Side, show, show_addresses, show_gids};
use crate::sockaddr;
use cm::Address;
use std::ffi::{c_int, c_void};

/// `rdma_bind_addr`.
///
/// # Safety
/// `id` is live, `address` a valid `struct sockaddr` as long as its family says.
pub(crate) unsafe extern "C" fn bind(id: *mut CmId, address: *const c_void) -> c_int {
    entry::or_minus_one("rdma_bind_addr", || {
        // SAFETY: the caller's promise.
        let (object, address) = unsafe { (id::live(id)?, sockaddr::read(address)?) };
        bind_to(object, &address.ok_or(Refusal(libc::EINVAL))?)?;
        Ok(0)
    })
}

pub(crate) fn bind_to(object: &IdObject, address: &Address) -> Outcome<()> {
    object.channel()?.bind(object.inner.handle, address)?;
    ask_addresses(object)
}

/// `rdma_resolve_addr`: ADDR_RESOLVED or ADDR_ERROR follows; a synchronous id waits for it.
///
/// # Safety
/// `id` is live; `source` is NULL, and `destination` is, a valid `struct sockaddr` as long as its
/// family says.
pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut CmId,
    source: *const c_void,
    destination: *const c_void,
    timeout_ms: c_int,
) -> c_int {
    entry::or_minus_one("rdma_resolve_addr", || {
        // SAFETY: the caller's promise.
        let (object, source, destination) =
            unsafe { (id::live(id)?, sockaddr::read(source)?, sockaddr::read(destination)?) };
        let destination =
            destination.ok_or_else(|| refuse!(EINVAL, "rdma_resolve_addr: there is no destination address"))?;
        resolve_to(object, source.as_ref(), &destination, timeout_ms)?;
        Ok(0)
    })
}

pub(crate) fn resolve_to(object: &IdObject, source: Option<&Address>, to: &Address, timeout_ms: c_int) -> Outcome<()> {
    object.channel()?.resolve_addr(object.inner.handle, source, to, timeout_ms.cast_unsigned())?;
    show(object, Side::Destination, to);
    wait_if_sync(object)
}

/// `rdma_resolve_route`: ROUTE_RESOLVED or ROUTE_ERROR follows; a synchronous id waits for it.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn resolve_route(id: *mut CmId, timeout_ms: c_int) -> c_int {
    entry::or_minus_one("rdma_resolve_route", || {
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        object.channel()?.resolve_route(object.inner.handle, timeout_ms.cast_unsigned())?;
        wait_if_sync(object)?;
        Ok(0)
    })
}

/// `rdma_get_src_port`: the port in network order, or 0 without one.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn src_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller's promise.
    entry::value("rdma_get_src_port", || unsafe { port(id, Side::Source) })
}

/// `rdma_get_dst_port`: the port in network order, or 0 without one.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe extern "C" fn dst_port(id: *mut CmId) -> u16 {
    // SAFETY: the caller's promise.
    entry::value("rdma_get_dst_port", || unsafe { port(id, Side::Destination) })
}

/// # Safety
/// `id` is NULL or live.
unsafe fn port(id: *mut CmId, side: Side) -> u16 {
    // SAFETY: the caller's promise.
    let Ok(object) = (unsafe { id::live(id) }) else { return 0 };
    let shown = match side {
        Side::Source => get!(object.c(), route.addr.src_storage),
        Side::Destination => get!(object.c(), route.addr.dst_storage),
    };
    Address::from_bytes(&shown.0).map_or(0, |address| address.port().to_be())
}

/// Asks the agent for the id's addresses and GIDs, and shows them. Without a device there are no
/// GIDs.
pub(crate) fn ask_addresses(object: &IdObject) -> Outcome<()> {
    let channel = object.channel()?;
    let found = channel.query_addresses(object.inner.handle)?;
    show_addresses(object, &found)?;
    if found.node_guid != [0; 8] {
        show_gids(object, &channel.query_gids(object.inner.handle)?);
    }
    Ok(())
}

/// Whether the id has a source port.
pub(crate) fn is_bound(object: &IdObject) -> bool {
    Address::from_bytes(&get!(object.c(), route.addr.src_storage).0).is_some_and(|address| address.port() != 0)
}
