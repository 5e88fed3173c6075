//! Builds TCP segments around the bytes of iWARP connections. Principal type: [`Segments`].
//!
//! softhca hands the bytes of a connection to a socket and takes them from a socket, so nobody here
//! knows TCP's own numbers. They are counted here, for each direction from 1 on. Segments that open
//! the connection stand before a start-up request, because Wireshark recognizes iWARP by the first
//! bytes of a connection. There are no pure acknowledgements.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::frame::{TCP, around};
use crate::packet::{End, Packet};

/// The most directions of connections whose numbers are known. With more, all are counted from 1
/// again.
const FLOWS: usize = 1 << 16;
/// Bytes of the header.
const HEADER: usize = 20;
/// How a start-up request begins.
const REQUEST: &[u8] = b"MPA ID Req Frame";

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// One direction: source and destination.
type Flow = [(IpAddr, u16); 2];

/// The numbers of all connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// The number of the next byte.
    next: HashMap<Flow, u32>,
}

impl Segments {
    /// The frames of a packet, each as far as it was kept, and with the length of the whole.
    pub(crate) fn frames(&mut self, packet: &Packet, to_port: u16, end: Option<End>) -> Vec<(Vec<u8>, usize)> {
        let there: Flow = [(packet.from, packet.from_port), (packet.to, to_port)];
        let back: Flow = [there[1], there[0]];
        let mut frames = Vec::new();
        if packet.bytes.starts_with(REQUEST) {
            for flow in [&there, &back] {
                self.next.remove(flow);
            }
            for (flow, flags, numbers) in [(&there, SYN, (0, 0)), (&back, SYN | ACK, (0, 1)), (&there, ACK, (1, 1))] {
                frames.push(segment(packet, flow, flags, numbers, (&[], 0)));
            }
        }
        if self.next.len() >= FLOWS {
            self.next.clear();
        }
        let acknowledged = self.next.get(&back).copied().unwrap_or(1);
        let number = self.next.entry(there).or_insert(1);
        let flags = match end {
            None => ACK | PSH,
            Some(End::Finish) => ACK | FIN,
            Some(End::Reset) => ACK | RST,
        };
        frames.push(segment(packet, &there, flags, (*number, acknowledged), (&packet.bytes, packet.len)));
        *number = number.wrapping_add(packet.len as u32 + u32::from(end == Some(End::Finish)));
        frames
    }
}

/// One segment. `bytes` are its data as far as they were kept, and the length of all of them.
fn segment(
    packet: &Packet,
    [from, to]: &Flow,
    flags: u8,
    (number, acknowledged): (u32, u32),
    (bytes, len): (&[u8], usize),
) -> (Vec<u8>, usize) {
    let mut segment = Vec::with_capacity(HEADER + bytes.len());
    segment.extend([from.1, to.1].map(u16::to_be_bytes).concat());
    segment.extend([number, acknowledged].map(u32::to_be_bytes).concat());
    segment.extend([(HEADER as u8 / 4) << 4, flags]);
    segment.extend(u16::MAX.to_be_bytes());
    // The checksum, which `around` fills in, and the urgent pointer.
    segment.extend([0; 4]);
    segment.extend_from_slice(bytes);
    around(packet, (from.0, to.0), TCP, segment, HEADER + len)
}
