//! Address handles: the destination of a datagram, from attributes or from a received datagram. The
//! principal type is [`AhObject`].

use crate::context::OpenContext;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Ah, AhAttr, Context, Gid, GlobalRoute, Grh, Pd, Wc};
use crate::object::{Object, get};
use crate::pd::PdObject;
use bytemuck::Zeroable;
use engine::{AddressVector, Ah as EngineAh, Engine};
use std::ffi::c_int;
use std::sync::Arc;

/// `struct ibv_ah` and the engine's AH.
pub(crate) type AhObject = Object<Ah, Arc<EngineAh>>;

/// `IBV_WC_GRH`: a GRH is in the receive buffer.
const WC_GRH: u32 = 1;

/// `ibv_create_ah`.
///
/// # Safety
/// `pd` is live, `attr` valid.
pub(crate) unsafe extern "C" fn create(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    entry::pointer("ibv_create_ah", || {
        entry::not_null(attr)?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let attr = unsafe { attr.read() };
        // SAFETY: the caller's promise.
        unsafe { build(pd, &attr) }
    })
}

/// `ibv_init_ah_from_wc`: the attributes that address the sender of a received datagram.
///
/// # Safety
/// `context` is open, `wc` and `attr` valid; so is `grh` when the completion says that there is
/// one.
pub(crate) unsafe extern "C" fn init_from_wc(
    context: *mut Context,
    port: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    attr: *mut AhAttr,
) -> c_int {
    entry::or_minus_one("ibv_init_ah_from_wc", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        // SAFETY: the caller's promise.
        let answer = unsafe { way_back(engine, port, wc, grh) }?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { attr.write(answer) };
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc`: [`init_from_wc`] and [`create`] in one call.
///
/// # Safety
/// As [`init_from_wc`], and `pd` is live.
pub(crate) unsafe extern "C" fn create_from_wc(pd: *mut Pd, wc: *mut Wc, grh: *mut Grh, port: u8) -> *mut Ah {
    entry::pointer("ibv_create_ah_from_wc", || {
        // SAFETY: the caller's promise.
        let context = get!(unsafe { PdObject::live(pd) }?.c(), context);
        // SAFETY: the context of a live PD is open.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        // SAFETY: the caller's promise.
        let attr = unsafe { way_back(engine, port, wc, grh) }?;
        // SAFETY: the caller's promise.
        unsafe { build(pd, &attr) }
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `ah` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy(ah: *mut Ah) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_destroy_ah", || unsafe { AhObject::end(ah, |object| Ok(object.inner.destroy()?)) })
}

/// `ibv_resolve_eth_l2_from_gid`: the MAC address and VLAN of a destination. softhca's link has no
/// MAC addresses. For a link-local GID the result is the address that the GID was made from; for
/// other GIDs it is made from the GID's last bytes.
///
/// # Safety
/// `context` is open, `attr`, `mac` (6 bytes) and `vlan` (or NULL) valid.
pub(crate) unsafe extern "C" fn resolve_eth_l2(
    context: *mut Context,
    attr: *mut AhAttr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    entry::code("ibv_resolve_eth_l2_from_gid", || {
        entry::not_null(attr)?;
        entry::not_null(mac)?;
        let (port, route) = (get!(attr, port_num), get!(attr, grh));
        // SAFETY: the caller's promise. The source address must be one that the port can use.
        unsafe { OpenContext::of(context) }?.engine.query_gid(port, u32::from(route.sgid_index))?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { mac.write(mac_of(&route.dgid)) };
        if !vlan.is_null() {
            // SAFETY: as above; 0xffff says "no VLAN".
            unsafe { vlan.write(0xffff) };
        }
        Ok(())
    })
}

/// # Safety
/// `pd` is NULL or live.
unsafe fn build(pd: *mut Pd, attr: &AhAttr) -> Outcome<*mut Ah> {
    // SAFETY: the caller's promise.
    let domain = unsafe { PdObject::live(pd) }?;
    let ah = domain.inner.create_ah(&vector(attr))?;
    let c = Ah { context: get!(domain.c(), context), pd, handle: ah.handle() };
    Ok(AhObject::create(c, ah).cast())
}

/// The global route of an address vector. Without `is_global` the field has no meaning, and the
/// program need not have initialized it.
pub(crate) fn route(attr: &AhAttr) -> GlobalRoute {
    if attr.is_global == 0 { GlobalRoute::zeroed() } else { attr.grh }
}

fn vector(attr: &AhAttr) -> AddressVector {
    let grh = route(attr);
    AddressVector {
        dgid: grh.dgid.0,
        flow_label: grh.flow_label,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        reserved: 0,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port_num: attr.port_num,
        reserved1: 0,
    }
}

/// # Safety
/// `wc` is valid; so is `grh` when the completion says that there is one.
unsafe fn way_back(engine: &Engine, port: u8, wc: *mut Wc, grh: *mut Grh) -> Outcome<AhAttr> {
    entry::not_null(wc)?;
    let mut attr = AhAttr {
        dlid: get!(wc, slid),
        sl: get!(wc, sl),
        src_path_bits: get!(wc, dlid_path_bits),
        port_num: port,
        ..AhAttr::zeroed()
    };
    if get!(wc, wc_flags) & WC_GRH != 0 {
        entry::not_null(grh)?;
        // SAFETY: not NULL, and valid by the caller's promise; a buffer need not be aligned.
        let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
        let header = NetworkHeader::parse(&header)
            .ok_or_else(|| refuse!(EINVAL, "the buffer holds neither a GRH nor an IPv4 header"))?;
        attr.is_global = 1;
        attr.grh = GlobalRoute {
            dgid: header.source,
            flow_label: header.flow_label,
            sgid_index: index_of(engine, port, &header.destination)?,
            hop_limit: 0xff,
            traffic_class: header.traffic_class,
        };
    }
    Ok(attr)
}

/// The index in the port's table of the GID to which a datagram was sent. A multicast group has no
/// index: answers to its datagrams use the first GID.
fn index_of(engine: &Engine, port: u8, gid: &Gid) -> Outcome<u8> {
    if gid.0[0] == 0xff {
        return Ok(0);
    }
    let length = engine.query_port(port)?.gid_tbl_len;
    for index in 0..=u8::MAX {
        if u32::from(index) < length && engine.query_gid(port, u32::from(index))? == gid.0 {
            return Ok(index);
        }
    }
    let address = std::net::Ipv6Addr::from(gid.0);
    Err(refuse!(EINVAL, "GID {address}, to which the datagram came, is not in the table of port {port}"))
}

/// The first 40 bytes of a UD receive buffer: a GRH, or an IPv4 header in the last 20 bytes.
struct NetworkHeader {
    source: Gid,
    destination: Gid,
    flow_label: u32,
    traffic_class: u8,
}

impl NetworkHeader {
    fn parse(bytes: &[u8; 40]) -> Option<Self> {
        if let Some(ipv4) = bytes.last_chunk::<20>().filter(|header| is_ipv4(header)) {
            let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *ipv4;
            return Some(Self {
                source: mapped([s0, s1, s2, s3]),
                destination: mapped([d0, d1, d2, d3]),
                flow_label: 0,
                traffic_class: ipv4[1],
            });
        }
        let (first, rest) = bytes.split_first_chunk::<4>()?;
        let first = u32::from_be_bytes(*first);
        if first >> 28 != 6 {
            return None;
        }
        let (source, destination) = rest.get(4..)?.split_first_chunk::<16>()?;
        Some(Self {
            source: Gid(*source),
            destination: Gid(*destination.first_chunk::<16>()?),
            flow_label: first & 0xf_ffff,
            traffic_class: (first >> 20).to_le_bytes()[0],
        })
    }
}

/// Checks version 4, no options, and a correct checksum. An IPv6 GID at this place almost never
/// passes this check.
fn is_ipv4(header: &[u8; 20]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

fn mapped(address: [u8; 4]) -> Gid {
    Gid(std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets())
}

fn mac_of(gid: &Gid) -> [u8; 6] {
    let [.., g8, g9, g10, g11, g12, g13, g14, g15] = gid.0;
    if gid.0.starts_with(&[0xfe, 0x80]) && (g11, g12) == (0xff, 0xfe) {
        [g8 ^ 2, g9, g10, g13, g14, g15]
    } else {
        [2, g11, g12, g13, g14, g15]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grh_leads_back_to_its_source() {
        let mut bytes = [0u8; 40];
        bytes[..4].copy_from_slice(&[0x60 | 1, 0x2f, 0x12, 0x34]);
        bytes[8..24].copy_from_slice(&[0xaa; 16]);
        bytes[24..].copy_from_slice(&[0xbb; 16]);
        let header = NetworkHeader::parse(&bytes).unwrap();
        assert_eq!(header.source, Gid([0xaa; 16]));
        assert_eq!(header.destination, Gid([0xbb; 16]));
        assert_eq!((header.traffic_class, header.flow_label), (0x12, 0xf1234));
    }

    #[test]
    fn an_ipv4_header_gives_mapped_addresses() {
        let mut bytes = [0u8; 40];
        bytes[20..].copy_from_slice(&[0x45, 0x08, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum: u32 = bytes[20..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let check = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[30..32].copy_from_slice(&check.to_be_bytes());
        let header = NetworkHeader::parse(&bytes).unwrap();
        assert_eq!(header.source, mapped([10, 0, 0, 1]));
        assert_eq!(header.destination, mapped([10, 0, 0, 2]));
        assert_eq!(header.traffic_class, 8);
    }

    #[test]
    fn neither_is_refused() {
        assert!(NetworkHeader::parse(&[0; 40]).is_none());
    }

    #[test]
    fn a_link_local_gid_gives_its_mac() {
        let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        assert_eq!(mac_of(&gid), [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    }
}
