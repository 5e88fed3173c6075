//! Tests when a grant ends, and which requests are never granted or never direct: each change that
//! withdraws a right, in the middle of a stream, and each mode that must see every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::wait::until;
use crate::common::{Fabric, Memory, Plan, Side, connect, register};
use abi::mr::{access as right, next_key};
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{ModifyQp, attr, state};
use capture::{Session, Wanted};
use engine::{Bind, RateLimit, SendWr};
use shm::Socket;

/// Bytes of one WRITE of the streams. A WRITE of this length is copied in several pieces.
const LEN: usize = 96 * 1024;

fn write<'a>(b: &Side, at: usize, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(at), rkey: b.mr.rkey(), sges, ..SendWr::default() }
}

/// Posts a request, which must succeed. Returns whether it was carried out directly.
fn done(a: &Side, wr: &SendWr<'_>) -> bool {
    let before = a.qp.carried_directly();
    a.post(wr);
    assert_eq!(a.sent().status, 0, "{:?}", engine::reason::last(3));
    a.qp.carried_directly() != before
}

fn until_direct(a: &Side, wr: &SendWr<'_>) {
    until("a request that goes direct", || done(a, wr).then_some(()));
}

/// Whether any of many requests is direct. They are enough for several grants.
fn ever_direct(a: &Side, wr: &SendWr<'_>) -> bool {
    (0..1500).any(|_| done(a, wr))
}

fn direct_pair(fabric: &Fabric, plan: &Plan) -> (Side, Side) {
    let (a, b) = fabric.pair(plan);
    until_direct(&a, &write(&b, 0, &a.sge(0, 8)));
    (a, b)
}

/// In the middle of a stream of direct WRITEs, `end` withdraws the right. After `end` returns, the
/// stream must not overwrite the memory. Returns the status with which the stream ends.
fn ends_a_stream(fabric: &Fabric, end: impl FnOnce(&Side)) -> u32 {
    let (a, b) = direct_pair(fabric, &Plan { memory: 2 * LEN, ..Plan::rc().hasty() });
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let (mut count, mut more) = (0u64, 0);
            loop {
                // This limit ends the loop if nothing else does.
                more += u32::from(ended.load(Ordering::SeqCst));
                assert!(more < 1000, "written after the right was taken away");
                a.memory.put(0, &[1; LEN]);
                a.post(&write(&b, 0, &a.sge(0, LEN)));
                let wc = a.sent();
                count += 1;
                begun.store(count > 100, Ordering::SeqCst);
                if wc.status != 0 {
                    assert!(a.qp.carried_directly() > 50);
                    return wc.status;
                }
            }
        });
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        end(&b);
        b.memory.put(0, &[2; LEN]);
        ended.store(true, Ordering::SeqCst);
        let status = stream.join().expect("the stream ends");
        assert!(b.memory.get(0, LEN).iter().all(|byte| *byte == 2), "written after the right was taken away");
        status
    })
}

#[test]
fn a_queue_pair_that_goes_to_the_error_state_is_not_written_to() {
    assert_eq!(ends_a_stream(&Fabric::start(), |b| b.to(state::ERR)), 12, "IBV_WC_RETRY_EXC_ERR");
}

#[test]
fn a_queue_pair_that_is_reset_is_not_written_to() {
    assert_eq!(ends_a_stream(&Fabric::start(), |b| b.to(state::RESET)), 12, "IBV_WC_RETRY_EXC_ERR");
}

#[test]
fn a_queue_pair_that_is_destroyed_is_not_written_to() {
    assert_eq!(ends_a_stream(&Fabric::start(), |b| assert!(b.qp.destroy().is_ok())), 12);
}

#[test]
fn a_queue_pair_that_allows_no_writes_any_more_is_not_written_to() {
    let fewer = ModifyQp { attr_mask: attr::ACCESS_FLAGS, qp_access_flags: right::REMOTE_READ, ..ModifyQp::default() };
    assert_eq!(ends_a_stream(&Fabric::start(), |b| b.modify(&fewer)), 9, "IBV_WC_REM_INV_REQ_ERR");
}

#[test]
fn a_region_that_is_read_only_from_now_on_is_not_written_to() {
    let end = |b: &Side| b.mr.rereg(4, None, 0, 0, right::REMOTE_READ).expect("reregistered");
    assert_eq!(ends_a_stream(&Fabric::start(), end), 10, "IBV_WC_REM_ACCESS_ERR");
}

#[test]
fn a_region_that_is_of_another_domain_from_now_on_is_not_written_to() {
    let end = |b: &Side| {
        let other = b.engine.alloc_pd().expect("a PD");
        b.mr.rereg(2, Some(&other), 0, 0, 0).expect("reregistered");
    };
    assert_eq!(ends_a_stream(&Fabric::start(), end), 10, "IBV_WC_REM_ACCESS_ERR");
}

#[test]
fn memory_that_a_region_has_left_is_not_written_to() {
    let other = Memory::new(2 * LEN);
    let end = |b: &Side| b.mr.rereg(1, None, other.addr(0), other.len() as u64, 0).expect("reregistered elsewhere");
    assert_eq!(ends_a_stream(&Fabric::start(), end), 10, "IBV_WC_REM_ACCESS_ERR");
    assert!(other.get(0, 2 * LEN).iter().all(|byte| *byte == 0));
}

#[test]
fn a_window_is_never_granted_and_ends_as_always() {
    let fabric = Fabric::start();
    let plan = Plan { mr_access: crate::common::ALL_RIGHTS | right::MW_BIND, ..Plan::rc() };
    let (a, b) = fabric.pair(&plan);
    let rights = right::REMOTE_WRITE | right::REMOTE_READ;
    for kind in [1, 2] {
        let window = b.pd.alloc_mw(kind).expect("a window");
        let bind = |key: u32| {
            let addr = b.memory.addr(0);
            let bind = Bind { window: window.number(), rkey: key, mr: b.mr.lkey(), addr, length: 8192, access: rights };
            b.post(&SendWr { opcode: opcode::BIND_MW, bind: Some(&bind), ..SendWr::default() });
            assert_eq!(b.sent().status, 0);
        };
        bind(next_key(window.rkey()));
        let sges = a.sge(0, 8);
        let wr = SendWr { rkey: window.rkey(), ..write(&b, 0, &sges) };
        assert!(!ever_direct(&a, &wr), "a window of type {kind}");
    }
    // The region under the windows is granted nevertheless.
    until_direct(&a, &write(&b, 0, &a.sge(0, 8)));
}

#[test]
fn a_capture_sees_every_request() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    let socket = Socket::connect(&fabric.node(0).with_file_name("admin")).expect("an admin node");
    let mut session = Session::begin(socket, Wanted::default()).expect("a capture");
    assert!(!(0..50).any(|_| done(&a, &write(&b, 0, &a.sge(0, 8)))), "while somebody captures");
    let packets = session.finish();
    let writes = packets.iter().filter_map(|packet| packet.headers()).filter(|headers| {
        headers.opcode.operation == wire::Operation::WriteOnly && headers.dest_qp.value() == b.qp.qpn()
    });
    assert_eq!(writes.count(), 50);
    drop(session);
    until_direct(&a, &write(&b, 0, &a.sge(0, 8)));
}

#[test]
fn no_grants_are_given_during_a_capture() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let socket = Socket::connect(&fabric.node(0).with_file_name("admin")).expect("an admin node");
    let session = Session::begin(socket, Wanted::default()).expect("a capture");
    assert!(!ever_direct(&a, &write(&b, 0, &a.sge(0, 8))));
    drop(session);
    until_direct(&a, &write(&b, 0, &a.sge(0, 8)));
}

#[test]
fn a_rate_limit_holds_for_every_request() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    let mask = ModifyQp { attr_mask: attr::STATE | attr::RATE_LIMIT, qp_state: state::RTS, ..ModifyQp::default() };
    a.qp.modify_paced(&mask, RateLimit { kbps: 10_000_000, burst: 0 }).expect("a rate");
    assert!(!(0..50).any(|_| done(&a, &write(&b, 0, &a.sge(0, 8)))));
    a.qp.modify_paced(&mask, RateLimit { kbps: 0, burst: 0 }).expect("no rate");
    assert!(done(&a, &write(&b, 0, &a.sge(0, 8))));
}

/// Some requests use the lane, because part of their memory is outside the granted pages. Others
/// are direct. They must not overtake each other.
#[test]
fn requests_of_both_ways_keep_their_order() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let (base, len) = (b.memory.addr(2048), 24 * 1024);
    let mr = b.pd.reg_mr(base, len, base, crate::common::ALL_RIGHTS).expect("a region that begins within a page");
    let at = |at: usize, sges: &[Sge]| (b.memory.addr(at), sges[0]);
    let request = |code: u32, (remote_addr, sge): (u64, Sge)| (code, remote_addr, [sge]);
    until_direct(&a, &SendWr { rkey: mr.rkey(), ..write(&b, 4096, &a.sge(0, 8)) });
    let before = a.qp.carried_directly();
    for round in 1..2000u64 {
        a.memory.put_word(4088, 7 * round);
        a.memory.put_word(4096, 7 * round);
        a.memory.put_word(8192, 7 * round + 1);
        // Across the edge, within the pages, the word itself with its value at that time, and
        // across the edge again.
        let list = [
            request(opcode::RDMA_WRITE, at(4088, &a.sge(4088, 16))),
            request(opcode::RDMA_WRITE, at(4096, &a.sge(8192, 8))),
            request(opcode::RDMA_READ, at(4096, &a.sge(16_384, 8))),
            request(opcode::RDMA_WRITE, at(4088, &a.sge(4088, 16))),
            request(opcode::RDMA_READ, at(4096, &a.sge(16_392, 8))),
        ];
        for (code, remote_addr, sges) in &list {
            // Without a fence, a READ may return data of a later request (IBA 10.8.3.3).
            let (opcode, remote_addr, send_flags) = (*code, *remote_addr, send_flags::FENCE);
            a.post(&SendWr { opcode, remote_addr, send_flags, rkey: mr.rkey(), sges, ..SendWr::default() });
        }
        (0..list.len()).for_each(|_| assert_eq!(a.sent().status, 0));
        assert_eq!([16_384, 16_392, 4088].map(|at| a.memory.word(at)), [7 * round + 1, 7 * round, 7 * round]);
        assert_eq!([4088, 4096].map(|at| b.memory.word(at)), [7 * round; 2]);
    }
    assert!(a.qp.carried_directly() > before + 1000, "some go direct");
}

#[test]
fn an_atomic_on_what_is_no_word_of_the_target_goes_by_the_lane() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    // The addresses in requests are off by 4 from the target's addresses.
    let access = crate::common::ALL_RIGHTS | right::ZERO_BASED;
    let mr = b.pd.reg_mr(b.memory.addr(4), 16 * 1024, 0, access).expect("a region");
    let sges = a.sge(0, 8);
    let add = SendWr {
        opcode: opcode::ATOMIC_FETCH_AND_ADD,
        compare_add: 1,
        rkey: mr.rkey(),
        remote_addr: 8192,
        ..write(&b, 0, &sges)
    };
    until_direct(&a, &SendWr { opcode: opcode::RDMA_WRITE, ..add });
    b.memory.put(8196, &41u64.to_ne_bytes());
    assert!(!done(&a, &add));
    assert_eq!((a.memory.word(0), b.memory.get(8196, 8)), (41, 42u64.to_ne_bytes().to_vec()));
}

#[test]
fn the_answer_of_an_atomic_may_have_more_room_than_it_takes() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    b.memory.put_word(64, 5);
    a.memory.put(0, &[9; 32]);
    let add = SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, compare_add: 1, ..write(&b, 64, &[]) };
    assert!(done(&a, &SendWr { sges: &a.sge(0, 32), ..add }));
    assert_eq!((a.memory.word(0), a.memory.get(8, 24)), (5, vec![9; 24]));
}

#[test]
fn a_program_may_be_its_own_peer_and_have_more_keys_than_are_kept() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let (a, b) = (Side::new(&engine, &Plan::rc()), Side::new(&engine, &Plan::rc()));
    connect(&a, &b);
    let others: Vec<_> = (0..12).map(|_| Memory::new(8192)).collect();
    let regions: Vec<_> = others.iter().map(|memory| register(&b.pd, memory, crate::common::ALL_RIGHTS)).collect();
    for (round, (memory, mr)) in others.iter().zip(&regions).cycle().take(36).enumerate() {
        a.memory.put_word(0, round as u64 + 1);
        let sges = a.sge(0, 8);
        let wr = SendWr { rkey: mr.rkey(), remote_addr: memory.addr(8), ..write(&b, 0, &sges) };
        until_direct(&a, &wr);
        assert_eq!(memory.word(8), round as u64 + 1);
    }
    regions.iter().for_each(|mr: &Arc<_>| mr.dereg().expect("deregistered"));
    others.iter().for_each(|memory| memory.put_word(8, 99));
    a.post(&SendWr { rkey: regions[11].rkey(), remote_addr: others[11].addr(8), ..write(&b, 0, &a.sge(0, 8)) });
    assert_eq!((a.sent().status, others[11].word(8)), (10, 99));
}
