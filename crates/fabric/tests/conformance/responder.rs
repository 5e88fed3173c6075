//! Section 15: a responder's checks, their order, and how each fault ends for both sides.

use abi::cq::{Wc, status};
use abi::post::{Sge, opcode};
use abi::qp::{ModifyQp, attr, state};

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side, everywhere};
use engine::{RecvWr, SendWr};

const ERR: u32 = state::ERR as u32;
const RTS: u32 = state::RTS as u32;

fn one_sided(b: &Side, opcode: u32, at: usize) -> SendWr<'static> {
    SendWr { opcode, remote_addr: b.memory.addr(at), rkey: b.mr.rkey(), ..SendWr::default() }
}

/// A connected pair in which the first side's send PSN differs from the second side's expected PSN.
fn out_of_step(fabric: &Fabric, plan: &Plan, first: u32) -> (Side, Side) {
    let (a, b) = (Side::new(&fabric.engine(), plan), Side::new(&fabric.engine(), plan));
    for (side, peer) in [(&a, &b), (&b, &a)] {
        side.init();
        side.rtr(peer.gid(), peer.qp.qpn());
    }
    let mask = attr::STATE | attr::SQ_PSN | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
    let rts = ModifyQp {
        attr_mask: mask,
        qp_state: state::RTS,
        timeout: plan.timeout,
        retry_cnt: plan.retry_cnt,
        rnr_retry: 7,
        sq_psn: first,
        ..ModifyQp::default()
    };
    a.qp.modify(&rts).expect("RTS");
    b.rts();
    (a, b)
}

/// Checks the status of a request and the states of both ends.
fn end(a: &Side, b: &Side, wr: &SendWr<'_>, expected: u32, states: (u32, u32)) {
    a.post(wr);
    assert_eq!(a.sent().status, expected, "{:?}", engine::reason::last(3));
    until("the states", || ((a.qp.state(), b.qp.state()) == states).then_some(()));
}

fn responder_1_a_gap_in_the_numbers(fabric: &Fabric) {
    let (a, b) = out_of_step(fabric, &Plan::rc().hasty(), 12);
    b.recv(1, 0, 8);
    end(&a, &b, &SendWr::default(), status::RETRY_EXC_ERR, (ERR, RTS));
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0), "nothing was taken");
}

fn responder_1_a_number_from_the_past_is_a_duplicate(fabric: &Fabric) {
    let (a, b) = out_of_step(fabric, &Plan::rc(), 5);
    a.memory.put_word(0, 9);
    a.memory.put_word(8, 10);
    // The responder acknowledges the first two requests, which look like duplicates, and does not
    // execute them. The third request is new.
    let old = a.sge(0, 8);
    let old = SendWr { sges: &old, ..one_sided(&b, opcode::RDMA_WRITE, 0) };
    a.post_all(&[old, old, SendWr { sges: &a.sge(8, 8), ..one_sided(&b, opcode::RDMA_WRITE, 8) }]);
    (0..3).for_each(|_| assert_eq!(a.sent().status, 0));
    assert_eq!((b.memory.word(0), b.memory.word(8)), (0, 10));
}

fn responder_3_the_rights_of_the_queue_pair_come_before_the_key(fabric: &Fabric) {
    for code in [opcode::RDMA_WRITE, opcode::RDMA_READ, opcode::ATOMIC_CMP_AND_SWP] {
        let (a, b) = fabric.pair(&Plan { qp_access: 0, ..Plan::rc() });
        let wr = SendWr { rkey: 1, sges: &a.sge(0, 8), ..one_sided(&b, code, 0) };
        end(&a, &b, &wr, status::REM_INV_REQ_ERR, (ERR, ERR));
    }
}

fn responder_4_resources_come_before_the_key(fabric: &Fabric) {
    for code in [opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD] {
        let (a, b) = fabric.pair(&Plan { max_dest_rd_atomic: 0, ..Plan::rc() });
        let wr = SendWr { rkey: 1, sges: &a.sge(0, 8), ..one_sided(&b, code, 0) };
        end(&a, &b, &wr, status::REM_INV_REQ_ERR, (ERR, ERR));
    }
    // The responder looks for a receive request before it checks the key.
    let (a, b) = fabric.pair(&Plan { rnr_retry: 0, ..Plan::rc() });
    let wr = SendWr { rkey: 1, sges: &a.sge(0, 8), ..one_sided(&b, opcode::RDMA_WRITE_WITH_IMM, 0) };
    end(&a, &b, &wr, status::RNR_RETRY_EXC_ERR, (ERR, RTS));
}

fn responder_5_length(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 100);
    end(&a, &b, &SendWr { sges: &a.sge(0, 101), ..SendWr::default() }, status::REM_INV_REQ_ERR, (ERR, ERR));
    assert_eq!(b.received().status, status::LOC_LEN_ERR);
}

/// An address and a key.
type Target = fn(&Side) -> (u64, u32);

fn responder_6_key_range_and_right(fabric: &Fabric) {
    for code in [opcode::RDMA_WRITE, opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD] {
        let cases: [Target; 3] = [
            |b| (b.memory.addr(0), b.mr.rkey() ^ 0xff_ff00),
            |b| (b.memory.addr(b.memory.len()), b.mr.rkey()),
            |b| (b.memory.addr(0), crate::common::register(&b.pd, &b.memory, 1).rkey()),
        ];
        for case in cases {
            let (a, b) = fabric.pair(&Plan::rc());
            let (remote_addr, rkey) = case(&b);
            let wr = SendWr { remote_addr, rkey, sges: &a.sge(0, 8), ..one_sided(&b, code, 0) };
            end(&a, &b, &wr, status::REM_ACCESS_ERR, (ERR, ERR));
        }
    }
    let (a, b) = fabric.pair(&Plan::rc());
    let crooked = SendWr { sges: &a.sge(0, 8), ..one_sided(&b, opcode::ATOMIC_FETCH_AND_ADD, 4) };
    end(&a, &b, &crooked, status::REM_INV_REQ_ERR, (ERR, ERR));
}

fn responder_7_its_own_buffer(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let keyless = [Sge::new(b.memory.addr(0), 8, b.mr.lkey() ^ 0xff_ff00)];
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &keyless }).expect("posted");
    b.recv(2, 0, 8);
    end(&a, &b, &SendWr { sges: &a.sge(0, 8), ..SendWr::default() }, status::REM_OP_ERR, (ERR, ERR));
    assert_eq!([b.received().status, b.received().status], [status::LOC_PROT_ERR, status::WR_FLUSH_ERR]);
}

/// The completion is visible as soon as the acknowledgement is.
fn responder_8_it_completes_before_it_acknowledges(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    for wr_id in 0..50 {
        b.recv(wr_id, 0, 8);
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
        // The completion becomes visible under a lock that the query of the state also takes.
        let _ = b.qp.state();
        let mut wc = [Wc::default()];
        assert_eq!((b.rcq.poll(&mut wc), wc[0].wr_id), (Ok(1), wr_id));
    }
}

/// UC: a faulty message is dropped, and its receive request waits for the next message.
fn fault_uc_abandons_a_message_and_keeps_the_request(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 256 * 1024, ..Plan::uc() });
    b.recv(1, 0, 200_000);
    // Only the first part of the message can be read.
    let halves = [a.sge(0, 100_000)[0], Sge::new(a.memory.addr(0), 8, a.mr.lkey() ^ 0xff_ff00)];
    a.post(&SendWr { sges: &halves, ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_PROT_ERR);
    a.to(state::RTS);
    a.memory.pattern(0, 90_000, 3);
    a.post(&SendWr { sges: &a.sge(0, 90_000), ..SendWr::default() });
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, 0, 90_000));
    assert!(b.memory.get(0, 90_000) == a.memory.get(0, 90_000));
}

fn fault_uc_drops_writes_it_may_not_carry_out(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::uc());
    for rkey in [1, b.mr.rkey() ^ 0xff_ff00] {
        a.post(&SendWr { rkey, sges: &a.sge(0, 8), ..one_sided(&b, opcode::RDMA_WRITE, 0) });
        assert_eq!(a.sent().status, 0);
    }
    b.recv(1, 0, 8);
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, b.received().wr_id, b.qp.state()), (0, 1, RTS));
}

everywhere! {
    responder_1_a_gap_in_the_numbers
    responder_1_a_number_from_the_past_is_a_duplicate
    responder_3_the_rights_of_the_queue_pair_come_before_the_key
    responder_4_resources_come_before_the_key
    responder_5_length
    responder_6_key_range_and_right
    responder_7_its_own_buffer
    responder_8_it_completes_before_it_acknowledges
    fault_uc_abandons_a_message_and_keeps_the_request
    fault_uc_drops_writes_it_may_not_carry_out
}

/// Every packet of a message except the last must be as long as the path MTU. Here the ends have
/// different path MTUs.
#[test]
fn responder_5_packets_of_the_wrong_length() {
    let fabric = Fabric::hosts(["10.0.0.1", "10.0.0.2"], 4096, ::fabric::Faults::default());
    let (a, b) = (Side::new(&fabric.engine(), &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc()));
    for (side, peer, path_mtu) in [(&a, &b, 3), (&b, &a, 2)] {
        side.init();
        side.qp.modify(&side.rtr_request(peer.gid(), peer.qp.qpn(), path_mtu)).expect("RTR");
        side.rts();
    }
    b.recv(1, 0, 4000);
    end(&a, &b, &SendWr { sges: &a.sge(0, 3000), ..SendWr::default() }, status::REM_INV_REQ_ERR, (ERR, ERR));
}
