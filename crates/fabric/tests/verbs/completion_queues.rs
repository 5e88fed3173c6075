//! Completion queues: overrun, resizing, and many QPs on one CQ.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::wait::{event, next, no_event, until};
use crate::common::{Fabric, Plan, Side, connect};
use abi::cq::{Wc, status};
use abi::errno::Errno;
use abi::event::kind;
use abi::qp::state;
use engine::{CqSpec, SendWr};

#[test]
fn an_overrun_ends_the_queue_and_its_qps() {
    let fabric = Fabric::start();
    let (ours, plan) = (fabric.engine(), Plan::rc());
    let pd = ours.alloc_pd().expect("a PD");
    let small = ours.create_cq(&CqSpec { cqe: 4, channel: None, comp_vector: 0, cookie: 40 }).expect("a CQ");
    let roomy = crate::common::cq(&ours, 128);
    // Two QPs use the CQ, one for its sends and one for its receives. A third QP does not use it.
    let a = Side::on_cqs(&ours, &pd, &plan, (&small, &roomy), None);
    let by_receives = Side::on_cqs(&ours, &pd, &plan, (&roomy, &small), None);
    let other = Side::on_cqs(&ours, &pd, &plan, (&roomy, &roomy), None);
    let theirs = fabric.engine();
    let peers = [(); 3].map(|()| Side::new(&theirs, &plan));
    for (side, peer) in [&a, &by_receives, &other].into_iter().zip(&peers) {
        connect(side, peer);
    }
    let entries = small.entries();
    a.recv(9, 0, 0);
    for _ in 0..=entries {
        peers[0].recv(0, 0, 0);
        a.post(&SendWr::default());
        assert_eq!(peers[0].received().status, 0);
    }
    let mut kinds = [(); 3].map(|()| event(&ours)).map(|event| (event.kind, event.element));
    kinds.sort_unstable();
    assert_eq!(kinds, [(kind::CQ_ERR, 40), (kind::QP_FATAL, 2), (kind::QP_FATAL, 2)], "V-41");
    no_event(&ours);
    for side in [&a, &by_receives] {
        until("the error state", || (side.qp.state() == u32::from(state::ERR)).then_some(()));
    }
    let wc = next(&roomy);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (9, status::WR_FLUSH_ERR, a.qp.qpn()));
    // The QP that does not use the CQ continues.
    peers[2].recv(0, 0, 0);
    other.post(&SendWr::default());
    assert_eq!((next(&roomy).status, peers[2].received().status), (0, 0));
    // All objects can be destroyed.
    a.qp.destroy().expect("destroyed");
    by_receives.qp.destroy().expect("destroyed");
    small.destroy().expect("destroyed");
}

#[test]
fn resizing_keeps_every_entry_in_order() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan { cqe: 16, ..Plan::rc() });
    (0..10).for_each(|wr_id| b.recv(wr_id, 0, 0));
    let send = |count: u64| {
        (0..count).for_each(|wr_id| a.post(&SendWr { wr_id, ..SendWr::default() }));
        (0..count).for_each(|_| assert_eq!(a.sent().status, 0));
        // The completions become visible under a lock that this query also takes.
        let _ = b.qp.state();
    };
    send(10);
    assert_eq!(b.received().wr_id, 0);
    assert_eq!(b.rcq.resize(8).expect_err("nine wait").errno, Errno::EINVAL, "V-42");
    for cqe in [9, 1000, 9, 100] {
        let got = b.rcq.resize(cqe).expect("there is room");
        assert!(got >= cqe && got == b.rcq.entries());
    }
    assert_eq!(b.rcq.resize(0).expect_err("no entries").errno, Errno::EINVAL);
    assert_eq!(b.rcq.resize(u32::MAX).expect_err("too many").errno, Errno::EINVAL);
    (1..10).for_each(|wr_id| assert_eq!(b.received().wr_id, wr_id));
    (10..13).for_each(|wr_id| b.recv(wr_id, 0, 0));
    send(3);
    (10..13).for_each(|wr_id| assert_eq!(b.received().wr_id, wr_id));
}

#[test]
fn resizing_keeps_the_arming() {
    let fabric = Fabric::start();
    let (ours, plan) = (fabric.engine(), Plan::rc());
    let pd = ours.alloc_pd().expect("a PD");
    let channel = ours.create_channel().expect("a channel");
    let cq = ours.create_cq(&CqSpec { cqe: 16, channel: Some(&channel), comp_vector: 0, cookie: 7 }).expect("a CQ");
    let b = Side::on_cqs(&ours, &pd, &plan, (&cq, &cq), None);
    let a = Side::new(&fabric.engine(), &plan);
    connect(&a, &b);
    cq.req_notify(false).expect("armed");
    cq.resize(200).expect("resized");
    b.recv(1, 0, 0);
    a.post(&SendWr::default());
    assert!(crate::common::wait::readable(channel.fd(), crate::common::wait::PATIENCE));
    assert_eq!((channel.next_event(), a.sent().status), (Ok(7), 0));
    b.qp.destroy().expect("destroyed");
    assert_eq!(cq.destroy().expect("destroyed").completion, 1);
}

#[test]
fn resizing_while_queue_pairs_come_and_go() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let cq = crate::common::cq(&engine, 64);
    let working = AtomicU32::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A CQ keeps the memory of each of its 1024 sizes.
            for round in 0..1000 {
                cq.resize(64 + round % 3 * 100).expect("resized");
                if working.load(Ordering::Relaxed) == 0 {
                    break;
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let qp = crate::common::make_qp(&engine, &pd, &Plan::rc(), (&cq, &cq), None);
                    qp.destroy().expect("destroyed");
                }
                working.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    cq.destroy().expect("destroyed");
}

#[test]
fn entries_of_a_destroyed_qp_are_gone() {
    let fabric = Fabric::start();
    let (ours, theirs, plan) = (fabric.engine(), fabric.engine(), Plan::rc());
    let pd = ours.alloc_pd().expect("a PD");
    let cq = crate::common::cq(&ours, 64);
    let [gone, stays] = [(); 2].map(|()| Side::on_cqs(&ours, &pd, &plan, (&cq, &cq), None));
    let peers = [(); 2].map(|()| Side::new(&theirs, &plan));
    connect(&gone, &peers[0]);
    connect(&stays, &peers[1]);
    for round in 0..4 {
        for (side, peer) in [&gone, &stays].into_iter().zip(&peers) {
            side.recv(round, 0, 0);
            peer.post(&SendWr::default());
            assert_eq!(peer.sent().status, 0);
        }
    }
    assert_eq!(cq.destroy().expect_err("in use").errno, Errno::EBUSY);
    gone.qp.destroy().expect("destroyed");
    let mut wcs = [Wc::default(); 16];
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let count = cq.poll(&mut wcs).expect("it polls");
        seen.extend(wcs[..count].iter().map(|wc| (wc.wr_id, wc.qp_num)));
    }
    assert_eq!(seen, [0, 1, 2, 3].map(|round| (round, stays.qp.qpn())));
    assert_eq!(cq.poll(&mut wcs), Ok(0));
}
