//! Tests packets of InfiniBand links: each is a valid packet of a link, and together they have the
//! content of the packet that was captured.
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

use capture::{Link, Packet, Path, PcapNg, Port, Process, words};
use proptest::prelude::*;
use wire::lrh::{self, Next};
use wire::{Aeth, Grh, Headers, Opcode, Operation as O, Psn, Qpn, Reth, Syndrome, Transport, icrc, vcrc};

fn link(flow_label: Option<u32>) -> Link {
    Link { slid: 3, dlid: 0x104, sl: 5, vl: 2, mtu: 1024, flow_label }
}

fn packet(operation: O, len: usize, link: Link) -> Packet {
    let headers = Headers {
        opcode: Opcode::new(Transport::Rc, operation),
        dest_qp: Qpn::new(0x12),
        psn: Psn::new(77),
        pkey: 0x8001,
        pad: (len.wrapping_neg() % 4) as u8,
        ack_req: true,
        imm: 9,
        reth: Reth { va: 0x1000, rkey: 0x77, len: len as u32 },
        aeth: Aeth { syndrome: Syndrome::Ack(31), msn: 1 },
        ..Headers::default()
    };
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes).unwrap();
    bytes.extend((0..len).map(|at| at as u8));
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    Packet {
        time: 7,
        device: Some("H1".into()),
        port: 1,
        link: Some(link),
        tcp: None,
        path: Path::Inside(Process::default()),
        from: "fe80::1".parse().unwrap(),
        to: "fe80::2".parse().unwrap(),
        from_port: 0,
        id: 0,
        traffic_class: 0,
        hop_limit: 0,
        src_qp: 0x11,
        len: bytes.len(),
        bytes,
        dropped: None,
        note: String::new(),
    }
}

/// The packets that are written for a packet, without the file around them.
fn written(packet: &Packet) -> Vec<Vec<u8>> {
    let port = Port { device: "H1".into(), number: 1, infiniband: true };
    let mut file = PcapNg::begin(Vec::new(), &[port], 0).unwrap();
    assert!(file.write(packet).unwrap());
    let bytes = file.end(9, 1, 0).unwrap();
    let (mut rest, mut found) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        match word(0) {
            1 => assert_eq!(word(8) & 0xffff, 197, "the link type"),
            6 => found.push(of_record(&rest[28..28 + word(20)])),
            _ => {}
        }
        rest = &rest[word(4)..];
    }
    found
}

/// The packet in an ERF record.
fn of_record(bytes: &[u8]) -> Vec<u8> {
    let (head, packet) = bytes.split_at(16);
    assert_eq!(head[..8], [30, 0, 0, 0, 0, 0, 0, 0], "7 ns in units of 2⁻³² seconds");
    assert_eq!((head[8], usize::from(u16::from_be_bytes([head[10], head[11]]))), (21, bytes.len()));
    let is_cut = usize::from(u16::from_be_bytes([head[14], head[15]])) != packet.len();
    assert_eq!(head[9], if is_cut { 12 } else { 4 });
    packet.to_vec()
}

/// Checks the link's headers and CRCs. Returns the headers and the payload.
fn checked(bytes: &[u8], link: &Link) -> (Headers, Vec<u8>) {
    let covered = vcrc::check(bytes).expect("the VCRC");
    let lrh = lrh::Header::parse(covered.first_chunk().unwrap()).unwrap();
    assert_eq!((lrh.slid, lrh.dlid, lrh.sl, lrh.vl), (link.slid, link.dlid, link.sl, link.vl));
    assert_eq!(lrh.byte_len(), covered.len());
    let (before, end) = covered.split_at(covered.len() - 4);
    assert_eq!(icrc::link::icrc(before).unwrap(), end);
    let mut rest = &before[8..];
    assert_eq!(lrh.next, if link.flow_label.is_some() { Next::Grh } else { Next::Bth });
    if let Some(label) = link.flow_label {
        let grh = Grh::parse(rest.first_chunk().unwrap()).unwrap();
        assert_eq!((grh.flow_label, usize::from(grh.payload_len)), (label, covered.len() - 48));
        assert_eq!((grh.sgid[15], grh.dgid[15], grh.hop_limit), (1, 2, 64));
        rest = &rest[40..];
    }
    let headers = Headers::parse(rest).unwrap();
    (headers, rest[headers.len()..rest.len() - usize::from(headers.pad)].to_vec())
}

#[test]
fn a_long_packet_is_shown_as_those_of_the_links_mtu() {
    let operations = |operation: O, len: usize| -> Vec<O> {
        let packet = packet(operation, len, link(None));
        let parts: Vec<_> = written(&packet).iter().map(|bytes| checked(bytes, &link(None))).collect();
        let (last, others) = parts.split_last().unwrap();
        assert!(last.0.ack_req && others.iter().all(|(headers, _)| !headers.ack_req), "the last one asks");
        parts.iter().map(|(headers, _)| headers.opcode.operation).collect()
    };
    assert_eq!(written(&packet(O::SendOnly, 1024, link(None))).len(), 1);
    assert_eq!(operations(O::SendOnlyImm, 2049), [O::SendFirst, O::SendMiddle, O::SendLastImm]);
    assert_eq!(operations(O::WriteFirst, 2048), [O::WriteFirst, O::WriteMiddle]);
    assert_eq!(operations(O::WriteLast, 1025), [O::WriteMiddle, O::WriteLast]);
    assert_eq!(operations(O::ReadResponseMiddle, 1025), [O::ReadResponseMiddle; 2]);
    assert_eq!(operations(O::SendOnlyInvalidate, 1025), [O::SendFirst, O::SendLastInvalidate]);
}

#[test]
fn words_name_the_lids() {
    let shown = packet(O::SendOnly, 8, link(Some(7)));
    assert!(words::line(&shown).contains("LID 3 QP 0x11 > LID 260 QP 0x12: RC SEND only"), "{}", words::line(&shown));
    assert!(words::lines(&shown, false).contains("LRH  LID 3 > LID 260, SL 5, VL 2\n    GRH  fe80::1 > fe80::2"));
    assert_eq!(words::json(&shown)["link"]["dlid"], 0x104);
}

proptest! {
    /// The content is that of the packet, whatever its length and the MTU are.
    #[test]
    fn the_parts_have_the_content_of_the_whole(len in 0..40_000_usize, code in 0..5_u32, global: bool) {
        let link = Link { mtu: 256 << code, ..link(global.then_some(0x12345)) };
        let packet = packet(O::WriteOnly, len, link);
        let parts = written(&packet);
        prop_assert_eq!(parts.len(), len.div_ceil(link.mtu).max(1));
        let mut content = Vec::new();
        // The ICRC of a packet that is not cut is the writer's.
        for part in parts.iter().filter(|_| parts.len() > 1) {
            let (headers, payload) = checked(part, &link);
            prop_assert_eq!((headers.psn.value(), headers.pkey), (77, 0x8001));
            content.extend(payload);
        }
        prop_assert!(parts.len() == 1 || content == packet.payload().0);
    }

    /// Of a packet that was cut off, each part is there as far as it was kept.
    #[test]
    fn what_was_not_kept_is_missing(len in 1..9000_usize, kept in 16..9000_usize) {
        let mut cut = packet(O::SendOnly, len, link(None));
        cut.bytes.truncate(kept);
        let whole = cut.bytes.len() == cut.len;
        let shown: usize = written(&cut).iter().filter(|bytes| vcrc::check(bytes).is_some()).count();
        let parts = len.div_ceil(1024);
        prop_assert!(shown == parts || shown < parts && !whole);
    }
}
