//! The metadata of packets between the hosts of a process, whatever carries them. Principal type:
//! [`Head`].

use agent::wire::ReceivedBurst;
use softhca::Gid;

/// First RoCEv2 source port; the port gives the network entropy for its choice of paths.
pub(crate) const FIRST_PORT: u16 = 0xc000;
/// The default hop limit.
pub(crate) const HOPS: u8 = 64;

/// The metadata of packets.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) from: Gid,
    pub(crate) from_port: u16,
    pub(crate) to: Gid,
    pub(crate) traffic_class: u8,
    /// Only InfiniBand links have one.
    pub(crate) service_level: u8,
    pub(crate) hop_limit: u8,
}

impl Head {
    /// The metadata of packets that leave a host, with the length of each packet except the last.
    /// `None` if no packet leaves.
    pub(crate) fn leaving(from: Gid, from_port: u16, out: &udp::Outgoing<'_>) -> Option<(Self, usize)> {
        let all = out.bytes.len();
        let head = Self {
            from,
            from_port,
            to: out.to.ip().into(),
            traffic_class: out.traffic_class,
            service_level: out.service_level,
            hop_limit: if out.hop_limit == 0 { HOPS } else { out.hop_limit },
        };
        (all > 0).then(|| (head, if out.segment == 0 { all } else { out.segment.min(all) }))
    }

    /// The packets in the form in which a host's forwarder receives them.
    pub(crate) fn coming<'a>(&self, segment: usize, bytes: &'a [u8]) -> ReceivedBurst<'a> {
        ReceivedBurst {
            from: self.from.0,
            from_port: self.from_port,
            to: self.to.0,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            segment: segment.min(bytes.len()),
            bytes,
        }
    }
}

/// The source port of a flow, from the engine's hint and the flow's number in the order of opening.
pub(crate) fn source_port(hint: u16, number: u16) -> u16 {
    FIRST_PORT | (hint.wrapping_add(number) & !FIRST_PORT)
}
