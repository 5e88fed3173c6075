//! A router between two subnets.

use crate::net::{Net, end, global, packet};
use softhca_subnet::fabric::{Hop, Probe};
use softhca_subnet::router::{Group, Route};
use softhca_subnet::switch::Ports;
use softhca_subnet::{Cause, CutBy, End, NodeId};
use wire::Grh;
use wire::lrh;

const PREFIXES: [u64; 2] = [0xfd00_0000_0000_0001, 0xfd00_0000_0000_0002];

/// HCA 0 - switch - router - switch - HCA 1. Each router port has the LID 100 in its subnet.
fn two_subnets() -> (Net, NodeId) {
    let mut net = Net::new(2, 2);
    let router = net.fabric.add_router(0x9000, 2);
    for (side, prefix) in PREFIXES.into_iter().enumerate() {
        net.cable(net.hca(side), end(net.switches[side], 1));
        net.cable(end(router, side as u8 + 1), end(net.switches[side], 2));
        let switch = net.fabric.switch_mut(net.switches[side]).unwrap();
        switch.set_route(100, 2);
        switch.set_route(side as u16 + 1, 1);
        net.fabric.settings_mut(end(router, side as u8 + 1)).unwrap().identity.lid = 100;
        net.fabric.settings_mut(net.hca(side)).unwrap().identity.prefix = prefix;
        let guid = net.fabric.port(net.hca(side)).unwrap().settings().identity.guid;
        let tables = net.fabric.router_mut(router).unwrap();
        let (port, prefix) = (side as u8 + 1, u128::from(prefix) << 64);
        tables.routes.push(Route { prefix, len: 64, port, via: None });
        tables.neighbours.insert((port, guid), side as u16 + 1);
        tables.sl_of_class[2] = 5;
    }
    net.up();
    (net, router)
}

fn message(net: &Net, from: usize, hop_limit: u8) -> softhca_subnet::Frame {
    let gid = |at| net.fabric.port(net.hca(at)).unwrap().settings().identity.gid();
    let grh = Grh {
        hop_limit,
        traffic_class: 0x20,
        next_header: 0x1b,
        sgid: gid(from),
        dgid: gid(1 - from),
        ..Grh::default()
    };
    global(lrh::Header { dlid: 100, slid: from as u16 + 1, ..lrh::Header::default() }, grh)
}

#[test]
fn l03_a_router_joins_subnets_and_a_switch_alone_does_not() {
    let (mut net, router) = two_subnets();
    // By LID alone, no packet leaves its subnet: neither to the other port's LID nor to the router.
    net.fabric.inject(net.hca(0), packet(1, 2, 0, 64)).unwrap();
    net.fabric.inject(net.hca(0), packet(1, 100, 0, 64)).unwrap();
    assert_eq!(net.run().iter().filter(|delivery| delivery.end == net.hca(1)).count(), 0);
    let passed = |net: &Net| net.fabric.port(end(router, 2)).unwrap().counters().sent.packets;
    assert_eq!(passed(&net), 0);
    // With a GRH, the router takes the packet to the subnet of the destination.
    net.fabric.inject(net.hca(0), message(&net, 0, 2)).unwrap();
    let delivered = net.run();
    assert_eq!((delivered.len(), delivered[0].end, passed(&net)), (1, net.hca(1), 1));
}

#[test]
fn l04_lids_are_those_of_a_subnet_to_which_a_router_belongs_by_its_ports() {
    let (mut net, router) = two_subnets();
    // Both adapters have one LID, each in its subnet, and so have both ports of the router.
    net.fabric.settings_mut(net.hca(1)).unwrap().identity.lid = 1;
    net.fabric.switch_mut(net.switches[1]).unwrap().set_route(1, 1);
    for side in [0, 1] {
        let path = |lid| net.fabric.resolve(net.hca(side), lid, 0).map(|path| path.end);
        assert_eq!(path(100).unwrap(), end(router, side as u8 + 1));
        let switch = net.switches[side];
        let by_switch = net.fabric.resolve(end(router, side as u8 + 1), 1, 0).unwrap();
        assert_eq!((by_switch.end, by_switch.hops.len(), by_switch.hops[0].node), (net.hca(side), 1, switch));
    }
}

#[test]
fn l40_a_message_and_its_reply_pass_the_router() {
    let (mut net, _) = two_subnets();
    for from in [0, 1] {
        let sent = message(&net, from, 2);
        net.fabric.inject(net.hca(from), sent.clone()).unwrap();
        let delivered = net.run();
        assert_eq!((delivered.len(), delivered[0].end), (1, net.hca(1 - from)));
        let frame = &delivered[0].frame;
        assert_eq!((frame.lrh.slid, frame.lrh.dlid, frame.lrh.sl), (100, 2 - from as u16, 5));
        assert_eq!(frame.grh().unwrap().hop_limit, 1);
        let icrc = |frame: &softhca_subnet::Frame| {
            let bytes = frame.to_bytes();
            wire::icrc::link::icrc(&bytes[..bytes.len() - 6])
        };
        assert_eq!(icrc(frame), icrc(&sent), "the ICRC stays as it is");
    }
}

#[test]
fn l40_a_global_path_leads_through_the_router_and_a_local_one_ends_there() {
    let (mut net, router) = two_subnets();
    let grh = message(&net, 0, 2).grh();
    let probe = Probe { dlid: 100, sl: 3, grh, ..Probe::default() };
    let path = net.fabric.resolve_to(net.hca(0), &probe).unwrap();
    let nodes: Vec<NodeId> = path.hops.iter().map(|hop| hop.node).collect();
    assert_eq!((nodes, path.end), (vec![net.switches[0], router, net.switches[1]], net.hca(1)));
    assert_eq!((path.hops[1], path.own_hops), (Hop { node: router, ingress: 1, egress: 2, vl: 0 }, 1));
    let passage = net.fabric.passage(net.hca(0), &probe);
    assert_eq!(passage.found.unwrap().0, 0xffff, "the router chooses the service level behind it");
    let local = net.fabric.resolve(net.hca(0), 100, 0).unwrap();
    assert_eq!(local.end, end(router, 1));
    let grh = grh.map(|grh| Grh { hop_limit: 1, ..grh });
    let lost = net.fabric.resolve_to(net.hca(0), &Probe { grh, ..probe }).unwrap_err();
    assert_eq!((lost.end, lost.cause), (end(router, 1), Cause::HopLimit));
    net.fabric.cut(end(router, 2), CutBy::Operator);
    assert!(passage.nodes.iter().any(|node| net.fabric.changed(*node) > path.epoch));
}

#[test]
fn l40_the_hop_limit_ends_at_the_router() {
    for hop_limit in [0, 1] {
        let (mut net, router) = two_subnets();
        net.fabric.inject(net.hca(0), message(&net, 0, hop_limit)).unwrap();
        assert_eq!(net.run(), []);
        assert_eq!(net.dropped(end(router, 1), Cause::HopLimit), 1);
        assert_eq!(net.drops(), 1);
    }
}

#[test]
fn l40_link_local_addresses_are_not_routed() {
    let (mut net, router) = two_subnets();
    net.fabric.settings_mut(net.hca(0)).unwrap().identity.prefix = softhca_subnet::port::LINK_LOCAL;
    net.fabric.inject(net.hca(0), message(&net, 0, 9)).unwrap();
    assert_eq!(net.run(), []);
    assert_eq!(net.dropped(end(router, 1), Cause::LinkLocal), 1);
}

#[test]
fn l40_a_full_router_stops_the_other_subnet_and_loses_nothing() {
    let (mut net, _) = two_subnets();
    net.fabric.stop(net.hca(1));
    for _ in 0..1500 {
        net.fabric.inject(net.hca(0), message(&net, 0, 9)).unwrap();
    }
    assert_eq!(net.run(), []);
    net.fabric.resume(net.hca(1));
    assert_eq!((net.run().len(), net.drops()), (1500, 0));
}

#[test]
fn l40_a_multicast_packet_is_routed_to_the_other_subnets_of_its_group() {
    let (mut net, router) = two_subnets();
    let mgid = 0xff15_u128 << 112 | 7;
    let copies = vec![(1, 0xc005, 0), (2, 0xc006, 3)];
    net.fabric.router_mut(router).unwrap().groups.insert(mgid, Group { ingress: Ports::of([1, 2]), copies });
    for (side, mlid) in [(0, 0xc005), (1, 0xc006)] {
        let switch = net.fabric.switch_mut(net.switches[side]).unwrap();
        switch.multicast.insert(mlid, Ports::of([1, 2]));
    }
    let grh = Grh { dgid: mgid.to_be_bytes(), sgid: [0xfd; 16], hop_limit: 4, ..Grh::default() };
    net.fabric
        .inject(net.hca(0), global(lrh::Header { dlid: 0xc005, slid: 1, ..lrh::Header::default() }, grh))
        .unwrap();
    let delivered = net.run();
    assert_eq!((delivered.len(), delivered[0].end), (1, net.hca(1)));
    assert_eq!((delivered[0].frame.lrh.dlid, delivered[0].frame.lrh.sl), (0xc006, 3));
    let tree = |hop_limit| {
        let grh = Some(Grh { hop_limit, ..grh });
        net.fabric.trace_multicast(net.hca(0), &Probe { dlid: 0xc005, grh, ..Probe::default() })
    };
    let (reached, links): (Vec<_>, _) = (tree(4).ends.into_iter().collect(), tree(4).links.len());
    assert_eq!((reached, links), (vec![net.hca(1)], 4), "two links on each side");
    let lost = tree(1);
    assert_eq!((lost.ends.len(), lost.links.len()), (0, 2));
    assert_eq!(
        lost.lost.iter().map(|lost| (lost.end, lost.cause)).collect::<Vec<_>>(),
        [(end(router, 1), Cause::HopLimit)]
    );
}

#[test]
fn l11_a_router_port_enforces_partitions() {
    let (mut net, router) = two_subnets();
    let settings = net.fabric.settings_mut(end(router, 1)).unwrap();
    settings.pkeys = softhca_subnet::pkey::Table::new(&[0x8005]);
    settings.enforcement.pkey_in = true;
    net.fabric.inject(net.hca(0), message(&net, 0, 9)).unwrap();
    assert_eq!(net.run(), []);
    assert_eq!(net.dropped(end(router, 1), Cause::PartitionIn), 1);
}

/// Three routers in a circle, whose tables lead a subnet that nobody has from each one to the next.
fn circle() -> (Net, Vec<NodeId>) {
    let mut net = Net::new(1, 3);
    let routers: Vec<NodeId> = (0..3).map(|at| net.fabric.add_router(0x9000 + at * 0x100, 2)).collect();
    net.cable(net.hca(0), end(net.switches[0], 3));
    for (at, router) in routers.iter().enumerate() {
        let next = (at + 1) % 3;
        for (port, switch) in [(1, at), (2, next)] {
            net.cable(end(*router, port), end(net.switches[switch], port));
            net.fabric.settings_mut(end(*router, port)).unwrap().identity.lid = 100 + u16::from(port);
            net.fabric.switch_mut(net.switches[switch]).unwrap().set_route(100 + u16::from(port), port);
        }
        let tables = net.fabric.router_mut(*router).unwrap();
        tables.routes.push(Route { prefix: u128::from(PREFIXES[1]) << 64, len: 64, port: 2, via: Some(101) });
    }
    net.fabric.settings_mut(net.hca(0)).unwrap().identity.prefix = PREFIXES[0];
    net.up();
    (net, routers)
}

/// Sends a packet into the circle. Returns where and why it is dropped, and how many routers have
/// forwarded it.
fn lost_in_circle(hop_limit: u8) -> (Vec<(End, Cause)>, u64, Cause) {
    let (mut net, routers) = circle();
    let sgid = net.fabric.port(net.hca(0)).unwrap().settings().identity.gid();
    let dgid = (u128::from(PREFIXES[1]) << 64 | 7).to_be_bytes();
    let grh = Grh { hop_limit, next_header: 0x1b, sgid, dgid, ..Grh::default() };
    let lrh = lrh::Header { dlid: 101, slid: 1, ..lrh::Header::default() };
    net.fabric.inject(net.hca(0), global(lrh, grh)).unwrap();
    assert_eq!(net.run(), []);
    assert_eq!(net.drops(), 1);
    let ends = net.switches.iter().chain(&routers).flat_map(|node| (0..=8).map(|port| end(*node, port)));
    let ports = ends.filter_map(|at| Some((at, net.fabric.port(at)?.counters())));
    let dropped = ports.flat_map(|(at, counters)| counters.drops().map(move |(cause, _)| (at, cause))).collect();
    let sent = routers.iter().map(|router| net.fabric.port(end(*router, 2)).unwrap().counters().sent.packets);
    let probe = Probe { dlid: 101, grh: Some(grh), ..Probe::default() };
    (dropped, sent.sum(), net.fabric.resolve_to(net.hca(0), &probe).unwrap_err().cause)
}

/// Every router that forwards the packet subtracts one from its hop limit. The router that gets it
/// with 1 or 0 drops it where it comes in.
#[test]
fn l40_a_packet_in_a_circle_of_routers_ends_with_its_hop_limit() {
    let (_, routers) = circle();
    for hop_limit in [0_u8, 1, 2, 3, 4, 9, 32] {
        let forwarded = hop_limit.saturating_sub(1);
        let last = end(routers[usize::from(forwarded) % 3], 1);
        let expected = (vec![(last, Cause::HopLimit)], u64::from(forwarded), Cause::HopLimit);
        assert_eq!(lost_in_circle(hop_limit), expected, "hop limit {hop_limit}");
    }
}

/// A path has up to 64 switches and routers. What takes more, a switch drops.
#[test]
fn l40_a_packet_in_a_circle_of_routers_ends_after_64_nodes() {
    for hop_limit in [33, 255] {
        let (dropped, forwarded, cause) = lost_in_circle(hop_limit);
        assert_eq!((dropped.len(), dropped[0].1, forwarded, cause), (1, Cause::LifeTime, 32, Cause::NoRoute));
    }
}
