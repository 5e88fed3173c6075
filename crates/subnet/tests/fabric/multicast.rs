//! Multicast through a tree of switches.

use crate::net::{Net, end, packet};
use softhca_subnet::service::SlToVl;
use softhca_subnet::switch::Ports;
use softhca_subnet::{Cause, CutBy, NodeId};

/// Three leaves below one root, three HCAs at each leaf.
fn tree() -> Net {
    let mut net = Net::new(9, 4);
    for leaf in 0..3 {
        net.cable(end(net.switches[leaf], 8), end(net.switches[3], leaf as u8 + 1));
        for at in 0..3 {
            net.cable(end(net.hcas[3 * leaf + at], 1), end(net.switches[leaf], at as u8 + 1));
        }
        let ports = Ports::of([1, 2, 3, 8]);
        net.fabric.switch_mut(net.switches[leaf]).unwrap().multicast.insert(0xc001, ports);
    }
    net.fabric.switch_mut(net.switches[3]).unwrap().multicast.insert(0xc001, Ports::of([1, 2, 3]));
    net.up();
    net
}

#[test]
fn l35_multicast_through_a_tree_gives_each_member_one_copy() {
    let mut net = tree();
    (0..100).for_each(|_| net.fabric.inject(net.hca(4), packet(5, 0xc001, 0, 2048)).unwrap());
    let delivered = net.run();
    for (at, hca) in net.hcas.iter().enumerate() {
        let copies = delivered.iter().filter(|delivery| delivery.end.node == *hca).count();
        assert_eq!(copies, if at == 4 { 0 } else { 100 }, "HCA {at}");
    }
    assert_eq!(net.drops(), 0);
    let counters = net.fabric.port(net.hca(0)).unwrap().counters();
    assert_eq!((counters.received.multicast, counters.received.packets), (100, 100));
}

#[test]
fn l35_a_slow_member_holds_the_buffer_until_its_copy_has_left() {
    let mut net = tree();
    net.fabric.stop(net.hca(0));
    (0..100).for_each(|_| net.fabric.inject(net.hca(1), packet(2, 0xc001, 0, 4096)).unwrap());
    let before = net.run().len();
    assert!(before < 8 * 10, "the whole group waits for the slowest member");
    net.fabric.resume(net.hca(0));
    assert_eq!((before + net.run().len(), net.drops()), (800, 0));
}

#[test]
fn l35_a_copy_that_cannot_leave_is_dropped_alone() {
    let mut net = tree();
    net.fabric.settings_mut(end(net.switches[0], 2)).unwrap().mtu = softhca_subnet::Mtu::B256;
    net.fabric.inject(net.hca(0), packet(1, 0xc001, 0, 2048)).unwrap();
    assert_eq!(net.run().len(), 7);
    assert_eq!(net.dropped(end(net.switches[0], 2), Cause::TooLong), 1);
}

#[test]
fn l35_the_switch_itself_may_be_a_member() {
    let mut net = Net::star(3);
    let switch = net.switches[0];
    net.fabric.switch_mut(switch).unwrap().multicast.insert(0xc000, Ports::of([0, 1, 2]));
    net.fabric.inject(net.hca(0), packet(1, 0xc000, 0, 64)).unwrap();
    let mut nodes: Vec<NodeId> = net.run().iter().map(|delivery| delivery.end.node).collect();
    nodes.sort();
    assert_eq!(nodes, [switch, net.hcas[1]]);
    (0..50).for_each(|_| net.fabric.inject(net.hca(0), packet(1, 0xc000, 0, 4096)).unwrap());
    assert_eq!(net.run().len(), 100, "no credit is lost");
}

#[test]
fn l35_copies_that_are_all_dropped_free_their_buffer() {
    let mut net = Net::star(3);
    let switch = net.switches[0];
    net.fabric.switch_mut(switch).unwrap().multicast.insert(0xc000, Ports::of([2, 3]));
    [2, 3]
        .into_iter()
        .for_each(|port| net.fabric.settings_mut(end(switch, port)).unwrap().mtu = softhca_subnet::Mtu::B256);
    (0..50).for_each(|_| net.fabric.inject(net.hca(0), packet(1, 0xc000, 0, 2048)).unwrap());
    assert_eq!(net.run(), []);
    assert_eq!(net.dropped(end(switch, 3), Cause::TooLong), 50, "all of them came through");
    net.send(0, 1, 0, 256);
    assert_eq!(net.run().len(), 1);
}

#[test]
fn l35_the_ends_that_copies_reach_are_known_beforehand() {
    let mut net = tree();
    let root = net.switches[3];
    net.fabric.switch_mut(root).unwrap().multicast.insert(0xc001, Ports::of([0, 1, 2]));
    net.fabric.cut(net.hca(1), CutBy::Operator);
    net.up();
    let reached = net.fabric.resolve_multicast(net.hca(3), 0xc001, 0).ends;
    net.fabric.inject(net.hca(3), packet(4, 0xc001, 0, 256)).unwrap();
    let own = |at: softhca_subnet::End| if at.node == root { end(root, 0) } else { at };
    let delivered: std::collections::BTreeSet<_> = net.run().iter().map(|delivery| own(delivery.end)).collect();
    assert_eq!(reached, delivered);
    assert_eq!(reached.len(), 5, "two of the sender's leaf, two of the other, and the root itself");
    assert!(net.fabric.resolve_multicast(net.hca(3), 0xc002, 0).ends.is_empty());
    assert!(net.fabric.resolve_multicast(net.hca(3), 7, 0).ends.is_empty());
    net.fabric.settings_mut(net.hca(3)).unwrap().sl_to_vl = SlToVl::of(|sl| if sl == 3 { 15 } else { 0 });
    assert!(net.fabric.resolve_multicast(net.hca(3), 0xc001, 3).ends.is_empty(), "the service level has no lane");
    assert_eq!(net.fabric.resolve_multicast(net.hca(3), 0xc001, 2).ends, reached);
}

#[test]
fn l35_a_loop_of_multicast_tables_ends() {
    let mut net = Net::new(2, 2);
    let [one, two] = [net.switches[0], net.switches[1]];
    net.cable(end(one, 1), end(two, 1));
    net.cable(end(one, 2), end(two, 2));
    net.cable(net.hca(0), end(one, 3));
    net.cable(net.hca(1), end(two, 3));
    for switch in [one, two] {
        net.fabric.switch_mut(switch).unwrap().multicast.insert(0xc001, Ports::of([1, 2, 3]));
    }
    net.up();
    let reached = net.fabric.resolve_multicast(net.hca(0), 0xc001, 0).ends;
    assert_eq!(reached, [net.hca(0), net.hca(1)].into(), "copies come back, too");
}
