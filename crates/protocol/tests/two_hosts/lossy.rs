//! A path that was lossless and starts to lose packets: from then on the timers run, also for
//! packets under way. They run for nothing else.

use crate::corners::answer;
use crate::packet::OneByOne;
use crate::world::{A, Scenario, World};
use softhca_protocol::{Service, Time, timeout};
use wire::{Operation as W, Syndrome};

const NOW: Time = Time(1_000);

fn lossless(service: Service) -> World {
    let mut world = World::new(Scenario { service, lossless: true, ..Scenario::default() });
    world.hosts[A].send(b"data");
    world
}

#[test]
fn packets_under_way_are_timed_with_the_new_patience_and_probes() {
    let once = timeout(10).expect("a time");
    for (probe_after, expected) in [(0, 3 * once), (700, 700)] {
        let mut world = lossless(Service::Rc);
        let requester = &mut world.hosts[A].requester;
        assert!(requester.poll_transmit(Time(0)).is_some());
        assert_eq!(requester.poll_timeout(), None);
        requester.set_lossy(NOW, 3, probe_after);
        assert_eq!(requester.poll_timeout(), Some(NOW.after(expected)));
    }
}

#[test]
fn packets_that_are_sent_later_are_timed_too() {
    let mut world = lossless(Service::Rc);
    let requester = &mut world.hosts[A].requester;
    requester.set_lossy(NOW, 1, 0);
    assert_eq!(requester.poll_timeout(), None, "nothing is under way");
    assert!(requester.poll_transmit(NOW).is_some() && requester.poll_timeout().is_some());
}

#[test]
fn the_wait_for_a_receiver_stays_as_it_is() {
    let mut world = lossless(Service::Rc);
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
    requester.set_lossy(NOW, 1, 0);
    assert_eq!(requester.poll_timeout(), Some(Time(10_001)));
}

#[test]
fn neither_a_stopped_queue_nor_an_unreliable_one_runs_a_timer() {
    let mut stopped = lossless(Service::Rc);
    let requester = &mut stopped.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    requester.flush();
    let mut unreliable = lossless(Service::Uc);
    assert!(unreliable.hosts[A].requester.poll_transmit(Time(0)).is_some());
    for world in [&mut stopped, &mut unreliable] {
        let requester = &mut world.hosts[A].requester;
        requester.note_loss(NOW);
        assert_eq!(requester.poll_timeout(), None);
        requester.set_lossy(NOW, 1, 700);
        assert_eq!(requester.poll_timeout(), None);
    }
}

#[test]
fn an_ack_during_the_wait_for_a_receiver_starts_no_timer_on_a_lossless_path() {
    let mut world = lossless(Service::Rc);
    world.hosts[A].send(b"behind");
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
    let _ = requester.handle_response(Time(2), &answer(W::Acknowledge, 100, Syndrome::ACK), 0);
    assert_eq!((requester.under_way(), requester.poll_timeout()), (0, None));
}
