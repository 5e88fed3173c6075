//! Compares the ICRC with one that is computed bit by bit over complete headers, for random packets
//! and flows.

use proptest::prelude::{Just, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy;
use softhca_wire::icrc::Envelope;

/// One flow: two GIDs and a source port.
#[derive(Clone, Debug)]
struct Flow {
    source: [u8; 16],
    destination: [u8; 16],
    port: u16,
}

impl Flow {
    fn envelope(&self) -> Envelope {
        Envelope::new(&self.source, &self.destination, self.port)
    }

    fn is_v4(&self) -> bool {
        [self.source, self.destination].iter().all(|gid| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
    }

    /// The ICRC by the specification: all covered bytes, with ones for fields that may change on
    /// the way.
    fn icrc(&self, id: u16, packet: &[u8]) -> [u8; 4] {
        let udp_len = (8 + packet.len() + 4) as u16;
        let mut covered = vec![0xff; 8];
        if self.is_v4() {
            covered.extend([0x45, 0xff]);
            covered.extend((20 + udp_len).to_be_bytes());
            covered.extend(id.to_be_bytes());
            covered.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            covered.extend(&self.source[12..]);
            covered.extend(&self.destination[12..]);
        } else {
            covered.extend([0x6f, 0xff, 0xff, 0xff]);
            covered.extend(udp_len.to_be_bytes());
            covered.extend([17, 0xff]);
            covered.extend(self.source);
            covered.extend(self.destination);
        }
        covered.extend(self.port.to_be_bytes());
        covered.extend(4791_u16.to_be_bytes());
        covered.extend(udp_len.to_be_bytes());
        covered.extend([0xff, 0xff]);
        let bth = covered.len();
        covered.extend(packet);
        covered[bth + 4] = 0xff;
        let mut register = u32::MAX;
        for byte in covered {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 };
            }
        }
        (!register).to_le_bytes()
    }

    fn sent(&self, id: u16, packet: &[u8]) -> Vec<u8> {
        [packet, &self.envelope().icrc(id, packet)].concat()
    }
}

fn gid() -> impl Strategy<Value = [u8; 16]> {
    let v4 = any::<[u8; 4]>().prop_map(|v4| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets());
    prop_oneof![2 => v4, 1 => any::<[u8; 16]>()]
}

fn flow() -> impl Strategy<Value = Flow> {
    let both = prop_oneof![(gid(), gid()), gid().prop_flat_map(|gid| (Just(gid), Just(gid)))];
    (both, any::<u16>()).prop_map(|((source, destination), port)| Flow { source, destination, port })
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 12..80),
        proptest::collection::vec(any::<u8>(), 12..4200),
        (any::<u8>(), 12..65_500_usize).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

proptest! {
    #[test]
    fn it_is_the_specifications(flow in flow(), id: u16, packet in packet()) {
        prop_assert_eq!(flow.envelope().icrc(id, &packet), flow.icrc(id, &packet));
    }

    #[test]
    fn the_number_is_found(flow in flow(), id: u16, guess: u16, packet in packet()) {
        let sent = flow.sent(id, &packet);
        let expected = if flow.is_v4() { id } else { guess };
        prop_assert_eq!(flow.envelope().check(&sent, guess), Some(expected));
        prop_assert_eq!(flow.envelope().check(&sent, expected), Some(expected));
    }

    #[test]
    fn congestion_marks_do_not_matter(flow in flow(), id: u16, mut packet in packet(), marks: u8) {
        let before = flow.envelope().icrc(id, &packet);
        packet[4] = marks;
        prop_assert_eq!(flow.envelope().icrc(id, &packet), before);
    }

    /// One of several packets of one length is checked for one number and this length. It is
    /// correct or not.
    #[test]
    fn packets_of_one_length_are_checked_alike(flow in flow(), id: u16, packet in packet(), bit: usize, other: u16) {
        let measured = flow.envelope().of_length(packet.len());
        prop_assert_eq!(measured.icrc(id, &packet), flow.icrc(id, &packet));
        let mut sent = flow.sent(id, &packet);
        prop_assert!(measured.fits(&sent, id));
        prop_assert_eq!(measured.fits(&sent, other), other == id || !flow.is_v4());
        prop_assert!(!measured.fits(&sent[..packet.len()], id), "a part is no packet");
        prop_assert!(!flow.envelope().of_length(packet.len() + 1).fits(&sent, id));
        let bit = bit % (8 * sent.len());
        sent[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(measured.fits(&sent, id), bit / 8 == 4, "bit {}", bit);
    }

    /// Received bytes may be arbitrary and of any length.
    #[test]
    fn any_bytes_are_checked(flow in flow(), guess: u16, bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Some(id) = flow.envelope().check(&bytes, guess) {
            let (packet, icrc) = bytes.split_last_chunk().expect("an ICRC");
            prop_assert_eq!(flow.icrc(id, packet), *icrc);
            prop_assert!(packet.len() >= 12);
        }
    }
}

/// Every identification, with a wrong guess for all but one of them.
#[test]
fn every_number_is_found() {
    let gid = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
    let flow = Flow { source: gid(1), destination: gid(2), port: 0xc123 };
    let packet: Vec<u8> = (0..1052_u32).map(|index| (index * 7) as u8).collect();
    for id in 0..=u16::MAX {
        assert_eq!(flow.envelope().check(&flow.sent(id, &packet), 0x1234), Some(id));
    }
}

#[test]
fn too_short_and_too_long_is_damaged() {
    let flow = Flow { source: [1; 16], destination: [2; 16], port: 0xc000 };
    for len in 0..12 {
        assert_eq!(flow.envelope().check(&flow.sent(0, &vec![0; len]), 0), None, "{len} bytes are no packet");
        assert!(!flow.envelope().of_length(len).fits(&flow.sent(0, &vec![0; len]), 0), "nor in a run");
    }
    assert_eq!(flow.envelope().check(&flow.sent(7, &[0; 12]), 7), Some(7));
    assert_eq!(flow.envelope().check(&flow.sent(7, &vec![0; 65_503]), 7), Some(7));
    assert_eq!(flow.envelope().check(&flow.sent(7, &vec![0; 65_504]), 7), None);
    assert_eq!(flow.envelope().check(&[0; 1 << 20], 7), None);
    assert!(!flow.envelope().of_length(65_504).fits(&flow.sent(7, &vec![0; 65_504]), 7));
}

/// The payload of a packet that is copied and summed up at once consists of whole strides.
#[test]
fn only_packets_of_a_header_and_whole_strides_are_foldable() {
    let flow = Flow { source: [1; 16], destination: [2; 16], port: 0xc000 };
    for (len, foldable) in
        [(11, false), (12, false), (12 + 255, false), (12 + 256, true), (12 + 257, false), (12 + 4096, true)]
    {
        let measured = flow.envelope().of_length(len);
        assert_eq!((measured.length(), measured.is_foldable()), (len, foldable));
    }
}
