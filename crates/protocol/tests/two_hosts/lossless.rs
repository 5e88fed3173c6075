//! A lossless path: no timer runs until the path itself reports a loss.

use crate::corners::answer;
use crate::packet::OneByOne;
use crate::world::{A, B, Scenario, World};
use softhca_protocol::{Requester, Status, Time, timeout};
use wire::{NakCode, Operation as W, Psn, Syndrome};

fn world() -> World {
    World::new(Scenario { lossless: true, retry_cnt: 3, ..Scenario::default() })
}

#[test]
fn nothing_is_timed_while_nothing_is_lost() {
    let mut world = world();
    world.hosts[A].write(0, b"data");
    world.hosts[A].read(0, 8);
    let now = world.now;
    while world.hosts[A].requester.poll_transmit(now).is_some() {}
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
    // These packets are lost without a report. The requester waits for ever, because a slow peer
    // may take that long.
    world.run();
    assert_eq!(world.hosts[A].completions.len(), 0);
    world.hosts[A].requester.note_loss(now);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
}

#[test]
fn a_peer_that_is_gone_ends_the_connection_within_the_retry_time() {
    let mut world = world();
    world.hosts[B].serves = false;
    world.hosts[A].write(0, b"data");
    world.hosts[A].write(0, b"behind");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::RetryExcErr, Status::WrFlushErr]);
    assert_eq!(world.count(A, W::WriteOnly), 8);
    // The first report comes after 2 µs. From then on the timer runs by itself.
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
    let retry_time = 4 * timeout(10).expect("a time");
    assert!((Time(2_000 + retry_time)..=Time(10_000 + retry_time)).contains(&world.now), "{:?}", world.now);
}

#[test]
fn a_peer_that_comes_in_time_serves() {
    let mut world = world();
    world.hosts[B].serves = false;
    world.serve_later(B, timeout(10).expect("a time") + 5_000);
    world.hosts[A].write(0, b"data");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
    assert_eq!(world.count(A, W::WriteOnly), 3);
    // Everything is answered, so the path counts as lossless again.
    world.hosts[A].write(0, b"more");
    let now = world.now;
    assert!(world.hosts[A].requester.poll_transmit(now).is_some());
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
}

#[test]
fn a_loss_in_the_middle_is_repaired() {
    for n in 0..8 {
        let mut world = world();
        world.lose_nth(A, n, |_| true);
        world.hosts[B].receives.extend([5000; 2]);
        world.hosts[A].send(&[7; 5000]);
        world.hosts[A].read(0, 5000);
        world.hosts[A].send(&[8; 100]);
        world.hosts[A].fetch_add(0, 1);
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::Success; 4], "packet {n} lost");
        assert_eq!((world.hosts[B].received.len(), world.hosts[B].atomics), (2, 1));
        assert_eq!(world.hosts[A].requester.poll_timeout(), None);
    }
}

#[test]
fn a_notice_when_nothing_is_under_way_means_nothing() {
    let mut world = world();
    world.hosts[A].write(0, b"data");
    world.run();
    let now = world.now;
    world.hosts[A].requester.note_loss(now);
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
}

/// The caller may read its clock only while a timer runs, or for a NAK. So whenever a timer must be
/// started, one runs already; the loss itself is the only exception.
#[test]
fn after_a_loss_the_timer_runs_without_a_gap_until_all_is_answered() {
    let mut world = world();
    world.hosts[A].write(0, b"data");
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    requester.note_loss(Time(1_000_000));
    let period = timeout(10).expect("a time");
    for round in 1..=3 {
        let expiry = Time(1_000_000 + round * period);
        assert_eq!(requester.poll_timeout(), Some(expiry));
        requester.handle_timeout(expiry);
        assert!(requester.poll_timeout().is_some());
        assert!(requester.poll_transmit(Time(0)).is_some());
    }
    let ready_again = Time(1_000_000 + 4 * period);
    let mut rnr = wire::Headers { psn: wire::Psn::new(100), ..wire::Headers::default() };
    rnr.opcode.operation = W::Acknowledge;
    rnr.aeth.syndrome = wire::Syndrome::RnrNak(1);
    let _ = requester.handle_response(Time(ready_again.0 - 10_000), &rnr, 0);
    requester.handle_timeout(ready_again);
    assert_eq!(requester.poll_timeout(), Some(ready_again.after(period)));
}

#[test]
fn a_path_that_is_full_uses_up_no_retries() {
    let mut world = World::new(Scenario { retry_cnt: 1, ..Scenario::default() });
    world.hosts[A].write(0, b"data");
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    for _ in 0..10 {
        let expiry = requester.poll_timeout().expect("a timer");
        requester.handle_timeout(expiry);
        assert!(requester.poll_run(expiry).is_some());
    }
    assert_eq!(requester.fatal(), None);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

/// An ACK is handled at once only while the requester waits for nothing else and retransmits
/// nothing.
#[test]
fn any_disturbance_keeps_an_ack_from_being_handled_at_once() {
    type Disturb = fn(&mut Requester);
    let disturbances: [(&str, Disturb); 8] = [
        ("a lossy path", |requester| requester.set_lossless(false)),
        ("a loss", |requester| requester.note_loss(Time(1))),
        ("a retransmission", |requester| hear(requester, Syndrome::Nak(NakCode::PsnSequence))),
        ("a receiver that is not ready", |requester| hear(requester, Syndrome::RnrNak(1))),
        ("credits", |requester| hear(requester, Syndrome::Ack(5))),
        ("a path that has failed", |requester| {
            requester.set_migration(false, true);
            requester.set_retry_cnt(0);
            hear(requester, Syndrome::Nak(NakCode::PsnSequence));
        }),
        ("draining", Requester::drain),
        ("a request that fails", |requester| requester.fail_next(Status::LocProtErr)),
    ];
    for (what, disturb) in [("nothing", (|_| {}) as Disturb)].into_iter().chain(disturbances) {
        let mut world = world();
        for _ in 0..3 {
            world.hosts[A].write(0, b"data");
        }
        let requester = &mut world.hosts[A].requester;
        for _ in 0..2 {
            assert!(requester.poll_transmit(Time(0)).is_some());
        }
        disturb(requester);
        let is_undisturbed = what == "nothing";
        assert_eq!(requester.is_undisturbed(), is_undisturbed, "{what}");
        assert_eq!(requester.handle_ack(Time(2), Psn::new(101)), is_undisturbed, "{what}");
    }
}

fn hear(requester: &mut Requester, syndrome: Syndrome) {
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, syndrome), 0);
}
