//! Attributes that change while a queue pair is in use, and what a queue says about itself: each
//! change must show in the next packet, answer or timer.

use crate::corners::{answer, request, responder, summary, take};
use crate::packet::{Answers, OneByOne};
use crate::reliable::pattern;
use crate::world::{A, Scenario, World};
use softhca_protocol::{
    Outcome, Requester, RequesterConfig, Responder, ResponderConfig, SendOp, Service, Status, Step, Time,
};
use wire::{Operation as W, Syndrome};

/// Lets the timer expire until the queue stops. Returns the number of expiries.
fn expiries(requester: &mut Requester) -> u32 {
    let mut count = 0;
    while let Some(expiry) = requester.poll_timeout() {
        requester.handle_timeout(expiry);
        while requester.poll_transmit(expiry).is_some() {}
        count += 1;
    }
    count
}

fn with_a_packet_under_way(change: impl Fn(&mut Requester)) -> World {
    let mut world = World::new(Scenario { retry_cnt: 5, ..Scenario::default() });
    world.hosts[A].send(b"data");
    change(&mut world.hosts[A].requester);
    assert!(world.hosts[A].requester.poll_transmit(Time(0)).is_some());
    world
}

#[test]
fn a_new_timeout_holds_for_the_next_timer() {
    let world = with_a_packet_under_way(|requester| requester.set_timeout(11));
    assert_eq!(world.hosts[A].requester.poll_timeout(), Some(Time(4096 << 11)));
}

#[test]
fn a_new_number_of_retries_holds_for_the_next_silence() {
    let mut world = with_a_packet_under_way(|requester| requester.set_retry_cnt(2));
    assert_eq!(expiries(&mut world.hosts[A].requester), 3);
    assert_eq!(world.hosts[A].requester.fatal(), Some(Status::RetryExcErr));
}

#[test]
fn a_new_number_of_rnr_retries_holds_for_the_next_rnr_nak() {
    let mut world = with_a_packet_under_way(|requester| requester.set_rnr_retry(0));
    let requester = &mut world.hosts[A].requester;
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
    assert_eq!(requester.fatal(), Some(Status::RnrRetryExcErr));
}

#[test]
fn a_path_that_becomes_lossless_starts_no_timer() {
    let world = with_a_packet_under_way(|requester| requester.set_lossless(true));
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
}

#[test]
fn retries_on_the_old_path_do_not_count_on_the_new_one() {
    let mut world = with_a_packet_under_way(|requester| requester.set_retry_cnt(1));
    let requester = &mut world.hosts[A].requester;
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    assert!(requester.poll_transmit(Time(0)).is_some());
    requester.begin_path();
    assert_eq!(expiries(requester), 2, "one retry, and then the failure");
}

#[test]
fn a_new_partition_is_in_the_next_packets_and_answers() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].write(0, b"data");
    let requester = &mut world.hosts[A].requester;
    requester.set_pkey(0x8001);
    assert_eq!(requester.poll_transmit(Time(0)).map(|packet| packet.headers.pkey), Some(0x8001));

    let mut responder = responder(1);
    responder.set_pkey(0x8002);
    assert_eq!(responder.pkey(), 0x8002);
    let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8);
    assert_eq!(responder.poll_transmit().map(|answer| answer.headers.pkey), Some(0x8002));
}

#[test]
fn a_new_rnr_timer_is_in_the_next_rnr_nak() {
    let mut responder = responder(1);
    responder.set_min_rnr_timer(12);
    assert!(matches!(responder.handle(&request(W::SendOnly, 0, 0, 0), 8), Step::Receive { .. }));
    responder.finish(Outcome::Rnr);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 0, 0x20 | 12)));
}

#[test]
fn a_new_mtu_limits_the_next_packet_that_arrives() {
    for (mtu, len, dies) in [(256, 256, false), (256, 257, true), (0, 1, false), (0, 2, true)] {
        let mut responder = responder(1);
        responder.set_mtu(mtu);
        let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, len), len);
        assert_eq!(responder.dead().is_some(), dies, "{len} bytes with an MTU of {mtu}");
    }
}

#[test]
fn an_mtu_that_is_no_power_of_two_is_rounded_down() {
    for (mtu, rounded) in [(0, 1), (1, 1), (1000, 512), (4096, 4096)] {
        let mut requester = Requester::new(Service::Rc, 4);
        requester.configure(RequesterConfig { mtu, ..RequesterConfig::default() });
        assert_eq!(requester.mtu(), rounded);
    }
    let mut responder = Responder::new(Service::Ud);
    responder.configure(ResponderConfig { mtu: 0, ..ResponderConfig::default() });
    let mut datagram = request(W::SendOnly, 0, 0, 0);
    datagram.opcode.transport = wire::Transport::Ud;
    assert!(matches!(responder.handle(&datagram, 1), Step::Receive { .. }), "an MTU of 0 counts as 1");
}

#[test]
fn the_mtu_of_a_requester_changes_only_between_messages() {
    let mut world = World::new(Scenario { psn: 0, ..Scenario::default() });
    world.hosts[A].write(0, &pattern(2000));
    world.hosts[A].read(0, 1500);
    let requester = &mut world.hosts[A].requester;
    let state = |requester: &mut Requester| {
        requester.set_mtu(512, 2);
        (requester.is_between_messages(), requester.mtu())
    };
    for _ in 0..2 {
        assert!(requester.poll_transmit(Time(0)).is_some());
        assert_eq!(state(requester), (false, 1024), "the WRITE is not answered");
    }
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 0, Syndrome::ACK), 0);
    assert_eq!(state(requester), (false, 1024), "half of the WRITE is answered");
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 1, Syndrome::ACK), 0);
    assert_eq!(state(requester), (true, 512));
    let pieces = std::iter::from_fn(|| requester.poll_transmit(Time(2))).map(|packet| packet.headers.reth.len);
    assert_eq!(pieces.collect::<Vec<_>>(), [1024, 476], "pieces of two packets");
    assert!(!requester.is_between_messages());
}

#[test]
fn a_message_to_be_retransmitted_keeps_the_mtu() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].write(0, &pattern(2000));
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    assert_eq!((requester.has_unsent(), requester.is_between_messages()), (true, false));
}

#[test]
fn an_unreliable_message_is_over_once_it_is_sent() {
    let mut world = World::new(Scenario { service: Service::Uc, ..Scenario::default() });
    world.hosts[A].write(0, &pattern(2000));
    let requester = &mut world.hosts[A].requester;
    assert!(requester.is_between_messages());
    assert!(requester.poll_transmit(Time(0)).is_some() && !requester.is_between_messages());
    assert!(requester.poll_transmit(Time(0)).is_some() && requester.is_between_messages());
    assert_eq!(requester.under_way(), 0, "no answer is awaited");
}

#[test]
fn requests_that_are_taken_back_were_never_posted() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].write(0, b"stays");
    let posted = world.hosts[A].requester.posted();
    world.hosts[A].write(0, b"goes");
    world.hosts[A].write(0, b"goes too");
    let requester = &mut world.hosts[A].requester;
    requester.take_back(posted);
    assert_eq!((requester.outstanding(), requester.unsent()), (1, 1));
    assert_eq!(std::iter::from_fn(|| requester.poll_transmit(Time(0))).count(), 1);
    // On a queue that has failed, a request completes at once, and does not if it is taken back.
    requester.flush();
    let posted = requester.posted();
    requester.post(SendOp { slot: 9, ..SendOp::default() }).expect("room");
    requester.take_back(posted);
    assert_eq!(std::iter::from_fn(|| requester.poll_completion()).map(|end| end.slot).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_queue_says_what_it_has_to_send() {
    let mut world = World::new(Scenario::default());
    let say = |requester: &Requester| {
        (requester.has_unsent(), requester.unsent(), requester.next_length(), requester.left_of_message())
    };
    assert_eq!(say(&world.hosts[A].requester), (false, 0, 0, 0));
    world.hosts[A].write(0, &pattern(3000));
    world.hosts[A].read(0, 5000);
    world.hosts[A].flush(0, 70);
    let requester = &mut world.hosts[A].requester;
    for (unsent, length, left) in [(3, 3000, 3), (3, 3000, 2), (3, 3000, 1), (2, 5000, 0), (1, 0, 0)] {
        assert_eq!(say(requester), (true, unsent, length, left));
        assert!(requester.poll_transmit(Time(0)).is_some());
    }
    assert_eq!(say(requester), (false, 0, 0, 0), "all of it is sent");
    assert!(!requester.has_completions());
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 102, Syndrome::ACK), 0);
    assert!(requester.has_completions());
    assert!(requester.poll_completion().is_some() && !requester.has_completions());
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    assert_eq!(say(requester), (true, 2, 5000, 0), "the READ must be retransmitted");
}

#[test]
fn a_queue_that_has_stopped_has_nothing_under_way() {
    let mut world = with_a_packet_under_way(|_| {});
    let requester = &mut world.hosts[A].requester;
    assert_eq!(requester.under_way(), 1);
    requester.flush();
    assert_eq!(requester.under_way(), 0);
}

#[test]
fn only_an_ack_alone_may_be_delayed() {
    let mut responder = responder(1);
    assert!(!responder.owes_only_ack() && !responder.has_answers());
    let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8);
    assert!(responder.owes_only_ack() && responder.has_answers());
    let _ = take(&mut responder, &request(W::ReadRequest, 1, 0, 8), 0);
    assert!(!responder.owes_only_ack() && responder.has_answers());
    let _ = take(&mut responder, &request(W::WriteOnly, 2, 0, 8), 8);
    assert!(!responder.owes_only_ack(), "an ACK behind a READ");
    assert!(responder.poll_transmit().is_some() && responder.owes_only_ack());
    let _ = take(&mut responder, &request(W::WriteOnly, 4, 0, 8), 8);
    assert!(!responder.owes_only_ack() && responder.has_answers(), "a NAK");
}
