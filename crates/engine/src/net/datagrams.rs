//! What is known of received datagrams besides their bytes. Principal type: [`Datagrams`].

use std::net::IpAddr;

use abi::wire::{Arrival, arrival_kind};
use udp::Received;

use crate::net::batch::ICRC;
use crate::net::ecn;

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
        Self { from, from_port: received.from.port(), to: *to, traffic_class, hop_limit, segment }
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
        ecn::is_marked(self.traffic_class)
    }
}
