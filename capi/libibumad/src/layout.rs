//! The structs of `infiniband/umad.h`. The header of a message is [`abi::umad::UserMad`].

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;

/// `UMAD_CA_NAME_LEN`.
pub(crate) const NAME: usize = 20;
/// `UMAD_CA_MAX_PORTS`.
pub(crate) const PORTS: usize = 10;

/// `umad_port_t`.
#[repr(C)]
pub(crate) struct Port {
    pub(crate) ca_name: [c_char; NAME],
    pub(crate) portnum: c_int,
    pub(crate) base_lid: c_uint,
    pub(crate) lmc: c_uint,
    pub(crate) sm_lid: c_uint,
    pub(crate) sm_sl: c_uint,
    pub(crate) state: c_uint,
    pub(crate) phys_state: c_uint,
    pub(crate) rate: c_uint,
    /// Network byte order.
    pub(crate) capmask: u32,
    /// Network byte order.
    pub(crate) gid_prefix: u64,
    /// Network byte order.
    pub(crate) port_guid: u64,
    pub(crate) pkeys_size: c_uint,
    pub(crate) pkeys: *mut u16,
    pub(crate) link_layer: [c_char; NAME],
}

/// `umad_ca_t`.
#[repr(C)]
pub(crate) struct Ca {
    pub(crate) ca_name: [c_char; NAME],
    pub(crate) node_type: c_uint,
    pub(crate) numports: c_int,
    pub(crate) fw_ver: [c_char; 20],
    pub(crate) ca_type: [c_char; 40],
    pub(crate) hw_ver: [c_char; 20],
    /// Network byte order.
    pub(crate) node_guid: u64,
    /// Network byte order.
    pub(crate) system_guid: u64,
    pub(crate) ports: [*mut Port; PORTS],
}

/// `struct umad_ca_pair`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CaPair {
    pub(crate) smi_name: [c_char; NAME],
    pub(crate) smi_preferred_port: u32,
    pub(crate) gsi_name: [c_char; NAME],
    pub(crate) gsi_preferred_port: u32,
}

/// `struct umad_device_node`.
#[repr(C)]
pub(crate) struct DeviceNode {
    pub(crate) next: *mut Self,
    pub(crate) ca_name: *const c_char,
}

/// `struct umad_reg_attr`.
#[repr(C)]
pub(crate) struct Registration {
    pub(crate) mgmt_class: u8,
    pub(crate) mgmt_class_version: u8,
    pub(crate) flags: u32,
    pub(crate) method_mask: [u64; 2],
    pub(crate) oui: u32,
    pub(crate) rmpp_version: u8,
}

const _: () = {
    assert!(size_of::<Port>() == 112 && offset_of!(Port, portnum) == 20 && offset_of!(Port, base_lid) == 24);
    assert!(offset_of!(Port, rate) == 48 && offset_of!(Port, capmask) == 52 && offset_of!(Port, gid_prefix) == 56);
    assert!(offset_of!(Port, port_guid) == 64 && offset_of!(Port, pkeys_size) == 72);
    assert!(offset_of!(Port, pkeys) == 80 && offset_of!(Port, link_layer) == 88);
    assert!(size_of::<Ca>() == 208 && offset_of!(Ca, node_type) == 20 && offset_of!(Ca, numports) == 24);
    assert!(offset_of!(Ca, fw_ver) == 28 && offset_of!(Ca, ca_type) == 48 && offset_of!(Ca, hw_ver) == 88);
    assert!(offset_of!(Ca, node_guid) == 112 && offset_of!(Ca, system_guid) == 120 && offset_of!(Ca, ports) == 128);
    assert!(size_of::<CaPair>() == 48 && offset_of!(CaPair, smi_preferred_port) == 20);
    assert!(offset_of!(CaPair, gsi_name) == 24 && offset_of!(CaPair, gsi_preferred_port) == 44);
    assert!(size_of::<DeviceNode>() == 16 && offset_of!(DeviceNode, ca_name) == 8);
    assert!(size_of::<Registration>() == 32 && offset_of!(Registration, flags) == 4);
    assert!(offset_of!(Registration, method_mask) == 8 && offset_of!(Registration, oui) == 24);
    assert!(offset_of!(Registration, rmpp_version) == 28);
};

/// Text as a C string in an array, cut so that the final NUL fits.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = from.cast_signed();
    }
    array
}
