//! Packets that no engine sends: of another partition, out of order, or for queue pairs of another
//! kind. The tests build these packets by hand, with a correct ICRC, and inject them into the wire.

use abi::cq::{Wc, status};
use abi::event::kind;
use abi::qp::state;
use abi::reason::Cause;

use crate::common::wait::{event, no_event, until};
use crate::common::{Fabric, Plan, QKEY, Side};
use engine::SendWr;
use softhca::Gid;
use wire::icrc::Envelope;
use wire::{Deth, Headers, Opcode, Operation, Psn, Qpn, Transport};

const PORT: u16 = 0xc123;
/// The first PSN of every connection in this file.
const FIRST: u32 = 7;

fn hosts() -> Fabric {
    Fabric::hosts(["10.0.0.1", "10.0.0.2"], 1024, ::fabric::Faults::default())
}

/// The headers of a packet to this side.
fn headers(to: &Side, transport: Transport, operation: Operation) -> Headers {
    Headers {
        opcode: Opcode::new(transport, operation),
        psn: Psn::new(FIRST),
        dest_qp: Qpn::new(to.qp.qpn()),
        pkey: 0xffff,
        ..Headers::default()
    }
}

fn forge(fabric: &Fabric, (from, to): (&Side, &Side), headers: &Headers, payload: &[u8]) {
    let mut packet = vec![0; headers.len()];
    headers.emit(&mut packet).expect("an opcode");
    packet.extend_from_slice(payload);
    let icrc = Envelope::new(&from.gid(), &to.gid(), PORT).icrc(0, &packet);
    packet.extend_from_slice(&icrc);
    assert!(fabric.switch().inject(Gid(from.gid()), PORT, Gid(to.gid()), &packet));
}

#[test]
fn v_05_another_partition_is_counted_and_nothing_else() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 8);
    for pkey in [0x8001, 0x1234, 0] {
        forge(&fabric, (&a, &b), &Headers { pkey, ..headers(&b, Transport::Rc, Operation::SendOnly) }, &[]);
    }
    let count = || b.engine.query_port(1).expect("an answer").bad_pkey_cntr;
    until("three violations", || {
        assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
        (count() == 3).then_some(())
    });
    // A full member accepts packets of a limited member.
    forge(&fabric, (&a, &b), &Headers { pkey: 0x7fff, ..headers(&b, Transport::Rc, Operation::SendOnly) }, &[]);
    assert_eq!((b.received().wr_id, count()), (1, 3));
    // After the engine has closed, its context is gone. The other host still counts its own
    // violations only.
    b.engine.close();
    assert_eq!(a.engine.query_port(1).expect("an answer").bad_pkey_cntr, 0, "another host counts for itself");
}

/// The second of two packets that arrive together may be the expected one, and is parsed only in
/// part. Its headers may end anywhere.
#[test]
fn state_err_headers_that_end_too_early_are_dropped() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 8);
    let envelope = Envelope::new(&a.gid(), &b.gid(), PORT);
    // An old packet, which is taken and changes nothing, and behind it an ACK or WRITE of which
    // only the first bytes are there.
    let old = Headers { psn: Psn::new(FIRST - 1), ..headers(&b, Transport::Rc, Operation::SendOnly) };
    for operation in [Operation::Acknowledge, Operation::WriteOnly] {
        let mut cut = [0x1f; wire::MAX_LEN];
        let whole = headers(&b, Transport::Rc, operation).emit(&mut cut).expect("an opcode");
        cut[wire::bth::LEN..].fill(0x1f);
        for len in wire::bth::LEN..whole {
            let (mut packets, mut first) = (Vec::new(), vec![0; len]);
            old.emit(&mut first).expect("room for a BTH");
            for (id, packet) in [(0, &first[..]), (1, &cut[..len])] {
                packets.extend_from_slice(packet);
                packets.extend_from_slice(&envelope.icrc(id, packet));
            }
            assert!(fabric.switch().inject_segments(Gid(a.gid()), PORT, Gid(b.gid()), &packets, len + 4));
        }
    }
    forge(&fabric, (&a, &b), &headers(&b, Transport::Rc, Operation::SendOnly), &[]);
    assert_eq!((b.received().wr_id, b.qp.state()), (1, u32::from(state::RTS)), "the connection works");
}

/// First, middle and last packets must follow each other.
#[test]
fn responder_2_the_order_of_opcodes() {
    use Operation::{SendFirst, SendLast, SendMiddle, SendOnly, WriteLast, WriteMiddle};
    // The preceding packet, and the packet that must not follow it.
    let cases = [
        (None, SendMiddle),
        (None, SendLast),
        (None, WriteMiddle),
        (None, WriteLast),
        (Some(SendFirst), SendOnly),
        (Some(SendFirst), SendFirst),
        (Some(SendFirst), WriteMiddle),
    ];
    for (before, wrong) in cases {
        let what = format!("{wrong:?} after {before:?}");
        let fabric = hosts();
        let (a, b) = fabric.pair(&Plan::rc());
        b.recv(1, 0, 4096);
        let mut psn = FIRST;
        if let Some(before) = before {
            forge(&fabric, (&a, &b), &headers(&b, Transport::Rc, before), &[1; 1024]);
            psn += 1;
        }
        let next = Headers { psn: Psn::new(psn), ..headers(&b, Transport::Rc, wrong) };
        forge(&fabric, (&a, &b), &next, &[2; 1024]);
        assert_eq!(event(&b.engine).kind, kind::QP_REQ_ERR, "{what}");
        until("the error state", || (b.qp.state() == u32::from(state::ERR)).then_some(()));
        assert_ne!(b.received().status, status::SUCCESS, "{what}");
    }
}

/// A packet of another service, for a QPN that does not exist, from an address that is not the
/// peer's, or corrupted: the responder drops it and stays in its state.
#[test]
fn state_err_and_strangers_are_dropped() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 4096);
    let good = headers(&b, Transport::Rc, Operation::SendOnly);
    forge(&fabric, (&a, &b), &headers(&b, Transport::Uc, Operation::SendOnly), &[]);
    let deth = Deth { qkey: QKEY, src_qp: Qpn::new(a.qp.qpn()) };
    forge(&fabric, (&a, &b), &Headers { deth, ..headers(&b, Transport::Ud, Operation::SendOnly) }, &[]);
    forge(&fabric, (&a, &b), &Headers { dest_qp: Qpn::new(0x12_3456), ..good }, &[]);
    // From its own address, and from an address that no host has.
    forge(&fabric, (&b, &b), &good, &[]);
    let mut packet = vec![0; good.len()];
    good.emit(&mut packet).expect("an opcode");
    let stranger = Gid::from("10.0.0.77".parse::<std::net::IpAddr>().expect("an address"));
    let icrc = Envelope::new(&stranger.0, &b.gid(), PORT).icrc(0, &packet);
    assert!(fabric.switch().inject(stranger, PORT, Gid(b.gid()), &[&packet[..], &icrc].concat()));
    // Corrupted.
    assert!(fabric.switch().inject(Gid(a.gid()), PORT, Gid(b.gid()), &[&packet[..], &[1, 2, 3, 4]].concat()));
    // Of another partition, and a payload that is no packet.
    forge(&fabric, (&a, &b), &Headers { pkey: 0x1234, ..good }, &[]);
    assert!(fabric.switch().inject(Gid(a.gid()), PORT, Gid(b.gid()), &[0; 3]));
    // Each packet is counted with its cause, and the record of the last drop has the packet's
    // numbers.
    let qpn = b.qp.qpn();
    let expected = [(Cause::Service, qpn), (Cause::SourceAddress, qpn), (Cause::Icrc, 0), (Cause::PKey, qpn)];
    until("all to be dropped", || {
        assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
        let drops = b.engine.drops();
        let has = |(cause, qpn)| drops.iter().any(|drop| drop.cause() == Some(cause) && drop.qpn == qpn);
        expected.into_iter().all(has).then_some(())
    });
    let drops = b.engine.drops();
    let of = |cause| drops.iter().find(|drop| drop.cause() == Some(cause)).expect("counted");
    assert_eq!((of(Cause::Service).count, of(Cause::PKey).got), (2, 0x1234));
    let told = of(Cause::SourceAddress).sentence();
    assert!(told.contains(&format!("QP {qpn:#x}")) && told.contains("10.0.0.77"), "{told}");
    assert!(a.engine.drops().is_empty(), "another host counts for itself: {:?}", a.engine.drops());
    // A correct packet arrives as if the others had never been sent.
    a.post(&SendWr { sges: &a.sge(0, 5), ..SendWr::default() });
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.byte_len, a.sent().status), (1, 5, 0));
    assert_eq!((a.qp.state(), b.qp.state()), (u32::from(state::RTS), u32::from(state::RTS)));
    no_event(&b.engine);
}
