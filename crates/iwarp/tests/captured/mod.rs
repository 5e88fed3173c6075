//! The two byte streams of a captured TCP connection. Not a TCP implementation: bytes that were
//! sent twice are dropped, and each file has one connection. Principal type: [`Captured`].

use pcap_file::pcap::PcapReader;
use std::path::{Path, PathBuf};

/// What both sides sent.
pub(crate) struct Captured {
    pub(crate) name: String,
    pub(crate) initiator: Vec<u8>,
    pub(crate) responder: Vec<u8>,
}

/// All captures, in the order of their names.
pub(crate) fn all() -> Vec<Captured> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let entries = std::fs::read_dir(&folder).expect("the folder of captures");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn read(path: &Path) -> Captured {
    let file = std::fs::File::open(path).expect("a capture");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    // The initiator's port, and for each side the next sequence number and the bytes.
    let mut port = None;
    let mut sides = [(None, Vec::new()), (None, Vec::new())];
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a packet");
        let ip = &packet.data[14..];
        let tcp = &ip[usize::from(ip[0] & 15) * 4..be16(ip, 2)];
        let (sequence, flags) = (be32(tcp, 4), tcp[13]);
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let source = be16(tcp, 0);
        let is_syn = flags & 2 != 0;
        let is_initiator = *port.get_or_insert(source) == source;
        let (next, bytes) = &mut sides[usize::from(!is_initiator)];
        if is_syn {
            *next = Some(sequence.wrapping_add(1));
        } else if *next == Some(sequence) {
            bytes.extend_from_slice(payload);
            *next = Some(sequence.wrapping_add(payload.len() as u32));
        }
    }
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    let [(_, initiator), (_, responder)] = sides;
    Captured { name, initiator, responder }
}
