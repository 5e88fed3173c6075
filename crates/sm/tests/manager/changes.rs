//! Links and nodes that come and go, and LIDs that are given twice.

use crate::net::{MS, Net, SECOND, SMALL, fat_tree};
use softhca_sm::Config;
use subnet::CutBy;
use subnet::fabric::TRAINING;
use wire::notice::Notice;
use wire::smp::{PortInfo, Smp};

#[test]
fn a_cut_link_is_routed_around_and_used_again_when_it_is_mended() {
    let mut net = Net::up(SMALL, Config::default());
    for port in [7, 6] {
        net.managed.cut(net.end("S1", port), CutBy::Operator);
        // The trap begins the sweep, and not the interval.
        net.run(SECOND / 2);
        net.settle();
        net.assert_connected();
    }
    let path = net.managed.resolve(net.end("H1", 1), net.lid("H3"), 0).unwrap();
    assert_eq!(path.hops.len(), 3, "by the third switch");
    net.managed.mend(net.end("S1", 7), CutBy::Operator);
    // A switch sends a trap once in a second at most.
    net.run(2 * TRAINING + 2 * SECOND);
    net.settle();
    net.assert_connected();
    let path = net.managed.resolve(net.end("H1", 1), net.lid("H3"), 0).unwrap();
    assert_eq!(path.hops.len(), 2);
    assert!(net.notices(Notice::LINK_STATE) >= 3, "subscribers hear of the traps");
}

#[test]
fn a_change_without_a_trap_is_seen_by_a_light_sweep() {
    let mut net = Net::up(SMALL, Config::default());
    net.run(12 * SECOND);
    net.settle();
    // S1 can tell nothing, as it does not know the manager's LID.
    let guid = net.managed.node(net.managed.id("S1").unwrap()).unwrap().info.node_guid;
    forget_manager(&mut net, guid);
    let ups = net.ups();
    net.managed.cut(net.end("S1", 2), CutBy::Operator);
    net.run(SECOND);
    assert_eq!(net.ups(), ups);
    net.run(12 * SECOND);
    net.settle();
    assert!(net.ups() > ups);
    net.assert_connected();
    assert_eq!(net.notices(Notice::GID_OUT_OF_SERVICE), 1);
}

/// Another program at the manager's port sets the SM LID of a switch to 0.
fn forget_manager(net: &mut Net, guid: u64) {
    let node = &net.sites[0].manager.inventory().nodes[&guid];
    let route = node.route.clone();
    let mut info: PortInfo = node.ports[&0].info;
    (info.master_sm_lid, info.link.state, info.link.phys_state) = (0, 0, 0);
    set_port(net, &route, 0, info);
}

fn set_port(net: &mut Net, route: &[u8], port: u8, info: PortInfo) {
    let (base_version, class, class_version, method) = (1, 0x81, 1, 2);
    let (attribute, modifier) = (PortInfo::ATTRIBUTE, u32::from(port));
    let mut smp = Smp { base_version, class, class_version, method, attribute, modifier, ..Smp::default() };
    (smp.dr_slid, smp.dr_dlid, smp.hop_count) = (0xffff, 0xffff, route.len() as u8);
    smp.initial_path[1..=route.len()].copy_from_slice(route);
    wire::layout::Layout::write(info, &mut smp.data);
    let datagram = subnet::managed::Datagram::smp(0xffff, 0xffff, 0, smp.to_mad());
    net.managed.send(net.sites[0].end, &datagram).unwrap();
    net.run(MS);
}

#[test]
fn a_node_that_goes_and_comes_is_told_and_keeps_its_lid() {
    let mut net = Net::up(SMALL, Config::default());
    let before = net.lids();
    let in_service = net.notices(Notice::GID_IN_SERVICE);
    assert_eq!(in_service, 3 + 5, "switches and ports of adapters");
    let node = net.managed.id("S2").unwrap();
    net.managed.remove(node);
    net.run(SECOND);
    net.settle();
    let inventory = net.sites[0].manager.inventory();
    assert_eq!(inventory.nodes.len(), 4, "S1, S3, H1, H2");
    assert_eq!(net.notices(Notice::GID_OUT_OF_SERVICE), 1 + 3);
    net.managed.restore(node);
    net.run(2 * TRAINING);
    net.settle();
    net.assert_connected();
    assert_eq!(net.lids(), before);
    assert_eq!(net.notices(Notice::GID_IN_SERVICE), in_service + 4);
}

#[test]
fn a_lid_that_two_ports_have_is_mended() {
    let mut net = Net::up(SMALL, Config::default());
    let (kept, at) = (net.lid("H2"), net.managed.id("H3").unwrap());
    let guid = net.managed.node(at).unwrap().info.node_guid;
    let mut info = net.managed.port_info(net.end("H3", 1)).unwrap();
    (info.lid, info.link.state, info.link.phys_state) = (kept, 0, 0);
    let manager = &net.sites[0].manager;
    let peer = manager.inventory().nodes[&guid].ports[&1].peer.unwrap();
    let route = [&manager.inventory().nodes[&peer.node].route[..], &[peer.port]].concat();
    set_port(&mut net, &route, 1, info);
    assert_eq!(net.lid("H3"), kept);
    net.manager().sweep_now();
    net.settle();
    net.assert_connected();
    assert_eq!(net.lid("H2"), kept);
    // A new manager without a map finds the same.
    let mut info = net.managed.port_info(net.end("H3", 1)).unwrap();
    (info.lid, info.link.state, info.link.phys_state) = (kept, 0, 0);
    set_port(&mut net, &route, 1, info);
    net.kill(0);
    net.start("H4", Config::default());
    net.settle();
    net.assert_connected();
    assert!(net.problems().iter().any(|problem| problem.starts_with(&format!("LID {kept} of node"))));
}

#[test]
fn the_manager_waits_for_its_own_link() {
    let mut net = Net::up(SMALL, Config::default());
    let own = net.end("H1", 1);
    net.managed.cut(own, CutBy::Operator);
    net.run(30 * SECOND);
    assert!(!net.sites[0].manager.is_up());
    net.managed.mend(own, CutBy::Operator);
    net.run(15 * SECOND);
    net.settle();
    assert!(net.sites[0].manager.is_up());
    net.assert_connected();
}

#[test]
fn a_storm_of_traps_is_told_in_one_line_and_a_lasting_problem_once() {
    let mut net = Net::up(&fat_tree(2, 4), Config::default());
    net.run(2 * SECOND);
    let ups = net.ups();
    // Traps of several nodes, which cause a sweep each.
    for leaf in ["L0-1", "L1-0", "L1-1", "L2-0", "L2-1"] {
        net.managed.cut(net.end(leaf, 1), CutBy::Operator);
        net.run(100 * MS);
    }
    net.run(2 * SECOND);
    net.settle();
    assert_eq!(net.ups(), ups + 2, "the first at once, and the others together");
    let last = net.sites[0].events.iter().rev().find_map(|event| match event {
        softhca_sm::Event::Up(up) => Some(up.to_string()),
        _ => None,
    });
    assert!(last.is_some_and(|line| line.ends_with(", 4 sweeps")));
    let problems = net.problems().len();
    net.run(60 * SECOND);
    assert_eq!((net.ups(), net.problems().len()), (ups + 2, problems));
}
