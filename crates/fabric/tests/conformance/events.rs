//! Section 9: asynchronous events. Each test causes one.

use abi::cq::status;
use abi::event::kind;
use abi::post::{Sge, opcode};
use abi::qp::{ModifyQp, attr, state};
use abi::srq::attr as srq_attr;

use crate::common::wait::{event, no_event};
use crate::common::{Fabric, Plan, Side, connect, everywhere};
use engine::{CqSpec, SendWr, SrqSpec};

/// The cookie of every QP in this file.
const QP: u64 = 2;

/// The next event: its kind and the cookie of its object.
fn told(side: &Side) -> (u32, u64) {
    let event = event(&side.engine);
    (event.kind, event.element)
}

fn event_cq_err_and_qp_fatal(fabric: &Fabric) {
    let (engine, plan) = (fabric.engine(), Plan::rc());
    let small = engine.create_cq(&CqSpec { cqe: 1, channel: None, comp_vector: 0, cookie: 31 }).expect("a CQ");
    let a = Side::on_cqs(&engine, &engine.alloc_pd().expect("a PD"), &plan, (&small, &small), None);
    let b = Side::new(&fabric.engine(), &plan);
    connect(&a, &b);
    for _ in 0..=small.entries() {
        b.recv(1, 0, 0);
        a.post(&SendWr::default());
        assert_eq!(b.received().status, 0);
    }
    let mut both = [told(&a), told(&a)];
    both.sort_unstable();
    assert_eq!(both, [(kind::CQ_ERR, 31), (kind::QP_FATAL, QP)]);
}

fn event_qp_req_err_at_the_responder(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { qp_access: 0, ..Plan::rc() });
    let wr =
        SendWr { opcode: opcode::RDMA_READ, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
    assert_eq!((a.sent().status, told(&b)), (status::REM_INV_REQ_ERR, (kind::QP_REQ_ERR, QP)));
    no_event(&a.engine);
}

fn event_qp_access_err_at_the_responder(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let wr = SendWr { opcode: opcode::RDMA_READ, remote_addr: b.memory.addr(0), rkey: 1, ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
    assert_eq!((a.sent().status, told(&b)), (status::REM_ACCESS_ERR, (kind::QP_ACCESS_ERR, QP)));
    no_event(&a.engine);
}

fn event_comm_est_before_rts(fabric: &Fabric) {
    let (a, b) = (Side::new(&fabric.engine(), &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc()));
    for (side, peer) in [(&a, &b), (&b, &a)] {
        side.init();
        side.recv(1, 0, 0);
        side.rtr(peer.gid(), peer.qp.qpn());
    }
    a.rts();
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, told(&b)), (0, (kind::COMM_EST, QP)));
}

fn event_sq_drained_when_asked_for(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan::rc());
    let mask = attr::STATE | attr::EN_SQD_ASYNC_NOTIFY;
    for notify in [1, 0] {
        let drain =
            ModifyQp { attr_mask: mask, qp_state: state::SQD, en_sqd_async_notify: notify, ..ModifyQp::default() };
        a.qp.modify(&drain).expect("SQD");
        if notify == 1 {
            assert_eq!(told(&a), (kind::SQ_DRAINED, QP));
        } else {
            no_event(&a.engine);
        }
        a.to(state::RTS);
    }
}

fn event_srq_limit_reached(fabric: &Fabric) {
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 4, max_sge: 1, cookie: 33 }).expect("an SRQ");
    srq.modify(srq_attr::LIMIT, 0, 2).expect("armed");
    let told = event(&engine);
    assert_eq!((told.kind, told.element), (kind::SRQ_LIMIT_REACHED, 33));
}

fn event_last_wqe_reached(fabric: &Fabric) {
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 4, max_sge: 1, cookie: 33 }).expect("an SRQ");
    let side = Side::with_srq(&engine, &pd, &Plan::rc(), Some(&srq));
    let peer = Side::new(&fabric.engine(), &Plan::rc());
    connect(&side, &peer);
    side.to(state::ERR);
    assert_eq!(told(&side), (kind::QP_LAST_WQE_REACHED, QP));
    // Without an SRQ there is no such event.
    peer.to(state::ERR);
    no_event(&peer.engine);
}

fn v_90_who_destroys_learns_how_many_events_were_read(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    assert_eq!(b.qp.destroy().expect("destroyed"), 0);
    let c = Side::new(&b.engine, &Plan::rc());
    a.to(state::RESET);
    connect(&a, &c);
    let sges = [Sge::new(a.memory.addr(0), 8, a.mr.lkey())];
    let wr = SendWr { opcode: opcode::RDMA_WRITE, remote_addr: 1, rkey: 1, sges: &sges, ..SendWr::default() };
    a.post(&wr);
    assert_eq!((a.sent().status, told(&c)), (status::REM_ACCESS_ERR, (kind::QP_ACCESS_ERR, QP)));
    assert_eq!(c.qp.destroy().expect("destroyed"), 1, "so many acknowledgements are waited for");
}

everywhere! {
    event_cq_err_and_qp_fatal
    event_qp_req_err_at_the_responder
    event_qp_access_err_at_the_responder
    event_comm_est_before_rts
    event_sq_drained_when_asked_for
    event_srq_limit_reached
    event_last_wqe_reached
    v_90_who_destroys_learns_how_many_events_were_read
}

#[test]
fn event_device_fatal_when_the_agent_goes() {
    let mut fabric = Fabric::start();
    let engine = fabric.engine();
    fabric.stop_agent();
    assert_eq!(event(&engine).kind, kind::DEVICE_FATAL);
}
