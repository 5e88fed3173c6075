//! UC and UD: a request is complete as soon as it is sent. Losses are not repaired, and lose whole
//! messages.

use crate::packet::OneByOne;
use crate::world::{A, B, Scenario, World};
use softhca_protocol::{Fault, Operation, SendOp, Service, Status, Time};
use wire::{Operation as W, Psn};

fn world(service: Service) -> World {
    World::new(Scenario { service, ..Scenario::default() })
}

#[test]
fn uc_messages_arrive_and_are_not_answered() {
    let mut world = world(Service::Uc);
    world.hosts[B].receives.extend([5000; 3]);
    world.hosts[A].send(&[1; 3000]);
    world.hosts[A].write(0, &[2; 2000]);
    world.hosts[A].send(&[]);
    world.run();
    let expected = [W::SendFirst, W::SendMiddle, W::SendLast, W::WriteFirst, W::WriteLast, W::SendOnly];
    assert_eq!(world.operations(A), expected);
    assert!(world.sent.iter().all(|sent| sent.0 == A && !sent.1.ack_req));
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 3]);
    assert_eq!(world.hosts[B].received[0].0, [1; 3000]);
    assert_eq!(world.hosts[B].memory[..2000], [2; 2000]);
}

#[test]
fn a_uc_message_that_lacks_a_packet_is_lost_and_its_receive_request_serves_the_next() {
    for n in 0..3 {
        let mut world = world(Service::Uc);
        world.hosts[B].receives.push_back(5000);
        world.lose_nth(A, n, |_| true);
        world.hosts[A].send(&[1; 3000]);
        world.hosts[A].send(&[2; 3000]);
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::Success; 2], "sent is complete");
        assert_eq!(world.hosts[B].received.len(), 1, "packet {n} lost");
        assert_eq!(world.hosts[B].received[0].0, [2; 3000]);
        assert_eq!(world.hosts[B].responder.expected_psn(), Psn::new(106));
    }
}

#[test]
fn a_uc_message_without_a_receive_request_is_lost_whole() {
    let mut world = world(Service::Uc);
    world.hosts[A].send(&[1; 3000]);
    world.run();
    assert_eq!(world.hosts[B].ignored.len(), 2, "its middle and its end");
    assert!(matches!(world.hosts[B].ignored[0], Fault::Abandoned { .. }));
    world.hosts[B].receives.push_back(5000);
    world.hosts[A].send(&[2; 3000]);
    world.run();
    assert_eq!(world.hosts[B].received[0].0, [2; 3000]);
}

#[test]
fn a_uc_message_that_does_not_fit_is_abandoned() {
    let mut world = world(Service::Uc);
    world.hosts[A].post(SendOp { operation: Operation::Write, rkey: 0xbad, ..SendOp::default() }, vec![0; 3000]);
    world.hosts[A].write(0, b"next");
    world.run();
    assert_eq!(&world.hosts[B].memory[..4], b"next");
    assert_eq!(world.hosts[B].responder.dead(), None);
}

#[test]
fn every_uc_message_under_loss_is_whole_or_absent() {
    for seed in 1..20 {
        let base = Scenario { service: Service::Uc, seed, psn: 0xff_fff0, path_full: 10, ..Scenario::default() };
        let mut world = World::new(Scenario { loss: 5, duplication: 3, reordering: 3, ..base });
        for number in 0..60 {
            world.hosts[B].receives.push_back(5000);
            world.hosts[A].send(&vec![number; usize::from(number) * 80]);
        }
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::Success; 60]);
        for (bytes, end) in &world.hosts[B].received {
            assert_eq!(bytes.len(), end.byte_len as usize);
            let number = bytes.first().copied().unwrap_or(0);
            assert_eq!(*bytes, vec![number; usize::from(number) * 80], "seed {seed}");
        }
        assert!(world.hosts[B].received.len() > 20, "seed {seed}");
    }
}

#[test]
fn ud_datagrams_carry_their_sender_and_key() {
    let mut world = world(Service::Ud);
    world.hosts[B].receives.extend([2000; 2]);
    world.hosts[A].send(b"datagram");
    world.hosts[A].post(SendOp { operation: Operation::SendImm, imm: 5, ..SendOp::default() }, Vec::new());
    world.run();
    let deth = world.sent[0].1.deth;
    assert_eq!((deth.qkey, deth.src_qp.value()), (0x1111, 0x11));
    assert_eq!(world.hosts[B].received[0].0, b"datagram");
    assert_eq!(world.hosts[B].received[1].1.imm, Some(5));
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
}

#[test]
fn a_datagram_with_another_key_is_dropped() {
    let mut world = world(Service::Ud);
    world.hosts[B].receives.push_back(100);
    world.hosts[B].responder.set_qkey(0x2222);
    world.hosts[A].send(b"datagram");
    world.run();
    assert_eq!(world.hosts[B].received.len(), 0);
    assert_eq!(world.hosts[B].ignored[0].to_string(), "received Q_Key 0x1111, expected 0x2222");
}

#[test]
fn a_failed_send_stops_the_queue_until_it_recovers() {
    let mut world = world(Service::Ud);
    world.hosts[B].receives.extend([2000; 3]);
    world.hosts[A].send(b"fits");
    world.hosts[A].send(&[0; 1025]);
    world.hosts[A].send(b"behind");
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    assert_eq!(requester.poll_transmit(Time(0)), None);
    assert!(!requester.recover(), "completions wait to be polled");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success, Status::LocLenErr, Status::WrFlushErr]);
    assert_eq!(world.hosts[A].requester.fatal(), Some(Status::LocLenErr));
    assert!(world.hosts[A].requester.recover());
    world.hosts[A].requester.drain();
    world.hosts[A].send(b"again");
    assert!(world.hosts[A].requester.drained());
    world.hosts[A].requester.resume();
    world.run();
    assert_eq!(world.hosts[A].statuses()[3..], [Status::Success]);
    assert_eq!(world.hosts[B].received[0].0, b"again");
}

#[test]
fn a_datagram_that_cannot_be_gathered_was_not_sent() {
    let mut world = world(Service::Ud);
    world.hosts[B].receives.push_back(2000);
    world.hosts[A].unreadable = Some(world.hosts[A].send(b"gone"));
    world.hosts[A].send(b"behind");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::LocProtErr, Status::WrFlushErr]);
    assert_eq!(world.sent.len(), 0);
}
