//! The expected content of a capture of the program `everyopcode`: every packet of every queue
//! pair, by opcode and PSN. The principal type is [`Numbers`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::pcap::Captured;
use softhca_wire::{Headers, NakCode, Operation, Psn, Syndrome, Transport};

use Operation as O;

/// QPN and first PSN of one side's queue pairs, by the queue pairs' names.
pub(crate) struct Numbers(BTreeMap<String, (u32, Psn)>);

impl Numbers {
    /// Parses the output of the program.
    pub(crate) fn told(output: &str) -> Numbers {
        let line = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, qpn, psn] = words[..] else { return None };
            Some((name.to_owned(), (qpn.parse().ok()?, Psn::new(psn.parse().ok()?))))
        };
        let numbers: BTreeMap<_, _> = output.lines().filter_map(line).collect();
        assert_eq!(numbers.len(), 6, "{output}");
        Numbers(numbers)
    }
}

/// The packets that RC and UC send for messages longer and shorter than the path MTU of 1024.
const SENDS_AND_WRITES: &[O] = &[
    O::SendFirst,
    O::SendMiddle,
    O::SendLast,
    O::SendOnly,
    O::SendFirst,
    O::SendMiddle,
    O::SendLastImm,
    O::SendOnlyImm,
    O::WriteFirst,
    O::WriteMiddle,
    O::WriteLast,
    O::WriteOnly,
    O::WriteFirst,
    O::WriteMiddle,
    O::WriteLastImm,
    O::WriteOnlyImm,
];

/// The packets that follow on RC. The two READs take three PSNs and one PSN.
const MORE: &[O] = &[O::SendFirst, O::SendMiddle, O::SendLastInvalidate, O::SendOnlyInvalidate];
const READS: &[(u32, O)] =
    &[(0, O::ReadRequest), (3, O::ReadRequest), (4, O::CompareSwap), (5, O::FetchAdd), (6, O::SendOnly)];
const ANSWERS: &[O] = &[
    O::ReadResponseFirst,
    O::ReadResponseMiddle,
    O::ReadResponseLast,
    O::ReadResponseOnly,
    O::AtomicAcknowledge,
    O::AtomicAcknowledge,
    O::Acknowledge,
];

/// The messages on RC: eight, two that invalidate, two READs, two atomics, one SEND.
const MESSAGES: u32 = 15;

/// Checks that all expected packets are in the capture, and no others.
pub(crate) fn expect(packets: &[Captured], server: IpAddr, servers: &Numbers, clients: &Numbers) {
    let server = match server {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut counted = 0;
    let mut between = |name: &str, to_server: bool| -> Vec<Headers> {
        let dest = if to_server { servers.0[name].0 } else { clients.0[name].0 };
        let belongs = |captured: &&Captured| {
            (captured.destination == server.octets()) == to_server && captured.parts().0.dest_qp.value() == dest
        };
        let found: Vec<Headers> = packets.iter().filter(belongs).map(|captured| captured.parts().0).collect();
        counted += found.len();
        found
    };
    let requests = |name: &str| [SENDS_AND_WRITES, if name == "main" { MORE } else { &[] }].concat();
    let first = |name: &str| clients.0[name].1;

    let carried = requests("main");
    let reads = first("main") + carried.len() as u32;
    let mut wanted = numbered(first("main"), &carried);
    wanted.extend(READS.iter().map(|(behind, operation)| ((reads + *behind).value(), *operation)));
    assert_eq!(by_number(&between("main", true), Transport::Rc), wanted);
    let answers = between("main", false);
    let data: Vec<Headers> = answers.iter().filter(|answer| answer.psn.since(reads) >= 0).copied().collect();
    assert_eq!(by_number(&data, Transport::Rc), numbered(reads, ANSWERS));
    for answer in answers.iter().filter(|answer| answer.opcode.has_aeth()) {
        assert_eq!(answer.aeth.syndrome, Syndrome::ACK, "{answer}");
        let behind = answer.psn.since(first("main"));
        assert!(behind >= 0 && answer.aeth.msn >= 1 && answer.aeth.msn <= MESSAGES, "{answer}");
    }
    assert_eq!(answers.last().map(|answer| answer.aeth.msn), Some(MESSAGES));

    for (name, operation, syndrome) in [
        ("not-ready", O::SendOnly, Syndrome::RnrNak(12)),
        ("no-access", O::WriteOnly, Syndrome::Nak(NakCode::RemoteAccess)),
        ("too-long", O::SendOnly, Syndrome::Nak(NakCode::InvalidRequest)),
    ] {
        assert_eq!(by_number(&between(name, true), Transport::Rc), numbered(first(name), &[operation]), "{name}");
        let answers = between(name, false);
        assert!(!answers.is_empty(), "{name}");
        for answer in answers {
            assert_eq!(
                (answer.psn, answer.aeth.syndrome, answer.aeth.msn),
                (first(name), syndrome, 0),
                "{name}: {answer}"
            );
        }
    }

    let uc = between("uc", true);
    assert_eq!(uc.len(), SENDS_AND_WRITES.len(), "nothing is sent twice");
    assert_eq!(by_number(&uc, Transport::Uc), numbered(first("uc"), &requests("uc")));
    let ud = between("ud", true);
    assert_eq!(by_number(&ud, Transport::Ud), numbered(first("ud"), &[O::SendOnly, O::SendOnlyImm]));
    for datagram in ud {
        assert_eq!((datagram.deth.qkey, datagram.deth.src_qp.value()), (0x4711, clients.0["ud"].0));
    }
    assert_eq!(counted, packets.len(), "there are other packets");
}

fn numbered(first: Psn, operations: &[O]) -> BTreeMap<u32, O> {
    (0..).zip(operations).map(|(behind, operation)| ((first + behind).value(), *operation)).collect()
}

/// The operation of each PSN. On a slow machine a packet may be retransmitted. Then its operation
/// must be the same.
fn by_number(packets: &[Headers], transport: Transport) -> BTreeMap<u32, O> {
    let mut found = BTreeMap::new();
    for headers in packets {
        assert_eq!(headers.opcode.transport, transport, "{headers}");
        let operation = headers.opcode.operation;
        assert_eq!(*found.entry(headers.psn.value()).or_insert(operation), operation, "{headers}");
    }
    found
}
