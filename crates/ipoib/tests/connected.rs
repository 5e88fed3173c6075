//! Connected mode: when an interface connects, what goes on a connection, and what it does without
//! one.

mod common;

use std::time::Duration;

use common::{CONNECTED, MTU, Net, PARTITION, ip, packet};
use softhca_ipoib::{Connect, Loss, Outgoing, Target};

const THERE: (&str, &str) = ("10.0.0.1", "10.0.0.2");

/// Two hosts in connected mode, and one that only sends datagrams.
fn net() -> Net {
    let mut net = Net::new(&[]);
    net.add_with(&["10.0.0.1"], Some(Connect::Reliable));
    net.add_with(&["10.0.0.2"], Some(Connect::Reliable));
    net.add(&["10.0.0.3"]);
    net
}

fn there(length: usize) -> Vec<u8> {
    packet(THERE.0, THERE.1, length - 20)
}

#[test]
fn packets_wait_for_the_connection_and_then_go_on_it() {
    let mut net = net();
    assert_eq!(net.send(0, &there(60_000)), Outgoing::Held);
    let peer = net.hosts[1].link;
    assert_eq!((&net.hosts[0].connects, net.hosts[1].received.len()), (&vec![peer], 0));
    assert_eq!(net.send(0, &there(100)), Outgoing::Held);
    let now = net.now;
    assert!(net.hosts[0].interface.connected(peer, Some(CONNECTED), now));
    net.settle();
    assert_eq!(net.hosts[1].received, [there(60_000), there(100)], "in their order");
    assert_eq!(net.send(0, &there(CONNECTED)), Outgoing::To(Target::Connection(peer)));
    // The other side sends on a connection of its own.
    assert_eq!(net.hosts[1].connects, []);
    net.send(1, &packet(THERE.1, THERE.0, 10));
    assert_eq!(net.hosts[1].connects, [net.hosts[0].link]);
    // Groups stay on the datagram queue pair, and so does everything for the third host.
    assert_eq!(
        net.send(0, &packet(THERE.0, "224.0.0.1", 10)),
        Outgoing::To(Target::Group(PARTITION.group(ip("224.0.0.1"))))
    );
    assert_eq!(net.send(0, &packet(THERE.0, "224.0.0.1", MTU)), Outgoing::Lost(Loss::TooBig));
    net.send(0, &packet(THERE.0, "10.0.0.3", 10));
    assert_eq!(net.hosts[2].received.len(), 2, "one to the group, one to the host");
    assert_eq!(net.hosts[0].connects, [peer]);
    assert_eq!(net.send(0, &packet(THERE.0, "10.0.0.3", MTU)), Outgoing::Lost(Loss::TooBig));
    let error = net.hosts[0].received.pop().expect("an error");
    assert_eq!(error[26..28], (MTU as u16).to_be_bytes());
}

#[test]
fn a_peer_that_refuses_gets_datagrams_until_it_is_asked_again() {
    let mut net = net();
    let peer = net.hosts[1].link;
    for packet in [there(100), there(60_000)] {
        net.send(0, &packet);
    }
    let now = net.now;
    assert!(net.hosts[0].interface.connected(peer, None, now));
    net.settle();
    assert_eq!(net.hosts[1].received, [there(100)]);
    let error = net.hosts[0].received.pop().expect("the long packet is answered");
    assert_eq!((&error[20..22], &error[26..28]), (&[3, 4][..], &(MTU as u16).to_be_bytes()[..]));
    assert_eq!(net.send(0, &there(100)), Outgoing::To(Target::Neighbour(peer)));
    net.pass(Duration::from_secs(11));
    assert_eq!(net.send(0, &there(100)), Outgoing::Held);
    assert_eq!(net.hosts[0].connects, [peer, peer]);
}

#[test]
fn a_connection_ends_when_it_is_not_used_or_its_neighbour_goes() {
    let mut net = net();
    let peer = net.hosts[1].link;
    net.send(0, &there(100));
    let now = net.now;
    net.hosts[0].interface.connected(peer, Some(1000), now);
    net.settle();
    assert_eq!(net.send(0, &there(1001)), Outgoing::Lost(Loss::TooBig), "the peer's buffers are shorter");
    for _ in 0..10 {
        net.pass(Duration::from_secs(10));
        assert_eq!(net.send(0, &there(100)), Outgoing::To(Target::Connection(peer)));
    }
    net.pass(Duration::from_secs(62));
    assert_eq!((&net.hosts[0].disconnects, net.hosts[0].interface.sizes().2), (&vec![peer], 0));
    // A connection that was made too late is not wanted any more.
    let now = net.now;
    assert!(!net.hosts[0].interface.connected(peer, Some(CONNECTED), now));
    // The peer dies without a word.
    net.send(0, &there(100));
    let now = net.now;
    net.hosts[0].interface.connected(peer, Some(CONNECTED), now);
    net.settle();
    net.hosts.truncate(1);
    for _ in 0..50 {
        net.pass(Duration::from_secs(1));
        net.send(0, &there(100));
    }
    assert_eq!(net.hosts[0].disconnects, [peer, peer]);
    assert_eq!(net.hosts[0].interface.sizes().2, 0);
}

#[test]
fn a_connection_that_has_ended_is_made_again_with_the_next_packet() {
    let mut net = net();
    let peer = net.hosts[1].link;
    net.send(0, &there(100));
    let now = net.now;
    net.hosts[0].interface.connected(peer, Some(CONNECTED), now);
    net.settle();
    net.hosts[0].interface.disconnected(&peer, now);
    assert_eq!((net.hosts[0].interface.sizes().2, net.hosts[0].connects.len()), (0, 1));
    // Long packets wait, and no smaller MTU is told to the host.
    assert_eq!(net.send(0, &there(60_000)), Outgoing::Held);
    // The end of the earlier connection does not end the new one.
    net.hosts[0].interface.disconnected(&peer, now);
    let now = net.now;
    assert!(net.hosts[0].interface.connected(peer, Some(CONNECTED), now));
    net.settle();
    assert_eq!((net.hosts[1].received.len(), &net.hosts[0].connects), (2, &vec![peer, peer]));
    assert!(net.hosts[0].received.is_empty() && net.hosts[0].disconnects.is_empty());
}

#[test]
fn a_neighbour_of_another_service_gets_datagrams() {
    for (other, connects) in [(Connect::Unreliable, 1), (Connect::Reliable, 0)] {
        let mut net = Net::new(&[]);
        net.add_with(&["10.0.0.1"], Some(Connect::Unreliable));
        net.add_with(&["10.0.0.2"], Some(other));
        let sent = net.send(0, &there(100));
        assert_eq!((sent, net.hosts[0].connects.len()), (Outgoing::Held, connects));
        assert_eq!(net.hosts[1].received.len(), 1 - connects, "a datagram, or nothing before the connection");
    }
}

#[test]
fn a_neighbour_that_ends_or_refuses_its_connection_is_asked_for_at_once() {
    for refuses in [false, true] {
        let mut net = net();
        let peer = net.hosts[1].link;
        net.send(0, &there(100));
        net.pass(Duration::from_secs(2));
        // It has started again, and its announcements were lost.
        let groups = std::mem::take(&mut net.hosts[0].groups);
        (net.hosts[1].link.qpn, net.hosts[1].groups) = (0, Default::default());
        net.add_with(&["10.0.0.2"], Some(Connect::Reliable));
        net.pass(Duration::from_secs(2));
        net.hosts[0].groups = groups;
        let now = net.now;
        if refuses {
            net.hosts[0].interface.connected(peer, None, now);
        } else {
            net.hosts[0].interface.connected(peer, Some(CONNECTED), now);
            net.hosts[0].interface.disconnected(&peer, now);
        }
        net.settle();
        assert_eq!(net.send(0, &there(100)), Outgoing::Held);
        assert_eq!(net.hosts[0].connects, [peer, net.hosts[3].link]);
    }
}
