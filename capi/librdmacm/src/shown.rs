//! The fields of an id that show its addresses, device and paths. The principal function is
//! [`show_known`].

use crate::cma::Storage;
use crate::devices;
use crate::entry::Outcome;
use crate::id::IdObject;
use crate::layout::{Gid, SaPathRec};
use crate::object::{get, set};
use crate::verbs::made;
use cm::{Address, Addresses, Gids, Known, Path};
use std::ffi::c_int;

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// Shows one of the id's addresses.
pub(crate) fn show(object: &IdObject, side: Side, address: &Address) {
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
