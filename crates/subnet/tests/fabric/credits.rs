//! Credits on a link: nothing is lost, a full receiver stops its sender, and a stall spreads.

use crate::net::{Net, end, packet};
use softhca_subnet::deadlock::Channel;

const PACKETS: usize = 500;

#[test]
fn l30_nothing_is_lost_for_lack_of_credits_and_order_is_kept() {
    let mut net = Net::row(3);
    for at in 0..PACKETS {
        net.send(0, 1, 0, 4 * (at % 1000));
    }
    let lengths: Vec<usize> = net.run().iter().map(|delivery| delivery.frame.body().len() - 16).collect();
    assert_eq!(lengths, (0..PACKETS).map(|at| 4 * (at % 1000)).collect::<Vec<_>>());
    assert_eq!(net.drops(), 0);
}

#[test]
fn l30_a_full_receiver_stops_the_sender_and_loses_nothing() {
    let mut net = Net::star(2);
    net.fabric.stop(net.hca(1));
    for _ in 0..PACKETS {
        net.send(0, 1, 0, 4096);
    }
    assert_eq!(net.run(), []);
    let sent = |net: &Net, at| net.fabric.port(at).unwrap().counters().sent.packets;
    // A buffer of 256 blocks takes three packets of 65 blocks.
    assert_eq!(sent(&net, end(net.switches[0], 2)), 3);
    assert_eq!(sent(&net, net.hca(0)), 6);
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().backlog(), PACKETS - 6);
    net.fabric.resume(net.hca(1));
    assert_eq!((net.run().len(), net.drops()), (PACKETS, 0));
    assert!(net.fabric.port(net.hca(0)).unwrap().counters().waited > 0);
}

#[test]
fn l30_a_link_is_used_at_its_full_rate() {
    let mut net = Net::star(2);
    let start = net.fabric.now();
    (0..PACKETS).for_each(|_| net.send(0, 1, 0, 4096));
    let last = net.run().last().unwrap().time - start;
    let bytes = PACKETS as u64 * (4096 + 8 + 16);
    // 100 Gb/s are 80 ps for each byte.
    assert!(last < bytes * 80 * 102 / 100, "{last} ps for {bytes} bytes");
}

#[test]
fn l30_management_packets_pass_a_stopped_lane() {
    let mut net = Net::star(2);
    net.fabric.stop(net.hca(1));
    (0..20).for_each(|_| net.send(0, 1, 0, 4096));
    net.run();
    net.fabric.inject(net.hca(0), crate::net::smp(1, 2)).unwrap();
    let delivered = net.run();
    assert_eq!(delivered.len(), 1, "VL 15 has no credits");
    assert!(delivered[0].frame.is_management());
}

#[test]
fn l30_a_head_of_line_stall_is_visible() {
    // HCA 0 sends to HCA 1, which takes nothing, and to HCA 2, on one lane.
    let mut net = Net::star(3);
    net.fabric.stop(net.hca(1));
    for _ in 0..20 {
        net.send(0, 1, 0, 4096);
        net.send(0, 2, 0, 4096);
    }
    let delivered = net.run().len();
    assert!(delivered < 10, "{delivered} packets passed before the buffer was full");
    let stalls: Vec<Channel> = net.fabric.stalls().into_iter().map(|(channel, _)| channel).collect();
    let switch = Channel { node: net.switches[0], port: 2, vl: 0 };
    assert_eq!(stalls, [switch, Channel { node: net.hcas[0], port: 1, vl: 0 }]);
    assert_eq!(net.fabric.deadlock(), None, "a stopped receiver is no deadlock");

    // On two lanes, the second destination is not disturbed.
    let mut net = Net::star(3);
    net.fabric.settings_mut(net.hca(0)).unwrap().sl_to_vl = softhca_subnet::service::SlToVl::spread(2);
    net.fabric.switch_mut(net.switches[0]).unwrap().sl_to_vl_default = softhca_subnet::service::SlToVl::spread(2);
    net.fabric.stop(net.hca(1));
    for _ in 0..20 {
        net.send(0, 1, 0, 4096);
        net.send(0, 2, 1, 4096);
    }
    assert_eq!(net.run().len(), 20);
}

#[test]
fn l20_packets_without_payload_take_one_block() {
    let mut net = Net::star(2);
    net.send(0, 1, 0, 0);
    assert_eq!(net.run()[0].frame, packet(1, 2, 0, 0));
}
