//! Every rule by which a switch or an end port drops a packet, and its counter.

use crate::net::{Net, end, keyed, packet, smp};
use softhca_subnet::counters::PortError;
use softhca_subnet::pkey::Table;
use softhca_subnet::state::Event;
use softhca_subnet::{Cause, Frame, Mtu};
use wire::lrh::{self, Next};

/// What is dropped at port `port` of the switch when HCA 0 sends this packet.
fn sends(net: &mut Net, frame: Frame, port: u8, cause: Cause) {
    net.fabric.inject(net.hca(0), frame).unwrap();
    assert_eq!(net.run(), [], "{cause}");
    assert_eq!(net.dropped(end(net.switches[0], port), cause), 1, "{cause}");
    assert_eq!(net.drops(), 1, "{cause}");
}

#[test]
fn l34_each_drop_has_its_counter() {
    sends(&mut Net::star(3), packet(1, 99, 0, 0), 1, Cause::NoRoute);
    sends(&mut Net::star(3), packet(1, 0xc000, 0, 0), 1, Cause::NoRoute);

    let mut net = Net::star(3);
    net.fabric.switch_mut(net.switches[0]).unwrap().set_route(2, 200);
    sends(&mut net, packet(1, 2, 0, 0), 1, Cause::NoRoute);

    let mut net = Net::star(3);
    net.fabric.switch_mut(net.switches[0]).unwrap().set_route(2, 1);
    sends(&mut net, packet(1, 2, 0, 0), 1, Cause::BackToSource);

    let mut net = Net::star(3);
    net.fabric.settings_mut(end(net.switches[0], 2)).unwrap().mtu = Mtu::B1024;
    sends(&mut net, packet(1, 2, 0, 2048), 2, Cause::TooLong);

    let mut net = Net::star(3);
    net.fabric.set_state(net.hca(1), Event::SetDown).unwrap();
    sends(&mut net, packet(1, 2, 0, 0), 2, Cause::EgressDown);

    let mut net = Net::star(3);
    net.fabric.switch_mut(net.switches[0]).unwrap().set_route(2, 3);
    net.fabric.inject(net.hca(0), packet(1, 2, 0, 0)).unwrap();
    net.run();
    assert_eq!(net.dropped(net.hca(2), Cause::NotMine), 1, "the wrong end port");
}

#[test]
fn l34_no_lid_and_the_permissive_lid_do_not_leave_an_end_port() {
    let mut net = Net::star(2);
    assert_eq!(net.fabric.inject(net.hca(0), packet(1, 0, 0, 0)), Err(Cause::BadLid));
    assert_eq!(net.fabric.inject(net.hca(0), packet(1, 0xffff, 0, 0)), Err(Cause::BadLid));
}

#[test]
fn l34_management_packets_pass_a_port_that_is_only_init() {
    let mut net = Net::star(2);
    net.fabric.set_state(net.hca(1), Event::SetDown).unwrap();
    net.run();
    net.fabric.inject(net.hca(0), smp(1, 2)).unwrap();
    assert_eq!(net.run().len(), 1);
}

#[test]
fn l34_directed_routes_are_handed_to_the_owner_of_each_switch() {
    let mut net = Net::row(2);
    net.fabric.inject(net.hca(0), smp(0xffff, 0xffff)).unwrap();
    let mut delivered = net.run();
    assert_eq!(delivered[0].end, end(net.switches[0], 1), "with the port that it came in by");
    net.fabric.inject(end(net.switches[0], 7), delivered.remove(0).frame).unwrap();
    assert_eq!(net.run()[0].end, end(net.switches[1], 8));
}

#[test]
fn l09_a_switch_has_a_lid_at_port_0_and_answers_from_it() {
    let mut net = Net::star(2);
    net.fabric.settings_mut(end(net.switches[0], 0)).unwrap().identity.lid = 50;
    net.fabric.inject(net.hca(0), smp(1, 50)).unwrap();
    assert_eq!(net.run()[0].end, end(net.switches[0], 1));
    net.fabric.inject(end(net.switches[0], 0), smp(50, 1)).unwrap();
    assert_eq!(net.run()[0].end, net.hca(0));
}

#[test]
fn l12_an_end_port_counts_packets_of_foreign_partitions() {
    let mut net = Net::star(2);
    net.fabric.settings_mut(net.hca(1)).unwrap().pkeys = Table::new(&[0x0001]);
    for (key, delivered) in [(0x8001, 1), (0x0001, 0), (0x8002, 0)] {
        net.fabric.inject(net.hca(0), keyed(1, 2, 0, 0, key)).unwrap();
        assert_eq!(net.run().len(), delivered, "{key:#x}");
    }
    let counters = net.fabric.port(net.hca(1)).unwrap().counters();
    assert_eq!(counters.error(PortError::PortRcvConstraintErrors), 2);
}

#[test]
fn l13_a_switch_enforces_partitions_inbound_and_outbound() {
    for (port, cause) in [(1, Cause::PartitionIn), (2, Cause::PartitionOut)] {
        let mut net = Net::star(2);
        let settings = net.fabric.settings_mut(end(net.switches[0], port)).unwrap();
        settings.pkeys = Table::new(&[0x8001]);
        settings.enforcement.pkey_in = port == 1;
        settings.enforcement.pkey_out = port == 2;
        sends(&mut net, keyed(1, 2, 0, 0, 0x8002), port, cause);
        net.fabric.inject(net.hca(0), smp(1, 2)).unwrap();
        assert_eq!(net.run().len(), 1, "management packets belong to no partition");
    }
}

#[test]
fn l13_a_switch_filters_raw_packets() {
    let raw = || {
        let lrh = lrh::Header { next: Next::Raw, dlid: 2, slid: 1, ..lrh::Header::default() };
        Frame::new(lrh, vec![0; 32]).unwrap()
    };
    let mut net = Net::star(2);
    net.fabric.inject(net.hca(0), raw()).unwrap();
    assert_eq!(net.run().len(), 1);
    let enforcement = &mut net.fabric.settings_mut(end(net.switches[0], 1)).unwrap().enforcement;
    enforcement.raw_in = true;
    sends(&mut net, raw(), 1, Cause::RawFilter);
}

#[test]
fn l36_an_end_port_takes_every_lid_of_its_lmc_range_and_no_other() {
    let mut net = Net::star(2);
    let identity = &mut net.fabric.settings_mut(net.hca(1)).unwrap().identity;
    (identity.lid, identity.lmc) = (8, 2);
    (8..16).for_each(|lid| net.fabric.switch_mut(net.switches[0]).unwrap().set_route(lid, 2));
    (8..16).for_each(|lid| net.fabric.inject(net.hca(0), packet(1, lid, 0, 0)).unwrap());
    assert_eq!(net.run().len(), 4);
    assert_eq!(net.dropped(net.hca(1), Cause::NotMine), 4);
}

#[test]
fn l01_a_packet_to_the_own_lid_does_not_leave_the_port() {
    let mut net = Net::star(2);
    net.fabric.inject(net.hca(0), packet(1, 1, 0, 0)).unwrap();
    assert_eq!(net.run()[0].end, net.hca(0));
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().counters().sent.packets, 0);
}

#[test]
fn l34_data_leaves_a_switch_by_its_tables_only() {
    let mut net = Net::star(2);
    assert_eq!(net.fabric.inject(end(net.switches[0], 2), packet(9, 2, 0, 0)), Err(Cause::NoRoute));
    net.fabric.inject(end(net.switches[0], 0), packet(9, 2, 0, 0)).unwrap();
    assert_eq!(net.run()[0].end, net.hca(1));
}

#[test]
fn l34_too_many_management_packets_are_dropped_and_counted() {
    let mut net = Net::star(3);
    for from in [0, 2] {
        (0..60).for_each(|_| net.fabric.inject(net.hca(from), smp(from as u16 + 1, 2)).unwrap());
    }
    // Two senders share one egress port, at whose queue 64 packets may wait.
    net.fabric.set_fault(end(net.switches[0], 2), softhca_subnet::port::Fault { corrupt_every: 0, slower: 99 });
    let delivered = net.run().len() as u64;
    let dropped = net.dropped(end(net.switches[0], 2), Cause::Vl15Full);
    assert!(dropped > 40 && delivered + dropped == 120, "{delivered} {dropped}");
    let counters = net.fabric.port(end(net.switches[0], 2)).unwrap().counters();
    assert_eq!(counters.error(PortError::Vl15Dropped), dropped);
}
