//! Hosts of one link: how they find each other, which groups they join, and what they do about
//! those that do not answer.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{MTU, Net, PARTITION, ip, link, packet};
use softhca_ipoib::arp::Arp;
use softhca_ipoib::{EtherType, HostPacket, LinkAddress, Loss, Membership, Outgoing, Target};

const SECOND: Duration = Duration::from_secs(1);
const ARP: u16 = 0x0806;

/// The EtherTypes of everything that was sent since the last call.
fn kinds(net: &mut Net) -> BTreeSet<u16> {
    net.sent.drain(..).map(|(_, _, payload)| u16::from_be_bytes([payload[0], payload[1]])).collect()
}

#[test]
fn the_first_packet_waits_for_the_address_and_later_ones_do_not() {
    for (left, right) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
        let mut net = Net::new(&[&[left], &[right], &["10.0.0.3"]]);
        let (there, back) = (packet(left, right, 100), packet(right, left, 50));
        assert_eq!(net.send(0, &there), Outgoing::Held);
        assert_eq!(net.hosts[1].received, std::slice::from_ref(&there));
        // The other side has learned the address from the question.
        assert_eq!(net.send(1, &back), Outgoing::To(Target::Neighbour(net.hosts[0].link)));
        assert_eq!(net.send(0, &there), Outgoing::To(Target::Neighbour(net.hosts[1].link)));
        assert_eq!((&net.hosts[0].received, net.hosts[2].received.len()), (&vec![back], 0));
        // Only the owner has answered.
        assert_eq!([0, 1, 2].map(|at: usize| net.hosts[at].interface.counters().answered), [0, 1, 0]);
    }
}

#[test]
fn a_host_that_does_not_exist_is_asked_for_three_times_and_is_unreachable_then() {
    let mut net = Net::new(&[&["10.0.0.1", "fe80::1"], &["10.0.0.2"]]);
    // The second announcements have gone.
    net.pass(2 * SECOND);
    for (destination, answer) in [("10.0.0.9", 3), ("fe80::9", 1)] {
        let from = if destination.contains(':') { "fe80::1" } else { "10.0.0.1" };
        kinds(&mut net);
        assert_eq!(net.send(0, &packet(from, destination, 10)), Outgoing::Held);
        net.pass(5 * SECOND);
        let asked = net.sent.len();
        let error = net.hosts[0].received.pop().expect("an error");
        let at = if destination.contains(':') { 40 } else { 20 };
        assert_eq!((asked, error[at]), (3, answer), "{destination}");
        assert_eq!(net.hosts[0].interface.sizes().0, 0, "the neighbour is forgotten");
    }
}

#[test]
fn without_a_path_a_neighbour_is_unreachable_at_once() {
    let mut net = Net::new(&[&["10.0.0.1"], &["10.0.0.2"]]);
    net.hosts[0].refuses = true;
    net.send(0, &packet("10.0.0.1", "10.0.0.2", 10));
    assert_eq!((net.hosts[0].received.len(), net.hosts[0].interface.sizes().0), (1, 0));
    assert_eq!(net.hosts[0].forgotten, [net.hosts[1].link]);
}

#[test]
fn a_neighbour_with_a_new_queue_pair_announces_itself() {
    let mut net = Net::new(&[&["10.0.0.1", "fe80::1"], &["10.0.0.2", "fe80::2"]]);
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
        net.send(0, &packet(from, to, 10));
    }
    let old = net.hosts.remove(1).link;
    net.add(&["10.0.0.2", "fe80::2"]);
    net.hosts[1].link.qpn = old.qpn;
    let replaced = link(17);
    assert_eq!(net.send(0, &packet("10.0.0.1", "10.0.0.2", 10)), Outgoing::To(Target::Neighbour(replaced)));
    // A third host takes the address over, and both families follow.
    net.add(&["10.0.0.2", "fe80::2"]);
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
        assert_eq!(net.send(0, &packet(from, to, 10)), Outgoing::To(Target::Neighbour(link(18))), "{to}");
    }
    assert_eq!(net.hosts[0].forgotten, [replaced], "when neither address is there any more");
}

#[test]
fn a_neighbour_in_use_is_asked_again_and_one_that_is_not_used_is_forgotten() {
    let mut net = Net::new(&[&["10.0.0.1"], &["10.0.0.2"]]);
    let there = packet("10.0.0.1", "10.0.0.2", 10);
    net.send(0, &there);
    for _ in 0..40 {
        net.pass(2 * SECOND);
        net.send(0, &there);
    }
    let probes = net
        .sent
        .iter()
        .filter(|(from, target, payload)| (*from, *target) == (0, Target::Neighbour(link(17))) && payload[1] == 0x06);
    assert!((2..=4).contains(&probes.count()), "one in about 30 seconds");
    assert_eq!(net.hosts[0].received.len(), 0);
    // The neighbour has gone without a word.
    net.hosts.pop();
    net.pass(40 * SECOND);
    net.send(0, &there);
    net.pass(40 * SECOND);
    assert_eq!((net.hosts[0].interface.sizes().0, net.hosts[0].forgotten.len()), (0, 1));
}

/// Whatever peers ask, the table has an end, and so has what is sent.
#[test]
fn a_flood_of_questions_leaves_a_full_table_and_no_more() {
    let mut net = Net::new(&[&["10.0.0.1"]]);
    for number in 0..5000_u32 {
        let arp = Arp {
            reply: false,
            sender: LinkAddress { flags: 0, qpn: 0x100 + number, gid: [9; 16] },
            sender_ip: (0x0b00_0000 + number).into(),
            target: [0; 20],
            target_ip: [10, 0, 0, 1].into(),
        };
        let now = net.now;
        net.hosts[0].interface.incoming(&[&EtherType::Arp.header()[..], &arp.bytes()].concat(), now);
        net.settle();
    }
    assert_eq!(net.hosts[0].interface.sizes().0, 1024);
    assert_eq!(net.hosts[0].interface.counters().answered, 5000);
    assert_eq!(net.hosts[0].forgotten.len(), 5000 - 1024);
    // Packets to hosts that do not answer: the oldest known neighbour makes room.
    for number in 0..3000_u32 {
        net.send(0, &packet("10.0.0.1", &std::net::Ipv4Addr::from(0x0c00_0000 + number).to_string(), 2000));
    }
    assert_eq!(net.hosts[0].interface.sizes().0, 1024);
    net.pass(90 * SECOND);
    assert_eq!(net.hosts[0].interface.sizes().0, 0);
}

/// The neighbour has a new address before the path to the old one is found: nobody keeps that path.
#[test]
fn a_path_to_an_address_that_a_neighbour_no_longer_has_is_not_wanted() {
    let mut net = Net::new(&[&["10.0.0.1"]]);
    let now = net.now;
    let interface = &mut net.hosts[0].interface;
    let links = [0x100, 0x101].map(|qpn| LinkAddress { flags: 0, qpn, gid: [9; 16] });
    for sender in links {
        let (sender_ip, target_ip) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        let arp = Arp { reply: false, sender, sender_ip, target: [0; 20], target_ip };
        interface.incoming(&[&EtherType::Arp.header()[..], &arp.bytes()].concat(), now);
    }
    assert_eq!(links.map(|link| interface.resolved(link, true, now)), [false, true]);
}

#[test]
fn an_address_of_the_host_is_learned_from_nobody() {
    let mut net = Net::new(&[&["10.0.0.1"]]);
    let mut arp = Arp {
        reply: false,
        sender: link(99),
        sender_ip: [10, 0, 0, 1].into(),
        target: [0; 20],
        target_ip: [10, 0, 0, 1].into(),
    };
    kinds(&mut net);
    for sender_ip in [[10, 0, 0, 1], [224, 0, 0, 1]] {
        arp.sender_ip = sender_ip.into();
        let now = net.now;
        net.hosts[0].interface.incoming(&[&EtherType::Arp.header()[..], &arp.bytes()].concat(), now);
        net.settle();
    }
    assert_eq!(net.hosts[0].interface.sizes().0, 0);
    // A question without a sender (a probe for duplicates) is answered to everybody.
    assert_eq!(kinds(&mut net), [ARP].into());
}

#[test]
fn the_host_joins_what_its_programs_join_and_sends_to_other_groups() {
    let mut net = Net::new(&[&["10.0.0.1", "fe80::12:3456"], &["10.0.0.2"]]);
    let group = |text: &str| PARTITION.group(ip(text));
    let full = |net: &Net, text: &str| net.hosts[0].groups.get(&group(text)) == Some(&Membership::Full);
    assert_eq!(net.hosts[0].groups.get(&PARTITION.broadcast()), Some(&Membership::Full));
    assert!(["224.0.0.1", "ff02::1", "ff02::1:ff12:3456"].iter().all(|text| full(&net, text)));
    // IGMP of the host: its owner looks which groups there are.
    let mut report = packet("10.0.0.1", "224.0.0.22", 8);
    report[9] = 2;
    net.send(0, &report);
    assert_eq!(net.hosts[0].groups_changed, 1);
    assert_eq!(net.hosts[0].groups.get(&group("224.0.0.22")), Some(&Membership::SendOnly));
    let now = net.now;
    net.hosts[0].interface.set_groups(vec![ip("239.1.2.3")], now);
    net.settle();
    assert!(full(&net, "239.1.2.3"));
    net.send(1, &packet("10.0.0.2", "239.1.2.3", 20));
    assert_eq!(net.hosts[0].received.len(), 1);
    net.hosts[0].interface.set_groups(Vec::new(), now);
    net.settle();
    assert!(!net.hosts[0].groups.contains_key(&group("239.1.2.3")));
    // The group to which nobody sends is left.
    net.pass(400 * SECOND);
    assert!(!net.hosts[0].groups.contains_key(&group("224.0.0.22")));
}

#[test]
fn a_refused_group_is_tried_again_later_and_later() {
    let mut net = Net::new(&[&["10.0.0.1"]]);
    net.hosts[0].refuses = true;
    let there = packet("10.0.0.1", "239.0.0.9", 10);
    assert_eq!(net.send(0, &there), Outgoing::Held);
    assert_eq!(net.send(0, &there), Outgoing::Lost(Loss::Full));
    net.pass(20 * SECOND);
    net.hosts[0].refuses = false;
    net.pass(20 * SECOND);
    let target = Target::Group(PARTITION.group(ip("239.0.0.9")));
    assert_eq!(net.send(0, &there), Outgoing::To(target));
}

#[test]
fn nothing_passes_before_the_broadcast_group_is_joined() {
    let mut net = Net::new(&[]);
    let config = softhca_ipoib::Config { link: link(16), partition: PARTITION, mtu: MTU, connected: None };
    let mut interface = softhca_ipoib::Interface::new(config, net.now);
    let there = packet("10.0.0.1", "10.0.0.2", 10);
    assert_eq!(
        interface.outgoing(&HostPacket::whole(&there).expect("an IP packet"), net.now),
        Outgoing::Lost(Loss::Full)
    );
    assert!(!interface.is_up() && interface.joined(&PARTITION.broadcast(), true, net.now) && interface.is_up());
    net.add(&["10.0.0.2"]);
    assert_eq!(interface.outgoing(&HostPacket::whole(&there).expect("an IP packet"), net.now), Outgoing::Held);
}

#[test]
fn a_packet_that_is_too_long_is_answered_and_not_sent() {
    let mut net = Net::new(&[&["10.0.0.1"], &["10.0.0.2"]]);
    assert_eq!(net.send(0, &packet("10.0.0.1", "10.0.0.2", MTU - 19)), Outgoing::Lost(Loss::TooBig));
    let error = net.hosts[0].received.pop().expect("an error");
    assert_eq!((&error[20..22], &error[26..28]), (&[3, 4][..], &(MTU as u16).to_be_bytes()[..]));
    assert_eq!(net.send(0, &packet("10.0.0.1", "10.0.0.2", MTU - 20)), Outgoing::Held);
}

#[test]
fn after_a_takeover_groups_and_paths_are_asked_for_again_and_packets_pass_meanwhile() {
    let mut net = Net::new(&[&["10.0.0.1"], &["10.0.0.2"]]);
    let there = packet("10.0.0.1", "10.0.0.2", 10);
    net.send(0, &there);
    let (groups, resolves, neighbour) = (net.hosts[0].groups.clone(), net.hosts[0].resolves, net.hosts[1].link);
    net.hosts[0].groups.clear();
    net.hosts[0].interface.rejoin(net.now);
    assert_eq!(net.send(0, &there), Outgoing::To(Target::Neighbour(neighbour)));
    assert_eq!((&net.hosts[0].groups, net.hosts[0].resolves), (&groups, resolves + 1));
    // The new manager is not ready: it refuses, and is asked again.
    net.hosts[0].groups.clear();
    net.hosts[0].refuses = true;
    net.hosts[0].interface.rejoin(net.now);
    net.settle();
    assert_eq!(net.send(0, &there), Outgoing::To(Target::Neighbour(neighbour)));
    net.hosts[0].refuses = false;
    net.pass(3 * SECOND);
    assert_eq!(net.hosts[0].groups, groups);
}

/// The host at `at` starts again, with another queue pair. Returns its new place.
fn restart(net: &mut Net, at: usize, address: &str) -> usize {
    net.hosts[at].link.qpn = 0;
    net.hosts[at].groups.clear();
    net.add(&[address]);
    net.hosts.len() - 1
}

#[test]
fn a_host_that_has_started_again_is_found_when_its_first_announcement_is_lost() {
    let mut net = Net::new(&[&["10.0.0.1", "fd00::1"], &["10.0.0.2", "fd00::2"]]);
    let there = [packet("10.0.0.1", "10.0.0.2", 10), packet("fd00::1", "fd00::2", 10)];
    for packet in &there {
        net.send(0, packet);
    }
    assert_eq!(net.hosts[1].received.len(), 2);
    let groups = std::mem::take(&mut net.hosts[0].groups);
    let again = restart(&mut net, 1, "10.0.0.2");
    net.send(0, &there[0]);
    assert_eq!(net.hosts[again].received.len(), 0, "nobody has heard of it");
    net.hosts[0].groups = groups;
    net.pass(2 * SECOND);
    net.send(0, &there[0]);
    assert_eq!(net.hosts[again].received, there[..1]);
}

#[test]
fn an_announcement_renews_the_path_but_not_more_often_than_once_a_second() {
    let mut net = Net::new(&[&["10.0.0.1"], &["10.0.0.2"]]);
    net.send(0, &packet("10.0.0.1", "10.0.0.2", 10));
    net.pass(5 * SECOND);
    let resolves = net.hosts[0].resolves;
    for _ in 0..3 {
        net.hosts[1].interface.rejoin(net.now);
        net.pass(2 * SECOND);
    }
    assert_eq!(net.hosts[0].resolves, resolves + 3);
    let own = || vec![softhca_ipoib::OwnAddress { ip: common::ip("10.0.0.2"), prefix: 24 }];
    for _ in 0..50 {
        net.hosts[1].interface.set_routes(Vec::new(), Vec::new(), net.now);
        net.hosts[1].interface.set_routes(own(), Vec::new(), net.now);
        net.settle();
    }
    assert!(net.hosts[0].resolves <= resolves + 4, "{}", net.hosts[0].resolves - resolves);
}
