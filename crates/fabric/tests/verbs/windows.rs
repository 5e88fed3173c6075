//! Memory windows: how they are bound and for whom, how they are unbound, and the result of each
//! mistake.

use std::sync::Arc;

use crate::common::{Fabric, Plan, Side, connect, everywhere};
use abi::cq::{opcode as wc_opcode, status, wc_flags};
use abi::errno::Errno;
use abi::mr::{access, next_key};
use abi::post::{Sge, opcode};
use abi::qp::state;
use engine::{Bind, Mw, PostError, SendWr};

/// A device whose windows of type 2 are bound to a QP number only.
const TYPE_2A: &str = "[[devices]]\nmemory_windows = '2A'";
const LOCAL: u32 = access::LOCAL_WRITE | access::MW_BIND;
const WRITE: u32 = access::REMOTE_WRITE;
const ALL: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// Two sides whose memory peers can reach only through windows.
fn pair(fabric: &Fabric) -> (Side, Side) {
    fabric.pair(&Plan { mr_access: LOCAL, ..Plan::rc() })
}

fn bind_of(side: &Side, mw: &Mw, key: u32, (at, length): (usize, u64), access: u32) -> Bind {
    Bind { window: mw.number(), rkey: key, mr: side.mr.lkey(), addr: side.memory.addr(at), length, access }
}

fn post_bind(side: &Side, bind: &Bind) {
    side.post(&SendWr { wr_id: 7, opcode: opcode::BIND_MW, bind: Some(bind), ..SendWr::default() });
}

/// Binds the window with its next key, and expects success.
fn bind(side: &Side, mw: &Mw, range: (usize, u64), access: u32) -> u32 {
    let key = next_key(mw.rkey());
    post_bind(side, &bind_of(side, mw, key, range, access));
    let wc = side.sent();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (7, status::SUCCESS, wc_opcode::BIND_MW), "{:?}", reasons());
    assert_eq!(mw.rkey(), key);
    key
}

fn reasons() -> Vec<String> {
    engine::reason::last(2)
}

/// Posts one remote operation of 8 bytes and returns its status.
fn reach(side: &Side, code: u32, (rkey, remote_addr): (u32, u64)) -> u32 {
    side.post(&SendWr { opcode: code, rkey, remote_addr, sges: &side.sge(0, 8), ..SendWr::default() });
    side.sent().status
}

fn invalidate(side: &Side, key: u32) -> u32 {
    side.post(&SendWr { opcode: opcode::LOCAL_INV, imm: key, ..SendWr::default() });
    let wc = side.sent();
    assert!(wc.status != 0 || wc.opcode == wc_opcode::LOCAL_INV);
    wc.status
}

fn restart(a: &Side, b: &Side) {
    for side in [a, b] {
        side.to(state::RESET);
    }
    connect(a, b);
}

everywhere! {
    v_32_any_lower_8_bits_are_a_key_of_type_2
    v_30_a_window_opens_its_range_with_its_rights
    v_31_a_new_bind_of_type_1_closes_the_old_key
    op_send_inv_invalidates_a_window_of_the_receiver
    fault_invalidate_of_what_is_not_the_connections
}

/// V-30, V-31.
fn v_30_a_window_opens_its_range_with_its_rights(fabric: &Fabric) {
    for kind in [1, 2] {
        let (a, b) = pair(fabric);
        let mw = b.pd.alloc_mw(kind).expect("a window");
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (mw.rkey(), b.memory.addr(0))), status::REM_ACCESS_ERR, "unbound");
        restart(&a, &b);
        let key = bind(&b, &mw, (1000, 100), ALL);
        a.memory.pattern(0, 64, 5);
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(1000))), 0, "{:?}", reasons());
        assert_eq!(b.memory.get(1000, 8), a.memory.get(0, 8));
        assert_eq!(reach(&a, opcode::RDMA_READ, (key, b.memory.addr(1092))), 0);
        assert_eq!(reach(&a, opcode::ATOMIC_FETCH_AND_ADD, (key, b.memory.addr(1008))), 0);
        for (what, code, at) in [
            ("before it", opcode::RDMA_WRITE, 999),
            ("past its end", opcode::RDMA_READ, 1093),
            ("the region's own key", opcode::RDMA_WRITE, 0),
        ] {
            let (rkey, at) = if at == 0 { (b.mr.rkey(), 1000) } else { (key, at) };
            assert_eq!(reach(&a, code, (rkey, b.memory.addr(at))), status::REM_ACCESS_ERR, "{what}");
            restart(&a, &b);
        }
    }
    for (granted, refused) in [
        (access::REMOTE_READ, opcode::RDMA_WRITE),
        (WRITE, opcode::RDMA_READ),
        (WRITE | access::REMOTE_READ, opcode::ATOMIC_CMP_AND_SWP),
        (0, opcode::RDMA_READ),
    ] {
        let (a, b) = pair(fabric);
        let mw = b.pd.alloc_mw(2).expect("a window");
        let key = bind(&b, &mw, (0, 64), granted);
        assert_eq!(reach(&a, refused, (key, b.memory.addr(0))), status::REM_ACCESS_ERR, "{granted:#x}");
    }
}

/// V-31, V-32: every bind gives another key. A bind with length 0 unbinds the window.
fn v_31_a_new_bind_of_type_1_closes_the_old_key(fabric: &Fabric) {
    let (a, b) = pair(fabric);
    let mw = b.pd.alloc_mw(1).expect("a window");
    let first = bind(&b, &mw, (0, 100), WRITE);
    let second = bind(&b, &mw, (200, 100), WRITE);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (second, b.memory.addr(200))), 0);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (first, b.memory.addr(0))), status::REM_ACCESS_ERR);
    restart(&a, &b);
    let third = bind(&b, &mw, (0, 0), 0);
    for key in [second, third] {
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(200))), status::REM_ACCESS_ERR);
        restart(&a, &b);
    }
    b.mr.dereg().expect("no window is on it");
}

/// V-32, IBA 10.6.7.2.2: the lower 8 bits are the request's, with any previous value. The other
/// bits are the window's.
fn v_32_any_lower_8_bits_are_a_key_of_type_2(fabric: &Fabric) {
    let (a, b) = pair(fabric);
    let mw = b.pd.alloc_mw(2).expect("a window");
    let given = mw.rkey();
    let keys = [given, given, next_key(given), given & !0xff, given | 0xff, given | 0xff, given];
    for (round, key) in keys.into_iter().enumerate() {
        // Another range each time: a peer with a key from an earlier round reaches the range of the
        // current round.
        let at = 64 * round;
        let bind = bind_of(&b, &mw, key, (at, 64), ALL);
        // The upper bits are ignored.
        let asked = if round % 2 == 0 { key } else { key & 0xff };
        post_bind(&b, &Bind { rkey: asked, ..bind });
        assert_eq!((b.sent().status, mw.rkey()), (0, key), "{round}: {:?}", reasons());
        a.memory.pattern(0, 8, round);
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(at))), 0, "{round}: {:?}", reasons());
        assert_eq!(b.memory.get(at, 8), a.memory.get(0, 8), "{round}");
        assert_eq!(invalidate(&b, key), 0, "{round}");
    }
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (given, b.memory.addr(0))), status::REM_ACCESS_ERR, "it is closed");
    restart(&a, &b);
    // A bound window of type 2 cannot be bound again, even with another key.
    post_bind(&b, &bind_of(&b, &mw, given, (0, 64), ALL));
    assert_eq!(b.sent().status, 0);
    post_bind(&b, &bind_of(&b, &mw, next_key(given), (0, 64), ALL));
    assert_eq!((b.sent().status, mw.rkey()), (status::MW_BIND_ERR, given));
    mw.dealloc().expect("bound or not");
    restart(&a, &b);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (given, b.memory.addr(0))), status::REM_ACCESS_ERR, "it is gone");
    b.mr.dereg().expect("no window is on it");
}

/// V-32, IBA 9.4.1.1.3: the key becomes invalid after the message is complete, and the completion
/// reports it.
fn op_send_inv_invalidates_a_window_of_the_receiver(fabric: &Fabric) {
    let (a, b) = pair(fabric);
    let mw = b.pd.alloc_mw(2).expect("a window");
    let key = bind(&b, &mw, (0, 100), WRITE);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(0))), 0);
    for len in [0, 8, 20_000] {
        let key = if len == 0 { key } else { bind(&b, &mw, (0, 100), WRITE) };
        b.recv(3, 30_000, 30_000);
        a.memory.pattern(0, 20_000, 9);
        let sges = a.sge(0, len);
        let sges: &[Sge] = if len == 0 { &[] } else { &sges };
        a.post(&SendWr { opcode: opcode::SEND_WITH_INV, imm: key, sges, ..SendWr::default() });
        let wc = a.sent();
        assert_eq!((wc.status, wc.opcode), (0, wc_opcode::SEND));
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize), (3, 0, wc_opcode::RECV, len));
        assert_eq!((wc.wc_flags, wc.imm_data), (wc_flags::WITH_INV, key));
        assert_eq!(b.memory.get(30_000, len), a.memory.get(0, len));
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(0))), status::REM_ACCESS_ERR);
        restart(&a, &b);
    }
    b.mr.dereg().expect("no window is on it");
}

/// IBA 9.9.6.3, class J: the sender gets no answer. The receive request ends with REM_INV_REQ_ERR,
/// and the QP fails.
fn fault_invalidate_of_what_is_not_the_connections(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { mr_access: LOCAL, ..Plan::rc().hasty() });
    let other = Side::with_srq(&b.engine, &b.pd, &b.plan, None);
    let third = Side::new(&a.engine, &a.plan);
    connect(&other, &third);
    let of_type_1 = b.pd.alloc_mw(1).expect("a window");
    let closed = bind(&b, &of_type_1, (0, 8), WRITE);
    let of_other = b.pd.alloc_mw(2).expect("a window");
    let key = next_key(of_other.rkey());
    let on_other = Bind { mr: b.mr.lkey(), ..bind_of(&b, &of_other, key, (0, 8), WRITE) };
    post_bind(&other, &on_other);
    assert_eq!(other.sent().status, 0);
    let foreign = b.engine.alloc_pd().expect("a PD").alloc_mw(2).expect("a window");
    let unbound = b.pd.alloc_mw(2).expect("a window").rkey();
    for key in [b.mr.rkey(), closed, key, foreign.rkey(), key + 1, 0xdead_be00, unbound] {
        b.recv(4, 0, 100);
        b.recv(5, 0, 100);
        a.post(&SendWr { opcode: opcode::SEND_WITH_INV, imm: key, sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "{key:#x}");
        let seen = [b.received(), b.received()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!(seen, [(4, status::REM_INV_REQ_ERR), (5, status::WR_FLUSH_ERR)], "{key:#x}");
        let why = engine::reason::last(8).join("\n");
        assert!(why.contains(&format!("asked to invalidate {key:#x}, and ")), "{why}");
        assert_eq!(b.qp.state(), u32::from(state::ERR));
        restart(&a, &b);
    }
}

/// V-32: a window of type 2B belongs to its QP, and a window of type 1 to its PD.
#[test]
fn v_32_who_may_use_a_window() {
    let fabric = Fabric::start();
    for kind in [1, 2] {
        let (a, b) = pair(&fabric);
        let second = Side::with_srq(&b.engine, &b.pd, &b.plan, None);
        let stranger = Side::new(&b.engine, &b.plan);
        let [to_second, to_stranger] = [(); 2].map(|()| Side::new(&a.engine, &a.plan));
        connect(&to_second, &second);
        connect(&to_stranger, &stranger);
        let mw = b.pd.alloc_mw(kind).expect("a window");
        let key = bind(&b, &mw, (0, 64), WRITE);
        let at = b.memory.addr(0);
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, at)), 0);
        let expected = if kind == 1 { status::SUCCESS } else { status::REM_ACCESS_ERR };
        assert_eq!(reach(&to_second, opcode::RDMA_WRITE, (key, at)), expected, "another QP of the PD, type {kind}");
        assert_eq!(reach(&to_stranger, opcode::RDMA_WRITE, (key, at)), status::REM_ACCESS_ERR, "another PD");
        // A window's key is only for peers.
        b.post(&SendWr { sges: &[Sge::new(at, 8, key)], ..SendWr::default() });
        assert_eq!(b.sent().status, status::LOC_PROT_ERR);
    }
}

/// A device has type 2A only if it is configured so. It then does not have 2B.
#[test]
fn mw_type_2a_is_bound_to_a_qp() {
    const KINDS: u32 = 3 << 23;
    for (config, kind) in [("", 2 << 23), ("[[devices]]\nmemory_windows = '2B'", 2 << 23), (TYPE_2A, 1 << 23)] {
        let facts = Fabric::configured(&format!("addresses = ['127.0.0.1']\n{config}")).engine().query_device();
        assert_eq!(facts.expect("facts").device_cap_flags & KINDS, kind, "{config}");
    }
    let fabric = Fabric::configured(&format!("addresses = ['127.0.0.1']\n{TYPE_2A}"));
    let (a, b) = pair(&fabric);
    let (second, to_second) = (Side::with_srq(&b.engine, &b.pd, &b.plan, None), Side::new(&a.engine, &a.plan));
    connect(&to_second, &second);
    let mw = b.pd.alloc_mw(2).expect("a window");
    let key = bind(&b, &mw, (0, 64), WRITE);
    let at = b.memory.addr(0);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, at)), 0, "{:?}", reasons());
    assert_eq!(reach(&to_second, opcode::RDMA_WRITE, (key, at)), status::REM_ACCESS_ERR, "another QP of the PD");
    // Only its QP can unbind the window. After that it can be bound again.
    assert_eq!(invalidate(&b, key), 0);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, at)), status::REM_ACCESS_ERR);
    restart(&a, &b);
    let again = bind(&b, &mw, (0, 64), WRITE);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (again, at)), 0);
    // The MR, the window and the QP must still be on one PD for the bind.
    let foreign = b.engine.alloc_pd().expect("a PD").alloc_mw(2).expect("a window");
    post_bind(&b, &bind_of(&b, &foreign, next_key(foreign.rkey()), (0, 64), WRITE));
    assert_eq!(b.sent().status, status::MW_BIND_ERR);
    let key = mw.rkey();
    restart(&a, &b);
    // Windows of type 1 behave as on other devices.
    let plain = b.pd.alloc_mw(1).expect("a window");
    let open = bind(&b, &plain, (0, 64), WRITE);
    restart(&to_second, &second);
    assert_eq!(reach(&to_second, opcode::RDMA_WRITE, (open, at)), 0);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, at)), 0, "a reset leaves the window bound to the number");
}

#[test]
fn a_zero_based_window_counts_from_0() {
    let fabric = Fabric::start();
    let (a, b) = pair(&fabric);
    let mw = b.pd.alloc_mw(2).expect("a window");
    let key = bind(&b, &mw, (512, 64), WRITE | access::ZERO_BASED);
    a.memory.pattern(0, 8, 4);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, 56)), 0);
    assert_eq!(b.memory.get(568, 8), a.memory.get(0, 8));
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, 57)), status::REM_ACCESS_ERR);
}

/// V-33: each wrong bind fails, and the requests behind it are flushed.
#[test]
fn status_06_a_bind_that_is_refused() {
    let fabric = Fabric::start();
    let (a, b) = pair(&fabric);
    let plain = crate::common::register(&b.pd, &b.memory, access::LOCAL_WRITE);
    let readable = crate::common::register(&b.pd, &b.memory, access::MW_BIND);
    let based = b.pd.reg_mr(b.memory.addr(0), 4096, 0, LOCAL | access::ZERO_BASED).expect("an MR");
    let other = b.engine.alloc_pd().expect("a PD");
    let elsewhere = crate::common::register(&other, &b.memory, LOCAL);
    let foreign = other.alloc_mw(2).expect("a window");
    let mw = b.pd.alloc_mw(2).expect("a window");
    let gone = b.pd.alloc_mw(2).expect("a window");
    gone.dealloc().expect("it goes");
    let good = bind_of(&b, &mw, next_key(mw.rkey()), (0, 64), WRITE);
    let end = b.memory.len() as u64;
    for (what, bind) in [
        ("no right to bind", Bind { mr: plain.lkey(), ..good }),
        ("no local write", Bind { mr: readable.lkey(), ..good }),
        ("a zero-based MR", Bind { mr: based.lkey(), addr: 0, ..good }),
        ("an MR on another PD", Bind { mr: elsewhere.lkey(), ..good }),
        ("no such MR", Bind { mr: good.mr + 1, ..good }),
        ("a window as the MR", Bind { mr: mw.rkey(), ..good }),
        ("too long", Bind { length: end + 1, ..good }),
        ("beyond the end", Bind { addr: good.addr + end - 63, ..good }),
        ("before the beginning", Bind { addr: good.addr - 1, ..good }),
        ("a length that wraps", Bind { addr: good.addr + 1, length: u64::MAX, ..good }),
        ("no bytes", Bind { length: 0, ..good }),
        ("a window on another PD", Bind { window: foreign.number(), rkey: next_key(foreign.rkey()), ..good }),
        ("a window that is gone", Bind { window: gone.number(), rkey: next_key(gone.rkey()), ..good }),
    ] {
        let wr = SendWr { wr_id: 1, opcode: opcode::BIND_MW, bind: Some(&bind), ..SendWr::default() };
        b.post_all(&[wr, SendWr { wr_id: 2, ..SendWr::default() }]);
        let seen = [b.sent(), b.sent()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!(seen, [(1, status::MW_BIND_ERR), (2, status::WR_FLUSH_ERR)], "{what}");
        assert_eq!(b.qp.state(), u32::from(state::ERR), "{what}");
        restart(&a, &b);
    }
    // A READ does not need the region's own write right.
    let key = next_key(mw.rkey());
    post_bind(&b, &Bind { mr: readable.lkey(), access: access::REMOTE_READ, rkey: key, ..good });
    assert_eq!(b.sent().status, 0);
    assert_eq!(reach(&a, opcode::RDMA_READ, (key, good.addr)), 0);
    post_bind(&b, &Bind { rkey: next_key(key), ..good });
    assert_eq!(b.sent().status, status::MW_BIND_ERR, "bound already");
}

/// V-32: only a window of type 2 that is bound to this QP can be invalidated.
#[test]
fn op_local_inv() {
    let fabric = Fabric::start();
    let (a, b) = pair(&fabric);
    let mw = b.pd.alloc_mw(2).expect("a window");
    let key = bind(&b, &mw, (0, 64), WRITE);
    assert_eq!(invalidate(&b, key), 0);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(0))), status::REM_ACCESS_ERR);
    restart(&a, &b);
    assert_eq!(invalidate(&b, key), status::MW_BIND_ERR, "it is not bound any more");
    assert!(reasons().join(" ").contains("the window is not bound"), "{:?}", reasons());
    restart(&a, &b);
    let never = b.pd.alloc_mw(2).expect("a window");
    assert_eq!(invalidate(&b, never.rkey()), status::MW_BIND_ERR, "nor was it ever");
    restart(&a, &b);
    let of_type_1 = b.pd.alloc_mw(1).expect("a window");
    let closed = bind(&b, &of_type_1, (0, 8), WRITE);
    let newer = bind(&b, &mw, (0, 64), WRITE);
    for wrong in [key, closed, b.mr.lkey(), 0] {
        assert_eq!(invalidate(&b, wrong), status::MW_BIND_ERR, "{wrong:#x}");
        restart(&a, &b);
    }
    let second = Side::with_srq(&b.engine, &b.pd, &b.plan, None);
    let third = Side::new(&a.engine, &a.plan);
    connect(&second, &third);
    assert_eq!(invalidate(&second, newer), status::MW_BIND_ERR, "another QP's window");
    assert_eq!(invalidate(&b, newer), 0);
}

/// V-33: an MR with bound windows cannot change or end. A bound window may be deallocated.
#[test]
fn v_33_a_region_with_windows_stays_as_it_is() {
    let fabric = Fabric::start();
    let (a, b) = pair(&fabric);
    let windows: Vec<Arc<Mw>> = [1, 2].map(|kind| b.pd.alloc_mw(kind).expect("a window")).into();
    let keys: Vec<u32> = windows.iter().map(|mw| bind(&b, mw, (0, 64), WRITE)).collect();
    for mw in &windows {
        assert_eq!(b.mr.dereg().expect_err("a window is bound").errno, Errno::EBUSY);
        let rereg = b.mr.rereg(4, None, 0, 0, LOCAL | access::REMOTE_READ);
        assert_eq!(rereg.expect_err("a window is bound").errno, Errno::EBUSY);
        assert_eq!(reach(&a, opcode::RDMA_WRITE, (keys[1], b.memory.addr(0))), 0, "the refused changed nothing");
        mw.dealloc().expect("bound or not");
        if mw.kind() == 2 {
            assert_eq!(reach(&a, opcode::RDMA_WRITE, (keys[1], b.memory.addr(0))), status::REM_ACCESS_ERR);
        }
    }
    b.mr.dereg().expect("no window is left");
}

#[test]
fn op_bind_on_an_unreliable_connection() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan { mr_access: LOCAL, ..Plan::uc() });
    let mw = b.pd.alloc_mw(2).expect("a window");
    let key = bind(&b, &mw, (0, 64), WRITE);
    a.memory.pattern(0, 8, 6);
    assert_eq!(reach(&a, opcode::RDMA_WRITE, (key, b.memory.addr(0))), 0);
    crate::common::wait::until("the WRITE", || (b.memory.get(0, 8) == a.memory.get(0, 8)).then_some(()));
    let bad = bind_of(&b, &mw, next_key(key), (0, 64), WRITE);
    post_bind(&b, &bad);
    assert_eq!((b.sent().status, b.qp.state()), (status::MW_BIND_ERR, u32::from(state::SQE)));
    let mut batch = a.qp.send_batch().expect("a batch");
    for code in [opcode::SEND_WITH_INV, opcode::RDMA_READ_WITH_INV] {
        let wr = SendWr { opcode: code, ..SendWr::default() };
        assert_eq!(batch.push(&wr).map_err(PostError::errno), Err(Errno::EINVAL), "opcode {code} does not exist on UC");
    }
}

/// READ with invalidate exists only in iWARP. BIND_MW must name its window. UD has no window
/// operations.
#[test]
fn unsupported_window_requests_return_einval() {
    let fabric = Fabric::start();
    let refused = |side: &Side, wr: &SendWr<'_>| {
        let errno = side.qp.send_batch().expect("a batch").push(wr).map_err(PostError::errno);
        assert_eq!(errno, Err(Errno::EINVAL), "opcode {}", wr.opcode);
    };
    let (a, _b) = pair(&fabric);
    refused(&a, &SendWr { opcode: opcode::RDMA_READ_WITH_INV, ..SendWr::default() });
    refused(&a, &SendWr { opcode: opcode::BIND_MW, ..SendWr::default() });
    let (u, _v) = fabric.pair(&Plan::ud());
    for code in [opcode::BIND_MW, opcode::LOCAL_INV, opcode::SEND_WITH_INV] {
        refused(&u, &SendWr { opcode: code, ..SendWr::default() });
    }
    assert_eq!(a.pd.alloc_mw(3).err().map(|error| error.errno), Some(Errno::EINVAL));
}
