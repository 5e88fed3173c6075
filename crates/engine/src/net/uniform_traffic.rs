//! The shortcut for uniform traffic: short datagrams from one sender over one connected socket,
//! mostly of one length. Two programs that answer each other cause such traffic.
//!
//! For uniform traffic the engine asks the kernel for the bytes only. Asking also for the sender,
//! the segment size and the traffic class costs a twentieth of a small message's time. The sender
//! is known, because the socket is connected to it. The ICRC shows where a segment ends: with a
//! wrong length it is correct only once in 2^32 cases. The engine still receives one of [`SAMPLE`]
//! datagrams with all its metadata, which shows ECN marks of the network.
//!
//! Parsing of datagrams is not here: see [`crate::net::deliver`]. Principal type:
//! [`UniformTraffic`].

use udp::Received;
use wire::icrc::Envelope;

use crate::net::batch::ICRC;
use crate::net::datagrams::SHORTEST;

/// After this many uniform datagrams in a row, the engine expects the next one to be uniform too.
const UNIFORM: i32 = 64;
/// The start value of the count after a datagram with an unexpected segment size.
const MISPREDICTED: i32 = -4096;
/// One of this many datagrams is received with its metadata.
const SAMPLE: u32 = 32;
/// The longest datagram that counts as short.
const SHORT: usize = 512;
/// The longest packet: the largest path MTU with any headers and an ICRC.
const LONGEST: usize = 4096 + 128;
/// Congestion Experienced (CE) in the ECN bits of the traffic class.
const MARKED: u8 = 3;

/// The pattern of the last datagrams.
#[derive(Default)]
pub(crate) struct UniformTraffic {
    /// The connected socket's address, and the last datagram received with its metadata.
    last: Option<([u8; 16], Received)>,
    /// The last datagram with several packets: its length, and the length of each packet but the
    /// last.
    cut: (usize, usize),
    count: i32,
    /// Datagrams since the last one with metadata.
    bare: u32,
}

impl UniformTraffic {
    /// A datagram with its metadata was received from the connected socket of `gid`.
    pub(crate) fn note(&mut self, gid: &[u8; 16], received: &Received) {
        let is_short = received.len <= SHORT && received.hop_limit == 0 && received.traffic_class & MARKED != MARKED;
        let is_uniform = self.last.as_ref().is_some_and(|(at, last)| at == gid && last.from == received.from);
        self.count = if is_short && is_uniform { (self.count + 1).min(UNIFORM) } else { self.count.min(0) };
        self.last = Some((*gid, *received));
        if received.segment < received.len {
            self.cut = (received.len, received.segment);
        }
        self.bare = 0;
    }

    /// The expected metadata of the next datagram from the connected socket of `gid`, if traffic is
    /// uniform; then the caller receives only its bytes.
    pub(crate) fn predict(&self, gid: &[u8; 16]) -> Option<Received> {
        let (at, last) = self.last.as_ref()?;
        (self.count >= UNIFORM && self.bare < SAMPLE && at == gid).then_some(*last)
    }

    /// Returns the length of the first packet in `bytes`, which were received without metadata.
    /// `envelope` is what ICRCs cover beside the packets; `id` is the likely identification of the
    /// first packet.
    pub(crate) fn measure(&mut self, bytes: &[u8], (envelope, id): (Envelope, u16)) -> usize {
        self.bare += 1;
        let (len, segment) = self.cut;
        if bytes.len() == len && begins(bytes, segment, &envelope, id) {
            return segment;
        }
        if begins(bytes, bytes.len(), &envelope, id) {
            return bytes.len();
        }
        self.mispredicted();
        search(bytes, &envelope, id)
    }

    /// Another engine held the lease meanwhile, or the socket was connected to another sender.
    pub(crate) fn forget(&mut self) {
        *self = UniformTraffic { count: self.count.min(0), ..UniformTraffic::default() };
    }

    /// Traffic is not uniform. A search for segment boundaries costs a busy program too much, so
    /// the engine receives the next datagrams with metadata.
    #[cold]
    fn mispredicted(&mut self) {
        self.count = MISPREDICTED;
    }
}

/// Whether `bytes` begin with a packet of `len` bytes that has this identification.
fn begins(bytes: &[u8], len: usize, envelope: &Envelope, id: u16) -> bool {
    len >= SHORTEST && bytes.get(..len).is_some_and(|first| envelope.of_length(len - ICRC).fits(first, id))
}

/// The length of the first packet. If no length fits the expected identification, two packets in a
/// row must agree. Otherwise the bytes are one packet, perhaps a damaged one.
#[cold]
fn search(bytes: &[u8], envelope: &Envelope, id: u16) -> usize {
    let lengths = || (SHORTEST..=bytes.len().min(LONGEST)).step_by(4);
    let agree = |len: usize| {
        let (first, rest) = bytes.split_at(len);
        let second = &rest[..len.min(rest.len())];
        envelope.check(first, id).is_some_and(|found| {
            [found.wrapping_add(1), found].iter().any(|&next| begins(second, second.len(), envelope, next))
        })
    };
    lengths()
        .find(|&len| begins(bytes, len, envelope, id))
        .or_else(|| lengths().find(|&len| agree(len)))
        .unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 16] = [9; 16];

    fn envelope() -> Envelope {
        let v4 = |last| std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        Envelope::new(&v4(1), &v4(2), 0xc001)
    }

    /// Packets of these lengths, one after the other; the first has the identification `id`.
    fn packets(lengths: &[usize], id: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, len) in lengths.iter().enumerate() {
            let packet: Vec<u8> = (0..len - ICRC).map(|at| (at * 7 + number * 31) as u8).collect();
            bytes.extend_from_slice(&packet);
            bytes.extend_from_slice(&envelope().icrc(id.wrapping_add(number as u16), &packet));
        }
        bytes
    }

    fn received(len: usize, segment: usize) -> Received {
        Received { len, segment, from: ([10, 0, 0, 1], 0xc001).into(), traffic_class: 2, hop_limit: 0 }
    }

    /// A pattern that has seen enough datagrams to ask for bytes only.
    fn used_to(len: usize, segment: usize) -> UniformTraffic {
        let mut traffic = UniformTraffic::default();
        for _ in 0..=UNIFORM {
            assert_eq!(traffic.predict(&HERE), None, "too few");
            traffic.note(&HERE, &received(len, segment));
        }
        assert_eq!(traffic.predict(&HERE), Some(received(len, segment)));
        traffic
    }

    #[test]
    fn one_datagram_that_is_not_uniform_ends_the_prediction() {
        let traffic = used_to(44, 24);
        assert_eq!(traffic.predict(&[8; 16]), None, "another connected socket");
        let but = [
            Received { from: ([10, 0, 0, 1], 0xc002).into(), ..received(44, 24) },
            Received { hop_limit: 64, ..received(44, 24) },
            Received { traffic_class: MARKED, ..received(44, 24) },
            received(SHORT + 4, SHORT + 4),
        ];
        for other in but {
            let mut traffic = used_to(44, 24);
            traffic.note(&HERE, &other);
            assert_eq!(traffic.predict(&HERE), None, "{other:?}");
        }
        let mut traffic = used_to(44, 24);
        traffic.forget();
        assert_eq!(traffic.predict(&HERE), None);
    }

    #[test]
    fn one_of_many_uniform_datagrams_is_received_with_its_metadata() {
        let (mut traffic, bytes) = (used_to(44, 24), packets(&[24, 20], 5));
        for _ in 0..SAMPLE {
            assert!(traffic.predict(&HERE).is_some());
            assert_eq!(traffic.measure(&bytes, (envelope(), 5)), 24);
        }
        assert_eq!(traffic.predict(&HERE), None);
        traffic.note(&HERE, &received(44, 24));
        assert!(traffic.predict(&HERE).is_some());
    }

    #[test]
    fn single_packets_between_are_no_surprise() {
        let mut traffic = used_to(44, 24);
        for lengths in [&[20][..], &[24, 20], &[44], &[512], &[24, 20]] {
            assert_eq!(traffic.measure(&packets(lengths, 5), (envelope(), 5)), lengths[0]);
            assert!(traffic.predict(&HERE).is_some(), "{lengths:?}");
        }
        traffic.note(&HERE, &received(20, 20));
        assert_eq!(traffic.measure(&packets(&[24, 20], 5), (envelope(), 5)), 24);
        assert!(traffic.predict(&HERE).is_some());
    }

    #[test]
    fn whatever_the_cut_it_is_found_and_that_ends_the_habit() {
        let cuts: [&[usize]; 6] =
            [&[20, 20], &[24, 24, 24, 20], &[44, 44], &[1044, 1044, 1044, 200], &[4140; 8], &[16, 16]];
        for lengths in cuts {
            for awaited in [5, 77] {
                let mut traffic = used_to(44, 24);
                let found = traffic.measure(&packets(lengths, 5), (envelope(), awaited));
                assert_eq!(found, lengths[0], "{lengths:?}, awaited {awaited}");
                (0..1000).for_each(|_| traffic.note(&HERE, &received(44, 24)));
                assert_eq!(traffic.predict(&HERE), None, "the next thousands are received with their metadata");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_uniform_segments_count_as_one_packet() {
        for len in [0, 3, 15, 16, 44, 45, 4200, 60_000] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
            assert_eq!(used_to(44, 24).measure(&bytes, (envelope(), 5)), len);
        }
        // One whole packet with another identification than the expected one is still one packet.
        assert_eq!(used_to(44, 24).measure(&packets(&[48], 6), (envelope(), 5)), 48);
    }
}
