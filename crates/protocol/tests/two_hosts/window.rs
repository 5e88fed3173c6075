//! The window: never more than the window is under way, also after retransmission, and never so
//! little that the queue stops.

use crate::corners::answer;
use crate::packet::OneByOne;
use crate::reliable::pattern;
use crate::world::{A, B, Scenario, World};
use softhca_protocol::{Requester, Status, Time};
use wire::{NakCode, Operation as W, Syndrome};

fn world(window: u32) -> World {
    World::new(Scenario { window, read_piece: 4, ..Scenario::default() })
}

/// Sends everything that may be sent. Returns the packet numbers, counted from the connection's
/// first, and whether each packet requests an acknowledgement.
fn burst(requester: &mut Requester) -> Vec<(u32, bool)> {
    let packets = std::iter::from_fn(|| requester.poll_transmit(Time(1)));
    packets.map(|packet| (packet.headers.psn.value() - 100, packet.headers.ack_req)).collect()
}

fn acknowledge(requester: &mut Requester, number: u32) {
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100 + number, Syndrome::ACK), 0);
}

#[test]
fn a_window_is_filled_and_asks_on_the_way() {
    let mut world = world(8);
    world.hosts[A].write(0, &pattern(100 * 1024));
    let requester = &mut world.hosts[A].requester;
    let asks = |from: u32| (from..8).map(|number| (number, number % 2 == 1)).collect::<Vec<_>>();
    assert_eq!((burst(requester), requester.under_way()), (asks(0), 8));
    acknowledge(requester, 1);
    assert_eq!((burst(requester), requester.under_way()), (vec![(8, false), (9, true)], 8));
    acknowledge(requester, 9);
    assert_eq!(requester.under_way(), 0);
    assert_eq!(burst(requester).len(), 8);
}

#[test]
fn the_packet_that_fills_the_window_asks() {
    for window in 1..20 {
        let mut world = world(window);
        world.hosts[A].write(0, &pattern(100 * 1024));
        let sent = burst(&mut world.hosts[A].requester);
        assert_eq!(sent.len(), window as usize);
        assert_eq!(sent.last(), Some(&(window - 1, true)));
        assert!(world.hosts[A].requester.poll_timeout().is_some());
    }
}

#[test]
fn going_back_empties_the_window_and_fills_it_again() {
    let mut world = world(8);
    world.hosts[A].write(0, &pattern(100 * 1024));
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester).len(), 8);
    let nak = answer(W::Acknowledge, 103, Syndrome::Nak(NakCode::PsnSequence));
    let _ = requester.handle_response(Time(1), &nak, 0);
    assert_eq!((requester.under_way(), requester.losses()), (0, 1));
    requester.set_window(4);
    assert_eq!(burst(requester).iter().map(|sent| sent.0).collect::<Vec<_>>(), [3, 4, 5, 6]);
    assert_eq!(requester.under_way(), 4);
    // Packets that were sent before, and not retransmitted yet, are answered after all.
    acknowledge(requester, 7);
    assert_eq!(requester.under_way(), 0);
    assert_eq!(burst(requester).iter().map(|sent| sent.0).collect::<Vec<_>>(), [8, 9, 10, 11]);
}

#[test]
fn a_window_that_closes_over_packets_that_did_not_ask_lets_one_ask() {
    let mut world = world(1000);
    world.hosts[A].write(0, &pattern(100 * 1024));
    let requester = &mut world.hosts[A].requester;
    for _ in 0..5 {
        assert!(!requester.poll_transmit(Time(1)).expect("a packet").headers.ack_req);
    }
    assert_eq!(requester.poll_timeout(), None);
    requester.set_window(2);
    assert_eq!((burst(requester), requester.under_way()), (vec![(5, true)], 6));
    acknowledge(requester, 5);
    assert_eq!(burst(requester), [(6, true), (7, true)]);
    // The same, if everything with a request is answered and the rest is more than the window.
    requester.set_window(1000);
    assert_eq!(burst(requester).first(), Some(&(8, false)));
    requester.set_window(1);
    acknowledge(requester, 99);
    assert_eq!(requester.under_way(), 0);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

#[test]
fn an_only_requester_requests_an_ack_per_quarter_of_the_path() {
    let mut world = world(8);
    world.hosts[A].write(0, &pattern(100 * 1024));
    let requester = &mut world.hosts[A].requester;
    requester.set_exclusive_window(6, 16);
    let quarter = (0..6).map(|number| (number, number == 3)).collect::<Vec<_>>();
    assert_eq!(burst(requester), quarter, "the answer to the fourth is awaited");
    acknowledge(requester, 3);
    requester.set_exclusive_window(3, 16);
    assert_eq!(burst(requester), [(6, true)], "nothing that is under way was asked for");
    requester.set_exclusive_window(5, 16);
    assert_eq!(burst(requester), [(7, false), (8, false)]);
    acknowledge(requester, 6);
    requester.set_exclusive_window(1, 4);
    assert_eq!(burst(requester), [(9, true)], "one more may always ask");
    acknowledge(requester, 9);
    requester.set_exclusive_window(1, 1);
    assert_eq!(burst(requester), [(10, true)]);
    requester.set_window(4);
    assert_eq!(burst(requester), [(11, true), (12, true), (13, true)], "who shares it asks at the end each time");
    requester.set_exclusive_window(1000, 1000);
    assert_eq!(burst(requester).last(), Some(&(99, true)), "the end of a message asks in any case");
    acknowledge(requester, 99);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

#[test]
fn answers_to_reads_are_under_way_too() {
    let mut world = world(6);
    world.hosts[A].write(0, b"one packet");
    world.hosts[A].read(0, 16 * 1024);
    let requester = &mut world.hosts[A].requester;
    // One piece of four packets fits beside the one packet; a second piece does not.
    assert_eq!((burst(requester), requester.under_way()), (vec![(0, true), (1, false)], 5));
    acknowledge(requester, 0);
    assert_eq!((burst(requester), requester.under_way()), (vec![], 4));
}

#[test]
fn a_piece_that_is_larger_than_the_window_goes_alone() {
    let mut world = world(2);
    world.hosts[A].read(0, 8 * 1024);
    world.hosts[A].write(0, b"behind");
    let requester = &mut world.hosts[A].requester;
    assert_eq!((burst(requester), requester.under_way()), (vec![(0, false)], 4));
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
}

#[test]
fn with_a_window_of_one_packet_everything_gets_on_without_a_timer() {
    let mut world = world(1);
    world.hosts[B].receives.extend([5000; 3]);
    world.hosts[A].send(&pattern(5000));
    world.hosts[A].read(0, 9000);
    world.hosts[A].write(0, &pattern(3000));
    world.hosts[A].fetch_add(8, 1);
    world.hosts[A].send(&[]);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 5]);
    assert_eq!((world.hosts[A].requester.losses(), world.count(A, W::ReadRequest)), (0, 3));
    // Five packets, three pieces, three packets, the atomic, the last one: 2 µs each.
    assert_eq!(world.now, Time(13 * 2_000));
}

#[test]
fn a_receiver_that_is_not_ready_empties_the_window() {
    let mut world = world(3);
    for after in [5_000, 20_000, 40_000] {
        world.post_receive_later(B, after, 5000);
        world.hosts[A].send(&pattern(5000));
    }
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 3]);
    assert_eq!(world.hosts[A].requester.losses(), 0, "that is no loss");
    let mut most = 0;
    let mut world = crate::window::world(3);
    world.hosts[A].send(&pattern(5000));
    let requester = &mut world.hosts[A].requester;
    for _ in 0..3 {
        most = most.max(burst(requester).len());
        let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
        assert_eq!((requester.under_way(), burst(requester).len()), (0, 0));
        requester.handle_timeout(requester.poll_timeout().expect("the receiver's time"));
    }
    assert_eq!(most, 3);
}

#[test]
fn a_new_connection_has_the_widest_window() {
    let mut requester = Requester::new(softhca_protocol::Service::Rc, 4);
    requester.set_window(1);
    requester.configure(softhca_protocol::RequesterConfig { mtu: 1024, ..Default::default() });
    requester.post(softhca_protocol::SendOp { length: 1 << 20, ..Default::default() }).expect("room");
    assert_eq!(std::iter::from_fn(|| requester.poll_transmit(Time(0))).count(), 1024);
}

/// However wide the path is, an answer is requested for every quarter of the numbers.
#[test]
fn a_path_wider_than_all_numbers_asks_once_per_quarter_of_them() {
    let mut requester = Requester::new(softhca_protocol::Service::Rc, 4);
    requester.configure(softhca_protocol::RequesterConfig { mtu: 256, ..Default::default() });
    requester.post(softhca_protocol::SendOp { length: 1 << 31, ..Default::default() }).expect("room");
    requester.set_exclusive_window(u32::MAX, u32::MAX);
    let first = requester.poll_run(Time(0)).expect("the first packet");
    requester.sent(Time(0), &first);
    let run = requester.poll_run(Time(0)).expect("all packets that may follow");
    assert_eq!((first.count + run.count, run.asks), (1 << 21, true));
}
