//! Which requests a responder refuses, with which NAK, and how the requester ends; and answers that
//! a requester cannot accept.

use crate::corners::{request, responder, take};
use crate::packet::{Answers, OneByOne};
use crate::world::{A, B, BASE, RKEY, Scenario, World};
use softhca_protocol::{
    Access, Fault, Nak, Operation, Outcome, Responder, ResponderConfig, SendOp, Service, State, Status, Step, Time,
};
use wire::{Headers, Opcode, Operation as W, Psn, Transport};

/// Posts a refused request between two valid ones, and compares the status and the reason.
fn refused(prepare: impl Fn(&mut World), op: SendOp, len: usize, status: Status, fault: &str) {
    let mut world = World::new(Scenario::default());
    prepare(&mut world);
    world.hosts[A].write(0, b"before");
    world.hosts[A].post(op, vec![1; len]);
    world.hosts[A].write(0, b"behind");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success, status, Status::WrFlushErr]);
    let dead = world.hosts[B].responder.dead().expect("the responder is dead");
    assert!(dead.fault.to_string().contains(fault), "{:?} is not {fault}", dead.fault.to_string());
    assert_eq!(&world.hosts[B].memory[..6], b"before", "nothing behind it is carried out");
}

fn to(operation: Operation, at: u64, rkey: u32) -> SendOp {
    SendOp { operation, remote_addr: BASE.wrapping_add(at), rkey, ..SendOp::default() }
}

#[test]
fn a_wrong_key_or_range() {
    for operation in [Operation::Write, Operation::Read] {
        for (at, rkey) in [(0, 0xbad), ((1 << 20) - 10, RKEY), (0u64.wrapping_sub(BASE), RKEY), (u64::MAX - BASE, RKEY)]
        {
            refused(|_| {}, to(operation, at, rkey), 11, Status::RemAccessErr, "did not fit");
        }
    }
    refused(|_| {}, to(Operation::FetchAdd, 1 << 20, RKEY), 8, Status::RemAccessErr, "did not fit");
}

#[test]
fn a_message_longer_than_its_receive_request() {
    let prepare = |world: &mut World| world.hosts[B].receives.push_back(10);
    refused(prepare, SendOp::default(), 11, Status::RemInvReqErr, "did not fit");
    refused(prepare, SendOp::default(), 5000, Status::RemInvReqErr, "did not fit");
}

#[test]
fn an_operation_that_the_access_flags_forbid() {
    let only = |access: Access| {
        move |world: &mut World| world.hosts[B].responder.set_access(Access(access.0 | Access::REMOTE_WRITE.0))
    };
    let all = Status::RemInvReqErr;
    refused(
        only(Access::REMOTE_ATOMIC),
        to(Operation::Read, 0, RKEY),
        8,
        all,
        "RDMA READ request, but the QP's access flags 0xa do not allow it",
    );
    refused(only(Access::REMOTE_READ), to(Operation::FetchAdd, 0, RKEY), 8, all, "access flags 0x6 do not allow it");
    refused(only(Access::REMOTE_READ), to(Operation::CmpSwap, 0, RKEY), 8, all, "received RC compare and swap");

    let mut world = World::new(Scenario::default());
    world.hosts[B].responder.set_access(Access(0));
    world.hosts[A].write(0, b"data");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::RemInvReqErr]);
}

#[test]
fn an_atomic_that_is_not_aligned() {
    refused(
        |_| {},
        to(Operation::FetchAdd, 4, RKEY),
        8,
        Status::RemInvReqErr,
        "0x100004, which is not a multiple of 8",
    );
}

#[test]
fn reads_where_none_were_agreed_or_more_than_were() {
    let none = |world: &mut World| world.hosts[B].responder.set_max_dest_rd_atomic(0);
    refused(none, to(Operation::Read, 0, RKEY), 8, Status::RemInvReqErr, "max_dest_rd_atomic, which is 0");

    // The requester sends four at once, and the responder remembers one: the second arrives before
    // the first is answered.
    let mut world = World::new(Scenario::default());
    world.hosts[B].responder.set_max_dest_rd_atomic(1);
    world.hosts[A].read(0, 8);
    world.hosts[A].read(0, 8);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success, Status::RemInvReqErr]);
}

#[test]
fn memory_that_goes_away_under_a_read() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].read((1 << 20) - 4096, 4096);
    let now = world.now;
    let request = world.hosts[A].requester.poll_transmit(now).expect("a request");
    let host = &mut world.hosts[B];
    let Step::Read { .. } = host.responder.handle(&request.headers, 0) else { panic!("a READ") };
    host.responder.finish(Outcome::Done);
    host.memory.truncate((1 << 20) - 2048);
    world.run();
    assert_eq!(world.operations(B), [W::ReadResponseFirst, W::ReadResponseMiddle, W::Acknowledge]);
    assert_eq!(world.hosts[A].statuses(), [Status::RemAccessErr]);
    assert!(world.hosts[B].responder.dead().is_some());
}

#[test]
fn a_repeated_read_of_memory_that_was_closed_meanwhile_is_let_drop() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].read((1 << 20) - 8, 8);
    world.run();
    let repetition = world.sent[0].1;
    world.hosts[B].memory.truncate(8);
    let responder = &mut world.hosts[B].responder;
    assert_eq!(responder.handle(&repetition, 0), Step::Reply);
    world.run();
    assert_eq!(world.hosts[B].responder.dead(), None);
    assert_eq!(world.operations(B).len(), 1);
}

#[test]
fn every_nak_of_the_executor_has_its_status() {
    for (nak, status) in [
        (Nak::InvalidRequest, Status::RemInvReqErr),
        (Nak::RemoteAccess, Status::RemAccessErr),
        (Nak::RemoteOperational, Status::RemOpErr),
    ] {
        let mut world = World::new(Scenario::default());
        world.hosts[A].write(0, &[1; 3000]);
        let now = world.now;
        // The second packet is refused, so its request fails.
        for outcome in [Outcome::Done, Outcome::Refused(nak)] {
            let packet = world.hosts[A].requester.poll_transmit(now).expect("a packet");
            let responder = &mut world.hosts[B].responder;
            let Step::Write { .. } = responder.handle(&packet.headers, packet.len) else { panic!("a WRITE") };
            responder.finish(outcome);
        }
        world.run();
        assert_eq!(world.hosts[A].statuses(), [status]);
    }
}

/// Requests as (operation, packet number counted from the first, payload, RETH length).
type Requests<'a> = &'a [(W, u32, u32, u32)];

/// An RC responder's step for the last of some requests. The requests before it are in order.
fn last_step(requests: Requests<'_>) -> (Step, Responder) {
    let mut responder = Responder::new(Service::Rc);
    responder.configure(ResponderConfig {
        mtu: 1024,
        rq_psn: Psn::new(0xff_ffff),
        max_dest_rd_atomic: 1,
        access: Access(14),
        ..ResponderConfig::default()
    });
    let mut last = Step::Reply;
    for &(operation, number, payload, len) in requests {
        let headers = Headers {
            opcode: Opcode::new(Transport::Rc, operation),
            psn: Psn::new(0xff_ffff) + number,
            ack_req: true,
            reth: wire::Reth { va: BASE, rkey: RKEY, len },
            ..Headers::default()
        };
        last = responder.handle(&headers, payload);
        responder.finish(Outcome::Done);
    }
    (last, responder)
}

#[test]
fn packets_that_do_not_follow_each_other() {
    let wrong: &[Requests<'_>] = &[
        &[(W::SendMiddle, 0, 1024, 0)],
        &[(W::SendLast, 0, 10, 0)],
        &[(W::WriteMiddle, 0, 1024, 0)],
        &[(W::WriteLastImm, 0, 10, 0)],
        &[(W::SendFirst, 0, 1024, 0), (W::SendFirst, 1, 1024, 0)],
        &[(W::SendFirst, 0, 1024, 0), (W::SendOnly, 1, 10, 0)],
        &[(W::SendFirst, 0, 1024, 0), (W::WriteLast, 1, 10, 0)],
        &[(W::SendFirst, 0, 1024, 0), (W::ReadRequest, 1, 0, 10)],
        &[(W::WriteFirst, 0, 1024, 2000), (W::SendLast, 1, 976, 0)],
        &[(W::WriteFirst, 0, 1024, 2000), (W::FetchAdd, 1, 0, 0)],
    ];
    for requests in wrong {
        let (step, mut responder) = last_step(requests);
        assert_eq!(step, Step::Reply, "{requests:?}");
        let refusal = *responder.dead().expect("refused");
        assert_eq!(refusal.nak, Nak::InvalidRequest);
        assert!(matches!(refusal.fault, Fault::Order { .. }), "{requests:?}: {}", refusal.fault);
        let nak = responder.poll_transmit().expect("a NAK").headers;
        assert_eq!((nak.aeth.syndrome.as_u8(), nak.psn), (0x61, Psn::new(0xff_ffff) + (requests.len() as u32 - 1)));
        assert_eq!(responder.poll_transmit(), None);
    }
}

#[test]
fn lengths_that_do_not_fit() {
    let wrong: &[Requests<'_>] = &[
        &[(W::SendFirst, 0, 1023, 0)],
        &[(W::SendFirst, 0, 1025, 0)],
        &[(W::SendOnly, 0, 1025, 0)],
        &[(W::SendFirst, 0, 1024, 0), (W::SendMiddle, 1, 1000, 0)],
        &[(W::SendFirst, 0, 1024, 0), (W::SendLast, 1, 0, 0)],
        &[(W::WriteOnly, 0, 10, 11)],
        &[(W::WriteOnly, 0, 10, 9)],
        &[(W::WriteFirst, 0, 1024, 1024)],
        &[(W::WriteFirst, 0, 1024, 2000), (W::WriteMiddle, 1, 1024, 0)],
        &[(W::WriteFirst, 0, 1024, 2000), (W::WriteLast, 1, 975, 0)],
        &[(W::WriteFirst, 0, 1024, 2000), (W::WriteLast, 1, 977, 0)],
        &[(W::WriteFirst, 0, 1024, (1 << 31) + 1)],
        &[(W::ReadRequest, 0, 0, (1 << 31) + 1)],
        &[(W::ReadRequest, 0, 1, 8)],
    ];
    for requests in wrong {
        let (step, responder) = last_step(requests);
        assert_eq!(step, Step::Reply, "{requests:?}");
        let refusal = responder.dead().expect("refused");
        assert!(matches!(refusal.fault, Fault::Length { .. }), "{requests:?}: {}", refusal.fault);
        assert_eq!(refusal.fault.receive_status(), Status::LocLenErr);
    }
}

#[test]
fn a_repeated_read_that_is_another_one_is_dropped() {
    let first = (W::ReadRequest, 0, 0, 3000);
    for (repetition, known) in [
        ((W::ReadRequest, 0, 0, 3000), true),
        ((W::ReadRequest, 0, 0, 1000), true),
        ((W::ReadRequest, 0, 0, 3001), false),
        ((W::ReadRequest, 1, 0, 1976), false), // from the same address
        ((W::FetchAdd, 0, 0, 0), false),
    ] {
        let (step, _) = last_step(&[first, repetition]);
        assert_eq!(step == Step::Reply, known, "{repetition:?}");
        assert_eq!(matches!(step, Step::Ignore(Fault::Forgotten { .. })), !known);
    }
}

#[test]
fn packets_of_another_service_or_of_no_request_are_dropped() {
    let (step, _) = last_step(&[(W::Acknowledge, 0, 0, 0)]);
    assert!(matches!(step, Step::Ignore(Fault::Service { .. })));
    let mut responder = Responder::new(Service::Uc);
    let Step::Ignore(fault) = responder.handle(&Headers::default(), 0) else { panic!("RC on UC") };
    assert_eq!(fault.to_string(), "received RC SEND first on a UC QP");
}

#[test]
fn answers_that_no_requester_can_accept() {
    let answer = |operation, len, expected: Status| {
        let mut world = World::new(Scenario::default());
        world.hosts[A].read(0, 3000);
        let requester = &mut world.hosts[A].requester;
        let request = requester.poll_transmit(Time(0)).expect("a request");
        let headers = Headers { opcode: Opcode::new(Transport::Rc, operation), ..request.headers };
        let _ = requester.handle_response(Time(0), &headers, len);
        assert_eq!(requester.fatal(), Some(expected), "{}", requester.failure().expect("failed").reason);
    };
    answer(W::ReadResponseOnly, 1024, Status::BadRespErr);
    answer(W::ReadResponseLast, 1024, Status::BadRespErr);
    answer(W::AtomicAcknowledge, 0, Status::BadRespErr);
    answer(W::ReadResponseFirst, 1023, Status::LocLenErr);
    answer(W::ReadResponseFirst, 1025, Status::LocLenErr);
}

#[test]
fn operations_that_a_service_does_not_have() {
    for (service, operation) in [
        (Service::Uc, Operation::Read),
        (Service::Uc, Operation::CmpSwap),
        (Service::Uc, Operation::SendInv),
        (Service::Ud, Operation::Write),
    ] {
        let mut world = World::new(Scenario { service, ..Scenario::default() });
        world.hosts[A].post(to(operation, 0, RKEY), vec![0; 8]);
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::LocQpOpErr], "{operation} on {service}");
    }
    let mut world = World::new(Scenario { rd_atomic: 0, ..Scenario::default() });
    world.hosts[A].read(0, 8);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::LocQpOpErr]);
}

/// The longest RDMA WRITE and READ, and one byte more.
#[test]
fn a_request_for_more_than_two_gigabytes_is_refused() {
    for operation in [W::WriteFirst, W::ReadRequest, W::Flush] {
        for (length, dies) in [(1 << 31, false), ((1 << 31) + 1, true)] {
            let mut responder = responder(1);
            responder.set_access(Access(14 | Access::FLUSH_GLOBAL.0));
            let mut headers = request(operation, 0, 0, length);
            headers.feth.placement = wire::feth::placement::GLOBAL;
            let _ = responder.handle(&headers, if operation == W::WriteFirst { 1024 } else { 0 });
            assert_eq!(responder.dead().is_some(), dies, "{length} bytes, {operation:?}");
        }
    }
}

#[test]
fn a_message_that_begins_within_another_is_refused() {
    for (open, inner) in [(W::WriteFirst, W::WriteFirst), (W::WriteFirst, W::WriteOnly), (W::SendFirst, W::SendOnly)] {
        let mut responder = responder(1);
        let _ = take(&mut responder, &request(open, 0, 0, 2048), 1024);
        assert_eq!(responder.handle(&request(inner, 1, 0, 2048), 1024), Step::Reply);
        let fault = responder.dead().map(|refusal| refusal.fault);
        assert!(matches!(fault, Some(Fault::Order { .. })), "{inner:?} in {open:?}: {fault:?}");
    }
}

/// A request that is refused here is never sent, and its failure is not the peer's.
#[test]
fn a_failure_says_whether_the_peer_was_involved_and_what_to_do() {
    let too_long = SendOp { operation: Operation::Write, length: (1 << 31) + 1, ..SendOp::default() };
    let cases = [
        (Service::Rc, too_long, Status::LocLenErr),
        (Service::Rc, SendOp { operation: Operation::Send, ..too_long }, Status::LocLenErr),
        (Service::Ud, SendOp { length: 1025, ..SendOp::default() }, Status::LocLenErr),
        (Service::Uc, SendOp { operation: Operation::SendInv, ..SendOp::default() }, Status::LocQpOpErr),
        (Service::Uc, SendOp { operation: Operation::Read, ..SendOp::default() }, Status::LocQpOpErr),
    ];
    for (service, op, status) in cases {
        let mut world = World::new(Scenario { service, ..Scenario::default() });
        let requester = &mut world.hosts[A].requester;
        requester.post(op).expect("room");
        assert_eq!(requester.poll_transmit(Time(0)), None);
        let failure = requester.failure().expect("it is refused");
        assert_eq!((failure.status, failure.reason.is_of_peer()), (status, false));
        assert!(failure.reason.advice().is_some_and(|advice| advice.len() > 10), "{}", failure.reason);
    }
    let mut world = World::new(Scenario::default());
    world.hosts[B].responder.set_access(Access(0));
    world.hosts[A].write(0, b"data");
    world.run();
    let reason = world.hosts[A].requester.failure().expect("the peer refused it").reason;
    assert!(reason.is_of_peer() && reason.advice().is_some_and(|advice| advice.contains("the peer's reasons")));
    let fault = world.hosts[B].responder.dead().expect("refused").fault;
    assert!(fault.advice().is_some_and(|advice| advice.contains("qp_access_flags")));
    let mut world = World::new(Scenario::default());
    world.hosts[A].requester.flush();
    let reason = world.hosts[A].requester.failure().expect("flushed").reason;
    assert_eq!((reason.is_of_peer(), reason.advice()), (false, None));
}

/// The receive request that the refused message had taken.
#[test]
fn the_status_of_a_receive_request_follows_from_the_fault() {
    let opcode = Opcode::new(Transport::Rc, W::SendOnly);
    for (fault, status, number) in [
        (Fault::Length { opcode, got: 9, mtu: 8 }, Status::LocLenErr, 1),
        (Fault::Executor, Status::LocAccessErr, 8),
        (Fault::Order { opcode }, Status::RemInvReqErr, 9),
    ] {
        assert_eq!((fault.receive_status(), status.as_u32()), (status, number));
    }
    assert_eq!((Service::Rc.after_send_error(), Service::Ud.after_send_error()), (State::Err, State::Sqe));
}
