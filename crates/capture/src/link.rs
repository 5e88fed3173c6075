//! Builds packets of an InfiniBand link: LRH, GRH, the packet, ICRC and VCRC. Not Ethernet frames
//! ([`crate::frame()`]). Principal type: [`Link`].
//!
//! A packet on a lane can be longer than the MTU of a link, and longer than an LRH can say. Such a
//! packet is shown as the packets of its link's MTU that would carry it. All of them have its PSN,
//! because the queue pairs have counted it as one.

use abi::capture::{CaptureRecord, record_flag};
use abi::device::mtu_bytes;
use wire::icrc::{LEN as ICRC, link::icrc};
use wire::lrh::{self, Next};
use wire::vcrc::{self, vcrc};
use wire::{Grh, Headers, Opcode, Operation, Place, grh};

use crate::frame::gid;
use crate::packet::Packet;

/// The hop limit if no program has set one.
const HOPS: u8 = 64;
/// The most words of an LRH's length.
const WORDS_MAX: usize = 0x7ff;

/// What the headers of an InfiniBand link say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Source LID.
    pub slid: u16,
    /// Destination LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Virtual lane at the port.
    pub vl: u8,
    /// The MTU in bytes to which the packet is cut; 0 for none.
    pub mtu: usize,
    /// The flow label of the GRH; `None` if the packet has no GRH.
    pub flow_label: Option<u32>,
}

impl Link {
    /// The link of a record. `None`: the packet is of Ethernet.
    pub(crate) fn of(record: &CaptureRecord) -> Option<Self> {
        let has = |flag: u16| record.flags & flag != 0;
        has(record_flag::LINK).then(|| Self {
            slid: record.slid,
            dlid: record.dlid,
            sl: record.sl & 0xf,
            vl: record.vl & 0xf,
            mtu: mtu_bytes(record.mtu).map_or(0, |bytes| bytes as usize),
            flow_label: has(record_flag::GLOBAL).then_some(record.flow_label & 0xf_ffff),
        })
    }

    /// The headers before the BTH of a packet with `len` bytes from its BTH to its ICRC.
    fn head(&self, packet: &Packet, len: usize) -> Vec<u8> {
        let next = if self.flow_label.is_some() { Next::Grh } else { Next::Bth };
        let global = if self.flow_label.is_some() { grh::LEN } else { 0 };
        let packet_len = ((lrh::LEN + global + len) / 4).min(WORDS_MAX) as u16;
        let mut head = [0; lrh::LEN];
        let Self { slid, dlid, sl, vl, .. } = *self;
        lrh::Header { vl, sl, next, dlid, packet_len, slid }.emit(&mut head);
        let mut bytes = head.to_vec();
        if let Some(flow_label) = self.flow_label {
            let mut head = [0; grh::LEN];
            let hop_limit = if packet.hop_limit == 0 { HOPS } else { packet.hop_limit };
            let (sgid, dgid) = (gid(packet.from), gid(packet.to));
            let (payload_len, next_header) = (len as u16, grh::NEXT_HEADER_IBA);
            let traffic_class = packet.traffic_class;
            Grh { traffic_class, flow_label, payload_len, next_header, hop_limit, sgid, dgid }.emit(&mut head);
            bytes.extend(head);
        }
        bytes
    }

    /// The ICRC of a packet, whose bytes are all there from the BTH to the padding.
    pub(crate) fn icrc(&self, packet: &Packet, bytes: &[u8]) -> [u8; ICRC] {
        let covered = [&self.head(packet, bytes.len() + ICRC), bytes].concat();
        icrc(&covered).unwrap_or_default()
    }

    /// The packets on the link, each as far as it was kept, and with the length of the whole.
    pub(crate) fn frames(&self, packet: &Packet) -> Vec<(Vec<u8>, usize)> {
        let (kept, len) = packet.payload();
        match packet.headers() {
            Some(headers) if self.mtu > 0 && len > self.mtu => {
                let count = len.div_ceil(self.mtu);
                let part = |index: usize| {
                    let from = index * self.mtu;
                    let until = len.min(from + self.mtu);
                    let headers = part_of(&headers, index == 0, index + 1 == count, until - from);
                    let bytes = kept.get(from..kept.len().min(until)).unwrap_or_default();
                    self.frame(packet, &headers, (bytes, until - from))
                };
                (0..count).map(part).collect()
            }
            _ => {
                let mut bytes = self.head(packet, packet.len);
                bytes.extend_from_slice(&packet.bytes);
                vec![ended(bytes, packet.is_whole(), packet.len - packet.bytes.len())]
            }
        }
    }

    fn frame(&self, packet: &Packet, headers: &Headers, (kept, len): (&[u8], usize)) -> (Vec<u8>, usize) {
        let after = usize::from(headers.pad) + ICRC;
        let mut bytes = self.head(packet, headers.len() + len + after);
        let mut head = vec![0; headers.len()];
        // The headers have been parsed, and these are no more.
        let _ = headers.emit(&mut head);
        bytes.extend(head);
        bytes.extend_from_slice(kept);
        if kept.len() < len {
            return ended(bytes, false, len - kept.len() + after);
        }
        bytes.resize(bytes.len() + usize::from(headers.pad), 0);
        let icrc = icrc(&bytes).unwrap_or_default();
        bytes.extend(icrc);
        ended(bytes, true, 0)
    }
}

/// Adds the VCRC to a whole packet. Returns the length with the `missing` bytes.
fn ended(mut bytes: Vec<u8>, is_whole: bool, missing: usize) -> (Vec<u8>, usize) {
    let len = bytes.len() + missing + vcrc::LEN;
    if is_whole {
        let vcrc = vcrc(&bytes);
        bytes.extend(vcrc);
    }
    (bytes, len)
}

/// The headers of a part of a packet.
fn part_of(headers: &Headers, is_first: bool, is_last: bool, len: usize) -> Headers {
    let whole = headers.opcode.place();
    let place = Place::of(is_first && whole.begins(), is_last && whole.ends());
    let operation = at_place(headers.opcode.operation, place);
    Headers {
        opcode: Opcode::new(headers.opcode.transport, operation),
        pad: (len.wrapping_neg() % 4) as u8,
        ack_req: headers.ack_req && is_last,
        solicited: headers.solicited && is_last,
        ..*headers
    }
}

/// The operation of a packet at another place of the same message.
const fn at_place(operation: Operation, place: Place) -> Operation {
    use Operation as O;
    let (first, middle) = match operation {
        O::SendFirst | O::SendMiddle | O::SendLast | O::SendLastImm | O::SendLastInvalidate => {
            (O::SendFirst, O::SendMiddle)
        }
        O::SendOnly | O::SendOnlyImm | O::SendOnlyInvalidate => (O::SendFirst, O::SendMiddle),
        O::WriteFirst | O::WriteMiddle | O::WriteLast | O::WriteLastImm => (O::WriteFirst, O::WriteMiddle),
        O::WriteOnly | O::WriteOnlyImm => (O::WriteFirst, O::WriteMiddle),
        O::ReadResponseFirst | O::ReadResponseMiddle | O::ReadResponseLast | O::ReadResponseOnly => {
            (O::ReadResponseFirst, O::ReadResponseMiddle)
        }
        other => return other,
    };
    match (place, operation) {
        (Place::First, _) => first,
        (Place::Middle, _) => middle,
        (_, O::SendOnly) => O::SendLast,
        (_, O::SendOnlyImm) => O::SendLastImm,
        (_, O::SendOnlyInvalidate) => O::SendLastInvalidate,
        (_, O::WriteOnly) => O::WriteLast,
        (_, O::WriteOnlyImm) => O::WriteLastImm,
        (_, O::ReadResponseOnly) => O::ReadResponseLast,
        (_, last) => last,
    }
}
