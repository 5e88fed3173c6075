//! The RoCEv2 packets of a capture in `tests/fixtures`: Ethernet frames in a pcap file, as tcpdump
//! writes it. Used by the tests of this package and of the transport. Principal type: [`Captured`].
#![allow(dead_code, reason = "each test looks at other parts of a packet")]

use softhca_wire::Headers;
use softhca_wire::icrc::Envelope;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A RoCEv2 packet as it was captured.
pub(crate) struct Captured {
    /// Time of capture, in nanoseconds since 1970.
    pub time: u64,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: u16,
    /// The IPv4 identification.
    pub id: Option<u16>,
    /// The packet from the BTH to the ICRC inclusive.
    pub packet: Vec<u8>,
}

impl Captured {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope::new(&self.source, &self.destination, self.source_port)
    }

    /// The headers, and the payload without its padding.
    pub(crate) fn parts(&self) -> (Headers, &[u8]) {
        let headers = Headers::parse(&self.packet).expect("headers that we know");
        let end = self.packet.len() - 4 - usize::from(headers.pad);
        (headers, &self.packet[headers.len()..end])
    }

    /// The last byte of the sender's address.
    pub(crate) fn sender(&self) -> u8 {
        self.source[15]
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn folder() -> PathBuf {
    // The transport's package is in the folder beside this one.
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/fixtures")
}

/// The names of all captures, sorted.
pub(crate) fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("the folder of captures");
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().strip_suffix(".pcap").map(str::to_owned);
    let mut names: Vec<String> = entries.filter_map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

/// The RoCEv2 packets of a capture.
pub(crate) fn read(name: &str) -> Vec<Captured> {
    read_file(&folder().join(format!("{name}.pcap")))
}

/// The RoCEv2 packets of any pcap file.
pub(crate) fn read_file(path: &Path) -> Vec<Captured> {
    let file = std::fs::read(path).expect("the capture");
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "a pcap file, little-endian, with microseconds");
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let time = (u64::from(le32(rest, 0)) * 1_000_000 + u64::from(le32(rest, 4))) * 1000;
        let (frame, next) = rest[16..].split_at(le32(rest, 8) as usize);
        rest = next;
        packets.extend(packet(time, be16(frame, 12), &frame[14..]));
    }
    packets
}

fn packet(time: u64, ethertype: u16, ip: &[u8]) -> Option<Captured> {
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
    Some(Captured { time, source, destination, source_port: be16(udp, 0), id, packet: udp[8..].to_vec() })
}
