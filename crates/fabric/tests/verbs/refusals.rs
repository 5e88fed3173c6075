//! Requests that the peer or the local side refuses: the statuses and states of both sides, and the
//! events.

use crate::common::wait::{event, no_event, until};
use crate::common::{Fabric, Memory, Plan, QKEY, Side, register};
use abi::cq::{Wc, status};
use abi::event::kind;
use abi::mr::access;
use abi::post::{Sge, opcode};
use abi::qp::state;
use abi::reason::Cause;
use engine::{RecvWr, SendWr};

const ERR: u32 = state::ERR as u32;
const RTS: u32 = state::RTS as u32;

/// Posts `wr` and another request behind it. The first fails with `expected`, the second is
/// flushed, both QPs go to the error state, and the peer's engine raises the event `told`.
fn refused(
    fabric: &Fabric,
    plan: &Plan,
    what: &str,
    expected: u32,
    told: Option<u32>,
    wr: impl Fn(&Side, &Side) -> (SendWr<'static>, Vec<Sge>),
) {
    let (a, b) = fabric.pair(plan);
    b.recv(7, 0, 8);
    b.recv(8, 0, 8);
    b.memory.put(0, &[0x55; 64]);
    let before = b.memory.get(0, 4096);
    let (wr, sges) = wr(&a, &b);
    a.post_all(&[SendWr { wr_id: 1, sges: &sges, ..wr }, SendWr { wr_id: 2, ..SendWr::default() }]);
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (1, expected, a.qp.qpn()), "{what}: {:?}", engine::reason::last(3));
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (2, status::WR_FLUSH_ERR), "{what}");
    assert_eq!(a.qp.state(), ERR, "{what}");
    let Some(told) = told else {
        // The error is local: the peer does not notice it.
        assert_eq!(b.qp.state(), RTS, "{what}");
        return no_event(&b.engine);
    };
    let got = event(&b.engine);
    assert_eq!((got.kind, got.element), (told, 2), "{what}");
    assert_eq!(b.qp.state(), ERR, "{what}");
    let seen = [b.received(), b.received()].map(|wc| (wc.wr_id, wc.status));
    assert_eq!(seen[1], (8, status::WR_FLUSH_ERR), "{what}");
    // A receive request that the message had taken ends with its own error. A receive request that
    // was not taken is flushed.
    let first = if wr.opcode == opcode::RDMA_WRITE_WITH_IMM && told == kind::QP_ACCESS_ERR {
        status::LOC_ACCESS_ERR
    } else {
        status::WR_FLUSH_ERR
    };
    assert_eq!(seen[0], (7, first), "{what}");
    assert_eq!(b.memory.get(0, 4096), before, "{what}: nothing was touched");
    let named = format!("{:#x}", b.qp.qpn());
    assert!(engine::reason::last(64).iter().any(|reason| reason.contains(&named)), "{what}: a reason names the QP");
}

const ONE_SIDED: [u32; 5] = [
    opcode::RDMA_WRITE,
    opcode::RDMA_WRITE_WITH_IMM,
    opcode::RDMA_READ,
    opcode::ATOMIC_CMP_AND_SWP,
    opcode::ATOMIC_FETCH_AND_ADD,
];

/// A one-sided request for 8 bytes of the peer's memory at `at`.
fn request(a: &Side, b: &Side, code: u32, at: usize) -> (SendWr<'static>, Vec<Sge>) {
    let wr = SendWr { opcode: code, remote_addr: b.memory.addr(at), rkey: b.mr.rkey(), ..SendWr::default() };
    (wr, a.sge(0, 8).to_vec())
}

fn keys_that_open_nothing(fabric: &Fabric) {
    let plan = Plan::rc();
    let access_err = Some(kind::QP_ACCESS_ERR);
    for code in ONE_SIDED {
        let check = |what: &str, change: &dyn Fn(&Side, SendWr<'static>) -> SendWr<'static>| {
            refused(fabric, &plan, &format!("{what}, opcode {code}"), status::REM_ACCESS_ERR, access_err, |a, b| {
                let (wr, sges) = request(a, b, code, 0);
                (change(b, wr), sges)
            });
        };
        check("unknown key", &|_, wr| SendWr { rkey: wr.rkey ^ 0x00ff_ff00, ..wr });
        check("key of another generation", &|_, wr| SendWr { rkey: wr.rkey ^ 1, ..wr });
        check("deregistered", &|b, wr| {
            b.mr.dereg().expect("deregistered");
            wr
        });
        check("another PD", &|b, wr| {
            let other = register(&b.engine.alloc_pd().expect("a PD"), &b.memory, crate::common::ALL_RIGHTS);
            SendWr { rkey: other.rkey(), ..wr }
        });
        check("before the region", &|_, wr| SendWr { remote_addr: wr.remote_addr - 8, ..wr });
        check("across its end", &|b, wr| SendWr {
            remote_addr: b.memory.addr(b.memory.len()) - if code < 5 { 7 } else { 0 },
            ..wr
        });
        check("around the address space", &|_, wr| SendWr { remote_addr: u64::MAX - 7, ..wr });
        check("without the right", &|b, wr| {
            let right = match code {
                opcode::RDMA_READ => access::REMOTE_READ,
                opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => access::REMOTE_WRITE,
                _ => access::REMOTE_ATOMIC,
            };
            SendWr { rkey: register(&b.pd, &b.memory, crate::common::ALL_RIGHTS & !right).rkey(), ..wr }
        });
    }
}

fn requests_that_the_peer_does_not_serve(fabric: &Fabric) {
    for code in ONE_SIDED {
        let right = match code {
            opcode::RDMA_READ => access::REMOTE_READ,
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => access::REMOTE_WRITE,
            _ => access::REMOTE_ATOMIC,
        };
        let mut plans = vec![("QP access flags", Plan { qp_access: 0xe & !right, ..Plan::rc() }, 0)];
        if code >= opcode::RDMA_READ {
            plans.push(("max_dest_rd_atomic 0", Plan { max_dest_rd_atomic: 0, ..Plan::rc() }, 0));
        }
        if code > opcode::RDMA_READ {
            plans.push(("misaligned", Plan::rc(), 4));
        }
        for (what, plan, at) in plans {
            let what = format!("{what}, opcode {code}");
            refused(fabric, &plan, &what, status::REM_INV_REQ_ERR, Some(kind::QP_REQ_ERR), |a, b| {
                request(a, b, code, at)
            });
        }
    }
}

fn local_lists_that_name_nothing(fabric: &Fabric) {
    let codes = [opcode::SEND, opcode::SEND_WITH_IMM];
    for code in ONE_SIDED.into_iter().chain(codes) {
        // The direction of the data decides where the error is found. The peer may have served a
        // READ by then.
        let comes_in = (opcode::RDMA_READ..=opcode::ATOMIC_FETCH_AND_ADD).contains(&code);
        let check = |what: &str, sge: &dyn Fn(&Side) -> Sge| {
            refused(fabric, &Plan::rc(), &format!("{what}, opcode {code}"), status::LOC_PROT_ERR, None, |a, b| {
                let (wr, _) = request(a, b, code, 0);
                (wr, vec![sge(a)])
            });
        };
        check("unknown key", &|a| Sge::new(a.memory.addr(0), 8, a.mr.lkey() ^ 0xffff_ff00));
        check("out of range", &|a| Sge::new(a.memory.addr(a.memory.len() - 7), 8, a.mr.lkey()));
        check("another PD", &|a| {
            let other = register(&a.engine.alloc_pd().expect("a PD"), &a.memory, crate::common::ALL_RIGHTS);
            Sge::new(a.memory.addr(0), 8, other.lkey())
        });
        if comes_in {
            check("no local write", &|a| Sge::new(a.memory.addr(0), 8, register(&a.pd, &a.memory, 0).lkey()));
        }
    }
    // Reading local memory needs no right at all (V-21).
    let (a, b) = fabric.pair(&Plan { mr_access: 0, ..Plan::rc() });
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect("a receive");
    a.post(&SendWr { opcode: opcode::SEND, ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (0, 0));
}

fn a_read_needs_depth_at_the_initiator(fabric: &Fabric) {
    let plan = Plan { max_rd_atomic: 0, ..Plan::rc() };
    refused(fabric, &plan, "max_rd_atomic 0", status::LOC_QP_OP_ERR, None, |a, b| request(a, b, opcode::RDMA_READ, 0));
}

fn atomics_move_eight_bytes(fabric: &Fabric) {
    for len in [4, 7] {
        let (a, b) = fabric.pair(&Plan::rc());
        let (wr, _) = request(&a, &b, opcode::ATOMIC_FETCH_AND_ADD, 0);
        a.post(&SendWr { sges: &a.sge(0, len), ..wr });
        assert_eq!((a.sent().status, a.qp.state()), (status::LOC_LEN_ERR, ERR), "{len}");
    }
}

fn receive_buffers_that_cannot_take_the_message(fabric: &Fabric) {
    type Buffer = fn(&Side) -> Sge;
    let cases: [(&str, u32, u32, Buffer); 4] = [
        ("too short", status::LOC_LEN_ERR, status::REM_INV_REQ_ERR, |b| b.sge(0, 99)[0]),
        ("unknown key", status::LOC_PROT_ERR, status::REM_OP_ERR, |b| {
            Sge::new(b.memory.addr(0), 200, b.mr.lkey() ^ 0xffff_ff00)
        }),
        ("out of range", status::LOC_PROT_ERR, status::REM_OP_ERR, |b| {
            Sge::new(b.memory.addr(b.memory.len() - 50), 200, b.mr.lkey())
        }),
        ("no local write", status::LOC_PROT_ERR, status::REM_OP_ERR, |b| {
            Sge::new(b.memory.addr(0), 200, register(&b.pd, &b.memory, 0).lkey())
        }),
    ];
    for (what, local, remote, buffer) in cases {
        for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
            let (a, b) = fabric.pair(&plan);
            let to_b = a.ah(&b);
            let what = format!("{what}, {}", plan.service);
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[buffer(&b)] }).expect("a receive");
            b.recv(2, 0, 200);
            let ud = matches!(plan.service, engine::Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
            a.post(&SendWr { ud, sges: &a.sge(0, 100), ..SendWr::default() });
            let (wc, reliable) = (a.sent(), matches!(plan.service, engine::Service::Rc));
            assert_eq!(wc.status, if reliable { remote } else { 0 }, "{what}");
            assert_eq!(a.qp.state(), if reliable { ERR } else { RTS }, "{what}");
            if local == status::LOC_LEN_ERR && !reliable {
                // The message is dropped, and the receive request serves the next message
                // (`unreliable.rs` of the conformance suite).
                until("the drop", || {
                    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0), "{what}");
                    b.engine
                        .drops()
                        .into_iter()
                        .find(|drop| (drop.cause, drop.qpn) == (Cause::Length as u32, b.qp.qpn()))
                });
                assert_eq!(b.qp.state(), RTS, "{what}");
                continue;
            }
            let seen = [b.received(), b.received()].map(|wc| (wc.wr_id, wc.status));
            assert_eq!(seen, [(1, local), (2, status::WR_FLUSH_ERR)], "{what}");
            assert_eq!(b.qp.state(), ERR, "{what}");
        }
    }
}

fn refused_writes_of_a_uc_qp_are_dropped_silently(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::uc());
    for code in [opcode::RDMA_WRITE, opcode::RDMA_WRITE_WITH_IMM] {
        let (wr, sges) = request(&a, &b, code, 0);
        a.post(&SendWr { rkey: wr.rkey ^ 0xff00, sges: &sges, ..wr });
        a.post(&SendWr { remote_addr: b.memory.addr(b.memory.len()), sges: &sges, ..wr });
        (0..2).for_each(|_| assert_eq!(a.sent().status, 0));
    }
    b.recv(1, 0, 8);
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, b.received().wr_id), (0, 1), "what comes after is as good as ever");
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
    assert_eq!(b.qp.state(), RTS);
    let (a, b) = fabric.pair(&Plan { qp_access: 0, ..Plan::uc() });
    let (wr, sges) = request(&a, &b, opcode::RDMA_WRITE, 0);
    a.memory.put_word(0, 5);
    a.post(&SendWr { sges: &sges, ..wr });
    b.recv(1, 100, 8);
    a.post(&SendWr::default());
    assert_eq!((b.received().wr_id, b.memory.word(0), b.qp.state()), (1, 0, RTS));
}

/// Small messages that are received in one pass. The first one that cannot be received ends the
/// pass, and the messages before it have arrived.
#[test]
fn of_small_messages_that_come_together_those_before_the_refused_one_arrive() {
    type Buffer = fn(&Side) -> Sge;
    let cases: [(&str, u32, u32, Buffer); 4] = [
        ("too short", status::LOC_LEN_ERR, status::REM_INV_REQ_ERR, |b| b.sge(0, 7)[0]),
        ("unknown key", status::LOC_PROT_ERR, status::REM_OP_ERR, |b| {
            Sge::new(b.memory.addr(0), 8, b.mr.lkey() ^ 0xffff_ff00)
        }),
        ("an old key", status::LOC_PROT_ERR, status::REM_OP_ERR, |b| Sge::new(b.memory.addr(0), 8, b.mr.lkey() ^ 0xff)),
        ("no local write", status::LOC_PROT_ERR, status::REM_OP_ERR, |b| {
            Sge::new(b.memory.addr(0), 8, register(&b.pd, &b.memory, 0).lkey())
        }),
    ];
    let fabric = Fabric::start();
    for (what, local, remote, buffer) in cases {
        let (a, b) = fabric.pair(&Plan::rc());
        (0..3).for_each(|number| b.recv(number, 64 + 8 * number as usize, 8));
        b.qp.post_recv(&RecvWr { wr_id: 3, sges: &[buffer(&b)] }).expect("a receive");
        b.recv(4, 128, 8);
        (0..5).for_each(|number| a.memory.put_word(8 * number, 100 + number as u64));
        let sges = [0, 1, 2, 3, 4].map(|number| a.sge(8 * number, 8));
        let wrs = [0, 1, 2, 3, 4].map(|number: usize| SendWr {
            wr_id: number as u64,
            send_flags: abi::post::send_flags::SIGNALED,
            sges: &sges[number],
            ..SendWr::default()
        });
        a.post_all(&wrs);
        let sent = [(); 5].map(|()| a.sent()).map(|wc| (wc.wr_id, wc.status));
        let flushed = (4, status::WR_FLUSH_ERR);
        assert_eq!(sent, [(0, 0), (1, 0), (2, 0), (3, remote), flushed], "{what}");
        let seen = [(); 5].map(|()| b.received()).map(|wc| (wc.wr_id, wc.status));
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, local), flushed], "{what}");
        let words = [0, 1, 2].map(|number| b.memory.word(64 + 8 * number));
        assert_eq!((words, b.memory.word(128)), ([100, 101, 102], 0), "{what}");
    }
}

/// The same for a WRITE among other WRITEs.
#[test]
fn of_small_writes_those_before_the_refused_one_arrive_and_none_behind_it() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    (0..4).for_each(|number| a.memory.put_word(8 * number, 100 + number as u64));
    let sges = [0, 1, 2, 3].map(|number| a.sge(8 * number, 8));
    let wrs = [0, 1, 2, 3].map(|number: usize| SendWr {
        wr_id: number as u64,
        opcode: opcode::RDMA_WRITE,
        send_flags: abi::post::send_flags::SIGNALED,
        remote_addr: b.memory.addr(64 + 8 * number),
        rkey: if number == 2 { b.mr.rkey() ^ 0xff } else { b.mr.rkey() },
        sges: &sges[number],
        ..SendWr::default()
    });
    a.post_all(&wrs);
    let sent = [(); 4].map(|()| a.sent()).map(|wc| (wc.wr_id, wc.status));
    assert_eq!(sent, [(0, 0), (1, 0), (2, status::REM_ACCESS_ERR), (3, status::WR_FLUSH_ERR)]);
    assert_eq!([0, 1, 2, 3].map(|number| b.memory.word(64 + 8 * number)), [100, 101, 0, 0]);
    assert_eq!(b.qp.state(), ERR);
}

#[test]
fn registering_checks_the_memory_and_the_rights() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let memory = Memory::new(8192);
    let refused = |addr, len, access| pd.reg_mr(addr, len, addr, access).err().map(|error| error.errno);
    use abi::errno::Errno;
    assert_eq!(refused(memory.addr(0), 0, 1 << 31), Some(Errno::EINVAL), "an unknown right");
    assert_eq!(refused(8, 8, 1), Some(Errno::EFAULT), "unmapped");
    assert_eq!(refused(u64::MAX - 8, 100, 1), Some(Errno::EFAULT), "around the end");
    for right in [access::REMOTE_WRITE, access::REMOTE_ATOMIC] {
        assert_eq!(refused(memory.addr(0), 8, right), Some(Errno::EINVAL), "remote without local writing");
    }
    memory.protect(true);
    assert_eq!(refused(memory.addr(0), 8, access::LOCAL_WRITE), Some(Errno::EFAULT), "read-only");
    assert_eq!(refused(memory.addr(0), 8, access::REMOTE_READ), None, "read-only memory may be read");
    memory.protect(false);
    assert_eq!(refused(memory.addr(0), 8, 0), Some(Errno::EFAULT), "not even readable");
}

#[test]
fn a_region_that_changes_has_new_keys() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let other = Memory::new(4096);
    let old = b.mr.rkey();
    b.mr.rereg(1, None, other.addr(0), 4096, 0).expect("another translation");
    assert_ne!(b.mr.rkey(), old);
    a.memory.put_word(0, 9);
    let wr = SendWr { opcode: opcode::RDMA_WRITE, remote_addr: other.addr(8), rkey: b.mr.rkey(), ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
    assert_eq!((a.sent().status, other.word(8)), (0, 9));
    b.mr.rereg(4, None, 0, 0, access::LOCAL_WRITE).expect("fewer rights");
    a.post(&SendWr { sges: &a.sge(0, 8), rkey: b.mr.rkey(), ..wr });
    assert_eq!(a.sent().status, status::REM_ACCESS_ERR);
    assert_eq!(b.mr.rereg(1, None, 8, 8, 0).expect_err("unmapped").errno, abi::errno::Errno::EFAULT);
}

crate::common::everywhere! {
    keys_that_open_nothing
    requests_that_the_peer_does_not_serve
    local_lists_that_name_nothing
    a_read_needs_depth_at_the_initiator
    atomics_move_eight_bytes
    receive_buffers_that_cannot_take_the_message
    refused_writes_of_a_uc_qp_are_dropped_silently
}
