//! The paths that the fabric resolves, and what changes them.

use crate::net::{CABLE, Net, end, packet};
use proptest::prelude::*;
use softhca_subnet::fabric::{Hop, NoPath, Probe};
use softhca_subnet::pkey::Table;
use softhca_subnet::port::Enforcement;
use softhca_subnet::service::SlToVl;
use softhca_subnet::{Cause, CutBy, Mtu, Speed};

#[test]
fn l02_a_path_by_lid_lists_each_switch_and_its_ports() {
    let mut net = Net::row(3);
    let path = net.fabric.resolve(net.hca(0), 2, 0).unwrap();
    let hop = |at: usize, ingress, egress| Hop { node: net.switches[at], ingress, egress, vl: 0 };
    assert_eq!(path.hops, [hop(0, 1, 7), hop(1, 8, 7), hop(2, 8, 1)]);
    assert_eq!((path.end, path.delay, path.mtu), (net.hca(1), 4 * CABLE, Mtu::B4096));
    assert_eq!(path.epoch, net.fabric.epoch());
    net.send(0, 1, 0, 256);
    assert_eq!(net.run()[0].end, path.end, "the packet takes it");
}

#[test]
fn l05_the_rate_and_mtu_of_a_path_are_those_of_its_worst_link() {
    let mut net = Net::row(2);
    net.fabric.settings_mut(end(net.switches[0], 7)).unwrap().speeds_enabled = Speed::Sdr.code();
    net.fabric.settings_mut(end(net.switches[1], 1)).unwrap().mtu = Mtu::B1024;
    net.fabric.set_state(end(net.switches[0], 7), softhca_subnet::state::Event::SetDown).unwrap();
    net.up();
    let path = net.fabric.resolve(net.hca(0), 2, 0).unwrap();
    assert_eq!((path.rate.speed, path.mtu), (Speed::Sdr, Mtu::B1024));
    assert_eq!(path.narrowest, end(net.switches[1], 1));
}

#[test]
fn l02_a_missing_route_and_a_loop_are_told_with_their_place() {
    let mut net = Net::row(2);
    let lost = net.fabric.resolve(net.hca(0), 7, 0).unwrap_err();
    assert_eq!((lost.end, lost.cause), (end(net.switches[0], 1), Cause::NoRoute));
    net.cable(end(net.switches[0], 5), end(net.switches[1], 5));
    net.up();
    net.fabric.switch_mut(net.switches[0]).unwrap().set_route(2, 7);
    net.fabric.switch_mut(net.switches[1]).unwrap().set_route(2, 5);
    assert_eq!(net.fabric.resolve(net.hca(0), 2, 0).unwrap_err().cause, Cause::NoRoute);
}

#[test]
fn l02_the_epoch_changes_with_tables_and_states_and_not_with_packets() {
    let mut net = Net::star(2);
    let epoch = net.fabric.epoch();
    net.send(0, 1, 0, 64);
    net.run();
    assert_eq!(net.fabric.epoch(), epoch);
    net.fabric.switch_mut(net.switches[0]).unwrap().set_route(9, 2);
    let after_route = net.fabric.epoch();
    net.fabric.cut(net.hca(0), CutBy::Operator);
    assert!(epoch < after_route && after_route < net.fabric.epoch());
}

/// The nodes of an answer tell whether it may have changed, also if the answer is "no path".
#[test]
fn l02_a_path_depends_on_the_nodes_that_it_was_resolved_by() {
    let mut net = Net::row(3);
    let target = |dlid| Probe { dlid, ..Probe::default() };
    let (near, far) = (net.fabric.passage(net.hca(0), &target(2)), net.fabric.passage(net.hca(0), &target(7)));
    assert_eq!(near.nodes, [&[net.hcas[0]], &net.switches[..], &[net.hcas[1]]].concat());
    assert_eq!(far.nodes, [net.hcas[0], net.switches[0]]);
    let (before, first) = (net.fabric.epoch(), far.found.unwrap_err().end.node);
    net.fabric.switch_mut(net.switches[2]).unwrap().set_route(7, 3);
    assert!(net.fabric.changed(net.switches[2]) > before && net.fabric.changed(first) <= before);
    net.fabric.cut(end(net.switches[0], 7), CutBy::Operator);
    assert!(net.fabric.changed(net.switches[0]) > before && net.fabric.changed(net.hcas[0]) <= before);
}

#[test]
fn l41_a_delivered_packet_has_the_bytes_of_a_link_capture() {
    let mut net = Net::star(2);
    net.send(0, 1, 3, 8);
    let bytes = net.run()[0].frame.to_bytes();
    assert_eq!(bytes[..8], [0x00, 0x32, 0, 2, 0, 8, 0, 1]);
    assert_eq!(softhca_subnet::Frame::parse(&bytes).unwrap().to_bytes(), bytes);
}

#[test]
fn l41_a_capture_shows_each_packet_as_on_its_link() {
    let mut net = Net::star(2);
    net.fabric.switch_mut(net.switches[0]).unwrap().sl_to_vl_default = softhca_subnet::service::SlToVl::of(|sl| sl);
    let ports = [net.hca(0), end(net.switches[0], 2)];
    ports.into_iter().for_each(|port| net.fabric.capture(port, true));
    net.send(0, 1, 3, 64);
    net.run();
    let captured = net.fabric.captured();
    let seen: Vec<_> = captured.iter().map(|copy| (copy.end, copy.frame.to_bytes()[0])).collect();
    assert_eq!(seen, [(ports[0], 0x00), (ports[1], 0x30)], "each with the lane of its hop");
    assert!(captured[0].time < captured[1].time);
    assert_eq!(net.fabric.captured(), []);
}

#[test]
fn l33_a_path_stays_while_its_link_recovers() {
    let mut net = Net::row(2);
    net.fabric.cut(end(net.switches[0], 7), CutBy::Operator);
    assert!(net.fabric.resolve(net.hca(0), 2, 0).is_ok());
    net.run();
    assert!(net.fabric.resolve(net.hca(0), 2, 0).is_err());
}

#[test]
fn a_step_costs_what_happens_and_not_what_there_is() {
    let events = |extra: usize| {
        let mut net = Net::new(2 + extra, 1);
        (0..2).for_each(|at| net.cable(end(net.hcas[at], 1), end(net.switches[0], at as u8 + 1)));
        net.fabric.switch_mut(net.switches[0]).unwrap().set_route(2, 2);
        net.up();
        let before = net.fabric.processed();
        assert_eq!((net.run(), net.fabric.processed()), (vec![], before), "an idle fabric has no events");
        (0..100).for_each(|_| net.send(0, 1, 0, 1024));
        assert_eq!(net.run().len(), 100);
        net.fabric.processed() - before
    };
    assert_eq!(events(0), events(1000));
}

/// Three switches in a ring, each with an HCA at port 1; ports 7 and 8 are the ring.
fn ring(routes: &[(usize, u16, u8)]) -> Net {
    let mut net = Net::new(3, 3);
    for at in 0..3 {
        net.cable(end(net.hcas[at], 1), end(net.switches[at], 1));
        net.cable(end(net.switches[at], 7), end(net.switches[(at + 1) % 3], 8));
    }
    net.up();
    for &(at, lid, port) in routes {
        net.fabric.switch_mut(net.switches[at]).unwrap().set_route(lid, port);
    }
    net
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// For any tables: a packet arrives where the path ends, or nowhere if there is no path.
    #[test]
    fn l02_a_packet_arrives_where_the_resolved_path_ends(
        routes in proptest::collection::vec((0..3_usize, 1..5_u16, prop_oneof![0..3_u8, 7..9_u8]), 0..16),
        from in 0..3_usize,
        dlid in 1..5_u16,
    ) {
        let mut net = ring(&routes);
        let path = net.fabric.resolve(net.hca(from), dlid, 0);
        net.fabric.inject(net.hca(from), packet(from as u16 + 1, dlid, 0, 0)).unwrap();
        // A packet in a loop dies after some hops, perhaps later than this.
        let until = net.fabric.now() + 50_000_000;
        let nodes: Vec<_> = net.fabric.advance(until).iter().map(|delivery| delivery.end.node).collect();
        match path {
            Ok(path) => prop_assert_eq!(nodes, [path.end.node]),
            Err(no_path) => {
                prop_assert_eq!(nodes, []);
                let loops = net.drops() == net.drops_for(Cause::LifeTime);
                prop_assert!(loops || net.dropped(no_path.end, no_path.cause) == 1, "{}", no_path);
            }
        }
    }
}

#[test]
fn l16_the_service_levels_of_a_path_are_those_that_every_hop_has_a_lane_for() {
    let mut net = Net::row(2);
    let (from, switch) = (net.hca(0), net.switches[1]);
    let all = net.fabric.service_levels(from, 2).unwrap();
    assert_eq!((all.0, all.1), (0xffff, net.fabric.resolve(from, 2, 0).unwrap()));
    net.fabric.switch_mut(switch).unwrap().sl_to_vl_default = SlToVl::of(|sl| if sl < 2 { 15 } else { 0 });
    net.fabric.settings_mut(from).unwrap().sl_to_vl = SlToVl::of(|sl| if sl == 9 { 15 } else { 0 });
    let (levels, path) = net.fabric.service_levels(from, 2).unwrap();
    let resolved = (0..16).filter(|sl| net.fabric.resolve(from, 2, *sl).is_ok()).fold(0, |bits, sl| bits | 1 << sl);
    assert_eq!((levels, levels), (0xfdfc, resolved));
    assert_eq!(path.hops, net.fabric.resolve(from, 2, 2).unwrap().hops);
    net.fabric.switch_mut(switch).unwrap().sl_to_vl_default = SlToVl::of(|_| 15);
    assert_eq!(net.fabric.service_levels(from, 2).unwrap_err().cause, Cause::NoVl);
    assert_eq!(net.fabric.service_levels(from, 7).unwrap_err().cause, Cause::NoRoute);
}

#[test]
fn l13_a_switch_that_enforces_partitions_is_part_of_the_path() {
    let mut net = Net::row(2);
    let path = net.fabric.resolve(net.hca(0), 2, 0).unwrap();
    assert!(net.fabric.partition_passes(&path, 0x8001));
    for (switch, port, inbound) in [(0, 1, true), (1, 1, false)] {
        let end = end(net.switches[switch], port);
        let settings = net.fabric.settings_mut(end).unwrap();
        settings.pkeys = Table::new(&[0x8002]);
        settings.enforcement.pkey_in = inbound;
        settings.enforcement.pkey_out = !inbound;
        assert!(!net.fabric.partition_passes(&path, 0x8001), "{end:?}");
        assert!(net.fabric.partition_passes(&path, 0x0002), "a limited member of the port's partition");
        net.fabric.settings_mut(end).unwrap().enforcement = Enforcement::default();
        assert!(net.fabric.partition_passes(&path, 0x8001));
    }
}

#[test]
fn l34_a_trace_ends_where_a_packet_is_dropped() {
    let mut net = Net::row(2);
    let (from, probe) = (net.hca(0), Probe { dlid: 2, pkey: Some(0x8001), payload: 2048, ..Probe::default() });
    let (whole, lost) = net.fabric.trace(from, &probe);
    assert_eq!((&whole, lost), (&net.fabric.resolve(from, 2, 0).unwrap(), None));
    let second = end(net.switches[1], whole.hops[1].egress);
    net.fabric.settings_mut(second).unwrap().mtu = Mtu::from_code(3).unwrap();
    let (path, lost) = net.fabric.trace(from, &probe);
    assert_eq!(lost, Some(NoPath { end: second, cause: Cause::TooLong }));
    assert_eq!(path.hops, whole.hops[..1], "the first switch has sent it on");
    assert_eq!(net.fabric.trace(from, &Probe { payload: 1024, ..probe }).1, None);
    let first = end(net.switches[0], whole.hops[0].ingress);
    let settings = net.fabric.settings_mut(first).unwrap();
    (settings.pkeys, settings.enforcement.pkey_in) = (Table::new(&[0x8002]), true);
    let (path, lost) = net.fabric.trace(from, &probe);
    assert_eq!((path.hops.len(), lost), (0, Some(NoPath { end: first, cause: Cause::PartitionIn })));
}
