//! ATOMIC WRITE and FLUSH. They are answered by a READ response of zero bytes, in order with all
//! other requests, exactly once, and within the depth that READs and atomics share.

use crate::corners::{answer, request, responder, summary, take};
use crate::packet::{Answers, OneByOne};
use crate::world::{A, B, BASE, RKEY, Scenario, World};
use softhca_protocol::{Access, Fault, Incoming, Nak, Operation, Outcome, SendOp, Service, Status, Step, Time};
use wire::feth::{placement, selectivity};
use wire::{Feth, Headers, Operation as W, Psn, Reth, Syndrome};

fn flush(psn: u32, len: u32, placement: u8, selectivity: u8) -> Headers {
    Headers { feth: Feth { placement, selectivity }, ..request(W::Flush, psn, 0, len) }
}

#[test]
fn atomic_write_and_flush_have_the_headers_of_the_specification() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].atomic_write(16, 0x1122_3344_5566_7788);
    world.hosts[A].flush(0, 5000);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
    assert_eq!((world.hosts[B].word(16), world.hosts[B].atomics), (0x1122_3344_5566_7788, 1));
    assert_eq!(world.operations(A), [W::AtomicWrite, W::Flush]);
    assert_eq!(world.operations(B), [W::ReadResponseOnly, W::ReadResponseOnly]);
    let sent: Vec<Headers> = world.sent.iter().filter(|(from, _)| *from == A).map(|(_, headers)| *headers).collect();
    assert_eq!(sent[0].reth, Reth { va: BASE + 16, rkey: RKEY, len: 8 });
    assert_eq!((sent[0].len(), sent[1].len()), (12 + 16, 12 + 4 + 16));
    // A FLUSH is one packet, whatever the length of its range.
    assert_eq!(sent[1].reth, Reth { va: BASE, rkey: RKEY, len: 5000 });
    assert_eq!(sent[1].feth, Feth { placement: placement::GLOBAL, selectivity: selectivity::RANGE });
    assert_eq!((sent[0].psn, sent[1].psn), (Psn::new(100), Psn::new(101)));
}

#[test]
fn in_order_and_exactly_once_on_bad_networks() {
    for seed in 0..60 {
        let scenario = Scenario {
            seed,
            mtu: [256, 1024][seed as usize % 2],
            loss: 10,
            duplication: 10,
            reordering: 10,
            path_full: 5,
            rd_atomic: 1 + (seed % 3) as u8,
            psn: 0xff_fff0,
            ..Scenario::default()
        };
        let mut world = World::new(scenario);
        let host = &mut world.hosts[A];
        for value in 1..=9u8 {
            host.write(0, &[value; 1500]);
            host.flush(0, 1500);
            host.atomic_write(2048, u64::from(value) << 32);
            host.fetch_add(2048, 1);
            host.read(2048, 8);
        }
        world.run();
        let [a, b] = &world.hosts;
        assert_eq!(a.statuses(), [Status::Success; 45], "{scenario:?}");
        // A FLUSH sees the data of earlier WRITEs. An atomic sees the value of the ATOMIC WRITE
        // before it.
        let flushed: Vec<_> = (1..=9u8).map(|value| vec![value; 1500]).collect();
        assert!(b.flushed == flushed, "{scenario:?}");
        for value in 1..=9usize {
            let word = |slot: usize| u64::from_le_bytes(a.local[slot].as_slice().try_into().expect("a word"));
            assert_eq!(word(5 * value - 2), (value as u64) << 32, "{scenario:?}");
        }
        assert_eq!(b.atomics, 18, "{scenario:?}");
    }
}

#[test]
fn a_repetition_is_answered_and_not_carried_out() {
    let mut responder = responder(2);
    let written = request(W::AtomicWrite, 0, 8, 8);
    let flushed = Headers { reth: Reth { va: BASE, rkey: RKEY, len: 64 }, ..flush(1, 64, placement::GLOBAL, 0) };
    responder.set_access(Access(0x10e));
    assert_eq!(take(&mut responder, &written, 8), Step::AtomicWrite { va: BASE + 8, rkey: RKEY });
    let region = Step::Flush { va: BASE, rkey: RKEY, len: 64, region: false, access: Access::FLUSH_GLOBAL };
    assert_eq!(take(&mut responder, &flushed, 0), region);
    let both = [Some((W::ReadResponseOnly, 0, 0x1f)), Some((W::ReadResponseOnly, 1, 0x1f))];
    assert_eq!([(); 2].map(|()| summary(responder.poll_transmit())), both);
    assert_eq!(responder.handle(&flushed, 0), Step::Reply);
    assert_eq!(responder.handle(&written, 8), Step::Reply);
    assert_eq!([(); 2].map(|()| summary(responder.poll_transmit())), both);
    assert_eq!(responder.poll_transmit(), None);
    // A repetition that differs from the remembered request is ignored.
    let elsewhere = request(W::AtomicWrite, 0, 16, 8);
    let another = Headers { psn: Psn::new(0), ..flushed };
    for (headers, payload) in [(elsewhere, 8), (another, 0)] {
        assert!(matches!(responder.handle(&headers, payload), Step::Ignore(Fault::Forgotten { .. })));
    }
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn malformed_atomic_writes_and_flushes_are_refused() {
    let reth = |va: u64, len: u32| Reth { va, rkey: RKEY, len };
    let write = |reth: Reth| Headers { reth, ..request(W::AtomicWrite, 0, 0, 8) };
    let cases = [
        ("misaligned", 0x10e, 2, write(reth(BASE + 4, 8)), 8),
        ("of another length", 0x10e, 2, write(reth(BASE, 4)), 4),
        ("of another payload", 0x10e, 2, write(reth(BASE, 8)), 4),
        ("more than eight bytes", 0x10e, 2, write(reth(BASE, 16)), 16),
        ("no right to write", 0x10c, 2, write(reth(BASE, 8)), 8),
        ("no depth", 0x10e, 0, write(reth(BASE, 8)), 8),
        ("no right to flush", 0x00e, 2, flush(0, 8, placement::GLOBAL, 0), 0),
        ("not so far", 0x10e, 2, flush(0, 8, placement::PERSISTENT, 0), 0),
        ("not as far as both", 0x10e, 2, flush(0, 8, 3, 0), 0),
        ("to nowhere", 0x30e, 2, flush(0, 8, 0, 0), 0),
        ("to an unknown place", 0x30e, 2, flush(0, 8, 5, 0), 0),
        ("an unknown selection", 0x30e, 2, flush(0, 8, placement::GLOBAL, 2), 0),
        ("with payload", 0x30e, 2, flush(0, 8, placement::GLOBAL, 0), 8),
        ("of too much", 0x30e, 2, flush(0, (1 << 31) + 1, placement::GLOBAL, 0), 0),
        ("no depth for a flush", 0x30e, 0, flush(0, 8, placement::GLOBAL, 0), 0),
    ];
    for (what, access, depth, headers, payload) in cases {
        let mut responder = responder(depth);
        responder.set_access(Access(access));
        assert_eq!(responder.handle(&headers, payload), Step::Reply, "{what}");
        assert_eq!(responder.dead().map(|dead| dead.nak), Some(Nak::InvalidRequest), "{what}");
    }
    // Inside another message.
    let mut responder = responder(2);
    let _ = take(&mut responder, &request(W::SendFirst, 0, 0, 0), 1024);
    assert_eq!(responder.handle(&request(W::AtomicWrite, 1, 0, 8), 8), Step::Reply);
    assert!(matches!(responder.dead().expect("refused").fault, Fault::Order { .. }));
}

#[test]
fn the_executor_may_refuse_them() {
    for nak in [Nak::RemoteAccess, Nak::RemoteOperational] {
        let mut world = World::new(Scenario::default());
        world.hosts[A].atomic_write(0, 1);
        let packet = world.hosts[A].requester.poll_transmit(Time(0)).expect("a packet");
        let responder = &mut world.hosts[B].responder;
        let Step::AtomicWrite { .. } = responder.handle(&packet.headers, 8) else { panic!("an ATOMIC WRITE") };
        responder.finish(Outcome::Refused(nak));
        world.run();
        let status = if nak == Nak::RemoteAccess { Status::RemAccessErr } else { Status::RemOpErr };
        assert_eq!(world.hosts[A].statuses(), [status]);
    }
}

#[test]
fn they_share_the_depth_of_reads() {
    let mut world = World::new(Scenario { rd_atomic: 2, ..Scenario::default() });
    let host = &mut world.hosts[A];
    host.read(0, 8);
    host.atomic_write(0, 1);
    host.flush(0, 8);
    let requester = &mut host.requester;
    let begun = std::iter::from_fn(|| requester.poll_transmit(Time(0))).count();
    assert_eq!(begun, 2, "the third waits");
    // And a fence waits for them.
    let mut world = World::new(Scenario::default());
    world.hosts[A].atomic_write(0, 1);
    world.hosts[A].post(SendOp { fence: true, ..SendOp::default() }, vec![1]);
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    assert_eq!(requester.poll_transmit(Time(0)), None);
    let confirmation = answer(W::ReadResponseOnly, 100, Syndrome::ACK);
    assert_eq!(requester.handle_response(Time(1), &confirmation, 0), Incoming::Nothing);
    assert!(requester.poll_transmit(Time(1)).is_some());
    // With a depth of 0, they are not possible.
    let mut world = World::new(Scenario { rd_atomic: 0, ..Scenario::default() });
    world.hosts[A].flush(0, 8);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::LocQpOpErr]);
}

#[test]
fn an_answer_of_another_kind_ends_the_queue() {
    for (operation, payload) in
        [(W::ReadResponseOnly, 8), (W::ReadResponseFirst, 0), (W::ReadResponseLast, 0), (W::AtomicAcknowledge, 0)]
    {
        let mut world = World::new(Scenario::default());
        world.hosts[A].atomic_write(0, 1);
        let requester = &mut world.hosts[A].requester;
        assert!(requester.poll_transmit(Time(0)).is_some());
        let got = requester.handle_response(Time(1), &answer(operation, 100, Syndrome::ACK), payload);
        assert_eq!((got, requester.fatal()), (Incoming::Nothing, Some(Status::BadRespErr)), "{operation}");
    }
    // A plain ACK says only that the answer was lost.
    let mut world = World::new(Scenario::default());
    world.hosts[A].flush(0, 8);
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    assert_eq!(requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::ACK), 0), Incoming::Nothing);
    assert_eq!((requester.fatal(), requester.outstanding()), (None, 1));
    assert!(requester.poll_transmit(Time(2)).is_some(), "once more");
}

#[test]
fn they_are_of_reliable_connections_alone() {
    for service in [Service::Uc, Service::Ud, Service::XrcIni] {
        for operation in [Operation::AtomicWrite, Operation::Flush] {
            let mut world = World::new(Scenario { service, ..Scenario::default() });
            world.hosts[A].post(SendOp { operation, ..SendOp::default() }, vec![0; 8]);
            world.run();
            assert_eq!(world.hosts[A].statuses(), [Status::LocQpOpErr], "{operation} on {service}");
            assert_eq!(world.sent.len(), 0);
        }
    }
}

/// A placement to both needs both rights. Each selectivity is valid with each placement.
#[test]
fn a_flush_needs_the_right_to_each_of_its_placements() {
    let both = placement::GLOBAL | placement::PERSISTENT;
    for (placement, right) in [(placement::GLOBAL, 0x100), (placement::PERSISTENT, 0x200), (both, 0x300)] {
        for selection in [selectivity::RANGE, selectivity::REGION] {
            let mut responder = responder(1);
            responder.set_access(Access(right));
            let step = responder.handle(&flush(0, 8, placement, selection), 0);
            let region = selection == selectivity::REGION;
            assert_eq!(step, Step::Flush { va: BASE, rkey: RKEY, len: 8, region, access: Access(right) });
        }
        let unknown = Feth { placement, selectivity: 2 };
        assert!(matches!(Access::for_flush(unknown), Err(Fault::Placement { feth }) if feth == unknown));
    }
}
