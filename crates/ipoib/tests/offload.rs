//! Offload: long packets of TCP and UDP are cut into segments that any host takes, and segments
//! become the same long packets again.

use proptest::collection::vec;
use proptest::prelude::{any, proptest};
use proptest::test_runner::Config as Runs;
use softhca_ipoib::HostPacket;
use softhca_ipoib::merge::merge;
use softhca_ipoib::offload::{Checksum, Kind, Offload};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const CWR: u8 = 0x80;
/// The sequence number of the first byte: it wraps around soon.
const FIRST: u32 = u32::MAX - 5000;

/// The sum of 16-bit words, as RFC 1071 has it; 0xffff for bytes with a right checksum.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).fold(0, |sum, word| (sum + word) % 0xffff)
}

fn is_ipv4(packet: &[u8]) -> bool {
    packet[0] >> 4 == 4
}

fn transport(packet: &[u8]) -> usize {
    if is_ipv4(packet) { 20 } else { 40 }
}

/// The header that is only in the checksum.
fn pseudo(packet: &[u8], protocol: u8) -> Vec<u8> {
    let at = transport(packet);
    let addresses = if at == 20 { &packet[12..20] } else { &packet[8..40] };
    [addresses, &((packet.len() - at) as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat()
}

/// Whether the lengths and checksums of a segment are right.
fn is_right(packet: &[u8], protocol: u8) -> bool {
    let at = transport(packet);
    let half = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let ip = if at == 20 { half(2) == packet.len() && sum(&packet[..20]) == 0 } else { half(4) == packet.len() - 40 };
    let length = protocol == TCP || half(at + 4) == packet.len() - at;
    ip && length && sum(&[&pseudo(packet, protocol), &packet[at..]].concat()) == 0
}

/// A packet of the host with unfinished checksum. The headers of the two families differ in all
/// places.
fn packet(ipv6: bool, protocol: u8, flags: u8, content: &[u8]) -> Vec<u8> {
    let mut packet = if ipv6 {
        let mut ip = vec![0x60, 0x12, 0x34, 0x56, 0, 0, protocol, 64];
        ip.extend([
            0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        ]);
        ip
    } else {
        vec![0x45, 0x02, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2]
    };
    let at = packet.len();
    packet.extend([0x9c, 0x40, 0x1b, 0x58]);
    if protocol == TCP {
        packet.extend(FIRST.to_be_bytes());
        packet.extend([0, 0, 0, 9, 0x80, flags, 1, 2, 0, 0, 0, 0, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    } else {
        packet.extend([0; 4]);
    }
    packet.extend(content);
    let (length, offset) = (packet.len(), if protocol == TCP { 16 } else { 6 });
    if ipv6 {
        packet[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
    } else {
        packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let sum = !(sum(&packet[..20]) as u16);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let sum = sum(&pseudo(&packet, protocol)) as u16;
    packet[at + offset..at + offset + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn offload(ipv6: bool, protocol: u8, size: usize) -> Offload {
    let start = if ipv6 { 40 } else { 20 };
    let (kind, offset, header) = match (protocol, ipv6) {
        (UDP, _) => (Kind::Udp, 6, 8),
        (_, false) => (Kind::Tcp4, 16, 32),
        (_, true) => (Kind::Tcp6, 16, 32),
    };
    let checksum = Some(Checksum { start, offset });
    Offload { checksum, segments: Some((kind, size as u16)), header: start + header }
}

fn segments(packet: &HostPacket<'_>) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    (0..).map_while(|number| packet.segment(number, &mut buffer).map(|length| buffer[..length].to_vec())).collect()
}

/// The packets that a host gets: each with what is left to do.
fn merged(packets: &[Vec<u8>]) -> Vec<(Offload, Vec<u8>)> {
    let all = merge(packets.iter().map(Vec::as_slice));
    all.iter()
        .map(|one| one.write(|offload, parts| (Offload::parse(offload).expect("a header"), parts.concat())))
        .collect()
}

proptest! {
    #![proptest_config(Runs::with_cases(300))]

    #[test]
    fn segments_are_right_and_merge_into_the_packet_that_was_cut(
        ipv6: bool, pushes: bool, size in 1..3000_usize, content in vec(any::<u8>(), 2..60_000),
    ) {
        let size = size.max(content.len() / 60);
        let packet = packet(ipv6, TCP, if pushes { ACK | PSH } else { ACK }, &content);
        let offload = offload(ipv6, TCP, size);
        let cut = segments(&HostPacket::parse(&offload.bytes(), &packet).expect("they fit"));
        assert_eq!(cut.len(), content.len().div_ceil(size));
        assert!(cut.iter().all(|segment| is_right(segment, TCP)));
        let headers = transport(&packet) + 32;
        assert_eq!(cut.iter().flat_map(|segment| &segment[headers..]).copied().collect::<Vec<_>>(), content);
        match merged(&cut).as_slice() {
            [(found, one)] if cut.len() > 1 => assert!(*found == offload && *one == packet),
            [(found, one)] => assert!(*found == Offload::default() && *one == cut[0]),
            other => panic!("{} packets", other.len()),
        }
    }

    #[test]
    fn whatever_arrives_is_merged_or_left_as_it_is(packets in vec(vec(any::<u8>(), 0..80), 0..40)) {
        let (all, bytes) = (merged(&packets), packets.iter().map(Vec::len).sum::<usize>());
        assert_eq!(all.iter().map(|(_, packet)| packet.len()).sum::<usize>(), bytes, "random checksums are wrong");
    }

    #[test]
    fn whatever_the_header_says_nothing_is_written_outside(offload: [u8; 10], packet in vec(any::<u8>(), 0..200)) {
        if let Some(packet) = HostPacket::parse(&offload, &packet) {
            let mut buffer = [0; 220];
            let lengths = (0..).map_while(|number| packet.segment(number, &mut buffer));
            assert!(lengths.max().unwrap_or(0) <= packet.longest());
        }
    }
}

#[test]
fn flags_and_numbers_are_in_the_segments_that_need_them() {
    let long = packet(false, TCP, ACK | PSH | FIN | CWR, &[7; 2500]);
    let cut = segments(&HostPacket::parse(&offload(false, TCP, 1000).bytes(), &long).expect("they fit"));
    let flags: Vec<u8> = cut.iter().map(|segment| segment[20 + 13]).collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | PSH | FIN]);
    let field = |at: usize, length: usize| -> Vec<Vec<u8>> {
        cut.iter().map(|segment| segment[at..at + length].to_vec()).collect()
    };
    let sequence = |number: u32| FIRST.wrapping_add(1000 * number).to_be_bytes().to_vec();
    assert_eq!(field(24, 4), [sequence(0), sequence(1), sequence(2)]);
    assert_eq!(field(4, 2), [[0xff, 0xfe], [0xff, 0xff], [0, 0]]);
    for ipv6 in [false, true] {
        let long = packet(ipv6, UDP, 0, &[9; 2500]);
        let cut = segments(&HostPacket::parse(&offload(ipv6, UDP, 1200).bytes(), &long).expect("they fit"));
        assert!(cut.len() == 3 && cut.iter().all(|segment| is_right(segment, UDP)));
        // Without segments, only the checksum is left to do.
        let checksum = Offload { segments: None, ..offload(ipv6, UDP, 1) };
        let mut short = packet(ipv6, UDP, 0, &[9; 101]);
        let at = transport(&short);
        let length = (short.len() - at) as u16;
        short[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
        let finished = segments(&HostPacket::parse(&checksum.bytes(), &short).expect("they fit"));
        assert!(finished.len() == 1 && is_right(&finished[0], UDP));
    }
}

#[test]
fn only_segments_that_follow_each_other_are_merged() {
    let long = packet(false, TCP, ACK, &[7; 5000]);
    let cut = segments(&HostPacket::parse(&offload(false, TCP, 1000).bytes(), &long).expect("they fit"));
    let lengths =
        |packets: &[Vec<u8>]| -> Vec<usize> { merged(packets).iter().map(|(_, one)| one.len() - 52).collect() };
    let with = |number: usize, change: fn(&mut Vec<u8>)| {
        let mut packets = cut.clone();
        change(&mut packets[number]);
        lengths(&packets)
    };
    assert_eq!(lengths(&cut), [5000]);
    assert_eq!(with(2, |segment| segment[60] ^= 1), [2000, 1000, 2000], "a wrong checksum");
    assert_eq!(with(2, |segment| segment[1] = 3), [2000, 1000, 2000], "congestion");
    assert_eq!(with(2, |segment| segment[33] |= 0x20), [2000, 1000, 2000], "urgent data");
    assert_eq!(with(2, |segment| segment[6] = 0x20), [2000, 1000, 2000], "a fragment");
    let without = [cut[0].clone(), cut[1].clone(), cut[3].clone(), cut[4].clone()];
    assert_eq!(lengths(&without), [2000, 2000], "a lost segment");
    // A packet of another stream between them is no hindrance, but one without content is.
    let mut other = cut.clone();
    other.insert(2, packet(true, TCP, ACK, &[1; 20]));
    assert_eq!(merged(&other).len(), 2);
    let acknowledgement = packet(false, TCP, ACK, &[]);
    assert_eq!(lengths(&[cut[0].clone(), acknowledgement, cut[1].clone()]), [1000, 0, 1000]);
}
