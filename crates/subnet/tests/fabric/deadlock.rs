//! Routes that can deadlock, and packets that do.

use crate::net::{Net, end};
use softhca_subnet::deadlock::Channel;

/// A ring of four switches, each with an HCA at port 1. Packets to the HCA two switches further go
/// clockwise by port 2. Port 3 comes from the switch before.
fn ring() -> Net {
    let mut net = Net::new(4, 4);
    for at in 0..4 {
        net.cable(end(net.hcas[at], 1), end(net.switches[at], 1));
        net.cable(end(net.switches[at], 2), end(net.switches[(at + 1) % 4], 3));
        for to in 0..4 {
            let port = if to == at { 1 } else { 2 };
            net.fabric.switch_mut(net.switches[at]).unwrap().set_route(to as u16 + 1, port);
        }
    }
    net.up();
    net
}

fn clockwise(net: &Net) -> Vec<Channel> {
    net.switches.iter().map(|node| Channel { node: *node, port: 2, vl: 0 }).collect()
}

fn sorted(mut channels: Vec<Channel>) -> Vec<Channel> {
    channels.sort();
    channels
}

#[test]
fn l30_a_deadlock_by_a_bad_route_is_detected_and_named() {
    let mut net = ring();
    for from in 0..4 {
        (0..50).for_each(|_| net.send(from, (from + 2) % 4, 0, 4096));
    }
    let delivered = net.run().len();
    assert!(delivered < 200, "the ring stands still");
    let cycle = net.fabric.deadlock().unwrap();
    assert_eq!(sorted(cycle.clone()), clockwise(&net));
    assert_eq!(cycle[0].to_string(), "node 0 port 2 VL 0");
}

#[test]
fn l30_the_tables_alone_tell_that_the_ring_can_deadlock() {
    let net = ring();
    assert_eq!(sorted(net.fabric.routing_cycle(&[0]).unwrap()), clockwise(&net));
    assert_eq!(net.fabric.deadlock(), None, "nothing waits yet");
}

#[test]
fn l30_routes_that_leave_out_one_link_of_the_ring_cannot_deadlock() {
    let mut net = ring();
    for at in 0..4_usize {
        for to in (0..at).chain(at + 1..4) {
            let port = if to < at { 3 } else { 2 };
            net.fabric.switch_mut(net.switches[at]).unwrap().set_route(to as u16 + 1, port);
        }
    }
    assert_eq!(net.fabric.routing_cycle(&[0, 1]), None);
    for from in 0..4 {
        (0..50).for_each(|_| net.send(from, (from + 2) % 4, 0, 4096));
    }
    assert_eq!(net.run().len(), 200);
}

#[test]
fn l30_a_deadlock_is_reported_if_and_only_if_packets_never_arrive() {
    let (mut passed, mut stuck) = (0, 0);
    for packets in 1..16 {
        let mut net = ring();
        for from in 0..4 {
            (0..packets).for_each(|_| net.send(from, (from + 2) % 4, 0, 4096));
        }
        let (mut delivered, mut reported) = (0, false);
        while let Some(next) = net.fabric.next_event() {
            delivered += net.fabric.advance(next).len();
            reported |= net.fabric.deadlock().is_some();
        }
        assert_eq!(reported, delivered < 4 * packets, "{packets} packets from each");
        if reported { stuck += 1 } else { passed += 1 }
    }
    assert!(passed > 0 && stuck > 0, "{passed} {stuck}");
}

#[test]
fn l30_packets_that_can_still_move_are_no_deadlock() {
    let mut net = ring();
    for from in 0..4 {
        (0..50).for_each(|_| net.send(from, (from + 1) % 4, 0, 4096));
    }
    for _ in 0..200 {
        let next = net.fabric.next_event().unwrap_or_default();
        net.fabric.advance(next);
        assert_eq!(net.fabric.deadlock(), None);
    }
    net.run();
    assert_eq!(net.fabric.stalls(), []);
}
