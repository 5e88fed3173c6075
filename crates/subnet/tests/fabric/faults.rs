//! Links that are cut, damage packets, or are slow.

use crate::net::{LONG, Net, end};
use softhca_subnet::fabric::RECOVERY;
use softhca_subnet::port::Fault;
use softhca_subnet::state::Logical;
use softhca_subnet::{Cause, CutBy};

fn state(net: &Net, at: usize) -> Logical {
    net.fabric.port(net.hca(at)).unwrap().logical()
}

#[test]
fn l33_a_short_error_is_active_defer_and_nothing_that_waits_is_dropped() {
    let mut net = Net::star(2);
    (0..200).for_each(|_| net.send(0, 1, 0, 4096));
    let start = net.fabric.now();
    let mut delivered = net.fabric.advance(start + 10_000_000).len();
    net.fabric.cut(net.hca(0), CutBy::Operator);
    assert_eq!(state(&net, 0), Logical::ActiveDefer);
    delivered += net.fabric.advance(start + 10_000_000 + RECOVERY / 2).len();
    assert!(delivered < 60);
    net.fabric.mend(net.hca(0), CutBy::Operator);
    assert_eq!(state(&net, 0), Logical::Active);
    delivered += net.run().len();
    let lost = net.dropped(end(net.switches[0], 1), Cause::LinkLost);
    assert_eq!((delivered as u64 + lost, net.drops()), (200, lost));
    assert!(lost <= 2, "only what was on the wire, {lost}");
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().counters().recovered, 1);
    assert_eq!(state(&net, 0), Logical::Active, "also when the time for recovery is over");
}

#[test]
fn l33_a_long_error_takes_the_link_down_and_it_trains_again() {
    let mut net = Net::star(2);
    (0..50).for_each(|_| net.send(0, 1, 0, 4096));
    let epoch = net.fabric.epoch();
    net.fabric.cut(net.hca(0), CutBy::Operator);
    net.run();
    assert_eq!(state(&net, 0), Logical::Down);
    assert!(net.fabric.epoch() > epoch);
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().counters().downed, 1);
    net.fabric.mend(net.hca(0), CutBy::Operator);
    net.up();
    assert_eq!(state(&net, 0), Logical::Active);
    net.send(0, 1, 0, 4096);
    assert_eq!(net.run().len(), 1, "the credits are whole again");
}

#[test]
fn l18_a_cut_between_switches_is_passed_by_another_route() {
    // A ring of three switches; HCA 0 at the first, HCA 1 at the second.
    let mut net = Net::row(2);
    assert!(net.fabric.resolve(net.hca(0), 2, 0).is_ok());
    net.fabric.cut(end(net.switches[0], 7), CutBy::Operator);
    net.run();
    let failed = net.fabric.resolve(net.hca(0), 2, 0).unwrap_err();
    assert_eq!((failed.end, failed.cause), (end(net.switches[0], 7), Cause::EgressDown));
    net.cable(end(net.switches[0], 6), end(net.switches[1], 6));
    net.up();
    net.fabric.switch_mut(net.switches[0]).unwrap().set_route(2, 6);
    net.send(0, 1, 0, 64);
    assert_eq!(net.run().len(), 1);
}

#[test]
fn l34_a_damaged_packet_dies_behind_its_link_and_its_credits_come_back() {
    let mut net = Net::star(2);
    net.fabric.set_fault(net.hca(0), Fault { corrupt_every: 10, slower: 0 });
    (0..1000).for_each(|_| net.send(0, 1, 0, 4096));
    let delivered = net.run().len() as u64;
    let damaged = net.dropped(end(net.switches[0], 1), Cause::Damaged);
    assert_eq!((delivered + damaged, net.drops()), (1000, damaged));
    // The flow-control packets of the same direction count too, so the number is not exact.
    assert!(damaged.abs_diff(100) < 10, "{damaged}");
}

#[test]
fn l30_damaged_flow_control_packets_delay_and_lose_nothing() {
    let mut net = Net::star(2);
    net.fabric.set_fault(end(net.switches[0], 1), Fault { corrupt_every: 3, slower: 0 });
    (0..1000).for_each(|_| net.send(0, 1, 0, 4096));
    assert_eq!(net.run().len(), 1000);
}

#[test]
fn l30_a_slow_link_slows_its_sender() {
    let time = |slower| {
        let mut net = Net::star(2);
        net.fabric.set_fault(end(net.switches[0], 2), Fault { corrupt_every: 0, slower });
        let start = net.fabric.now();
        (0..200).for_each(|_| net.send(0, 1, 0, 4096));
        net.fabric.advance(start + LONG).last().unwrap().time - start
    };
    let (fast, slow) = (time(0), time(9));
    assert!((slow / fast) >= 9 && slow / fast <= 10, "{slow} {fast}");
}

#[test]
fn l30_a_link_that_goes_down_frees_the_buffers_of_what_waited_for_it() {
    let mut net = Net::star(3);
    net.fabric.stop(net.hca(1));
    (0..20).for_each(|_| net.send(0, 1, 0, 4096));
    (0..5).for_each(|_| net.send(0, 2, 0, 4096));
    net.run();
    net.fabric.set_state(net.hca(1), softhca_subnet::state::Event::SetDown).unwrap();
    assert_eq!(net.run().len(), 5);
    assert_eq!(net.dropped(end(net.switches[0], 2), Cause::EgressDown), 17, "three are in the receiver");
}

/// Taking back one cut does not mend what something else has cut.
#[test]
fn a_cable_passes_again_when_nothing_cuts_it() {
    use CutBy::{Absence, Operator, Rule};
    for (first, second) in [(Operator, Rule), (Rule, Operator), (Operator, Absence), (Absence, Operator)] {
        let mut net = Net::star(2);
        let far = end(net.switches[0], 1);
        let cables = [net.hca(0), if Absence == second { net.hca(0) } else { far }];
        net.fabric.cut(cables[0], first);
        net.fabric.cut(cables[1], second);
        net.fabric.mend(cables[0], first);
        let port = |net: &Net| net.fabric.port(net.hca(0)).unwrap().cuts();
        assert_eq!([first, second].map(|by| port(&net).contains(by)), [false, true]);
        assert_eq!(state(&net, 0), Logical::ActiveDefer, "it does not recover");
        net.run();
        net.up();
        assert_eq!(state(&net, 0), Logical::Down, "nor train");
        net.fabric.mend(cables[1], second);
        net.up();
        assert_eq!((state(&net, 0), port(&net)), (Logical::Active, Default::default()));
    }
}

#[test]
fn a_link_recovers_when_the_last_of_two_short_cuts_ends() {
    let mut net = Net::star(2);
    net.fabric.cut(net.hca(0), CutBy::Operator);
    net.fabric.cut(net.hca(0), CutBy::Rule);
    net.fabric.mend(net.hca(0), CutBy::Operator);
    net.fabric.mend(net.hca(0), CutBy::Rule);
    assert_eq!(state(&net, 0), Logical::Active);
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().counters().recovered, 1);
}

#[test]
fn a_link_that_is_cut_while_it_trains_does_not_come_up() {
    let mut net = Net::star(2);
    net.fabric.cut(net.hca(0), CutBy::Operator);
    net.run();
    net.fabric.mend(net.hca(0), CutBy::Operator);
    net.fabric.cut(net.hca(0), CutBy::Rule);
    net.up();
    assert_eq!(state(&net, 0), Logical::Down);
    net.fabric.mend(net.hca(0), CutBy::Rule);
    net.up();
    assert_eq!(state(&net, 0), Logical::Active);
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().counters().downed, 1, "what trains is not up");
}

/// Each of two nodes that are cabled back to back knows only of itself that it is absent.
#[test]
fn a_link_of_two_absent_nodes_needs_both() {
    let mut net = Net::new(2, 0);
    let ends = [net.hca(0), net.hca(1)];
    net.cable(ends[0], ends[1]);
    net.up();
    ends.into_iter().for_each(|end| net.fabric.cut(end, CutBy::Absence));
    net.run();
    for (end, logical) in [(ends[0], Logical::Down), (ends[1], Logical::Active)] {
        net.fabric.mend(end, CutBy::Absence);
        net.up();
        assert_eq!(state(&net, 0), logical);
    }
}
