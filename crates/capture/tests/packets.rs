//! Tests how packets are shown: filters, words, frames and files.
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

use std::net::IpAddr;

use abi::reason::{Cause, DropRecord};
use capture::{Filter, FilterError, Packet, Path, PcapNg, Port, Process, frame, words};
use wire::icrc::Envelope;
use wire::{Aeth, Headers, NakCode, Opcode, Operation, Psn, Qpn, Reth, Syndrome, Transport};

fn process(pid: u32, comm: &str) -> Process {
    Process { pid, comm: comm.into() }
}

fn port() -> Port {
    Port { device: "softhca0".into(), number: 1, infiniband: false }
}

fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn packet(headers: Headers, payload: &[u8], ips: [&str; 2]) -> Packet {
    let [from, to] = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    let icrc = Envelope::new(&gid(from), &gid(to), 0xc011).icrc(7, &bytes);
    bytes.extend_from_slice(&icrc);
    Packet {
        time: 1_700_000_000_000_000_007,
        device: Some("softhca0".into()),
        port: 1,
        link: None,
        tcp: None,
        path: Path::Lane { lane: 3, from: process(123, "client"), to: process(456, "") },
        from,
        to,
        from_port: 0xc011,
        id: 7,
        traffic_class: 0,
        hop_limit: 0,
        src_qp: 0x11,
        len: bytes.len(),
        bytes,
        dropped: None,
        note: String::new(),
    }
}

fn write() -> Packet {
    let headers = Headers {
        opcode: Opcode::new(Transport::Rc, Operation::WriteOnly),
        dest_qp: Qpn::new(0x12),
        psn: Psn::new(5),
        pkey: 0xffff,
        ack_req: true,
        reth: Reth { va: 0x1000, rkey: 0x77, len: 8 },
        ..Headers::default()
    };
    packet(headers, b"payload!", ["10.0.0.1", "10.0.0.2"])
}

fn nak() -> Packet {
    let headers = Headers {
        opcode: Opcode::new(Transport::Rc, Operation::Acknowledge),
        dest_qp: Qpn::new(0x11),
        psn: Psn::new(5),
        pkey: 0xffff,
        aeth: Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 1 },
        ..Headers::default()
    };
    Packet { path: Path::In(process(123, "client")), src_qp: 0, ..packet(headers, &[], ["fe80::2", "fe80::1"]) }
}

#[test]
fn a_filter_is_said_as_for_tcpdump() {
    let all = [write(), nak()];
    for (words, wanted) in [
        ("", [true, true]),
        ("qp 0x11", [true, true]),
        ("src qp 17", [true, false]),
        ("dst qp 17", [false, true]),
        ("host 10.0.0.2", [true, false]),
        ("src host 10.0.0.2", [false, false]),
        ("dst host fe80::1", [false, true]),
        ("opcode write", [true, false]),
        ("opcode RC_RDMA_WRITE_only", [true, false]),
        ("opcode rc-write-only", [true, false]),
        ("opcode acknowledge", [false, true]),
        ("ack", [false, true]),
        ("nak", [false, true]),
        ("lane", [true, false]),
        ("lane 4", [false, false]),
        ("lane 3 and pid 456", [true, false]),
        ("wire and in", [false, true]),
        ("wire and out", [false, false]),
        ("not lane", [false, true]),
        ("not (lane or nak)", [false, false]),
        ("lane and ack or nak", [false, true]),
        ("lane and (ack or nak)", [false, false]),
        ("device softhca0 && !cm", [true, true]),
        ("device softhca0 && ! cm", [true, true]),
        ("dropped", [false, false]),
    ] {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let filter = Filter::parse(&words).unwrap();
        assert_eq!(all.each_ref().map(|packet| filter.wants(packet)), wanted, "{words:?}");
    }
}

#[test]
fn errors_of_filters_name_the_expected_word() {
    for (words, said) in [
        ("port 4791", "is not a condition"),
        ("host here", "an address"),
        ("qp", "a number"),
        ("src lane", "host, qp, pid or lid"),
        ("(lane", "parenthesis"),
        ("lane)", "parenthesis"),
        ("lane and", "a condition"),
        ("lane wire", "is not a condition"),
        ("lane or or wire", "\"or\" is not a condition"),
        ("src", "host, qp, pid or lid"),
        ("()", "is not a condition"),
        (&"(".repeat(100_000), "more than 100"),
        (&"not ".repeat(100_000), "more than 100"),
    ] {
        let error: FilterError = Filter::parse(&[words.to_owned()]).unwrap_err();
        assert!(error.to_string().contains(said), "{words}: {error}");
    }
}

#[test]
fn a_packet_is_told_in_a_line() {
    assert_eq!(
        words::line(&write()),
        "22:13:20.000000007 softhca0 lane 3 123>456  10.0.0.1 QP 0x11 > 10.0.0.2 QP 0x12: RC RDMA WRITE only psn 5 ack-req; \
         8 bytes at 0x1000 rkey 0x77; 8 bytes"
    );
    let mut refused = nak();
    assert_eq!(
        words::line(&refused),
        "22:13:20.000000007 softhca0 wire in 123  fe80::2 QP ? > fe80::1 QP 0x11: RC acknowledge psn 5; NAK remote access error msn 1"
    );
    let dropped = DropRecord { cause: Cause::NoQp as u32, count: 1, dest_qp: 0x11, ..DropRecord::default() };
    refused.dropped = Some(dropped);
    refused.note = "injected".into();
    assert!(words::line(&refused).contains("; injected; a packet was dropped because no QP here has the number 0x11"));
    assert_eq!(words::json(&refused)["dropped"]["cause"], "no_qp");
    let told = words::json(&write());
    assert_eq!((&told["path"], &told["lane"], &told["psn"]), (&"lane".into(), &3.into(), &5.into()));
    assert_eq!((&told["reth"]["va"], &told["payload"]), (&0x1000.into(), &8.into()));
    let long = words::lines(&write(), true);
    assert!(long.starts_with("2023-11-14 22:13:20.000000007 softhca0, lane 3, process 123 (client) → 456\n"), "{long}");
    assert!(long.contains("70 61 79 6c 6f 61 64 21") && long.contains("payload!"), "{long}");
}

#[test]
fn a_packet_without_payload_says_how_much_there_was() {
    let mut stripped = write();
    stripped.strip();
    assert_eq!(stripped.bytes.len(), 28);
    assert!(!stripped.is_whole() && stripped.payload() == (&[][..], 8));
    assert!(words::line(&stripped).ends_with("8 bytes, of which 0 were kept"));
    let (bytes, len) = frame(&stripped);
    assert_eq!((bytes.len(), len), (14 + 20 + 8 + 28, 14 + 20 + 8 + 40));
}

/// Checks checksums as the standard defines them: the sum over the covered bytes, including the
/// checksum, is all ones.
#[test]
fn a_frame_has_fitting_checksums() {
    for (packet, ip_len) in [(write(), 20), (nak(), 40)] {
        let (bytes, len) = frame(&packet);
        assert_eq!(bytes.len(), len);
        let (ip, udp) = bytes[14..].split_at(ip_len);
        let sum = |bytes: &[u8]| -> u64 {
            bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum()
        };
        let folded = |sum: u64| (sum % 0xffff, sum > 0);
        let addresses = if ip_len == 20 { &ip[12..20] } else { &ip[8..40] };
        if ip_len == 20 {
            assert_eq!(folded(sum(ip)), (0, true));
            assert_eq!(ip[4..6], [0, 7], "the identification is what the ICRC covers");
        }
        assert_eq!(folded(sum(addresses) + sum(udp) + udp.len() as u64 + 17), (0, true));
        assert_eq!(u16::from_be_bytes([udp[4], udp[5]]) as usize, udp.len());
    }
}

#[test]
fn a_file_has_blocks_of_the_lengths_that_it_says() {
    let mut file = PcapNg::begin(Vec::new(), &[port()], 0).unwrap();
    assert!(file.write(&write()).unwrap());
    let nothing = Packet { bytes: Vec::new(), len: 0, path: Path::Nowhere(process(1, "")), ..nak() };
    assert!(!file.write(&nothing).unwrap(), "there is nothing to write");
    assert!(file.write(&nak()).unwrap());
    let bytes = file.end(5, 2, 9).unwrap();
    let mut rest = &bytes[..];
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let len = word(4) as usize;
        assert!(len.is_multiple_of(4) && word(len - 4) as usize == len);
        kinds.push(word(0));
        rest = &rest[len..];
    }
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6, 5]);
    let comment = "lane 3, process 123 (client) → 456; from QP 0x11";
    assert!(bytes.windows(comment.len()).any(|part| part == comment.as_bytes()));
}
