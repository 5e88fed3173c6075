//! Queue pair states: what each state does with requests and messages, the events of state changes,
//! and the order in which an error flushes requests.

use crate::common::wait::{event, no_event};
use crate::common::{Fabric, Plan, Side, ah, connect, start};
use abi::cq::{Wc, status};
use abi::event::kind;
use abi::post::{Sge, opcode};
use abi::qp::{ModifyQp, attr, state};
use engine::{SendWr, Service};

fn drain(side: &Side, notify: bool) {
    let attr_mask = attr::STATE | if notify { attr::EN_SQD_ASYNC_NOTIFY } else { 0 };
    let attributes =
        ModifyQp { attr_mask, qp_state: state::SQD, en_sqd_async_notify: u8::from(notify), ..ModifyQp::default() };
    side.qp.modify(&attributes).expect("SQD");
}

/// A scatter/gather element with an invalid local key.
fn bad(side: &Side) -> [Sge; 1] {
    [Sge::new(side.memory.addr(0), 8, side.mr.lkey() ^ 0xff_ff00)]
}

/// The peer has acknowledged the SEND before this side fails its own QP, so the SEND has succeeded,
/// although this side has not polled since.
#[test]
fn what_the_peer_has_acknowledged_is_not_flushed() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    for round in 0..100 {
        b.recv(1, 0, 8);
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!(b.received().status, 0);
        a.to(state::ERR);
        assert_eq!(a.sent().status, status::SUCCESS, "round {round}");
        [&a, &b].into_iter().for_each(|side| side.to(state::RESET));
        connect(&a, &b);
    }
}

/// An adapter takes and acknowledges packets as they arrive, so a program that ends a queue pair or a
/// registration afterwards does not harm their sender.
#[test]
fn what_has_arrived_is_taken_before_a_qp_or_its_memory_ends() {
    let fabric = Fabric::start();
    let engines = [fabric.engine(), fabric.engine()];
    for what in ["destroyed", "reset", "deregistered"] {
        for round in 0..50 {
            let [a, b] = [0, 1].map(|side: usize| Side::new(&engines[side], &Plan::rc()));
            connect(&a, &b);
            // The first message waits for the lane.
            b.recv(1, 0, 0);
            a.post(&SendWr::default());
            assert_eq!((a.sent().status, b.received().status), (0, 0));
            a.memory.pattern(0, 64, 1);
            let (sges, remote_addr, rkey) = (a.sge(0, 64), b.memory.addr(0), b.mr.rkey());
            a.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &sges, remote_addr, rkey, ..SendWr::default() });
            match what {
                "destroyed" => assert_eq!(b.qp.destroy().expect("it goes"), 0),
                "reset" => b.to(state::RESET),
                _ => b.mr.dereg().expect("it goes"),
            }
            assert_eq!(a.sent().status, status::SUCCESS, "{what}, round {round}");
            assert_eq!(b.memory.get(0, 64), a.memory.get(0, 64), "{what}, round {round}");
        }
    }
}

fn assert_empty(side: &Side) {
    assert_eq!(side.scq.poll(&mut [Wc::default()]), Ok(0));
    assert_eq!(side.rcq.poll(&mut [Wc::default()]), Ok(0));
}

fn the_first_message_before_rts_is_told(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::uc()] {
        let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
        for (side, peer) in [(&a, &b), (&b, &a)] {
            side.init();
            side.recv(1, 0, 0);
            side.recv(2, 0, 0);
            side.rtr(peer.gid(), peer.qp.qpn());
        }
        a.rts();
        (0..2).for_each(|_| a.post(&SendWr::default()));
        (0..2).for_each(|_| assert_eq!((a.sent().status, b.received().status), (0, 0)));
        let told = event(&b.engine);
        assert_eq!((told.kind, told.element), (kind::COMM_EST, 2));
        no_event(&b.engine);
        // A QP that is already in RTS raises no event.
        b.rts();
        b.post(&SendWr::default());
        assert_eq!((b.sent().status, a.received().status), (0, 0));
        no_event(&a.engine);
    }
}

fn a_draining_queue_finishes_what_it_began(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    drain(&a, true);
    let told = event(&a.engine);
    assert_eq!((told.kind, told.element), (kind::SQ_DRAINED, 2), "nothing was under way");
    assert_eq!(a.qp.query(attr::STATE).expect("an answer").sq_draining, 0);
    a.to(state::RTS);

    // The first request is outstanding, because the peer has no receive request. The second is
    // posted after the transition and must not start.
    a.post(&SendWr { wr_id: 1, ..SendWr::default() });
    drain(&a, true);
    let answer = a.qp.query(attr::STATE).expect("an answer");
    assert_eq!((answer.qp_state, answer.sq_draining), (state::SQD, 1));
    a.post(&SendWr { wr_id: 2, ..SendWr::default() });
    no_event(&a.engine);
    b.recv(1, 0, 0);
    b.recv(2, 0, 0);
    assert_eq!((a.sent().wr_id, b.received().wr_id), (1, 1));
    assert_eq!(event(&a.engine).kind, kind::SQ_DRAINED);
    assert_eq!(a.qp.query(attr::STATE).expect("an answer").sq_draining, 0);
    // Receiving continues. If the second request had started, it would have arrived before the
    // peer's reply.
    a.recv(3, 0, 0);
    b.post(&SendWr::default());
    assert_eq!((a.received().wr_id, b.sent().status), (3, 0));
    assert_empty(&b);
    a.to(state::RTS);
    assert_eq!((a.sent().wr_id, b.received().wr_id), (2, 2));

    // Without a request for the event there is none.
    drain(&a, false);
    a.to(state::RTS);
    no_event(&a.engine);
}

fn an_unreliable_send_that_fails_halts_only_sending(fabric: &Fabric) {
    for plan in [Plan::uc(), Plan::ud()] {
        let plan = Plan { sq_sig_all: false, ..plan };
        let (a, b) = fabric.pair(&plan);
        let (to_b, to_a) = (a.ah(&b), b.ah(&a));
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), crate::common::QKEY));
        let back = (plan.service == Service::Ud).then_some((&*to_a, a.qp.qpn(), crate::common::QKEY));
        (1..=3).for_each(|wr_id| b.recv(wr_id, 0, 200));
        a.recv(7, 1000, 200);
        let wr = SendWr { ud, ..SendWr::default() };
        // An unsignalled request that succeeds, the bad one, and one that never starts: failed
        // requests always complete (V-62, V-81).
        let list = [SendWr { wr_id: 1, ..wr }, SendWr { wr_id: 2, sges: &bad(&a), ..wr }, SendWr { wr_id: 3, ..wr }];
        a.post_all(&list);
        let seen = [a.sent(), a.sent()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!(seen, [(2, status::LOC_PROT_ERR), (3, status::WR_FLUSH_ERR)]);
        assert_eq!(a.qp.state(), u32::from(state::SQE));
        assert_eq!(b.received().wr_id, 1);
        a.post(&SendWr { wr_id: 4, ..wr });
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (4, status::WR_FLUSH_ERR));
        // The receive queue continues.
        b.post(&SendWr { ud: back, ..SendWr::default() });
        assert_eq!((a.received().wr_id, a.qp.state()), (7, u32::from(state::SQE)));

        a.to(state::RTS);
        a.memory.pattern(0, 30, 3);
        a.post(&SendWr { wr_id: 5, send_flags: abi::post::send_flags::SIGNALED, sges: &a.sge(0, 30), ..wr });
        assert_eq!((a.sent().status, b.received().wr_id), (0, 2));
        no_event(&a.engine);
    }
}

#[test]
fn a_frozen_qp_stays_as_it_is_until_that_is_lifted() {
    let fabric = Fabric::start();
    let node = fabric.node(0);
    let manager = cm::Channel::open(node.parent().expect("a run directory")).expect("a channel");
    let (a, b) = (Side::new(&fabric.engine(), &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc()));
    // The state in the engine, and the state and port in the agent's answer.
    let known = |side: &Side| {
        let told = side.qp.query(attr::STATE | attr::PORT).expect("an answer");
        (side.qp.state(), told.qp_state, told.port_num)
    };
    let qpn = a.qp.qpn();
    manager.freeze_qp(qpn, true).expect("frozen");
    a.init();
    a.to(state::ERR);
    assert_eq!(known(&a), (u32::from(state::RESET), state::RESET, 0));
    manager.freeze_qp(qpn, false).expect("lifted");
    connect(&a, &b);
    assert_eq!(known(&a), (u32::from(state::RTS), state::RTS, 1));

    manager.freeze_qp(qpn, true).expect("frozen");
    for state in [state::ERR, state::RESET, state::SQD] {
        a.to(state);
        assert_eq!(known(&a).0, u32::from(state::RTS));
    }
    // A modify without a valid transition succeeds too, because it is ignored.
    a.to(state::INIT);
    b.recv(1, 0, 0);
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, b.received().wr_id), (0, 1), "it still works");
    // Other QPs work normally.
    b.to(state::ERR);
    assert_eq!(known(&b).0, u32::from(state::ERR));

    manager.freeze_qp(qpn, false).expect("lifted");
    assert_eq!(
        a.qp.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::INIT, ..ModifyQp::default() })
            .map_err(|error| error.errno),
        Err(abi::Errno::EINVAL)
    );
    a.to(state::ERR);
    assert_eq!(known(&a), (u32::from(state::ERR), state::ERR, 1));
}

#[test]
fn half_a_message_leaves_its_receive_request_to_the_next() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan { memory: 128 * 1024, ..Plan::uc() });
    b.recv(1, 0, 100_000);
    b.recv(2, 0, 100_000);
    a.post(&SendWr { sges: &[a.sge(0, 32 * 1024)[0], bad(&a)[0]], ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_PROT_ERR);
    a.to(state::RTS);
    a.memory.pattern(0, 70_000, 8);
    a.post(&SendWr { sges: &a.sge(0, 70_000), ..SendWr::default() });
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, 0, 70_000));
    assert!(b.memory.get(0, 70_000) == a.memory.get(0, 70_000));
}

fn an_error_flushes_both_queues_in_order(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { sq_sig_all: false, ..Plan::rc() });
    b.recv(1, 0, 8);
    (10..13).for_each(|wr_id| a.recv(wr_id, 0, 8));
    let wr = SendWr::default();
    let list = [
        SendWr { wr_id: 1, send_flags: abi::post::send_flags::SIGNALED, ..wr },
        SendWr { wr_id: 2, sges: &bad(&a), ..wr },
        SendWr { wr_id: 3, ..wr },
        SendWr { wr_id: 4, opcode: opcode::RDMA_READ, ..wr },
    ];
    a.post_all(&list);
    let seen = [(); 4].map(|()| a.sent()).map(|wc| (wc.wr_id, wc.status, wc.qp_num));
    let (qpn, flushed) = (a.qp.qpn(), status::WR_FLUSH_ERR);
    let expected = [(1, 0, qpn), (2, status::LOC_PROT_ERR, qpn), (3, flushed, qpn), (4, flushed, qpn)];
    assert_eq!(seen, expected);
    for wr_id in 10..13 {
        let wc = a.received();
        assert_eq!((wc.wr_id, wc.status), (wr_id, flushed));
    }
    assert_eq!(a.qp.state(), u32::from(state::ERR));
    // Requests posted now are flushed at once.
    a.post(&SendWr { wr_id: 5, ..wr });
    a.recv(13, 0, 8);
    assert_eq!((a.sent().wr_id, a.received().wr_id), (5, 13));
    assert_empty(&a);
    let reasons = engine::reason::last(64);
    assert!(
        reasons.iter().any(|reason| reason.contains(&format!("{qpn:#x}")) && reason.contains("key")),
        "{reasons:?}"
    );
    assert_eq!(b.received().wr_id, 1);
}

fn error_by_modify_flushes_what_is_under_way(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    // The peer has no receive request, so the sends stay outstanding.
    (1..4).for_each(|wr_id| a.post(&SendWr { wr_id, ..SendWr::default() }));
    a.recv(9, 0, 0);
    a.to(state::ERR);
    (1..4).for_each(|wr_id| {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status::WR_FLUSH_ERR));
    });
    assert_eq!((a.received().wr_id, a.qp.state()), (9, u32::from(state::ERR)));
    a.to(state::ERR);
    assert_empty(&a);
    // The same from INIT.
    let c = Side::new(&b.engine, &Plan::rc());
    c.init();
    c.recv(4, 0, 0);
    c.to(state::ERR);
    assert_eq!((c.received().wr_id, c.qp.state()), (4, u32::from(state::ERR)));
}

fn reset_takes_everything_back_and_the_qp_works_again(fabric: &Fabric) {
    let (ours, theirs, plan) = (fabric.engine(), fabric.engine(), Plan::rc());
    let pd = ours.alloc_pd().expect("a PD");
    let cq = crate::common::cq(&ours, 64);
    let [a, other] = [(); 2].map(|()| Side::on_cqs(&ours, &pd, &plan, (&cq, &cq), None));
    let [b, far] = [(); 2].map(|()| Side::new(&theirs, &plan));
    connect(&a, &b);
    connect(&other, &far);
    for round in 0..3u64 {
        // Each QP has a completion that was not polled. One QP also has a receive request and a
        // send that no message took.
        b.recv(1, 0, 0);
        far.recv(2, 0, 0);
        a.recv(8, 0, 0);
        a.post(&SendWr { wr_id: 3, ..SendWr::default() });
        assert_eq!(b.received().wr_id, 1);
        other.post(&SendWr { wr_id: 4 + round, ..SendWr::default() });
        a.post(&SendWr { wr_id: 5, ..SendWr::default() });
        assert_eq!(far.received().wr_id, 2);
        a.to(state::RESET);
        let wc = other.sent();
        assert_eq!((wc.wr_id, wc.qp_num), (4 + round, other.qp.qpn()), "the reset QP's are gone");
        assert_eq!(cq.poll(&mut [Wc::default()]), Ok(0));
        assert_eq!(a.qp.query(attr::STATE).expect("an answer").qp_state, state::RESET);
        b.to(state::RESET);
        connect(&a, &b);
        // All places are free again.
        let depth = u64::from(a.qp.caps().max_send_wr);
        (0..depth).for_each(|wr_id| b.recv(wr_id, 0, 0));
        a.post_all(&vec![SendWr::default(); depth as usize]);
        (0..depth).for_each(|wr_id| assert_eq!((a.sent().status, b.received().wr_id), (0, wr_id)));
    }
}

fn packets_for_a_qp_before_rtr_are_dropped(fabric: &Fabric) {
    let plan = Plan::ud();
    let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
    start(&a);
    let to_b = ah(&a.pd, b.gid(), a.gid_index());
    let send = |len| {
        a.post(&SendWr {
            ud: Some((&to_b, b.qp.qpn(), crate::common::QKEY)),
            sges: &a.sge(0, len),
            ..SendWr::default()
        });
        assert_eq!(a.sent().status, 0);
    };
    send(1);
    b.init();
    b.recv(1, 0, 100);
    b.recv(2, 0, 100);
    send(2);
    // A message to another QP of the same engine shows that the earlier messages were handled.
    let witness = Side::new(&b.engine, &plan);
    start(&witness);
    witness.recv(5, 0, 100);
    a.post(&SendWr { ud: Some((&to_b, witness.qp.qpn(), crate::common::QKEY)), ..SendWr::default() });
    assert_eq!((witness.received().wr_id, a.sent().status), (5, 0));
    b.rtr([0; 16], 0);
    b.rts();
    send(3);
    assert_eq!(b.received().byte_len, 43, "the first two were dropped");
    b.to(state::ERR);
    assert_eq!(b.received().wr_id, 2);
    send(4);
    assert_empty(&b);
}

fn attributes_that_change_while_it_works(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let change = |side: &Side, attributes: ModifyQp| {
        let attr_mask = attributes.attr_mask | attr::STATE;
        side.qp.modify(&ModifyQp { attr_mask, qp_state: state::RTS, ..attributes }).expect("RTS");
    };
    let write =
        SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
    let sges = a.sge(0, 8);
    a.post(&SendWr { sges: &sges, ..write });
    assert_eq!(a.sent().status, 0);
    change(&b, ModifyQp { attr_mask: attr::ACCESS_FLAGS, qp_access_flags: 0x4, ..ModifyQp::default() });
    a.post(&SendWr { opcode: opcode::RDMA_READ, sges: &sges, ..write });
    a.post(&SendWr { sges: &sges, ..write });
    assert_eq!((a.sent().status, a.sent().status), (0, status::REM_INV_REQ_ERR));
    assert_eq!(event(&b.engine).kind, kind::QP_REQ_ERR);

    let (c, d) = fabric.pair(&Plan::ud());
    let to_d = c.ah(&d);
    (1..=2).for_each(|wr_id| d.recv(wr_id, 0, 100));
    change(&d, ModifyQp { attr_mask: attr::QKEY, qkey: 7, ..ModifyQp::default() });
    for (qkey, len) in [(crate::common::QKEY, 1), (7, 2)] {
        c.post(&SendWr { ud: Some((&to_d, d.qp.qpn(), qkey)), sges: &c.sge(0, len), ..SendWr::default() });
        assert_eq!(c.sent().status, 0);
    }
    assert_eq!(d.received().byte_len, 42);
}

crate::common::everywhere! {
    the_first_message_before_rts_is_told
    a_draining_queue_finishes_what_it_began
    an_unreliable_send_that_fails_halts_only_sending
    an_error_flushes_both_queues_in_order
    error_by_modify_flushes_what_is_under_way
    reset_takes_everything_back_and_the_qp_works_again
    packets_for_a_qp_before_rtr_are_dropped
    attributes_that_change_while_it_works
}
