//! Describes the bytes of an iWARP connection: start-up frames and FPDUs. Without the state of the
//! connection, markers and CRCs are not known, so CRCs are not checked. The principal function is
//! [`what`].

use iwarp::ddp::{Header, Place};
use iwarp::rdmap::{Opcode, ReadRequest};
use iwarp::startup::{Frame, Kind};
use iwarp::terminate::Layout;
use iwarp::{Terminate, fpdu};

use crate::packet::{End, Packet, Tcp};

/// FPDUs of a packet that are described; the others are counted.
const SHOWN: usize = 4;

/// The content of a packet.
pub(super) fn what(packet: &Packet, tcp: &Tcp) -> String {
    let mut parts = Vec::new();
    match start_up(&packet.bytes) {
        Some(frame) => parts.push(frame),
        None if packet.len > 0 => parts.extend(fpdus(packet, tcp)),
        None => {}
    }
    parts.extend(tcp.end.map(|end| match end {
        End::Finish => "the sender's direction ends (FIN)".to_owned(),
        End::Reset => "the connection is reset (RST)".to_owned(),
    }));
    parts.join("; ")
}

/// The name of the operation of a packet's first FPDU.
pub(crate) fn opcode(packet: &Packet) -> Option<String> {
    let begins = packet.tcp.is_some_and(|tcp| !tcp.inside) && start_up(&packet.bytes).is_none();
    let (header, ..) = begins.then(|| next(&packet.bytes)).flatten()?;
    Some(Opcode::parse(header.rdmap).ok()?.to_string())
}

/// The FPDU at the beginning of some bytes: its DDP header, its data as far as it was kept, and the
/// length of its segment.
fn next(bytes: &[u8]) -> Option<(Header, &[u8], usize)> {
    let (len, rest) = bytes.split_first_chunk()?;
    let len = usize::from(u16::from_be_bytes(*len));
    let segment = &rest[..rest.len().min(len)];
    let (header, data) = Header::parse(segment).ok()?;
    Some((header, data, len))
}

fn start_up(bytes: &[u8]) -> Option<String> {
    let parse = |kind| Frame::parse(kind, bytes).ok().flatten().map(|(frame, _)| frame);
    let frame = parse(Kind::Request).or_else(|| parse(Kind::Reply))?;
    let kind = match frame.kind {
        Kind::Request => "request",
        Kind::Reply if frame.reject => "reply, rejected",
        Kind::Reply => "reply",
    };
    let mut text = format!("MPA {kind}: revision {}", frame.revision);
    for (is_set, word) in [(frame.crc, "CRC"), (frame.markers, "markers")] {
        if is_set {
            text += &format!(", {word}");
        }
    }
    if let Some(enhanced) = frame.enhanced {
        let peer_to_peer = if enhanced.peer_to_peer { ", peer-to-peer" } else { "" };
        text += &format!(", IRD {}, ORD {}{peer_to_peer}", enhanced.ird, enhanced.ord);
    }
    Some(format!("{text}, {} bytes of private data", frame.private.len()))
}

fn fpdus(packet: &Packet, tcp: &Tcp) -> Vec<String> {
    let mut parts = Vec::new();
    let (mut rest, mut more) = (&packet.bytes[..], 0);
    while !tcp.inside
        && let Some((header, data, len)) = next(rest)
    {
        if parts.len() < SHOWN {
            parts.push(message(&header, data, len.saturating_sub(header.size())));
        } else {
            more += 1;
        }
        rest = rest.get(fpdu::size(len)..).unwrap_or_default();
    }
    if more > 0 {
        parts.push(format!("{more} more FPDUs"));
    }
    if parts.is_empty() {
        parts.push(format!("{} bytes of FPDUs", packet.len));
    }
    parts
}

/// A DDP segment.
fn message(header: &Header, data: &[u8], len: usize) -> String {
    let Ok(opcode) = Opcode::parse(header.rdmap) else { return "unknown RDMAP message".to_owned() };
    let last = if header.last { "" } else { ", more follows" };
    let place = match header.place {
        Place::Tagged { stag, to } => format!("STag {stag} offset {to:#x}"),
        Place::Untagged { msn, offset: 0, .. } => format!("msn {msn}"),
        Place::Untagged { msn, offset, .. } => format!("msn {msn} offset {offset}"),
    };
    let text = format!("{opcode} {place}{last}");
    match opcode {
        Opcode::ReadRequest => match data.first_chunk::<{ ReadRequest::LEN }>() {
            Some(bytes) => {
                let ReadRequest { sink, source, source_to, size, .. } = ReadRequest::parse(bytes);
                format!("{text}: {size} bytes of STag {source} offset {source_to:#x} to STag {sink}")
            }
            None => text,
        },
        Opcode::Terminate => match Terminate::parse(data, Layout::Rfc) {
            Ok((terminate, _)) => format!("{text}: {terminate}"),
            Err(_) => text,
        },
        _ => format!("{text}, {len} bytes"),
    }
}
