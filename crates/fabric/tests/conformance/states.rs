//! Section 4.2: what a queue pair does with requests and messages in each state, and the
//! transitions that it makes by itself.

use abi::cq::{Wc, status};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::{Sge, opcode};
use abi::qp::{ModifyQp, attr, state};
use abi::reason::Cause;

use crate::common::wait::{dropped, event, no_event, until};
use crate::common::{Fabric, Plan, QKEY, Side, connect, everywhere, start};
use engine::{PostError, RecvWr, SendWr, Service};

const FLUSHED: u32 = status::WR_FLUSH_ERR;

fn post_send(side: &Side) -> Result<(), Errno> {
    let mut batch = side.qp.send_batch().expect("a batch");
    let answer = batch.push(&SendWr::default());
    batch.finish();
    answer.map_err(PostError::errno)
}

fn post_recv(side: &Side) -> Result<(), Errno> {
    side.qp.post_recv(&RecvWr { wr_id: 50, sges: &[] }).map_err(PostError::errno)
}

fn pair(fabric: &Fabric, plan: &Plan) -> (Side, Side) {
    (Side::new(&fabric.engine(), plan), Side::new(&fabric.engine(), plan))
}

/// A scatter/gather element with an invalid local key.
fn bad(side: &Side) -> [Sge; 1] {
    [Sge::new(side.memory.addr(0), 8, side.mr.lkey() ^ 0xff_ff00)]
}

fn assert_nothing(side: &Side) {
    assert_eq!((side.scq.poll(&mut [Wc::default()]), side.rcq.poll(&mut [Wc::default()])), (Ok(0), Ok(0)));
}

fn state_reset_takes_nothing(fabric: &Fabric) {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let side = Side::new(&fabric.engine(), &Plan::new(service));
        let ah = side.ah(&side);
        let ud = (service == Service::Ud).then_some((&*ah, side.qp.qpn(), QKEY));
        let sent = side.qp.send_batch().expect("a batch").push(&SendWr { ud, ..SendWr::default() });
        assert_eq!(
            (sent.map_err(PostError::errno), post_recv(&side)),
            (Err(Errno::EINVAL), Err(Errno::EINVAL)),
            "{service}"
        );
    }
}

fn state_init_queues_receives_and_drops_what_comes(fabric: &Fabric) {
    let (a, b) = pair(fabric, &Plan::uc());
    b.init();
    assert_eq!((post_send(&b), post_recv(&b)), (Err(Errno::EINVAL), Ok(())));
    a.init();
    a.rtr(b.gid(), b.qp.qpn());
    a.rts();
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, 0);
    dropped(&b, Cause::State);
    // When the receiver is ready, the first message finds the receive request still there and the
    // PSN unchanged.
    a.to(state::RESET);
    b.rtr(a.gid(), a.qp.qpn());
    a.init();
    a.rtr(b.gid(), b.qp.qpn());
    a.rts();
    a.post(&SendWr { opcode: opcode::SEND_WITH_IMM, imm: 3, ..SendWr::default() });
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.imm_data), (50, 3), "the first was dropped");
    assert_nothing(&b);
    // A UD queue pair accepts any sender, and in INIT it already has its Q_Key.
    let (a, b) = pair(fabric, &Plan::ud());
    start(&a);
    b.init();
    b.recv(1, 0, 100);
    let to_b = a.ah(&b);
    let send =
        |imm| SendWr { opcode: opcode::SEND_WITH_IMM, imm, ud: Some((&*to_b, b.qp.qpn(), QKEY)), ..SendWr::default() };
    a.post(&send(1));
    assert_eq!(a.sent().status, 0);
    dropped(&b, Cause::State);
    b.rtr(a.gid(), 0);
    a.post(&send(2));
    assert_eq!(b.received().imm_data, 2, "the first was dropped");
}

fn state_rtr_serves_and_tells_of_the_first_message(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::uc()] {
        let (a, b) = pair(fabric, &plan);
        b.init();
        b.rtr(a.gid(), a.qp.qpn());
        assert_eq!((post_send(&b), post_recv(&b), post_recv(&b)), (Err(Errno::EINVAL), Ok(()), Ok(())));
        a.init();
        a.rtr(b.gid(), b.qp.qpn());
        a.rts();
        (0..2).for_each(|_| a.post(&SendWr::default()));
        (0..2).for_each(|_| assert_eq!((a.sent().status, b.received().wr_id), (0, 50)));
        assert_eq!(event(&b.engine).kind, kind::COMM_EST, "{}", plan.service);
        no_event(&b.engine);
    }
}

fn state_rts_does_everything(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    for (from, to) in [(&a, &b), (&b, &a)] {
        assert_eq!((post_recv(to), post_send(from)), (Ok(()), Ok(())));
        assert_eq!((from.sent().status, to.received().wr_id), (0, 50));
    }
}

fn state_sqd_finishes_what_it_began_and_tells(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    a.post(&SendWr { wr_id: 1, ..SendWr::default() });
    let mask = attr::STATE | attr::EN_SQD_ASYNC_NOTIFY;
    let drain = ModifyQp { attr_mask: mask, qp_state: state::SQD, en_sqd_async_notify: 1, ..ModifyQp::default() };
    a.qp.modify(&drain).expect("SQD");
    assert_eq!(a.qp.query(attr::STATE).expect("an answer").sq_draining, 1, "it waits for a receive request");
    a.post(&SendWr { wr_id: 2, ..SendWr::default() });
    no_event(&a.engine);
    (0..2).for_each(|wr_id| b.recv(wr_id, 0, 0));
    assert_eq!((a.sent().wr_id, event(&a.engine).kind), (1, kind::SQ_DRAINED));
    assert_eq!(a.qp.query(attr::STATE).expect("an answer").sq_draining, 0);
    // Receiving continues. The second request has not started.
    a.recv(7, 0, 0);
    b.post(&SendWr::default());
    assert_eq!((a.received().wr_id, b.sent().status, b.received().wr_id), (7, 0, 0));
    assert_nothing(&b);
    a.to(state::RTS);
    assert_eq!((a.sent().wr_id, b.received().wr_id), (2, 1));
}

/// Posted requests wait. If a failure ends the queue, there is no event that it has drained.
fn state_sqd_ends_otherwise_without_a_word(fabric: &Fabric) {
    let mask = attr::STATE | attr::EN_SQD_ASYNC_NOTIFY;
    let drain = ModifyQp { attr_mask: mask, qp_state: state::SQD, en_sqd_async_notify: 1, ..ModifyQp::default() };
    for end in [state::ERR, state::RESET] {
        let (a, _b) = fabric.pair(&Plan::rc());
        a.post(&SendWr { wr_id: 1, ..SendWr::default() });
        a.qp.modify(&drain).expect("SQD");
        a.to(end);
        no_event(&a.engine);
        assert_eq!(a.qp.query(attr::STATE).expect("an answer").sq_draining, 0);
    }
    // An idle queue drains at once. Without the request for an event, there is none.
    let (a, b) = fabric.pair(&Plan::rc());
    a.qp.modify(&drain).expect("SQD");
    assert_eq!(event(&a.engine).kind, kind::SQ_DRAINED);
    a.to(state::RTS);
    a.to(state::SQD);
    no_event(&a.engine);
    let answer = a.qp.query(attr::STATE).expect("an answer");
    assert_eq!((answer.qp_state, answer.cur_qp_state, answer.sq_draining), (state::SQD, state::SQD, 0));
    // In SQD, attributes that may change do change, and apply afterwards.
    let fine = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC | attr::MIN_RNR_TIMER;
    let wish = ModifyQp {
        attr_mask: fine | attr::ACCESS_FLAGS | attr::MAX_DEST_RD_ATOMIC,
        timeout: 17,
        retry_cnt: 3,
        rnr_retry: 5,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 3,
        min_rnr_timer: 9,
        qp_access_flags: 0x2,
        ..ModifyQp::default()
    };
    a.qp.modify(&wish).expect("SQD to SQD");
    let back = ModifyQp { attr_mask: attr::STATE | attr::CUR_STATE, qp_state: state::RTS, ..ModifyQp::default() };
    assert_eq!(a.qp.modify(&back).expect_err("it is not in RESET").errno, Errno::EINVAL);
    a.qp.modify(&ModifyQp { cur_qp_state: state::SQD, ..back }).expect("SQD to RTS");
    let is = a.qp.query(!0).expect("an answer");
    assert_eq!((is.timeout, is.retry_cnt, is.rnr_retry, is.max_rd_atomic), (17, 3, 5, 2));
    assert_eq!((is.max_dest_rd_atomic, is.min_rnr_timer, is.qp_access_flags), (3, 9, 0x2));
    b.recv(1, 0, 0);
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, b.received().status), (0, 0));
    // READs of this side are no longer allowed.
    let read = SendWr { opcode: opcode::RDMA_READ, remote_addr: a.memory.addr(0), ..SendWr::default() };
    b.post(&SendWr { rkey: a.mr.rkey(), sges: &b.sge(0, 8), ..read });
    assert_eq!(b.sent().status, status::REM_INV_REQ_ERR);
}

/// A query returns every attribute that was set, and the creation attributes.
fn state_query_tells_what_was_set(fabric: &Fabric) {
    let plan = Plan { timeout: 13, retry_cnt: 6, rnr_retry: 5, min_rnr_timer: 4, max_rd_atomic: 3, ..Plan::rc() };
    let plan = Plan { max_dest_rd_atomic: 2, qp_access: 0x6, ..plan };
    let (a, b) = fabric.pair(&plan);
    let is = a.qp.query(!0).expect("an answer");
    assert_eq!((is.qp_state, is.cur_qp_state, is.port_num, is.pkey_index), (state::RTS, state::RTS, 1, 0));
    assert_eq!((is.timeout, is.retry_cnt, is.rnr_retry, is.min_rnr_timer), (13, 6, 5, 4));
    assert_eq!((is.max_rd_atomic, is.max_dest_rd_atomic, is.qp_access_flags), (3, 2, 0x6));
    assert_eq!((is.rq_psn, is.sq_psn, is.dest_qp_num, is.sq_draining), (7, 7, b.qp.qpn(), 0));
    assert_eq!((is.dest.dgid, is.dest.is_global, is.dest.port_num), (b.gid(), 1, 1));
    assert_eq!((is.dest.sgid_index, is.dest.hop_limit), (a.gid_index(), 1));
    assert!((1..=5).contains(&is.path_mtu));
    let caps = a.qp.caps();
    let told = (is.max_send_wr, is.max_recv_wr, is.max_send_sge, is.max_recv_sge, is.max_inline_data);
    let made = (caps.max_send_wr, caps.max_recv_wr, caps.max_send_sge, caps.max_recv_sge, caps.max_inline_data);
    assert_eq!((told, is.sq_sig_all), (made, 1));
    // A UD QP's own Q_Key.
    let side = Side::new(&fabric.engine(), &Plan { sq_sig_all: false, ..Plan::ud() });
    side.init();
    let is = side.qp.query(!0).expect("an answer");
    assert_eq!((is.qp_state, is.qkey, is.sq_sig_all), (state::INIT, QKEY, 0));
}

fn state_sqe_halts_sending_only(fabric: &Fabric) {
    for plan in [Plan::uc(), Plan::ud()] {
        let (a, b) = fabric.pair(&plan);
        let (to_b, to_a) = (a.ah(&b), b.ah(&a));
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        let back = (plan.service == Service::Ud).then_some((&*to_a, a.qp.qpn(), QKEY));
        a.post(&SendWr { ud, sges: &bad(&a), ..SendWr::default() });
        assert_eq!((a.sent().status, a.qp.state()), (status::LOC_PROT_ERR, u32::from(state::SQE)));
        a.post(&SendWr { ud, ..SendWr::default() });
        assert_eq!(a.sent().status, FLUSHED);
        a.recv(3, 0, 100);
        b.post(&SendWr { ud: back, ..SendWr::default() });
        assert_eq!((b.sent().status, a.received().wr_id), (0, 3), "{}", plan.service);
        a.to(state::RTS);
        b.recv(4, 0, 100);
        a.post(&SendWr { ud, ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().wr_id), (0, 4), "{}", plan.service);
    }
}

fn state_err_flushes_and_drops(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc().hasty());
    b.recv(1, 0, 0);
    b.to(state::ERR);
    assert_eq!(b.received().status, FLUSHED);
    assert_eq!((post_send(&b), post_recv(&b)), (Ok(()), Ok(())));
    assert_eq!((b.sent().status, b.received().status), (FLUSHED, FLUSHED));
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "nobody answers");
}

fn state_auto_send_errors(fabric: &Fabric) {
    for (plan, after) in [(Plan::rc(), state::ERR), (Plan::uc(), state::SQE), (Plan::ud(), state::SQE)] {
        let (a, b) = fabric.pair(&plan);
        let to_b = a.ah(&b);
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        a.post(&SendWr { ud, sges: &bad(&a), ..SendWr::default() });
        assert_eq!((a.sent().status, a.qp.state()), (status::LOC_PROT_ERR, u32::from(after)), "{}", plan.service);
    }
}

fn state_auto_receive_errors(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        let (a, b) = fabric.pair(&plan);
        let to_b = a.ah(&b);
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[Sge::new(b.memory.addr(0), 200, b.mr.lkey() ^ 0xff_ff00)] })
            .expect("posted");
        a.post(&SendWr { ud, sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!(b.received().status, status::LOC_PROT_ERR, "{}", plan.service);
        until("the error state", || (b.qp.state() == u32::from(state::ERR)).then_some(()));
    }
}

fn state_to_reset_clears_everything(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    (0..4).for_each(|wr_id| b.recv(wr_id, 0, 0));
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, 0);
    let _ = b.qp.state();
    b.to(state::RESET);
    assert_nothing(&b);
    let answer = b.qp.query(attr::STATE | attr::DEST_QPN).expect("an answer");
    assert_eq!((answer.qp_state, answer.dest_qp_num), (state::RESET, 0));
    a.to(state::RESET);
    connect(&a, &b);
    b.recv(9, 0, 0);
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, b.received().wr_id), (0, 9));
}

/// The transition table of Linux, which differs from the standard here.
fn state_reset_to_err_is_refused(fabric: &Fabric) {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let side = Side::new(&fabric.engine(), &Plan::new(service));
        let wish = ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
        assert_eq!(side.qp.modify(&wish).expect_err("refused").errno, Errno::EINVAL);
        side.init();
        side.to(state::ERR);
        side.to(state::RESET);
    }
}

everywhere! {
    state_reset_takes_nothing
    state_init_queues_receives_and_drops_what_comes
    state_rtr_serves_and_tells_of_the_first_message
    state_rts_does_everything
    state_sqd_finishes_what_it_began_and_tells
    state_sqd_ends_otherwise_without_a_word
    state_query_tells_what_was_set
    state_sqe_halts_sending_only
    state_err_flushes_and_drops
    state_auto_send_errors
    state_auto_receive_errors
    state_to_reset_clears_everything
    state_reset_to_err_is_refused
}
