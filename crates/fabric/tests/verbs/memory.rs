//! Registered memory that is unmapped, protected or truncated, at either end, for every operation.
//! The result is always a status and a reason.
//!
//! The tests run one at a time: unmapped memory must stay a hole, and another test's mappings could
//! fill it.

use crate::common::wait::until;
use crate::common::{Fabric, Memory, Plan, QKEY, Side, register};
use abi::cq::status;
use abi::post::{Sge, opcode};
use abi::qp::state;
use engine::{RecvWr, SendWr, Service};
use parking_lot::Mutex;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const ERR: u32 = state::ERR as u32;

/// What happens to the memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Loss {
    Unmapped,
    Protected,
    Truncated,
    /// Only writing fails.
    ReadOnly,
}

const LOSSES: [Loss; 4] = [Loss::Unmapped, Loss::Protected, Loss::Truncated, Loss::ReadOnly];

fn lose(memory: &mut Memory, loss: Loss) {
    match loss {
        Loss::Unmapped => memory.unmap(),
        Loss::Protected => memory.protect(false),
        Loss::Truncated => memory.truncate(),
        Loss::ReadOnly => memory.protect(true),
    }
}

/// A separate buffer for the operation, so that all other memory stays mapped.
fn buffer(side: &Side) -> (Memory, u32) {
    let memory = Memory::new(64 * 1024);
    memory.pattern(0, 64 * 1024, 3);
    let key = register(&side.pd, &memory, crate::common::ALL_RIGHTS).lkey();
    (memory, key)
}

fn pair(fabric: &Fabric, plan: &Plan) -> (Side, Side) {
    let (a, b) = fabric.pair(plan);
    // The lanes are open, and therefore mapped, before anything is unmapped.
    let to_b = a.ah(&b);
    b.recv(0, 0, 100);
    let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
    a.post(&SendWr { ud, ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (0, 0));
    (a, b)
}

fn assert_reason(side: &Side, what: &str) {
    let named = format!("{:#x}", side.qp.qpn());
    let found =
        engine::reason::last(64).iter().any(|reason| reason.contains(&named) && reason.contains("unmapped, protected"));
    assert!(found, "{what}: {:?}", engine::reason::last(4));
}

const ALL: [u32; 7] = [
    opcode::SEND,
    opcode::SEND_WITH_IMM,
    opcode::RDMA_WRITE,
    opcode::RDMA_WRITE_WITH_IMM,
    opcode::RDMA_READ,
    opcode::ATOMIC_CMP_AND_SWP,
    opcode::ATOMIC_FETCH_AND_ADD,
];

fn is_atomic(code: u32) -> bool {
    matches!(code, opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD)
}

#[test]
fn the_local_buffer_of_a_request() {
    let _turn = ONE_AT_A_TIME.lock();
    let fabric = Fabric::start();
    for code in ALL {
        let comes_in = code == opcode::RDMA_READ || is_atomic(code);
        for (loss, len) in LOSSES.into_iter().flat_map(|loss| [(loss, 8), (loss, 40_000)]) {
            if (loss == Loss::ReadOnly && !comes_in) || (is_atomic(code) && len > 8) {
                continue;
            }
            let what = format!("opcode {code}, {loss:?}, {len}");
            let (a, b) = pair(&fabric, &Plan::rc());
            let (mut memory, key) = buffer(&a);
            b.recv(1, 0, 50_000);
            lose(&mut memory, loss);
            let sges = [Sge::new(memory.addr(8), len, key)];
            let wr = SendWr {
                opcode: code,
                remote_addr: b.memory.addr(0),
                rkey: b.mr.rkey(),
                sges: &sges,
                ..SendWr::default()
            };
            a.post_all(&[SendWr { wr_id: 1, ..wr }, SendWr { wr_id: 2, sges: &[], ..wr }]);
            let seen = [a.sent(), a.sent()].map(|wc| (wc.wr_id, wc.status));
            assert_eq!(seen, [(1, status::LOC_PROT_ERR), (2, status::WR_FLUSH_ERR)], "{what}");
            assert_eq!((a.qp.state(), b.qp.state()), (ERR, u32::from(state::RTS)), "{what}");
            assert_reason(&a, &what);
        }
    }
    for plan in [Plan::uc(), Plan::ud()] {
        for loss in [Loss::Unmapped, Loss::Protected, Loss::Truncated] {
            let (a, b) = pair(&fabric, &plan);
            let to_b = a.ah(&b);
            let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
            let (mut memory, key) = buffer(&a);
            lose(&mut memory, loss);
            a.post(&SendWr { ud, sges: &[Sge::new(memory.addr(0), 3000, key)], ..SendWr::default() });
            assert_eq!(a.sent().status, status::LOC_PROT_ERR, "{}, {loss:?}", plan.service);
            assert_eq!(a.qp.state(), u32::from(state::SQE));
            assert_reason(&a, "unreliable");
        }
    }
}

#[test]
fn the_target_of_a_one_sided_request() {
    let _turn = ONE_AT_A_TIME.lock();
    let fabric = Fabric::start();
    for code in ALL.into_iter().skip(2) {
        for (loss, len) in LOSSES.into_iter().flat_map(|loss| [(loss, 8), (loss, 40_000)]) {
            if (loss == Loss::ReadOnly && code == opcode::RDMA_READ) || (is_atomic(code) && len > 8) {
                continue;
            }
            let what = format!("opcode {code}, {loss:?}, {len}");
            let (a, b) = pair(&fabric, &Plan::rc());
            let (mut memory, rkey) = buffer(&b);
            b.recv(1, 0, 8);
            b.recv(2, 0, 8);
            lose(&mut memory, loss);
            let wr = SendWr { opcode: code, remote_addr: memory.addr(8), rkey, ..SendWr::default() };
            a.post(&SendWr { sges: &a.sge(0, len), ..wr });
            assert_eq!(a.sent().status, status::REM_OP_ERR, "{what}");
            assert_eq!(a.qp.state(), ERR, "{what}");
            // The responder's QP also ends, and all its requests are flushed.
            let seen = [b.received(), b.received()].map(|wc| (wc.wr_id, wc.status));
            let taken = code == opcode::RDMA_WRITE_WITH_IMM && len == 8;
            let first = if taken { status::LOC_ACCESS_ERR } else { status::WR_FLUSH_ERR };
            assert_eq!(seen, [(1, first), (2, status::WR_FLUSH_ERR)], "{what}");
            until("the error state", || (b.qp.state() == ERR).then_some(()));
            assert_reason(&b, &what);
        }
    }
}

#[test]
fn a_receive_buffer() {
    let _turn = ONE_AT_A_TIME.lock();
    let fabric = Fabric::start();
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        for (loss, len) in LOSSES.into_iter().flat_map(|loss| [(loss, 8), (loss, 4000)]) {
            let what = format!("{}, {loss:?}, {len}", plan.service);
            let (a, b) = pair(&fabric, &plan);
            let to_b = a.ah(&b);
            let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
            let (mut memory, key) = buffer(&b);
            let sges = [Sge::new(memory.addr(0), 8000, key)];
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &sges }).expect("a receive");
            b.recv(2, 0, 8000);
            lose(&mut memory, loss);
            a.post(&SendWr { ud, sges: &a.sge(0, len), ..SendWr::default() });
            let expected = if plan.service == Service::Rc { status::REM_OP_ERR } else { 0 };
            assert_eq!(a.sent().status, expected, "{what}");
            let seen = [b.received(), b.received()].map(|wc| (wc.wr_id, wc.status));
            assert_eq!(seen, [(1, status::LOC_ACCESS_ERR), (2, status::WR_FLUSH_ERR)], "{what}");
            assert_eq!(b.qp.state(), ERR, "{what}");
            assert_reason(&b, &what);
        }
    }
}

#[test]
fn only_what_is_touched_matters() {
    let _turn = ONE_AT_A_TIME.lock();
    let fabric = Fabric::start();
    let (a, b) = pair(&fabric, &Plan::rc());
    let (memory, key) = buffer(&b);
    memory.protect(true);
    // Reading still works where only reading is allowed, and writing elsewhere works as before.
    let wr = SendWr { opcode: opcode::RDMA_READ, remote_addr: memory.addr(0), rkey: key, ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 40_000), ..wr });
    assert_eq!(a.sent().status, 0);
    assert!(a.memory.get(0, 40_000) == memory.get(0, 40_000));
    a.post(&SendWr {
        opcode: opcode::RDMA_WRITE,
        remote_addr: b.memory.addr(0),
        rkey: b.mr.rkey(),
        sges: &a.sge(0, 8),
        ..wr
    });
    assert_eq!((a.sent().status, b.qp.state()), (0, u32::from(state::RTS)));
}

#[test]
fn a_region_that_ends_while_its_peer_writes() {
    let _turn = ONE_AT_A_TIME.lock();
    let fabric = Fabric::start();
    for round in 0..10 {
        let (a, b) = pair(&fabric, &Plan::rc());
        let mut memory = Memory::new(64 * 1024);
        let mr = register(&b.pd, &memory, crate::common::ALL_RIGHTS);
        let code = if round % 2 == 0 { opcode::RDMA_WRITE } else { opcode::RDMA_READ };
        let wr = SendWr { opcode: code, remote_addr: memory.addr(0), rkey: mr.rkey(), ..SendWr::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..8).for_each(|_| a.post(&SendWr { sges: &a.sge(0, 64 * 1024), ..wr }));
                let failed = until("an error", || {
                    let wc = a.sent();
                    if wc.status == 0 {
                        a.post(&SendWr { sges: &a.sge(0, 64 * 1024), ..wr });
                    }
                    (wc.status != 0).then_some(wc)
                });
                assert_eq!(failed.status, status::REM_ACCESS_ERR, "{:?}", engine::reason::last(3));
            });
            until("traffic", || (memory.word(0) != 1).then_some(()));
            mr.dereg().expect("deregistered");
            // After dereg_mr no engine touches the memory. So it may be unmapped, and no access
            // faults.
            memory.unmap();
        });
    }
}
