//! Virtual lanes share a link by arbitration, and packets expire where the manager says so.

use crate::net::{Net, end, packet};
use softhca_subnet::arbitration::Tables;
use softhca_subnet::service::SlToVl;
use softhca_subnet::{Cause, Delivery};
use std::sync::Arc;

/// Two lanes between HCA 0 and HCA 1, with these tables at HCA 0.
fn two_lanes(tables: Tables) -> Net {
    let mut net = Net::star(2);
    net.fabric.switch_mut(net.switches[0]).unwrap().sl_to_vl_default = SlToVl::spread(2);
    let settings = net.fabric.settings_mut(net.hca(0)).unwrap();
    settings.sl_to_vl = SlToVl::spread(2);
    settings.arbitration = Arc::new(tables);
    net
}

fn of_sl(deliveries: &[Delivery], sl: u8) -> usize {
    deliveries.iter().filter(|delivery| delivery.frame.lrh.sl == sl).count()
}

#[test]
fn l31_sl_0_that_saturates_vl_0_leaves_sl_1_its_share_by_weights() {
    for (own, other, share) in [(64, 64, 50), (64, 192, 75), (192, 64, 25)] {
        let mut net = two_lanes(Tables::new(&[], &[(0, own), (1, other)], 0));
        (0..400).for_each(|_| net.send(0, 1, 0, 2048));
        (0..400).for_each(|_| net.send(0, 1, 1, 2048));
        let delivered = net.run();
        let of_sl_1 = of_sl(&delivered[..200], 1) * 100 / 200;
        assert!(of_sl_1.abs_diff(share) <= 6, "weights {own} and {other}: {of_sl_1} %");
        assert_eq!(delivered.len(), 800);
    }
}

#[test]
fn l31_the_high_table_is_limited_by_vl_high_limit() {
    for (limit, share) in [(0, 50), (1, 33), (255, 0)] {
        let mut net = two_lanes(Tables::new(&[(0, 255)], &[(1, 255)], limit));
        (0..400).for_each(|_| net.send(0, 1, 0, 2048));
        (0..400).for_each(|_| net.send(0, 1, 1, 2048));
        let of_sl_1 = of_sl(&net.run()[..200], 1) * 100 / 200;
        assert!(of_sl_1.abs_diff(share) <= 3, "limit {limit}: {of_sl_1} %");
    }
}

#[test]
fn l31_management_packets_go_first() {
    let mut net = Net::star(2);
    (0..50).for_each(|_| net.send(0, 1, 0, 4096));
    net.fabric.inject(net.hca(0), crate::net::smp(1, 2)).unwrap();
    let at = net.run().iter().position(|delivery| delivery.frame.is_management()).unwrap();
    assert!(at <= 1, "only the packet on the wire is before it, {at}");
}

#[test]
fn l32_a_service_level_on_lane_15_is_dropped() {
    let mut net = Net::star(2);
    net.fabric.settings_mut(net.hca(0)).unwrap().sl_to_vl = SlToVl::of(|sl| if sl == 3 { 15 } else { 0 });
    assert_eq!(net.fabric.inject(net.hca(0), packet(1, 2, 3, 0)), Err(Cause::NoVl));
    net.fabric.switch_mut(net.switches[0]).unwrap().sl_to_vl.insert((1, 2), SlToVl::of(|_| 15));
    net.send(0, 1, 0, 0);
    assert_eq!(net.run(), []);
    assert_eq!(net.dropped(end(net.switches[0], 2), Cause::NoVl), 1);
}

#[test]
fn l34_a_packet_that_waits_longer_than_hoq_life_is_dropped_and_frees_its_buffer() {
    let mut net = Net::star(3);
    net.fabric.settings_mut(end(net.switches[0], 2)).unwrap().hoq_life = 2;
    net.fabric.stop(net.hca(1));
    (0..20).for_each(|_| net.send(0, 1, 0, 4096));
    (0..5).for_each(|_| net.send(0, 2, 0, 4096));
    let start = net.fabric.now();
    let delivered = net.run();
    assert_eq!(delivered.len(), 5, "the other destination is reached in the end");
    let lives = (delivered[0].time - start) / softhca_subnet::rate::coded_time(2);
    assert!(lives >= 14, "each packet at the head has its own time, {lives}");
    assert_eq!(net.dropped(end(net.switches[0], 2), Cause::HeadOfQueue), 17, "three are in the receiver");
}

#[test]
fn l34_a_packet_older_than_the_life_time_of_the_switch_is_dropped() {
    let mut net = Net::star(2);
    net.fabric.switch_mut(net.switches[0]).unwrap().life = 1;
    net.fabric.stop(net.hca(1));
    (0..5).for_each(|_| net.send(0, 1, 0, 4096));
    net.run();
    assert_eq!(net.dropped(end(net.switches[0], 2), Cause::LifeTime), 2);
}

#[test]
fn l15_each_lane_has_a_buffer_of_its_own() {
    let mut net = two_lanes(Tables::new(&[], &[(0, 64), (1, 64)], 0));
    net.fabric.stop(net.hca(1));
    (0..20).for_each(|_| net.send(0, 1, 0, 4096));
    net.run();
    let sent = |net: &Net| net.fabric.port(net.hca(0)).unwrap().counters().sent.packets;
    assert_eq!(sent(&net), 6, "three wait in the switch, three in the receiver");
    (0..20).for_each(|_| net.send(0, 1, 1, 4096));
    net.run();
    assert_eq!(sent(&net), 12, "the other lane has as much");
}

#[test]
fn l34_an_end_port_drops_nothing_for_its_age() {
    let mut net = Net::star(2);
    net.fabric.settings_mut(net.hca(0)).unwrap().hoq_life = 0;
    net.fabric.stop(net.hca(1));
    (0..20).for_each(|_| net.send(0, 1, 0, 4096));
    net.run();
    net.fabric.resume(net.hca(1));
    assert_eq!((net.run().len(), net.drops()), (20, 0));
}
