//! A manager brings a fabric up, with each routing engine.

use crate::net::{Net, SECOND, SMALL, fat_tree};
use softhca_sm::config::{Engine, Routing};
use softhca_sm::lids::{LidMap, emit, parse};
use softhca_sm::{Config, Event};
use std::fmt::Write;
use subnet::CutBy;

fn with(engine: Engine) -> Config {
    Config { routing: Routing { engine, roots: Vec::new() }, ..Config::default() }
}

#[test]
fn all_ports_are_active_and_reach_each_other_with_every_engine() {
    for engine in [Engine::MinHop, Engine::UpDown, Engine::FatTree, Engine::DimensionOrder] {
        for text in [SMALL.to_string(), fat_tree(2, 4), mesh(3, 4), ring(5)] {
            let net = Net::up(&text, with(engine));
            net.assert_connected();
            assert!(net.managed.ends().filter(|end| end.port != 0).all(|end| {
                let link = net.managed.port_info(end).unwrap().link;
                link.state == 4 || link.phys_state != 5
            }));
            let expected = if engine == Engine::FatTree && !text.contains("R0-0") { 1 } else { 0 };
            let fallbacks = net.problems();
            assert!(fallbacks.iter().all(|why| why.ends_with("up/down is used")), "{fallbacks:?}");
            assert!(fallbacks.len() >= expected, "{engine:?}: {fallbacks:?}");
            assert!(expected == 1 || fallbacks.is_empty(), "{engine:?}: {fallbacks:?}");
            if matches!(engine, Engine::UpDown | Engine::FatTree) {
                assert_eq!(net.managed.fabric().routing_cycle(&[0]), None, "{engine:?}");
            }
        }
    }
}

#[test]
fn dimension_order_has_no_circle_in_a_mesh_and_min_hop_has_one_in_a_ring() {
    let net = Net::up(&mesh(3, 4), with(Engine::DimensionOrder));
    assert_eq!(net.managed.fabric().routing_cycle(&[0]), None);
    let net = Net::up(&ring(5), with(Engine::MinHop));
    assert!(net.managed.fabric().routing_cycle(&[0]).is_some());
}

#[test]
fn a_fat_tree_spreads_destinations_over_all_links_up() {
    for engine in [Engine::FatTree, Engine::MinHop, Engine::UpDown] {
        let net = Net::up(&fat_tree(3, 4), with(engine));
        let leaf = net.managed.node(net.managed.id("L0-0").unwrap()).unwrap();
        let far: Vec<u8> = (10..=36).map(|host| leaf.egress(net.lid(&format!("H{host}"))).unwrap()).collect();
        for port in 4..=6 {
            assert_eq!(far.iter().filter(|egress| **egress == port).count(), 9, "{engine:?}");
        }
    }
}

#[test]
fn a_manager_in_a_switch_brings_the_fabric_up() {
    let mut net = Net::new(SMALL);
    net.start("S3", Config::default());
    net.settle();
    net.assert_connected();
    assert_eq!(net.problems(), [""; 0]);
    assert_eq!(net.managed.port_info(net.end("H3", 1)).unwrap().master_sm_lid, net.lid("S3"));
}

#[test]
fn each_port_has_a_range_of_lids_with_an_lmc() {
    let net = Net::up(SMALL, Config { lmc: 2, ..Config::default() });
    net.assert_connected();
    for (end, lid) in net.lids() {
        let info = net.managed.port_info(end).unwrap();
        let expected = if end.port == 0 { 0 } else { 2 };
        assert_eq!((info.lmc, lid % (1 << info.lmc)), (expected, 0));
    }
    let inventory = net.sites[0].manager.inventory();
    let base = net.lid("H3");
    assert!((base..base + 4).all(|lid| inventory.by_lid(lid) == inventory.by_lid(base)));
}

#[test]
fn the_second_sweep_sets_nothing() {
    let mut net = Net::up(SMALL, Config::default());
    // The one after the first writes nothing but the bits of changes that it has seen.
    net.manager().sweep_now();
    net.settle();
    let (sets, ups) = (net.sites[0].sets, net.ups());
    net.manager().sweep_now();
    net.settle();
    net.run(25 * SECOND);
    assert_eq!((net.sites[0].sets, net.problems()), (sets, vec![]));
    assert_eq!(net.ups(), ups, "nothing has changed, so nothing is told");
}

/// IBA 14.2.5.6: LocalPortNum is the port that the request came by. osmtest compares it with that of
/// an earlier sweep.
#[test]
fn a_sweep_asks_each_port_of_an_adapter_by_its_own_cable() {
    let mut net = Net::up(SMALL, Config::default());
    net.manager().sweep_now();
    net.settle();
    let adapters = net.manager().inventory().nodes.values().filter(|node| node.switch.is_none());
    let ports: Vec<(u8, u8)> =
        adapters.flat_map(|node| &node.ports).map(|(number, port)| (*number, port.info.local_port)).collect();
    assert_eq!(ports, [(1, 1), (1, 1), (1, 1), (1, 1), (2, 2)]);
}

#[test]
fn the_time_of_a_sweep_is_its_own() {
    let mut net = Net::up(SMALL, Config::default());
    net.run(5 * SECOND);
    net.managed.cut(net.end("S1", 7), CutBy::Operator);
    net.settle();
    let ups = net.sites[0].events.iter().filter_map(|event| match event {
        Event::Up(up) => Some(up.took),
        _ => None,
    });
    let took: Vec<_> = ups.collect();
    assert!(took.len() >= 2, "{took:?}");
    // The time of the simulation, and no request was lost.
    assert!(took.iter().all(|took| !took.is_zero() && took.as_secs() == 0), "{took:?}");
}

#[test]
fn a_lost_datagram_is_sent_again() {
    let mut net = Net::new(SMALL);
    let from = net.end("S1", 7);
    // A link that damages every third packet.
    net.managed.set_fault(from, subnet::port::Fault { corrupt_every: 3, ..Default::default() });
    net.start("H1", Config::default());
    net.settle();
    net.assert_connected();
}

#[test]
fn lids_survive_a_restart_by_their_map() {
    let net = Net::up(SMALL, Config::default());
    let map = net.sites[0].events.iter().rev().find_map(|event| match event {
        Event::Lids(map) => Some(map.clone()),
        _ => None,
    });
    let text = emit(&map.unwrap());
    let before = net.lids();
    // The fabric was off: no port has its LID any more.
    let mut net = Net::new(SMALL);
    net.start("H3", Config::default());
    net.manager().set_lids(parse(&text).unwrap());
    net.settle();
    assert_eq!(net.lids(), before);
    // Without the map, the manager's own port would be first.
    let mut net = Net::new(SMALL);
    net.start("H3", Config::default());
    net.manager().set_lids(LidMap::new());
    net.settle();
    assert_ne!(net.lids(), before);
}

/// Switches in rows, with the ports in the same order everywhere: right, left, down, up.
fn mesh(rows: usize, columns: usize) -> String {
    let mut text = String::new();
    for row in 0..rows {
        for column in 0..columns {
            writeln!(text, "Switch 6 \"S{row}-{column}\"\n[5] \"H{}\"[1]", row * columns + column + 1).unwrap();
            if column + 1 < columns {
                writeln!(text, "[1] \"S{row}-{}\"[2]", column + 1).unwrap();
            }
            if row + 1 < rows {
                writeln!(text, "[3] \"S{}-{column}\"[4]", row + 1).unwrap();
            }
            text.push('\n');
        }
    }
    (1..=rows * columns).for_each(|host| writeln!(text, "Hca 1 \"H{host}\"\n").unwrap());
    text
}

fn ring(switches: usize) -> String {
    let mut text = String::new();
    for at in 0..switches {
        writeln!(text, "Switch 4 \"S{at}\"\n[3] \"H{}\"[1]\n[1] \"S{}\"[2]\n", at + 1, (at + 1) % switches).unwrap();
    }
    (1..=switches).for_each(|host| writeln!(text, "Hca 1 \"H{host}\"\n").unwrap());
    text
}
