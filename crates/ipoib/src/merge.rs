//! Segments of TCP that have arrived become long packets, which cost the host less: the reverse of
//! `segments.rs`. It is as strict as Linux is with the segments of a device: the merged packets can
//! be cut into the same segments again. Principal function: [`merge`].

use crate::checksum;
use crate::ip::Packet;
use crate::offload::{Checksum, Kind, Offload};

/// The longest packet.
const MOST: usize = 65535;
const TCP: u8 = 6;
/// Where TCP has its checksum.
const CHECKSUM: usize = 16;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// The part of IPv4's flags and offset that makes a fragment.
const FRAGMENT: u16 = 0x3fff;

/// A packet for the host: one that has arrived, or several of one stream as one.
#[derive(Debug)]
pub struct Merged<'a> {
    flow: Option<Flow>,
    first: &'a [u8],
    stream: Option<Stream>,
    /// The payloads of the packets behind the first.
    rest: Vec<&'a [u8]>,
    total: usize,
}

/// The addresses and ports of a packet of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    addresses: Packet,
    ports: [u8; 4],
}

/// Segments in a row.
#[derive(Clone, Copy, Debug)]
struct Stream {
    first: Segment,
    /// The sequence number of the next segment.
    next: u32,
    /// Whether the last segment had the flag PSH.
    pushes: bool,
    /// Whether another segment may follow.
    is_open: bool,
    /// Whether the checksums of the first segment are known to be right.
    is_checked: bool,
}

/// A packet of TCP that may be merged: it has payload, and no flags but ACK and PSH.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Where the header of TCP begins, and where it ends.
    transport: usize,
    payload: usize,
    sequence: u32,
    pushes: bool,
}

/// Merges packets that follow each other in one stream. The packets of a stream keep their order.
pub fn merge<'a>(packets: impl Iterator<Item = &'a [u8]>) -> Vec<Merged<'a>> {
    let mut all: Vec<Merged<'a>> = Vec::with_capacity(packets.size_hint().0);
    for packet in packets {
        let transport = transport(packet);
        let flow = transport.and_then(|at| Flow::of(packet, at));
        let segment = transport.and_then(|at| Segment::parse(packet, at));
        if let Some(segment) = segment
            && let Some(last) = all.iter_mut().rev().find(|one| one.flow == flow)
            && last.append(packet, segment)
        {
            continue;
        }
        let stream = segment.map(|first| Stream {
            first,
            next: first.sequence.wrapping_add((packet.len() - first.payload) as u32),
            pushes: first.pushes,
            is_open: !first.pushes,
            is_checked: false,
        });
        all.push(Merged { flow, stream, ..Merged::one(packet) });
    }
    all
}

impl<'a> Merged<'a> {
    /// A packet that stays alone.
    #[must_use]
    pub fn one(packet: &'a [u8]) -> Self {
        Self { flow: None, first: packet, stream: None, rest: Vec::new(), total: packet.len() }
    }

    /// Appends the next segment of the stream. Returns false if it is none.
    fn append(&mut self, packet: &'a [u8], segment: Segment) -> bool {
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.is_open) else { return false };
        let (size, payload) = (self.first.len() - stream.first.payload, &packet[segment.payload..]);
        let follows = segment.sequence == stream.next
            && payload.len() <= size
            && self.total + payload.len() <= MOST
            && are_alike(self.first, packet, stream.first, segment)
            && (stream.is_checked || is_right(self.first, stream.first))
            && is_right(packet, segment);
        stream.is_open = follows && !segment.pushes && payload.len() == size;
        if follows {
            (stream.is_checked, stream.pushes) = (true, segment.pushes);
            stream.next = stream.next.wrapping_add(payload.len() as u32);
            self.rest.push(payload);
            self.total += payload.len();
        }
        follows
    }

    /// Gives the packet to `write`: what is left to the host, and the packet in parts.
    pub fn write<R>(&self, write: impl FnOnce(&[u8; Offload::LEN], &[&[u8]]) -> R) -> R {
        match self.stream {
            Some(stream) if !self.rest.is_empty() => {
                let (offload, header) = self.header(&stream);
                let mut parts = vec![&header[..], &self.first[stream.first.payload..]];
                parts.extend(&self.rest);
                write(&offload.bytes(), &parts)
            }
            _ => write(&Offload::default().bytes(), &[self.first]),
        }
    }

    /// The header of the long packet, and how the host can cut it again.
    fn header(&self, stream: &Stream) -> (Offload, Vec<u8>) {
        let Segment { transport, payload, .. } = stream.first;
        let mut header = self.first[..payload].to_vec();
        let kind = if header[0] >> 4 == 4 {
            header[2..4].copy_from_slice(&(self.total as u16).to_be_bytes());
            header[10..12].fill(0);
            let sum = checksum::of(&header[..transport]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            Kind::Tcp4
        } else {
            header[4..6].copy_from_slice(&((self.total - transport) as u16).to_be_bytes());
            Kind::Tcp6
        };
        if stream.pushes {
            header[transport + 13] |= PSH;
        }
        if let Some(Packet { source, destination }) = Packet::parse(&header) {
            let sum = checksum::of_pseudo(source, destination, TCP, self.total - transport);
            header[transport + CHECKSUM..transport + CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let offload = Offload {
            checksum: Some(Checksum { start: transport as u16, offset: CHECKSUM as u16 }),
            segments: Some((kind, (self.first.len() - payload) as u16)),
            header: payload as u16,
        };
        (offload, header)
    }
}

impl Flow {
    fn of(packet: &[u8], transport: usize) -> Option<Self> {
        Some(Self { addresses: Packet::parse(packet)?, ports: *packet.get(transport..)?.first_chunk()? })
    }
}

impl Segment {
    fn parse(packet: &[u8], transport: usize) -> Option<Self> {
        let header = packet.get(transport..).filter(|rest| rest.len() >= 20)?;
        let payload = transport + 4 * usize::from(header[12] >> 4);
        let fits = header[12] >> 4 >= 5 && payload < packet.len() && packet.len() <= MOST;
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let pushes = header[13] & PSH != 0;
        (fits && header[13] & !PSH == ACK).then_some(Self { transport, payload, sequence, pushes })
    }
}

/// Where the header of TCP begins, in a packet that is no fragment, has no options of IP, and has
/// the length that it says.
fn transport(packet: &[u8]) -> Option<usize> {
    let half = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    match packet.first()? {
        0x45 => {
            let whole = half(6)? & FRAGMENT == 0 && usize::from(half(2)?) == packet.len();
            (whole && packet.get(9) == Some(&TCP)).then_some(20)
        }
        first if first >> 4 == 6 => {
            let whole = usize::from(half(4)?) + 40 == packet.len();
            (whole && packet.get(6) == Some(&TCP)).then_some(40)
        }
        _ => None,
    }
}

/// Whether two packets of one stream differ only in what a cut makes different: lengths, IPv4's
/// number of the packet, sequence numbers, checksums and the flag PSH.
fn are_alike(one: &[u8], other: &[u8], first: Segment, next: Segment) -> bool {
    let same = |range: std::ops::Range<usize>| one[range.clone()] == other[range];
    let at = first.transport;
    let ip = if at == 20 { same(0..2) && same(6..10) } else { same(0..4) && same(6..8) };
    first.payload == next.payload
        && ip
        && same(at + 8..at + 13)
        && same(at + 14..at + 16)
        && same(at + 18..first.payload)
}

/// Whether the checksums of a segment are right.
fn is_right(packet: &[u8], Segment { transport, .. }: Segment) -> bool {
    let Some(Packet { source, destination }) = Packet::parse(packet) else { return false };
    let ip = transport != 20 || checksum::of(&packet[..transport]) == 0;
    ip && checksum::of_transport(source, destination, TCP, &packet[transport..]) == 0
}
