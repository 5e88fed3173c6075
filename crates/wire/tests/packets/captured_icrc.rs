//! The ICRC of packets that the Linux kernel's Soft-RoCE driver and plain sockets sent (`fixtures`,
//! Ethernet frames in pcap files): IPv4 with and without an identification, IPv6, multicast, and
//! some packets with errors.

use crate::pcap::read;
use softhca_wire::icrc::Envelope;

/// Captures without errors, and the number of their packets. `captured_files.rs` has all captures.
const GOOD: &[(&str, usize)] = &[
    ("rc_atomic", 8),
    ("rc_nak_access", 4),
    ("rc_send_tos", 19),
    ("ud_ipv6", 4),
    ("cm_rping_ipv6", 29),
    ("mcast_mckey", 4),
];

#[test]
fn captured_packets_of_other_implementations_have_a_valid_icrc() {
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

/// Frames 1 and 2 come from an unconnected socket that forbids fragments. The kernel chose the
/// identification of the others, which their senders did not know: 3 and 4 come from a connected
/// socket. 5 and 6 come from a socket that allows fragments, and their headers say so.
#[test]
fn packets_of_plain_sockets_have_the_icrc_of_identification_0() {
    let packets = read("host_udp_ipid");
    assert_eq!(packets.len(), 6);
    for (index, captured) in packets.iter().enumerate() {
        let (covered, icrc) = captured.packet.split_last_chunk().expect("an ICRC");
        let id = captured.id.expect("IPv4");
        assert_eq!(id == 0, index < 2);
        assert_eq!(captured.envelope().icrc(id, covered) == *icrc, index < 2, "frame {index}");
        // The check finds the identification that the sender assumed. A packet that allows
        // fragments is not accepted.
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
                // FECN and BECN are not covered.
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
