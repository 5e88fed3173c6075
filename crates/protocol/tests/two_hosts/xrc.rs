//! Extended reliable connections: one end is the initiator, the other the target. Every request
//! names a shared receive queue; everything else is as with RC. The executor resolves the queue's
//! number. The tests show that the number comes with every request and with every READ's answer.

use crate::corners::answer;
use crate::mixed::{Expectation, READ, post};
use crate::packet::{Answers, OneByOne};
use crate::world::{A, B, BASE, RKEY, Scenario, World};
use softhca_protocol::{
    Access, Nak, Operation, Outcome, Responder, ResponderConfig, ResponseData, SendOp, Service, Status, Step, Time,
};
use wire::{Headers, NakCode, Opcode, Operation as W, Psn, Reth, Syndrome, Transport};

fn scenario() -> Scenario {
    Scenario { service: Service::XrcIni, ..Scenario::default() }
}

/// Every operation of RC, over networks that lose, duplicate and reorder packets.
#[test]
fn all_operations_from_the_initiator_to_the_target() {
    for seed in 1..=12 {
        let (loss, duplication, reordering) = [(0, 0, 0), (5, 0, 0), (3, 10, 3)][seed as usize % 3];
        let scenario = Scenario { seed, loss, duplication, reordering, psn: 0xff_ffe0, ..scenario() };
        let mut world = World::new(scenario);
        let reads = world.random.bytes(0x4_0000);
        world.hosts[B].memory[READ as usize..][..0x4_0000].copy_from_slice(&reads);
        let mut model = Expectation {
            written: vec![0; 0x4_0000],
            words: [0; 4],
            messages: Vec::new(),
            local: Vec::new(),
            atomics: 0,
            carried_out: Vec::new(),
        };
        for _ in 0..50 {
            let World { random, hosts, .. } = &mut world;
            if post(random, scenario.mtu, &mut hosts[A], &reads, &mut model) {
                world.hosts[B].receives.push_back(0x4_0000);
            }
        }
        world.run();
        let (host, peer) = (&world.hosts[A], &world.hosts[B]);
        assert_eq!(host.statuses(), [Status::Success; 50], "{scenario:?}");
        assert!(peer.memory[..0x4_0000] == model.written, "{scenario:?}");
        assert!(peer.received == model.messages, "{scenario:?}");
        assert!(host.local == model.local, "{scenario:?}");
        assert_eq!(peer.atomics, model.atomics, "{scenario:?}");
        assert!(world.sent.iter().all(|(_, headers)| headers.opcode.transport == Transport::Xrc));
    }
}

/// IBA annex A14: every packet of a request has the number, no answer has it.
#[test]
fn every_packet_of_a_request_names_the_shared_receive_queue() {
    let mut world = World::new(scenario());
    world.hosts[B].receives.push_back(5000);
    let op = SendOp { xrc_srq: 0x12345, ..SendOp::default() };
    world.hosts[A].post(op, vec![7; 3000]);
    let read = SendOp { operation: Operation::Read, remote_addr: BASE, rkey: RKEY, xrc_srq: 0x777, ..op };
    world.hosts[A].post(read, vec![0; 3000]);
    world.run();
    let named: Vec<_> = world.sent.iter().filter(|sent| sent.0 == A).map(|sent| sent.1.xrc_srq).collect();
    assert_eq!(named, [0x12345, 0x12345, 0x12345, 0x777]);
    assert!(world.sent.iter().filter(|sent| sent.0 == B).all(|sent| !sent.1.opcode.has_xrceth()));
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
}

fn target() -> Responder {
    let mut responder = Responder::new(Service::XrcTgt);
    responder.configure(ResponderConfig {
        mtu: 1024,
        rq_psn: Psn::new(7),
        max_dest_rd_atomic: 1,
        access: Access(Access::REMOTE_READ.0),
        ..ResponderConfig::default()
    });
    responder
}

fn read(transport: Transport) -> Headers {
    Headers {
        opcode: Opcode::new(transport, W::ReadRequest),
        psn: Psn::new(7),
        reth: Reth { va: BASE, rkey: RKEY, len: 8 },
        xrc_srq: 0x321,
        ..Headers::default()
    }
}

/// The key of a READ belongs to the protection domain of the queue that it names, also when the
/// READ is answered and answered again.
#[test]
fn the_answer_to_a_read_knows_which_queue_it_named() {
    let mut responder = target();
    for _ in 0..2 {
        if let Step::Read { .. } = responder.handle(&read(Transport::Xrc), 0) {
            responder.finish(Outcome::Done);
        }
        let answer = responder.poll_transmit().expect("an answer");
        assert_eq!(answer.headers.opcode, Opcode::new(Transport::Xrc, W::ReadResponseOnly));
        assert!(matches!(answer.source, ResponseData::Read { xrc_srq: 0x321, .. }), "{:?}", answer.source);
    }
}

/// A number that names no queue of the domain: NAK "invalid RD request", and its own status at the
/// requester.
#[test]
fn a_queue_of_another_domain_is_an_invalid_rd_request() {
    let mut responder = target();
    let step = responder.handle(&read(Transport::Xrc), 0);
    assert!(matches!(step, Step::Read { .. }));
    responder.finish(Outcome::Refused(Nak::InvalidRd));
    let nak = responder.poll_transmit().expect("a NAK").headers;
    assert_eq!(nak.aeth.syndrome, Syndrome::Nak(NakCode::InvalidRd));

    let mut world = World::new(scenario());
    world.hosts[A].read(0, 8);
    world.step();
    let headers = Headers { psn: Psn::new(100), dest_qp: wire::Qpn::new(0x11), ..nak };
    let _ = world.hosts[A].requester.handle_response(world.now, &headers, 0);
    world.hosts[A].complete();
    assert_eq!(world.hosts[A].statuses(), [Status::RemInvRdReqErr]);
}

/// Packets of RC mean nothing to XRC, and an initiator serves no requests.
#[test]
fn other_services_packets_are_ignored() {
    assert!(matches!(target().handle(&read(Transport::Rc), 0), Step::Ignore(_)));
    let mut initiator = Responder::new(Service::XrcIni);
    initiator.configure(ResponderConfig {
        mtu: 1024,
        rq_psn: Psn::new(7),
        max_dest_rd_atomic: 1,
        ..Default::default()
    });
    assert!(matches!(initiator.handle(&read(Transport::Xrc), 0), Step::Ignore(_)));
    let mut world = World::new(scenario());
    world.hosts[B].send(b"from the target");
    world.run();
    assert_eq!(world.hosts[B].statuses(), [Status::LocQpOpErr]);
}

/// Answers of RC mean nothing to an initiator, and answers of XRC mean nothing to RC.
#[test]
fn other_services_answers_are_ignored() {
    for (service, other) in [(Service::XrcIni, Transport::Rc), (Service::Rc, Transport::Xrc)] {
        let mut world = World::new(Scenario { service, ..Scenario::default() });
        world.hosts[A].write(0, b"data");
        let requester = &mut world.hosts[A].requester;
        assert!(requester.poll_transmit(Time(0)).is_some());
        let mut ack = answer(W::Acknowledge, 100, Syndrome::ACK);
        ack.opcode.transport = other;
        let _ = requester.handle_response(Time(1), &ack, 0);
        assert_eq!(requester.poll_completion(), None);
        ack.opcode.transport = service.transport();
        let _ = requester.handle_response(Time(1), &ack, 0);
        assert!(requester.poll_completion().is_some());
    }
}
