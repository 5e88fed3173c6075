//! The work of a step in simulated time: it depends on what happens, and not on how many hosts
//! there are. The tests count the engines and hosts that steps have looked at.

use std::time::Duration;

use crate::common::{Plan, Side, connect};
use abi::cq::Wc;
use abi::post::opcode;
use engine::SendWr;
use fabric::simulation::Simulation;

/// Two of so many hosts talk. Returns how many steps this took, and how many looks.
fn talk(hosts: usize) -> (u64, u64) {
    let mut simulation = Simulation::new(1);
    let address = |host: usize| format!("10.0.{}.{}", host / 200, 1 + host % 200);
    let all: Vec<_> = (0..hosts).map(|host| simulation.host(&address(host)).expect("a host")).collect();
    let engines: Vec<_> = all.iter().map(|host| simulation.connect(*host).expect("an engine")).collect();
    let sides = [&engines[0], &engines[hosts - 1]].map(|engine| Side::new(engine, &Plan::rc()));
    let [a, b] = &sides;
    connect(a, b);
    simulation.run_for(Duration::from_millis(1));
    let (mut steps, before) = (0, simulation.looks());
    for _ in 0..100 {
        let (rkey, remote_addr) = (b.mr.rkey(), b.memory.addr(0));
        a.post(&SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, sges: &a.sge(0, 9000), ..SendWr::default() });
        let mut wcs = [Wc::default()];
        while a.scq.poll(&mut wcs).expect("a device") == 0 {
            simulation.step().expect("something happens");
            steps += 1;
        }
    }
    (steps, simulation.looks() - before)
}

#[test]
fn a_step_looks_at_those_that_it_concerns_however_many_hosts_there_are() {
    let few = talk(2);
    let many = talk(60);
    println!("steps and looks: {few:?} with 2 hosts, {many:?} with 60");
    for (steps, looks) in [few, many] {
        assert!(looks <= 2 * steps, "{looks} looks in {steps} steps");
    }
    assert!(many.1 <= few.1 * 2, "{few:?} with 2 hosts, {many:?} with 60");
}
