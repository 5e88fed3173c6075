//! The metadata of received datagrams: their sender, and the ECN bits of their traffic class. For
//! each of the last senders, this includes the bytes outside the packet that the ICRC covers, and
//! the next identification. [`crate::net::deliver`] parses the packets themselves. What a QP does
//! with CE marks is in `congestion.rs`. Principal types: [`Datagrams`] and [`Senders`].

use std::net::IpAddr;

use abi::wire::{Arrival, arrival_kind};
use udp::Received;
use wire::icrc::Envelope;

use crate::net::batch::ICRC;

/// The shortest packet: a BTH and an ICRC.
pub(crate) const SHORTEST: usize = 12 + ICRC;

/// Datagrams of one source that arrived together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagrams {
    pub(crate) from: [u8; 16],
    pub(crate) from_port: u16,
    pub(crate) to: [u8; 16],
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// The length of each but the last.
    pub(crate) segment: usize,
    /// The sender's LID, if they came over the links of a subnet, where each has a GRH; otherwise
    /// 0.
    pub(crate) slid: u16,
}

impl From<&Arrival> for Datagrams {
    fn from(arrival: &Arrival) -> Self {
        Self {
            from: arrival.from,
            from_port: arrival.from_port,
            to: arrival.to,
            traffic_class: arrival.traffic_class,
            hop_limit: arrival.hop_limit,
            segment: usize::from(arrival.segment),
            slid: arrival.lid,
        }
    }
}

impl Datagrams {
    /// The metadata of datagrams that a socket of the address `to` has received.
    pub(crate) fn of(received: &Received, to: &[u8; 16]) -> Self {
        let from = match received.from.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let Received { traffic_class, hop_limit, segment, .. } = *received;
        Self { from, from_port: received.from.port(), to: *to, traffic_class, hop_limit, segment, slid: 0 }
    }

    /// The record of these datagrams on a wire lane, with `len` bytes.
    pub(crate) fn arrival(&self, len: usize) -> Arrival {
        Arrival {
            kind: arrival_kind::DATAGRAMS,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            segment: self.segment.min(len) as u16,
            from_port: self.from_port,
            len: len as u32,
            from: self.from,
            to: self.to,
            ..Arrival::default()
        }
    }
}

impl Datagrams {
    /// Whether the datagrams carry a CE mark.
    pub(crate) fn are_marked(&self) -> bool {
        is_marked(self.traffic_class)
    }
}

/// The ECN bits of a traffic class.
const ECN: u8 = 3;
/// Congestion Experienced: the network or the receiver has marked the packet.
const CE: u8 = 3;
/// ECN-capable: the sender reacts to marks.
const CAPABLE: u8 = 2;

/// The traffic class of a connection: the program's, made ECN-capable if the program leaves the ECN
/// bits 0.
pub(crate) const fn capable(traffic_class: u8) -> u8 {
    if traffic_class & ECN == 0 { traffic_class | CAPABLE } else { traffic_class }
}

/// The traffic class of a datagram that arrived when `used` of the `room` bytes of the receive
/// buffer were full.
pub(crate) const fn marked(traffic_class: u8, (used, room): (usize, usize)) -> u8 {
    if traffic_class & ECN != 0 && used > room / 2 { traffic_class | CE } else { traffic_class }
}

/// Whether a packet with this traffic class is marked.
pub(crate) const fn is_marked(traffic_class: u8) -> bool {
    traffic_class & ECN == CE
}

/// How many senders are remembered; each source port has one place.
const PLACES: usize = 16;

/// The last senders.
#[derive(Default)]
pub(crate) struct Senders {
    places: [Option<SenderSocket>; PLACES],
}

/// A socket of another host.
struct SenderSocket {
    from: [u8; 16],
    to: [u8; 16],
    port: u16,
    envelope: Envelope,
    /// The identification that its next datagram will have, if the sender numbers its datagrams.
    next: u16,
}

impl Senders {
    /// The bytes that the ICRCs of these datagrams cover beside the packets, and the likely
    /// identification of the first datagram.
    pub(crate) fn expect(&mut self, datagrams: &Datagrams) -> (Envelope, u16) {
        let Datagrams { from, to, from_port: port, .. } = *datagrams;
        let place = &mut self.places[usize::from(port) % PLACES];
        match place {
            Some(known) if known.port == port && known.from == from && known.to == to => (known.envelope, known.next),
            _ => {
                let envelope = Envelope::new(&from, &to, port);
                *place = Some(SenderSocket { from, to, port, envelope, next: 0 });
                (envelope, 0)
            }
        }
    }

    /// The first of the datagrams in the last [`Senders::expect`] for this port had the
    /// identification `id`. Sockets that do not always send 0 count their calls.
    pub(crate) fn began(&mut self, port: u16, id: u16) {
        if let Some(known) = &mut self.places[usize::from(port) % PLACES] {
            known.next = if id == 0 { 0 } else { id.wrapping_add(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_program_that_wants_something_of_ecn_gets_it() {
        assert_eq!([0, 0x68, 1, 2, 3, 0xfd].map(capable), [2, 0x6a, 1, 2, 3, 0xfd]);
    }

    #[test]
    fn a_buffer_that_is_half_full_marks_what_heeds_marks() {
        assert_eq!(marked(0x6a, (51, 100)), 0x6b);
        assert_eq!(marked(0x6a, (50, 100)), 0x6a);
        assert_eq!(marked(0x68, (99, 100)), 0x68);
    }

    fn datagrams(from: u8, from_port: u16) -> Datagrams {
        Datagrams { from: [from; 16], to: [9; 16], from_port, traffic_class: 0, hop_limit: 0, segment: 0, slid: 0 }
    }

    #[test]
    fn senders_are_told_apart_and_those_that_count_are_followed() {
        let mut origins = Senders::default();
        let (first, id) = origins.expect(&datagrams(1, 0xc000));
        assert_eq!((first, id), (Envelope::new(&[1; 16], &[9; 16], 0xc000), 0));
        origins.began(0xc000, 77);
        let (_, id) = origins.expect(&datagrams(1, 0xc001));
        assert_eq!(id, 0);
        origins.began(0xc001, 0);
        assert_eq!(origins.expect(&datagrams(1, 0xc000)), (first, 78));
        assert_eq!(origins.expect(&datagrams(1, 0xc001)).1, 0);
        let (other, id) = origins.expect(&datagrams(2, 0xc000));
        assert_eq!((other, id), (Envelope::new(&[2; 16], &[9; 16], 0xc000), 0));
        origins.began(0xc000, u16::MAX);
        assert_eq!(origins.expect(&datagrams(2, 0xc000)).1, 0);
        assert_eq!(origins.expect(&datagrams(2, 0xc010)).1, 0, "a place has one owner");
        assert_eq!(origins.expect(&datagrams(2, 0xc000)), (other, 0));
    }
}
