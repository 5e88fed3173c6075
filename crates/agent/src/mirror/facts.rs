//! The files of a device whose content changes while the device exists: the states, tables and
//! rates of its ports. The principal function is [`files`].

use std::path::{Path, PathBuf};

use abi::device::mtu_bytes;

use super::{gid_text, physical_text, state_text};
use crate::addresses::interface_name;
use crate::device::{Device, Port};
use crate::gids::{GID_TABLE_LEN, GidEntry};

/// A file, below the device's folder, and its line. `None`: the file does not exist.
pub(super) type Fact = (PathBuf, Option<String>);

/// The files, in an order that does not change.
pub(super) fn files(device: &Device) -> Vec<Fact> {
    let mut files = Vec::new();
    for (number, port) in (1..).zip(&device.ports) {
        let at = PathBuf::from(format!("ports/{number}"));
        let facts = device.port_attributes(number).unwrap_or_default();
        for (name, text) in [
            ("state", state_text(port.state).to_owned()),
            ("phys_state", physical_text(port.physical_state).to_owned()),
            ("lid", format!("{:#x}", port.lid.map_or(0, |lid| lid.number))),
            ("sm_lid", format!("{:#x}", port.sm_lid())),
            ("sm_sl", port.subnet.sm_sl().to_string()),
            ("lid_mask_count", port.subnet.lmc().to_string()),
            ("rate", port.rate.to_string()),
            ("cap_mask", format!("{:#010x}", facts.port_cap_flags)),
            ("active_mtu", mtu_bytes(port.active_mtu).unwrap_or_default().to_string()),
        ] {
            files.push((at.join(name), Some(text)));
        }
        let pkeys = if port.has_packets() { port.pkeys.entries() } else { &[] };
        files.extend(
            (0..).zip(pkeys).map(|(index, pkey)| (at.join(format!("pkeys/{index}")), Some(format!("{pkey:#06x}")))),
        );
        let gids = if port.has_packets() { GID_TABLE_LEN } else { 1 };
        (0..gids).for_each(|index| files.extend(gid(&at, port, index)));
    }
    files
}

/// An entry of the GID table: its value, its type and its interface.
fn gid(at: &Path, port: &Port, index: usize) -> [Fact; 3] {
    let entry = port.shown_gid(index as u32);
    let value = gid_text(entry.map(|entry| entry.gid).unwrap_or_default());
    let interface = |entry: &GidEntry| interface_name(entry.ifindex).unwrap_or_else(|| "lo".into());
    let (kind, interface) = match &entry {
        // The kernel shows this text for both cases; its InfiniBand ports have no interfaces there.
        Some(_) if port.is_infiniband() => (Some("IB/RoCE v1"), None),
        // The GID of iWARP is no address, but the kernel has a name for its type.
        Some(entry) if !port.has_packets() => (Some("IB/RoCE v1"), Some(interface(entry))),
        Some(entry) => (Some("RoCE v2"), Some(interface(entry))),
        None => (None, None),
    };
    [
        (at.join(format!("gids/{index}")), Some(value)),
        (at.join(format!("gid_attrs/types/{index}")), kind.map(str::to_owned)),
        (at.join(format!("gid_attrs/ndevs/{index}")), interface),
    ]
}
