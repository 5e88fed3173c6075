//! Tests simulated time itself, and contains short reproductions of failures that seeds have found.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Plan, Side, connect};
use abi::cq::{Wc, status};
use abi::post::opcode;
use engine::{Cq, SendWr};
use fabric::simulation::{Conditions, Fate, Happened, HostId, Seen, Simulation};

/// Two connected sides on separate hosts.
fn pair(seed: u64, plan: &Plan) -> (Simulation, [HostId; 2], [Side; 2]) {
    let mut simulation = Simulation::new(seed);
    let hosts = ["10.0.0.1", "10.0.0.2"].map(|address| simulation.host(address).expect("a host"));
    let sides = hosts.map(|host| Side::new(&simulation.connect(host).expect("an engine"), plan));
    connect(&sides[0], &sides[1]);
    (simulation, hosts, sides)
}

/// The next completion.
fn next(simulation: &mut Simulation, cq: &Arc<Cq>) -> Wc {
    let mut wcs = [Wc::default()];
    let limit = Duration::from_secs(60);
    assert!(simulation.run_until(limit, || cq.poll(&mut wcs).expect("a device") == 1), "nothing completes");
    wcs[0]
}

fn write(from: &Side, to: &Side, len: usize) {
    let (rkey, remote_addr) = (to.mr.rkey(), to.memory.addr(0));
    from.post(&SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, sges: &from.sge(0, len), ..SendWr::default() });
}

#[test]
fn nothing_happens_by_itself_and_time_stands_still() {
    let (mut simulation, _, [a, b]) = pair(1, &Plan::rc());
    let before = simulation.now();
    a.memory.pattern(0, 5000, 3);
    write(&a, &b, 5000);
    assert!(b.memory.get(0, 5000).iter().all(|byte| *byte == 0), "no packet has come");
    assert_eq!(simulation.now(), before);
    assert_eq!(next(&mut simulation, &a.scq).status, status::SUCCESS);
    assert_eq!(b.memory.get(0, 5000), a.memory.get(0, 5000));
    let took = simulation.now() - before;
    assert!(took > Duration::from_micros(4) && took < Duration::from_micros(50), "there and back: {took:?}");
}

#[test]
fn a_year_is_over_at_once() {
    let mut simulation = Simulation::new(1);
    let year = Duration::from_secs(365 * 24 * 3600);
    simulation.alarm(year, 7);
    simulation.alarm(Duration::from_secs(1), 8);
    assert_eq!(simulation.step(), Some(Happened::Alarm(8)));
    assert_eq!(simulation.step(), Some(Happened::Alarm(7)));
    assert!(simulation.now() >= year);
    assert_eq!(simulation.step(), None, "nothing is left to happen");
}

#[test]
fn fates_come_as_often_as_was_asked_for() {
    let (mut simulation, _, [a, b]) = pair(5, &Plan::rc());
    simulation.set_conditions(Conditions::all(0.05));
    let fates = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&fates);
    simulation.watch(move |_, what| {
        if let Seen::Sent { fate, .. } = what {
            seen.lock().expect("one thread").push(*fate);
        }
    });
    for _ in 0..200 {
        write(&a, &b, 64);
        assert_eq!(next(&mut simulation, &a.scq).status, status::SUCCESS);
    }
    let fates = fates.lock().expect("one thread");
    for fate in [Fate::Lost, Fate::Twice, Fate::Late, Fate::Damaged] {
        let count = fates.iter().filter(|one| **one == fate).count();
        assert!(count * 50 > fates.len() && count * 10 < fates.len(), "{count} of {} are {fate:?}", fates.len());
    }
}

#[test]
fn a_cable_that_is_cut_ends_connections_and_the_harm_is_counted() {
    let (mut simulation, [_, other], [a, b]) = pair(2, &Plan::rc().hasty());
    simulation.cut(other, true);
    write(&a, &b, 64);
    assert_eq!(next(&mut simulation, &a.scq).status, status::RETRY_EXC_ERR);
    assert!(simulation.harmed(other, b.qp.qpn()) >= 3, "each try was lost");
}

/// The responder's route to its peer was lost while its port was down. The responder had nothing to
/// send, so it did not resolve the route again. Later packets were then dropped because they "came
/// from another address than the peer's".
#[test]
fn a_responder_accepts_its_peer_after_its_port_was_down() {
    let (mut simulation, [_, other], [a, b]) = pair(3, &Plan { timeout: 10, ..Plan::rc() });
    simulation.set_port(other, false);
    simulation.run_for(Duration::from_millis(1));
    // This packet arrives before any event about the port, and cannot be answered.
    write(&a, &b, 64);
    simulation.run_for(Duration::from_millis(1));
    simulation.set_port(other, true);
    assert_eq!(next(&mut simulation, &a.scq).status, status::SUCCESS);
}

/// The agent tells the peer of a new lane while the opener still maps it, so the peer can send at
/// once. The opener gets no second wakeup for that record and must check the lane itself.
#[test]
fn opener_of_a_lane_checks_it_for_records_sent_meanwhile() {
    let mut simulation = Simulation::new(1);
    let host = simulation.host("10.0.0.1").expect("a host");
    let engines = [(); 2].map(|()| simulation.connect(host).expect("an engine"));
    let [a, b] = engines.each_ref().map(|engine| Side::new(engine, &Plan::rc()));
    [&a, &b].into_iter().for_each(Side::init);
    simulation.run_for(Duration::from_millis(1));
    let rung = || engines.each_ref().map(|engine| engine.is_notified());
    assert_eq!(rung(), [false, false], "both sleep");
    a.rtr(b.gid(), b.qp.qpn());
    assert_eq!(rung(), [true, true], "the opener checks the lane, and the agent has told the peer");
}
