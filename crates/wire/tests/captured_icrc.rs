//! The ICRC of packets that the Linux kernel's Soft-RoCE driver and plain sockets sent (`fixtures`, Ethernet frames in pcap
//! files): IPv4 with and without an identification, IPv6, multicast, and some that are wrong.

use softhca_wire::icrc::Envelope;
use std::net::Ipv4Addr;

/// A RoCEv2 packet as it was captured.
struct Captured {
    source: [u8; 16],
    destination: [u8; 16],
    source_port: u16,
    /// The IPv4 identification.
    id: Option<u16>,
    /// From the BTH up to and with the ICRC.
    packet: Vec<u8>,
}

impl Captured {
    fn envelope(&self) -> Envelope {
        Envelope::new(&self.source, &self.destination, self.source_port)
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// The RoCEv2 packets of a capture.
fn read(name: &str) -> Vec<Captured> {
    let path = format!("{}/tests/fixtures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).expect("the fixture");
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "a pcap file, little-endian");
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let (frame, next) = rest[16..].split_at(le32(rest, 8));
        rest = next;
        packets.extend(packet(be16(frame, 12), &frame[14..]));
    }
    packets
}

fn packet(ethertype: u16, ip: &[u8]) -> Option<Captured> {
    let gid = |octets: &[u8]| match <[u8; 4]>::try_from(octets) {
        Ok(octets) => Ipv4Addr::from(octets).to_ipv6_mapped().octets(),
        Err(_) => octets.try_into().expect("sixteen bytes"),
    };
    let (source, destination, id, udp) = match (ethertype, ip[9], ip[6]) {
        (0x0800, 17, _) => {
            assert_eq!(ip[0], 0x45, "no options");
            let end = usize::from(be16(ip, 2));
            (gid(&ip[12..16]), gid(&ip[16..20]), Some(be16(ip, 4)), &ip[20..end])
        }
        (0x86dd, _, 17) => {
            let end = 40 + usize::from(be16(ip, 4));
            (gid(&ip[8..24]), gid(&ip[24..40]), None, &ip[40..end])
        }
        _ => return None, // IGMP
    };
    assert_eq!(be16(udp, 2), 4791);
    Some(Captured { source, destination, source_port: be16(udp, 0), id, packet: udp[8..].to_vec() })
}

/// Every capture in which all is right, and how many packets it has.
const GOOD: &[(&str, usize)] = &[
    ("rc_atomic", 8),
    ("rc_nak_access", 4),
    ("rc_send_tos", 19),
    ("ud_ipv6", 4),
    ("cm_rping_ipv6", 29),
    ("mcast_mckey", 4),
];

#[test]
fn what_another_implementation_sent_is_whole() {
    let mut with_id = 0;
    for (name, count) in GOOD {
        let packets = read(name);
        assert_eq!(packets.len(), *count, "{name}");
        for captured in &packets {
            let (covered, icrc) = captured.packet.split_last_chunk().expect("an ICRC");
            let id = captured.id.unwrap_or(0);
            assert_eq!(captured.envelope().icrc(id, covered), *icrc, "{name}");
            for guess in [id, 0, 1, id.wrapping_add(1), !id] {
                let found = captured.envelope().check(&captured.packet, guess);
                assert_eq!(found, Some(captured.id.unwrap_or(guess)), "{name}, guess {guess}");
            }
            with_id += usize::from(id != 0);
        }
    }
    assert!(with_id >= 20, "the driver numbers its packets: {with_id}");
}

/// Frames 1 and 2 come from an unconnected socket that forbids fragments. The kernel numbered the others, which
/// their senders did not know of: 3 and 4 come from a connected socket, 5 and 6 from one that allows fragments, and says so.
#[test]
fn what_a_plain_socket_sent_is_whole_if_nobody_looks_at_its_number() {
    let packets = read("host_udp_ipid");
    assert_eq!(packets.len(), 6);
    for (index, captured) in packets.iter().enumerate() {
        let (covered, icrc) = captured.packet.split_last_chunk().expect("an ICRC");
        let id = captured.id.expect("IPv4");
        assert_eq!(id == 0, index < 2);
        assert_eq!(captured.envelope().icrc(id, covered) == *icrc, index < 2, "frame {index}");
        // The number is found that the sender thought of; a packet that allows fragments is none of ours.
        assert_eq!(captured.envelope().check(&captured.packet, id), (index < 4).then_some(0), "frame {index}");
    }
}

#[test]
fn any_damaged_bit_shows() {
    for (name, _) in GOOD {
        for captured in read(name) {
            let guess = captured.id.unwrap_or(0);
            let whole = |packet: &[u8]| captured.envelope().check(packet, guess).is_some();
            let mut packet = captured.packet.clone();
            for bit in 0..8 * packet.len() {
                packet[bit / 8] ^= 1 << (bit % 8);
                // The congestion marks are not covered.
                assert_eq!(whole(&packet), bit / 8 == 4, "{name}: bit {bit} of a packet of {} bytes", packet.len());
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            let wrong = |envelope: Envelope| envelope.check(&packet, guess).is_none();
            for bit in 0..128 {
                let mut gid = captured.source;
                gid[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    wrong(Envelope::new(&gid, &captured.destination, captured.source_port)),
                    "{name}: source bit {bit}"
                );
                gid = captured.destination;
                gid[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    wrong(Envelope::new(&captured.source, &gid, captured.source_port)),
                    "{name}: destination bit {bit}"
                );
            }
            for bit in 0..16 {
                let port = captured.source_port ^ 1 << bit;
                assert!(wrong(Envelope::new(&captured.source, &captured.destination, port)), "{name}: port bit {bit}");
            }
        }
    }
}
