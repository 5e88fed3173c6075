//! The paths that the fabric resolves, and what changes them.

use crate::net::{CABLE, Net, end};
use softhca_subnet::fabric::Hop;
use softhca_subnet::{Cause, Mtu, Speed};

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
    net.fabric.cut(net.hca(0));
    assert!(epoch < after_route && after_route < net.fabric.epoch());
}

#[test]
fn l41_a_delivered_packet_has_the_bytes_of_a_link_capture() {
    let mut net = Net::star(2);
    net.send(0, 1, 3, 8);
    let bytes = net.run()[0].frame.to_bytes();
    assert_eq!(bytes[..8], [0x00, 0x32, 0, 2, 0, 8, 0, 1]);
    assert_eq!(softhca_subnet::Frame::parse(&bytes).unwrap().to_bytes(), bytes);
}
