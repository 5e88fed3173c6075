//! The agent ends, so the device is lost. Every program gets an event, every outstanding request is
//! flushed, and no call waits for ever.

use crate::common::wait::{event, next, until};
use crate::common::{Fabric, Plan, Side, connect};
use abi::cq::status;
use abi::errno::Errno;
use abi::event::kind;
use abi::qp::{ModifyQp, attr, state};
use engine::{CqSpec, SendWr, SrqSpec};

#[test]
fn all_work_comes_back_and_all_waiters_wake() {
    let mut fabric = Fabric::start();
    let plan = Plan::rc();
    let (a, theirs) = (Side::new(&fabric.engine(), &plan), fabric.engine());
    let channel = theirs.create_channel().expect("a channel");
    let cq = theirs.create_cq(&CqSpec { cqe: 64, channel: Some(&channel), comp_vector: 0, cookie: 3 }).expect("a CQ");
    let pd = theirs.alloc_pd().expect("a PD");
    let b = Side::on_cqs(&theirs, &pd, &plan, (&cq, &cq), None);
    connect(&a, &b);
    let idle = Side::new(&theirs, &plan);
    // Sends that wait for the other side's receive requests, and receives without a matching send.
    (0..3).for_each(|wr_id| a.post(&SendWr { wr_id, ..SendWr::default() }));
    (0..3).for_each(|wr_id| a.recv(wr_id, 0, 0));
    cq.req_notify(false).expect("armed");
    std::thread::scope(|scope| {
        let event_reader = scope.spawn(|| channel.next_event());
        let async_reader = scope.spawn(|| (theirs.async_event(), theirs.async_event()));
        fabric.stop_agent();
        assert_eq!(event_reader.join().expect("it ends"), Err(Errno::EIO));
        let (first, then) = async_reader.join().expect("it ends");
        assert_eq!(first.expect("an event").kind, kind::DEVICE_FATAL);
        assert_eq!(then, Err(Errno::EIO));
    });
    assert_eq!(event(&a.engine).kind, kind::DEVICE_FATAL);
    for wr_id in 0..3 {
        let (sent, received) = (next(&a.scq), next(&a.rcq));
        assert_eq!((sent.wr_id, sent.status), (wr_id, status::WR_FLUSH_ERR));
        assert_eq!((received.wr_id, received.status), (wr_id, status::WR_FLUSH_ERR));
    }
    until("the error state", || (a.qp.state() == u32::from(state::ERR)).then_some(()));

    // Requests posted now are flushed, and commands fail with EIO.
    a.post(&SendWr { wr_id: 7, ..SendWr::default() });
    a.recv(8, 0, 0);
    assert_eq!((a.sent().wr_id, a.received().wr_id), (7, 8));
    let errno = |result: engine::Result<()>| result.expect_err("the device is lost").errno;
    let reset = ModifyQp { attr_mask: attr::STATE, qp_state: state::RESET, ..ModifyQp::default() };
    assert_eq!(errno(a.qp.modify(&reset)), Errno::EIO);
    assert_eq!(errno(idle.qp.modify(&reset)), Errno::EIO);
    assert_eq!(errno(a.engine.query_device().map(drop)), Errno::EIO);
    assert_eq!(errno(a.engine.query_gid(1, 0).map(drop)), Errno::EIO);
    assert_eq!(errno(a.engine.alloc_pd().map(drop)), Errno::EIO);
    assert_eq!(errno(a.engine.create_channel().map(drop)), Errno::EIO);
    assert_eq!(errno(a.pd.reg_mr(a.memory.addr(0), 8, 0, 1).map(drop)), Errno::EIO);
    assert!(a.engine.is_gone());

    // A new agent in the same place works normally. The old contexts stay lost.
    fabric.start_agent();
    let (c, d) = fabric.pair(&plan);
    d.recv(1, 0, 0);
    c.post(&SendWr::default());
    assert_eq!((c.sent().status, d.received().wr_id), (0, 1));
    assert_eq!(errno(a.engine.query_device().map(drop)), Errno::EIO);
}

#[test]
fn traffic_of_many_threads_ends() {
    let mut fabric = Fabric::start();
    let engines = [fabric.engine(), fabric.engine()];
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            let pair = (Side::new(&engines[0], &Plan::rc()), Side::new(&engines[1], &Plan::rc()));
            connect(&pair.0, &pair.1);
            pair
        })
        .collect();
    let started = std::sync::Barrier::new(pairs.len() + 1);
    std::thread::scope(|scope| {
        for (a, b) in &pairs {
            scope.spawn(|| {
                let mut told = false;
                loop {
                    b.recv(1, 0, 100);
                    a.post(&SendWr { sges: &a.sge(0, 100), ..SendWr::default() });
                    if a.sent().status != 0 || b.received().status != 0 {
                        break;
                    }
                    if !std::mem::replace(&mut told, true) {
                        started.wait();
                    }
                }
            });
        }
        started.wait();
        fabric.stop_agent();
    });
}

/// A program that gets the event cleans up. Its calls succeed, because nothing can be in use any
/// more.
#[test]
fn objects_can_be_destroyed_after_the_agent_is_lost() {
    let mut fabric = Fabric::start();
    let engine = fabric.engine();
    let (pd, channel) = (engine.alloc_pd().expect("a PD"), engine.create_channel().expect("a channel"));
    let cq = engine.create_cq(&CqSpec { cqe: 8, channel: Some(&channel), comp_vector: 0, cookie: 3 }).expect("a CQ");
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 4, max_sge: 1, cookie: 4 }).expect("an SRQ");
    let side = Side::on_cqs(&engine, &pd, &Plan::rc(), (&cq, &cq), Some(&srq));
    let (ah, mw) = (side.ah(&side), pd.alloc_mw(1).expect("a window"));
    let xrcd = engine.open_xrcd(None, 0o100).expect("a domain");
    fabric.stop_agent();
    assert_eq!(event(&engine).kind, kind::DEVICE_FATAL);
    // Dependencies within this process are still refused.
    assert_eq!(channel.destroy().map_err(|error| error.errno), Err(Errno::EBUSY));
    side.qp.destroy().expect("the QP");
    srq.destroy().expect("the SRQ");
    cq.destroy().expect("the CQ");
    channel.destroy().expect("the channel");
    side.mr.dereg().expect("the MR");
    mw.dealloc().expect("the window");
    ah.destroy().expect("the AH");
    xrcd.close().expect("the domain");
    pd.dealloc().expect("the PD");
}
