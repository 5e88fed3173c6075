//! Addresses and routes of ids: binding, resolving, and the fields of an id that show both. The id
//! itself is in [`id`].

use crate::cma::{CmId, Storage};
use crate::devices;
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::event;
use crate::id::{self, IdObject};
use crate::layout::{Gid, SaPathRec};
use crate::object::{get, set};
use crate::verbs::made;
use cm::{Address, Addresses, Gids, Known, Path};
use std::ffi::{c_int, c_void};

/// `rdma_bind_addr`.
///
/// # Safety
/// `id` is live, `address` a valid `struct sockaddr` as long as its family says.
pub(crate) unsafe extern "C" fn bind(id: *mut CmId, address: *const c_void) -> c_int {
    entry::or_minus_one("rdma_bind_addr", || {
        // SAFETY: the caller's promise.
        let (object, address) = unsafe { (id::live(id)?, read(address)?) };
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
        let (object, source, destination) = unsafe { (id::live(id)?, read(source)?, read(destination)?) };
        let destination =
            destination.ok_or_else(|| refuse!(EINVAL, "rdma_resolve_addr: there is no destination address"))?;
        resolve_to(object, source.as_ref(), &destination, timeout_ms)?;
        Ok(0)
    })
}

pub(crate) fn resolve_to(object: &IdObject, source: Option<&Address>, to: &Address, timeout_ms: c_int) -> Outcome<()> {
    object.channel()?.resolve_addr(object.inner.handle, source, to, timeout_ms.cast_unsigned())?;
    show(object, Side::Destination, to);
    event::wait_if_sync(object)
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
        event::wait_if_sync(object)?;
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

/// The address behind a program's pointer: `None` for NULL, EINVAL for an unknown family.
///
/// # Safety
/// `address` is NULL or a valid `struct sockaddr` as long as its family says.
pub(crate) unsafe fn read(address: *const c_void) -> Outcome<Option<Address>> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: every `struct sockaddr` begins with its family.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    let unknown = || refuse!(EINVAL, "an address of family {family} is none that the connection manager knows");
    let len = Address::len_of(family).ok_or_else(unknown)?;
    // SAFETY: as long as its family says, by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
    Ok(Address::from_bytes(bytes))
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn show(object: &IdObject, side: Side, address: &Address) {
    if address.is_empty() {
        return;
    }
    let storage = Storage(address.storage());
    match side {
        Side::Source => set!(object.c(), route.addr.src_storage, storage),
        Side::Destination => set!(object.c(), route.addr.dst_storage, storage),
    }
}

/// Shows the id's addresses in the C struct, and the device once the id has one.
pub(crate) fn show_addresses(object: &IdObject, found: &Addresses) -> Outcome<()> {
    show(object, Side::Source, &found.source);
    show(object, Side::Destination, &found.destination);
    if object.inner.device.get().is_none() && found.node_guid != [0; 8] {
        let device = devices::find(object.channel()?.agent(), found.device, found.node_guid)?;
        let c = object.c();
        set!(c, verbs, device.verbs);
        set!(c, pd, device.pd);
        set!(c, port_num, found.port);
        set!(c, route.addr.addr.pkey, found.pkey);
        // Only one thread resolves an id, so `set` cannot fail.
        let _ = object.inner.device.set(device);
    }
    Ok(())
}

/// Shows the id's GIDs.
pub(crate) fn show_gids(object: &IdObject, gids: &Gids) {
    set!(object.c(), route.addr.addr.sgid, Gid(gids.source));
    set!(object.c(), route.addr.addr.dgid, Gid(gids.destination));
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

/// Shows the id's paths.
pub(crate) fn show_paths(object: &IdObject, paths: &[Path]) -> Outcome<()> {
    if paths.is_empty() {
        return Ok(());
    }
    // SAFETY: a plain allocation, not empty.
    let array = made(unsafe { libc::calloc(paths.len(), size_of::<SaPathRec>()) })?.cast::<SaPathRec>();
    for (index, path) in paths.iter().enumerate() {
        // SAFETY: inside the array just made.
        unsafe { array.add(index).write(record(path)) };
    }
    let c = object.c();
    let before = get!(c, route.path_rec);
    set!(c, route.path_rec, array);
    set!(c, route.num_paths, c_int::try_from(paths.len()).unwrap_or(0));
    // SAFETY: an earlier call allocated it here; NULL is allowed.
    unsafe { libc::free(before.cast()) };
    Ok(())
}

/// Shows what came with an event, and keeps the attributes for the QP.
pub(crate) fn show_known(object: &IdObject, known: &Known) -> Outcome<()> {
    if let Some((addresses, gids)) = &known.addresses {
        show_addresses(object, addresses)?;
        show_gids(object, gids);
    }
    if let Some(path) = &known.path {
        show_paths(object, std::slice::from_ref(path))?;
    }
    object.keep_attributes(known);
    Ok(())
}

/// The value "exactly" of a selector.
const EXACTLY: u8 = 2;

/// A path as `struct ibv_sa_path_rec`, in which LIDs, flow label and partition key are in network
/// order.
fn record(path: &Path) -> SaPathRec {
    SaPathRec {
        dgid: Gid(path.dgid),
        sgid: Gid(path.sgid),
        dlid: path.dlid.to_be(),
        slid: path.slid.to_be(),
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: path.reversible.into(),
        numb_path: 1,
        pkey: path.pkey.to_be(),
        sl: path.sl,
        mtu_selector: EXACTLY,
        mtu: path.mtu,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        preference: path.flags.to_le_bytes()[0],
    }
}
