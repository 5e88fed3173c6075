//! Section 6: completion statuses, each in a situation that causes it, and the contents of
//! completions.

use abi::cq::{Wc, opcode as wc_opcode, status};
use abi::errno::Errno;
use abi::post::{Sge, opcode};
use abi::qp::state;

use crate::common::wait::until;
use crate::common::{Fabric, Memory, Plan, QKEY, Side, everywhere, register};
use engine::{PostError, RecvWr, SendWr, Service};

const ERR: u32 = state::ERR as u32;
const RTS: u32 = state::RTS as u32;

fn one_sided(b: &Side, opcode: u32) -> SendWr<'static> {
    SendWr { opcode, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() }
}

/// Posts a request that fails at once with `expected`. Checks the states of both ends afterwards.
fn fails(a: &Side, b: &Side, wr: &SendWr<'_>, expected: u32, states: (u32, u32)) {
    a.post(wr);
    let wc = a.sent();
    assert_eq!((wc.status, wc.qp_num), (expected, a.qp.qpn()), "{:?}", engine::reason::last(2));
    until("the states", || ((a.qp.state(), b.qp.state()) == states).then_some(()));
}

fn status_00_success(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(2, 0, 8);
    a.post(&SendWr { wr_id: 1, sges: &a.sge(0, 8), ..SendWr::default() });
    let (sent, received) = (a.sent(), b.received());
    assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.vendor_err), (1, 0, wc_opcode::SEND, 0));
    assert_eq!((received.wr_id, received.status, received.opcode, received.byte_len), (2, 0, wc_opcode::RECV, 8));
    assert_eq!((a.qp.state(), b.qp.state()), (RTS, RTS));
}

fn status_01_loc_len_err(fabric: &Fabric) {
    // The message is longer than the receiver's buffer.
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 7);
    fails(&a, &b, &SendWr { sges: &a.sge(0, 8), ..SendWr::default() }, status::REM_INV_REQ_ERR, (ERR, ERR));
    assert_eq!(b.received().status, status::LOC_LEN_ERR);
    // The message is longer than the maximal message.
    let (a, b) = fabric.pair(&Plan::rc());
    let sges = [Sge::new(a.memory.addr(0), 0x8000_0000, a.mr.lkey()), a.sge(0, 1)[0]];
    fails(&a, &b, &SendWr { sges: &sges, ..SendWr::default() }, status::LOC_LEN_ERR, (ERR, RTS));
    // The message is longer than a datagram.
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    let wr = SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, a.mtu() + 1), ..SendWr::default() };
    fails(&a, &b, &wr, status::LOC_LEN_ERR, (state::SQE.into(), RTS));
}

fn status_02_loc_qp_op_err(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { max_rd_atomic: 0, ..Plan::rc() });
    let wr = SendWr { sges: &a.sge(0, 8), ..one_sided(&b, opcode::RDMA_READ) };
    fails(&a, &b, &wr, status::LOC_QP_OP_ERR, (ERR, RTS));
}

fn status_04_loc_prot_err(fabric: &Fabric) {
    let cases: [fn(&Side) -> Sge; 3] = [
        |a| Sge::new(a.memory.addr(0), 8, a.mr.lkey() ^ 0xff_ff00),
        |a| Sge::new(a.memory.addr(a.memory.len() - 7), 8, a.mr.lkey()),
        |a| Sge::new(a.memory.addr(0), 8, register(&a.engine.alloc_pd().expect("a PD"), &a.memory, 1).lkey()),
    ];
    for sge in cases {
        for opcode in [opcode::SEND, opcode::RDMA_WRITE, opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD] {
            let (a, b) = fabric.pair(&Plan::rc());
            fails(&a, &b, &SendWr { sges: &[sge(&a)], ..one_sided(&b, opcode) }, status::LOC_PROT_ERR, (ERR, RTS));
        }
    }
    // The engine writes the response to local memory, so the region needs the right of local write.
    let (a, b) = fabric.pair(&Plan::rc());
    let readable = Sge::new(a.memory.addr(0), 8, register(&a.pd, &a.memory, 0).lkey());
    let wr = SendWr { sges: &[readable], ..one_sided(&b, opcode::RDMA_READ) };
    fails(&a, &b, &wr, status::LOC_PROT_ERR, (ERR, RTS));
}

fn status_05_wr_flush_err(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan::rc());
    a.recv(1, 0, 0);
    a.to(state::ERR);
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, a.received().status), (status::WR_FLUSH_ERR, status::WR_FLUSH_ERR));
}

/// The memory is registered, but no longer mapped.
fn status_08_loc_access_err(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let memory = Memory::new(4096);
    let mr = register(&b.pd, &memory, 0xf);
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[Sge::new(memory.addr(0), 4096, mr.lkey())] }).expect("posted");
    memory.protect(false);
    fails(&a, &b, &SendWr { sges: &a.sge(0, 8), ..SendWr::default() }, status::REM_OP_ERR, (ERR, ERR));
    assert_eq!(b.received().status, status::LOC_ACCESS_ERR);
}

fn status_09_rem_inv_req_err(fabric: &Fabric) {
    let refuse_reads = Plan { max_dest_rd_atomic: 0, ..Plan::rc() };
    for (plan, code, at) in [
        (Plan { qp_access: 0, ..Plan::rc() }, opcode::RDMA_WRITE, 0),
        (Plan { qp_access: 0, ..Plan::rc() }, opcode::RDMA_READ, 0),
        (Plan { qp_access: 0, ..Plan::rc() }, opcode::ATOMIC_CMP_AND_SWP, 0),
        (refuse_reads, opcode::RDMA_READ, 0),
        (Plan::rc(), opcode::ATOMIC_FETCH_AND_ADD, 4),
    ] {
        let (a, b) = fabric.pair(&plan);
        let wr = SendWr { remote_addr: b.memory.addr(at), sges: &a.sge(0, 8), ..one_sided(&b, code) };
        fails(&a, &b, &wr, status::REM_INV_REQ_ERR, (ERR, ERR));
    }
}

fn status_10_rem_access_err(fabric: &Fabric) {
    for code in [opcode::RDMA_WRITE, opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD] {
        let (a, b) = fabric.pair(&Plan::rc());
        let wr = SendWr { rkey: b.mr.rkey() ^ 0xff_ff00, sges: &a.sge(0, 8), ..one_sided(&b, code) };
        fails(&a, &b, &wr, status::REM_ACCESS_ERR, (ERR, ERR));
    }
}

fn status_11_rem_op_err(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let sges = [Sge::new(b.memory.addr(0), 8, b.mr.lkey() ^ 0xff_ff00)];
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &sges }).expect("posted");
    fails(&a, &b, &SendWr { sges: &a.sge(0, 8), ..SendWr::default() }, status::REM_OP_ERR, (ERR, ERR));
    assert_eq!(b.received().status, status::LOC_PROT_ERR);
}

fn status_12_retry_exc_err(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc().hasty());
    b.to(state::RESET);
    fails(&a, &b, &SendWr::default(), status::RETRY_EXC_ERR, (ERR, state::RESET.into()));
}

fn status_13_rnr_retry_exc_err(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { rnr_retry: 1, ..Plan::rc() });
    fails(&a, &b, &SendWr::default(), status::RNR_RETRY_EXC_ERR, (ERR, RTS));
}

fn v_80_an_error_is_never_tried_again(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    b.memory.put_word(0, 3);
    a.memory.put_word(0, 4);
    let wrong = SendWr { wr_id: 0x1234_5678_9abc, rkey: b.mr.rkey() ^ 0xff_ff00, ..one_sided(&b, opcode::RDMA_WRITE) };
    a.post_all(&[
        SendWr { sges: &a.sge(0, 8), ..wrong },
        SendWr { wr_id: 2, sges: &a.sge(0, 8), ..one_sided(&b, opcode::RDMA_WRITE) },
    ]);
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (0x1234_5678_9abc, status::REM_ACCESS_ERR, a.qp.qpn()));
    assert_eq!((a.sent().status, b.memory.word(0)), (status::WR_FLUSH_ERR, 3));
    assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
}

fn v_81_the_failing_request_comes_first_then_the_flushed_in_order(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        let (a, b) = fabric.pair(&plan);
        let to_b = a.ah(&b);
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        (0..3).for_each(|wr_id| a.recv(wr_id, 0, 0));
        b.recv(0, 0, 100);
        let bad = [Sge::new(a.memory.addr(0), 8, a.mr.lkey() ^ 0xff_ff00)];
        let wr = SendWr { ud, ..SendWr::default() };
        a.post_all(&[
            SendWr { wr_id: 1, ..wr },
            SendWr { wr_id: 2, sges: &bad, ..wr },
            SendWr { wr_id: 3, ..wr },
            SendWr { wr_id: 4, ..wr },
        ]);
        let seen: Vec<_> = (0..4).map(|_| a.sent()).map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = status::WR_FLUSH_ERR;
        assert_eq!(seen, [(1, 0), (2, status::LOC_PROT_ERR), (3, flushed), (4, flushed)], "{}", plan.service);
        if plan.service == Service::Rc {
            (0..3).for_each(|wr_id| assert_eq!((a.received().wr_id, a.qp.state()), (wr_id, ERR)));
        } else {
            assert_eq!(a.rcq.poll(&mut [Wc::default()]), Ok(0), "only the send queue is flushed");
            assert_eq!(a.qp.state(), u32::from(state::SQE));
        }
    }
}

fn v_82_every_flushed_request_has_its_entry(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan::rc());
    let (sends, receives) = (a.qp.caps().max_send_wr, a.qp.caps().max_recv_wr);
    let wrs: Vec<_> = (0..u64::from(sends)).map(|wr_id| SendWr { wr_id, ..SendWr::default() }).collect();
    a.post_all(&wrs);
    (0..u64::from(receives)).for_each(|wr_id| a.recv(wr_id, 0, 0));
    assert_eq!(a.qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::ENOMEM));
    a.to(state::ERR);
    (0..u64::from(sends)).for_each(|wr_id| assert_eq!(a.sent().wr_id, wr_id));
    (0..u64::from(receives)).for_each(|wr_id| assert_eq!(a.received().wr_id, wr_id));
}

everywhere! {
    status_00_success
    status_01_loc_len_err
    status_02_loc_qp_op_err
    status_04_loc_prot_err
    status_05_wr_flush_err
    status_09_rem_inv_req_err
    status_08_loc_access_err
    status_10_rem_access_err
    status_11_rem_op_err
    status_12_retry_exc_err
    status_13_rnr_retry_exc_err
    v_80_an_error_is_never_tried_again
    v_81_the_failing_request_comes_first_then_the_flushed_in_order
    v_82_every_flushed_request_has_its_entry
}
