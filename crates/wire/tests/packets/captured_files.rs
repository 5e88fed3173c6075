//! Parses every packet of every capture, encodes it again byte for byte, and checks its ICRC. The
//! captures are of two Linux hosts with the Soft-RoCE driver (Debian 12, Linux 6.1). In
//! `host_userspace_rc` one end is a program with a plain socket.

use crate::pcap::Captured;
use softhca_wire::Headers;
use softhca_wire::cm::Message;
use softhca_wire::mad::{GSI_QKEY, Mad};
use std::collections::BTreeSet;

/// (Capture, its number of packets.) The names are the driver's own for the operations. `drop_*`
/// show a packet that is lost on the way, from the responder's side (tap1) and the requester's side
/// (tap2).
const CAPTURES: &[(&str, usize)] = &[
    ("cm_reject", 2),
    ("cm_rping", 29),
    ("cm_rping_ipv6", 29),
    ("cm_ucmatose", 26),
    ("cm_udaddy_sidr", 6),
    ("drop_ack.tap1", 15),
    ("drop_ack.tap2", 14),
    ("drop_atomic_ack.tap1", 6),
    ("drop_atomic_ack.tap2", 5),
    ("drop_read_req.tap1", 7),
    ("drop_read_req.tap2", 8),
    ("drop_read_resp_last.tap1", 9),
    ("drop_read_resp_last.tap2", 8),
    ("drop_read_resp_middle.tap1", 11),
    ("drop_read_resp_middle.tap2", 10),
    ("drop_send_last.tap1", 13),
    ("drop_send_last.tap2", 14),
    ("drop_send_middle.tap1", 10),
    ("drop_send_middle.tap2", 11),
    ("drop_write_middle.tap1", 9),
    ("drop_write_middle.tap2", 10),
    ("host_udp_ipid", 6),
    ("host_userspace_rc", 11),
    ("mcast_mckey", 4),
    ("rc_atomic", 8),
    ("rc_inv", 6),
    ("rc_nak_access", 4),
    ("rc_nak_inv", 2),
    ("rc_nak_read_access", 2),
    ("rc_read", 16),
    ("rc_read_mtu4096", 13),
    ("rc_rnr", 24),
    ("rc_rnr_exceeded", 4),
    ("rc_send", 19),
    ("rc_send_ipv6", 19),
    ("rc_send_mtu4096", 18),
    ("rc_send_tos", 19),
    ("rc_sendi", 14),
    ("rc_sendi_mtu256", 28),
    ("rc_wrap", 19),
    ("rc_write", 12),
    ("rc_writei", 8),
    ("uc", 15),
    ("ud", 4),
    ("ud_ipv6", 4),
];

/// The opcodes in the captures: all except those of XRC, and the last packet of a SEND with
/// invalidate.
const OPCODES: &[u8] = &[
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12,
    0x13, 0x14, 0x17, // RC
    0x20, 0x21, 0x22, 0x23, 0x24, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, // UC
    0x64, 0x65, // UD
];

fn all() -> impl Iterator<Item = (&'static str, Captured)> {
    CAPTURES.iter().flat_map(|(name, _)| crate::pcap::read(name).into_iter().map(move |captured| (*name, captured)))
}

#[test]
fn every_capture_is_looked_at() {
    let named: Vec<&str> = CAPTURES.iter().map(|(name, _)| *name).collect();
    assert_eq!(crate::pcap::names(), named);
    for (name, count) in CAPTURES {
        assert_eq!(crate::pcap::read(name).len(), *count, "{name}");
    }
    let opcodes: BTreeSet<u8> = all().map(|(_, captured)| captured.packet[0]).collect();
    assert_eq!(opcodes, OPCODES.iter().copied().collect());
}

/// The packet as softhca would send it with this identification: the same headers and payload, and
/// the fields that follow from them.
fn again(captured: &Captured, id: u16) -> Vec<u8> {
    let (headers, payload) = captured.parts();
    let pad = payload.len().wrapping_neg() & 3;
    let headers = Headers { pad: pad as u8, ..headers };
    let mut packet = vec![0xaa; headers.len()];
    assert_eq!(headers.emit(&mut packet), Ok(headers.len()));
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + pad, 0);
    let icrc = captured.envelope().icrc(id, &packet);
    packet.extend_from_slice(&icrc);
    packet
}

#[test]
fn every_packet_comes_back_byte_for_byte() {
    for (name, captured) in all() {
        let (headers, _) = captured.parts();
        let id = captured.id.unwrap_or(0);
        let (ours, theirs) = (again(&captured, id), &captured.packet);
        if name == "host_udp_ipid" && id != 0 {
            // The kernel chose the identification of these packets, and their senders did not know
            // it. `captured_icrc.rs` shows the result.
            let end = theirs.len() - 4;
            assert_eq!(ours[..end], theirs[..end], "{name}: {headers}");
            assert_ne!(ours[end..], theirs[end..], "{name}: {headers}");
        } else {
            assert_eq!(ours, *theirs, "{name}: {headers}");
            assert_eq!(captured.envelope().check(theirs, id), Some(id), "{name}: {headers}");
        }
        assert!(headers.opcode.has_payload() || captured.parts().1.is_empty(), "{name}: {headers}");
    }
}

#[test]
fn every_management_datagram_comes_back_byte_for_byte() {
    let mut count = 0;
    for (name, captured) in all().filter(|(name, _)| name.starts_with("cm_")) {
        let (headers, payload) = captured.parts();
        if headers.dest_qp.value() != 1 {
            continue;
        }
        count += 1;
        let datagram: &Mad = payload.try_into().expect("256 bytes");
        let (header, message) = Message::parse(datagram).unwrap_or_else(|error| panic!("{name}: {error}"));
        let ours = message.emit(header.transaction, header.modifier);
        assert_eq!(ours[..], payload[..], "{name}: {}", message.attribute());
        assert_eq!(headers.deth.qkey, GSI_QKEY, "{name}");
    }
    assert_eq!(count, 24);
}
