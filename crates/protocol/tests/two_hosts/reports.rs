//! Which answers report a loss, and when: a repetition of a report counts for nothing, a report of
//! another loss counts. The response time that this rests on is measured from answers.

use crate::corners::answer;
use crate::packet::OneByOne;
use crate::reliable::pattern;
use crate::world::{A, Scenario, World};
use softhca_protocol::{Incoming, Requester, Time, timeout};
use wire::{NakCode, Operation as W, Syndrome};

/// One retry may wait for an answer this long.
const LONG_WAIT: u64 = 4096 << 14;

fn world() -> World {
    World::new(Scenario { timeout: 14, ..Scenario::default() })
}

fn burst(requester: &mut Requester, now: u64) -> usize {
    std::iter::from_fn(|| requester.poll_transmit(Time(now))).count()
}

fn hear(requester: &mut Requester, now: u64, psn: u32, syndrome: Syndrome) {
    let _ = requester.handle_response(Time(now), &answer(W::Acknowledge, psn, syndrome), 0);
}

const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

/// The first report takes 30 µs, so the response time counts as 15 µs. The pause is half of it,
/// and doubles with each retry.
#[test]
fn a_report_counts_again_once_the_pause_is_over() {
    let mut world = world();
    world.hosts[A].write(0, &pattern(5000));
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester, 0), 5);
    for (now, losses) in [(30_000, 1), (37_499, 1), (37_500, 2), (52_499, 2), (52_500, 3), (82_499, 3), (82_500, 4)] {
        hear(requester, now, 102, NAK);
        assert_eq!(requester.losses(), losses, "at {now}");
        let _ = burst(requester, now);
    }
}

/// The first report of a loss says enough: one that comes too early to be of a second loss starts
/// no timer. Later the peer may report another loss only once, so an early report counts at the end
/// of the pause.
#[test]
fn an_early_report_counts_at_the_end_of_the_pause_after_the_second_retry() {
    let mut world = world();
    world.hosts[A].write(0, &pattern(5000));
    let requester = &mut world.hosts[A].requester;
    let _ = burst(requester, 0);
    hear(requester, 30_000, 100, NAK);
    let _ = burst(requester, 30_000);
    hear(requester, 37_499, 100, NAK);
    assert_eq!(requester.poll_timeout(), Some(Time(30_000 + LONG_WAIT)));
    hear(requester, 37_500, 100, NAK);
    hear(requester, 37_500, 100, NAK);
    assert_eq!(requester.poll_timeout(), Some(Time(37_500 + LONG_WAIT)), "nothing is retransmitted yet");
    let _ = burst(requester, 37_500);
    hear(requester, 40_000, 100, NAK);
    assert_eq!((requester.losses(), requester.poll_timeout()), (2, Some(Time(52_500))));
    requester.handle_timeout(Time(52_500));
    assert_eq!(requester.losses(), 3);
}

/// The pause begins with the packet that was lost, not with those behind it.
#[test]
fn the_pause_begins_with_the_first_packet_that_is_retransmitted() {
    let mut world = world();
    world.hosts[A].write(0, &pattern(5000));
    let requester = &mut world.hosts[A].requester;
    let _ = burst(requester, 0);
    hear(requester, 30_000, 102, NAK);
    assert!(requester.poll_transmit(Time(30_000)).is_some());
    assert_eq!(burst(requester, 37_000), 2);
    hear(requester, 37_500, 102, NAK);
    assert_eq!(requester.losses(), 2);
}

/// What the NAK names is all that the responder had. An ACK of more is therefore news, and a READ
/// or atomic that it passes is lost.
#[test]
fn an_ack_of_more_than_a_nak_named_reports_the_loss_of_an_atomic() {
    let mut world = world();
    for _ in 0..2 {
        world.hosts[A].write(0, b"data");
        world.hosts[A].fetch_add(0, 1);
    }
    world.hosts[A].write(0, b"data");
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester, 0), 5);
    hear(requester, 30_000, 101, NAK);
    assert_eq!((requester.losses(), burst(requester, 30_000)), (1, 4));
    let first = answer(W::AtomicAcknowledge, 101, Syndrome::ACK);
    assert!(matches!(requester.handle_response(Time(60_000), &first, 0), Incoming::PlaceAtomic { .. }));
    requester.placed(Time(60_000), Ok(()));
    hear(requester, 61_000, 104, Syndrome::ACK);
    assert_eq!((requester.losses(), requester.under_way()), (2, 0), "the second atomic is requested again");
}

/// Probes start after four times the shortest time in which an answer came.
#[test]
fn the_response_time_is_that_of_the_packet_that_was_timed() {
    let mut world = World::new(Scenario { timeout: 14, probe_after: 1_000, ..Scenario::default() });
    for _ in 0..4 {
        world.hosts[A].write(0, b"data");
    }
    let requester = &mut world.hosts[A].requester;
    for now in [0, 10_000] {
        assert!(requester.poll_transmit(Time(now)).is_some());
    }
    hear(requester, 40_000, 100, Syndrome::ACK);
    hear(requester, 200_000, 101, Syndrome::ACK);
    assert!(requester.poll_transmit(Time(300_000)).is_some());
    assert_eq!(requester.poll_timeout(), Some(Time(300_000 + 4 * 40_000)));
    hear(requester, 330_000, 102, Syndrome::ACK);
    assert!(requester.poll_transmit(Time(400_000)).is_some());
    assert_eq!(requester.poll_timeout(), Some(Time(400_000 + 4 * 30_000)), "the shortest counts");
}

/// The caller's timer may be late. Until it tells of the timeout, an answer may still come.
#[test]
fn polling_for_packets_handles_no_timeout() {
    let mut world = world();
    world.hosts[A].write(0, b"data");
    world.hosts[A].write(0, b"behind");
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    let late = Time(2 * LONG_WAIT);
    let next = requester.poll_transmit(late).expect("the second request");
    assert_eq!((next.headers.psn.value(), requester.losses()), (101, 0));
    assert_eq!(requester.poll_timeout(), Some(Time(timeout(14).expect("a time"))));
}
