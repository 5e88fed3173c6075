//! Receivers that take no packets, and routes that deadlock: what stands still, what does not, and
//! what ports count.

use std::time::Duration;

use super::flow::{Flow, finish, run};
use super::net::{Net, end, two_lanes};
use engine::Service;
use mad::counters::Counter;

const WARM: Duration = Duration::from_millis(2);
const TIME: Duration = Duration::from_millis(8);

/// Two switches with one link between them.
const DUMBBELL: &str = r#"
Switch 8 "S1"
[1] "H1"[1]
[2] "H2"[1]
[7] "S2"[8] w=2 s=1

Switch 8 "S2"
[1] "H3"[1]
[2] "H4"[1]

Hca 1 "H1"
Hca 1 "H2"
Hca 1 "H3"
Hca 1 "H4"
"#;

fn waited(net: &mut Net, node: &str, port: u8) -> u64 {
    net.model(|model| model.counter(end(model, node, port), Counter::XmitWait))
}

/// H3 takes no packets for a while. Its sender stops, and nothing is lost. Packets to H4 on the
/// same lane wait behind those to H3, and packets on another lane do not.
#[test]
fn a_receiver_that_takes_nothing_stalls_its_lane_and_loses_nothing() {
    for service in [Service::Rc, Service::Ud] {
        let mut net = Net::managed(3, DUMBBELL, 4, two_lanes([64, 64]));
        let ways = [(1, 3, 0), (2, 4, 0), (2, 4, 1)];
        let mut flows = ways.map(|(from, to, sl)| Flow::new(&mut net, service, from, to, sl));
        run(&mut net, WARM, &mut flows);
        let before = run(&mut net, TIME, &mut flows);
        assert!(before.iter().all(|bytes| *bytes > 0), "{service:?}: {before:?}");

        net.model(|model| model.stop(end(model, "H3", 1)));
        // What is on its way fills the buffers.
        run(&mut net, WARM, &mut flows);
        let begun = waited(&mut net, "S2", 1);
        let during = run(&mut net, TIME, &mut flows);
        println!("{service:?}: {before:?} before, {during:?} while H3 takes nothing");
        assert_eq!(during[..2], [0, 0], "{service:?}: the receiver, and the bystander on its lane");
        assert!(during[2] > before[2] * 3 / 2, "{service:?}: the other lane has the link alone");
        // A tick is the time of four bytes, here at 4X EDR.
        let ticks = waited(&mut net, "S2", 1) - begun;
        let expected = TIME.as_nanos() as u64 * 100 / 8 / 4;
        assert!(ticks.abs_diff(expected) < expected / 50, "{service:?}: {ticks} ticks instead of {expected}");

        net.model(|model| model.resume(end(model, "H3", 1)));
        let after = run(&mut net, TIME, &mut flows);
        assert!(after[1] * 4 > before[1] * 3, "{service:?}: the bystander has {after:?} after, {before:?} before");
        assert!(finish(&mut net, Duration::from_secs(5), &mut flows), "{service:?}: every request completes");
        assert_eq!(net.drops(), 0, "{service:?}: credits lose nothing");
    }
}

/// A ring of four switches, each with a host at port 1. Port 2 leads to the next switch.
const RING: &str = r#"
Switch 4 "S1"
[1] "H1"[1]
[2] "S2"[3]

Switch 4 "S2"
[1] "H2"[1]
[2] "S3"[3]

Switch 4 "S3"
[1] "H3"[1]
[2] "S4"[3]

Switch 4 "S4"
[1] "H4"[1]
[2] "S1"[3]

Hca 1 "H1"
Hca 1 "H2"
Hca 1 "H3"
Hca 1 "H4"
"#;

/// The number in the name of a switch, which is the LID of its host.
fn number(switch: &str) -> u16 {
    switch[1..].parse().expect("a number")
}

/// Each host sends to the one after the next. All packets go clockwise, so that the lanes of the
/// ring wait for each other.
#[test]
fn a_deadlock_by_bad_routes_is_named_and_good_routes_end_it() {
    let clockwise = |switch: &str, lid: u16| if number(switch) == lid { 1 } else { 2 };
    let mut net = Net::by_hand(4, RING, 4, clockwise);
    assert!(net.model(|model| model.fabric().routing_cycle(&[0])).is_some(), "the tables alone show it");
    let mut flows = [(1, 3), (2, 4), (3, 1), (4, 2)].map(|(from, to)| Flow::new(&mut net, Service::Rc, from, to, 0));
    run(&mut net, TIME, &mut flows);
    let mut cycle = net.simulation.deadlock().expect("a deadlock");
    cycle.sort();
    assert_eq!(cycle, ["S1[2] VL 0", "S2[2] VL 0", "S3[2] VL 0", "S4[2] VL 0"]);
    let stuck = run(&mut net, TIME, &mut flows);
    assert_eq!(stuck, [0; 4], "nothing moves");
    assert_eq!(net.drops(), 0);

    // No packet goes from S4 to S1 any more, nor from S1 to S4. The switches drop what is older
    // than their life time of about a second, and the senders retransmit.
    let broken = |switch: &str, lid: u16| match number(switch) {
        at if at == lid => 1,
        at if at < lid => 2,
        _ => 3,
    };
    net.set_routes(4, broken);
    assert_eq!(net.model(|model| model.fabric().routing_cycle(&[0])), None);
    assert!(finish(&mut net, Duration::from_secs(60), &mut flows), "every request completes");
    assert_eq!(net.simulation.deadlock(), None);
    let moving = run(&mut net, TIME, &mut flows);
    assert!(moving.iter().all(|bytes| *bytes > 0), "{moving:?}");
}
