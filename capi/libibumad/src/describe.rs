//! Fills the structs of devices and ports from the mirror. The principal functions are [`port`] and
//! [`ca`].

use std::ptr::null_mut;

use crate::layout::{Ca, PORTS, Port, text};
use crate::sysfs::{device, line, number, ports};

/// A port, with P_Keys that the caller frees with `free`.
pub(crate) fn port(name: &str, portnum: u32) -> Option<Port> {
    let folder = device(name)?.join("ports").join(portnum.to_string());
    let state = line(&folder, "state")?;
    let gid = line(&folder, "gids/0").map_or(0, |gid| groups(&gid));
    let pkeys: Vec<u16> = (0..u16::MAX)
        .map_while(|index| line(&folder, &format!("pkeys/{index}")).map(|key| groups(&key) as u16))
        .collect();
    Some(Port {
        ca_name: text(name),
        portnum: portnum.cast_signed(),
        base_lid: number(&folder, "lid"),
        lmc: number(&folder, "lid_mask_count"),
        sm_lid: number(&folder, "sm_lid"),
        sm_sl: number(&folder, "sm_sl"),
        state: state.split(':').next().and_then(|state| state.trim().parse().ok()).unwrap_or(0),
        phys_state: number(&folder, "phys_state"),
        rate: number(&folder, "rate"),
        capmask: number(&folder, "cap_mask").to_be(),
        gid_prefix: ((gid >> 64) as u64).to_be(),
        port_guid: (gid as u64).to_be(),
        pkeys_size: pkeys.len() as u32,
        pkeys: copied(&pkeys),
        link_layer: text(&line(&folder, "link_layer").unwrap_or_default()),
    })
}

/// A device, with ports that the caller frees with `free`.
pub(crate) fn ca(name: &str) -> Option<Ca> {
    let folder = device(name)?;
    let said = |name: &str| line(&folder, name).unwrap_or_default();
    let mut ca = Ca {
        ca_name: text(name),
        node_type: number(&folder, "node_type"),
        numports: 0,
        fw_ver: text(&said("fw_ver")),
        ca_type: text(&said("hca_type")),
        hw_ver: text(&said("hw_rev")),
        node_guid: (groups(&said("node_guid")) as u64).to_be(),
        system_guid: (groups(&said("sys_image_guid")) as u64).to_be(),
        ports: [null_mut(); PORTS],
    };
    for number in ports(name) {
        if let (Some(place), Some(port)) = (ca.ports.get_mut(number as usize), port(name, number)) {
            *place = moved(port);
            ca.numports = number.cast_signed();
        }
    }
    Some(ca)
}

/// The value of hexadecimal digits, with colons or `0x` or neither.
pub(crate) fn groups(text: &str) -> u128 {
    let digits = text.trim_start_matches("0x").chars().filter_map(|digit| digit.to_digit(16));
    digits.fold(0, |value, digit| value << 4 | u128::from(digit))
}

fn copied(values: &[u16]) -> *mut u16 {
    // SAFETY: numbers only.
    let memory = unsafe { libc::calloc(values.len().max(1), size_of::<u16>()) }.cast::<u16>();
    if !memory.is_null() {
        // SAFETY: the new memory has room for them.
        unsafe { memory.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }
    memory
}

fn moved(port: Port) -> *mut Port {
    // SAFETY: numbers only.
    let memory = unsafe { libc::calloc(1, size_of::<Port>()) }.cast::<Port>();
    if !memory.is_null() {
        // SAFETY: the new memory has room for it, and the alignment of every C object.
        unsafe { memory.write(port) };
    }
    memory
}

#[cfg(test)]
mod tests {
    #[test]
    fn guids_gids_and_keys_are_hexadecimal() {
        assert_eq!(super::groups("0002:c903:0000:0a01"), 0x0002_c903_0000_0a01);
        assert_eq!(super::groups("fe80:0000:0000:0000:0000:0000:0000:0001"), 0xfe80 << 112 | 1);
        assert_eq!(super::groups("0xffff"), 0xffff);
    }
}
