//! Queue memory: many queues need few mappings, and no mapping remains when the queues are gone.
//! This test has its own process, because it counts mappings of the whole process.

mod common;

use std::time::{Duration, Instant};

use common::{Fabric, Plan, Side};
use shm::mapped_regions;

#[test]
fn a_thousand_queue_pairs_need_few_mappings() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    {
        // The first QP opens the wire lane, which stays open.
        let cq = common::cq(&engine, 1);
        common::make_qp(&engine, &pd, &Plan::rc(), (&cq, &cq), None).destroy().expect("destroyed");
        cq.destroy().expect("destroyed");
    }
    let before = mapped_regions();
    let plan = Plan { caps: engine::Caps { max_send_wr: 16, max_recv_wr: 16, ..Plan::rc().caps }, ..Plan::rc() };
    for _ in 0..2 {
        let cqs: Vec<_> = (0..10).map(|_| common::cq(&engine, 100)).collect();
        let mut peak = 0;
        let qps: Vec<_> = (0..1000)
            .map(|index| {
                let cq = &cqs[index % cqs.len()];
                let qp = common::make_qp(&engine, &pd, &plan, (cq, cq), None);
                peak = peak.max(mapped_regions());
                qp
            })
            .collect();
        // This process contains the engine and the agent. Each maps each region once.
        assert!(peak - before <= 24, "{} mappings for 1000 QPs", peak - before);
        // Every other QP first, so that regions become empty slowly.
        let (even, odd): (Vec<_>, Vec<_>) = qps.iter().enumerate().partition(|(index, _)| index % 2 == 0);
        for (_, qp) in even.iter().chain(&odd) {
            qp.destroy().expect("destroyed");
        }
        for cq in &cqs {
            cq.destroy().expect("destroyed");
        }
        eventually(before, "no queue is left, though the objects' names still live");
    }
    pd.dealloc().expect("deallocated");

    // The mappings of a connection are removed together with its engines.
    let (a, b) = (Side::new(&engine, &plan), Side::new(&fabric.engine(), &plan));
    common::connect(&a, &b);
    b.recv(1, 0, 0);
    a.post(&engine::SendWr::default());
    assert_eq!((a.sent().status, b.received().status), (0, 0));
    a.destroy();
    b.destroy();
    drop((pd, engine, fabric));
    eventually(0, "everything has ended");
}

/// The agent unmaps large regions on a separate thread, so the last regions may disappear a little
/// later.
fn eventually(expected: usize, why: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while mapped_regions() != expected {
        assert!(Instant::now() < end, "{} mappings and not {expected}: {why}", mapped_regions());
        std::thread::yield_now();
    }
}
