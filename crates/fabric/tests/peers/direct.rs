//! Tests initiators that access their peer's memory directly: which requests do, which do not, and
//! that programs see no difference except in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::common::wait::{PATIENCE, until};
use crate::common::{Fabric, Plan, Side, connect};
use abi::mr::access as right;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{ModifyQp, attr};
use engine::SendWr;

/// A WRITE of `len` bytes from the beginning of `a`'s memory to `at` in `b`'s memory.
fn write<'a>(b: &Side, at: usize, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(at), rkey: b.mr.rkey(), sges, ..SendWr::default() }
}

fn read<'a>(b: &Side, at: usize, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr { opcode: opcode::RDMA_READ, ..write(b, at, sges) }
}

/// Posts a request, which must succeed. Returns whether it was carried out directly.
fn done(a: &Side, wr: &SendWr<'_>) -> bool {
    let before = a.qp.carried_directly();
    a.post(wr);
    let wc = a.sent();
    assert_eq!(wc.status, 0, "{:?}", engine::reason::last(3));
    a.qp.carried_directly() != before
}

/// Repeats a request until it is carried out directly.
fn until_direct(a: &Side, wr: &SendWr<'_>) {
    until("a request that goes direct", || done(a, wr).then_some(()));
}

/// A pair in which `a` has direct access to `b`'s memory.
fn direct_pair(fabric: &Fabric, plan: &Plan) -> (Side, Side) {
    let (a, b) = fabric.pair(plan);
    until_direct(&a, &write(&b, 0, &a.sge(0, 8)));
    (a, b)
}

#[test]
fn writes_reads_and_atomics_go_direct_and_do_what_they_do() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan { memory: 512 * 1024, ..Plan::rc() });
    for len in [1, 2, 3, 7, 8, 9, 16, 17, 100, 4096, 5000, 32768, 32769, 200_000] {
        for shift in [0, 5] {
            a.memory.pattern(shift, len, len);
            b.memory.pattern(0, len + 20, len + 1);
            let around = (b.memory.get(0, 9 + shift), b.memory.get(9 + shift + len, 5));
            assert!(done(&a, &write(&b, 9 + shift, &a.sge(shift, len))), "WRITE of {len}");
            assert!(b.memory.get(9 + shift, len) == a.memory.get(shift, len), "WRITE of {len}");
            assert!((b.memory.get(0, 9 + shift), b.memory.get(9 + shift + len, 5)) == around, "WRITE of {len}");
            b.memory.pattern(shift, len, len + 2);
            assert!(done(&a, &read(&b, shift, &a.sge(3, len))), "READ of {len}");
            assert!(a.memory.get(3, len) == b.memory.get(shift, len), "READ of {len}");
        }
    }
    // A list of elements, and inline data.
    a.memory.pattern(0, 5000, 77);
    let list = [a.sge(0, 100)[0], a.sge(300, 0)[0], a.sge(1000, 4000)[0]];
    assert!(done(&a, &write(&b, 1, &list)));
    assert!(b.memory.get(1, 4100) == [a.memory.get(0, 100), a.memory.get(1000, 4000)].concat());
    assert!(done(&a, &SendWr { send_flags: send_flags::INLINE, ..write(&b, 64, &a.sge(0, 60)) }));
    assert!(b.memory.get(64, 60) == a.memory.get(0, 60));

    b.memory.put_word(64, 40);
    let atomic = |code, compare_add, swap| {
        let sges = a.sge(8, 8);
        let wr = SendWr { opcode: code, compare_add, swap, ..write(&b, 64, &sges) };
        assert!(done(&a, &wr));
        a.memory.word(8)
    };
    assert_eq!(atomic(opcode::ATOMIC_FETCH_AND_ADD, 2, 0), 40);
    assert_eq!(atomic(opcode::ATOMIC_CMP_AND_SWP, 41, 7), 42);
    assert_eq!(atomic(opcode::ATOMIC_CMP_AND_SWP, 42, 7), 42);
    assert_eq!(b.memory.word(64), 7);
    // A request with immediate data needs the target's CQ, so it uses the lane.
    b.recv(1, 0, 0);
    assert!(!done(&a, &SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, ..write(&b, 0, &a.sge(0, 8)) }));
    assert_eq!(b.received().status, 0);
}

#[test]
fn direct_requests_fill_the_queue_until_a_completion_is_polled() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan { sq_sig_all: false, ..Plan::rc() });
    let depth = a.qp.caps().max_send_wr;
    let sges = a.sge(0, 8);
    until_direct(&a, &SendWr { send_flags: send_flags::SIGNALED, ..write(&b, 0, &sges) });
    let post = |send_flags| {
        let mut batch = a.qp.send_batch().expect("a batch");
        let added = batch.push(&SendWr { send_flags, ..write(&b, 8, &sges) });
        batch.finish();
        added.map_err(|error| error.errno())
    };
    for round in 0..3u64 {
        let before = a.qp.carried_directly();
        a.memory.put_word(0, round + 1);
        (1..depth).for_each(|_| post(0).expect("room"));
        assert_eq!(b.memory.word(8), round + 1, "carried out before the next call");
        assert_eq!(a.qp.carried_directly() - before, u64::from(depth - 1));
        post(send_flags::SIGNALED).expect("room for the last one");
        assert_eq!(post(send_flags::SIGNALED), Err(abi::Errno::ENOMEM), "of {depth} requests");
        assert_eq!(a.sent().status, 0);
        assert_eq!(a.scq.poll_one().expect("a poll"), None, "one completion for all");
    }
}

#[test]
fn a_list_that_may_be_taken_back_is_carried_out_at_its_end() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    b.memory.put_word(8, 1);
    a.memory.put_word(0, 2);
    let sges = a.sge(0, 8);
    let mut batch = a.qp.send_batch().expect("a batch");
    let mark = batch.mark();
    batch.push(&write(&b, 8, &sges)).expect("room");
    batch.take_back(mark);
    batch.push(&write(&b, 16, &sges)).expect("room");
    batch.finish();
    assert_eq!(a.sent().status, 0);
    assert_eq!((b.memory.word(8), b.memory.word(16)), (1, 2));
}

#[test]
fn only_whole_pages_inside_the_region_are_reached() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let mr = b.pd.reg_mr(b.memory.addr(100), 16 * 1024, b.memory.addr(100), 0xf).expect("a region");
    let at = |at: usize| SendWr { rkey: mr.rkey(), ..write(&b, at, &[]) };
    let sges = a.sge(0, 8);
    until_direct(&a, &SendWr { sges: &sges, ..at(4096) });
    assert!(done(&a, &SendWr { sges: &sges, ..at(4 * 4096 - 8) }));
    for outside in [100, 4088, 4092, 4 * 4096 - 4, 4 * 4096] {
        assert!(!done(&a, &SendWr { sges: &sges, ..at(outside) }), "at {outside}");
    }
    // The region contains no whole page, so its requests always use the lane.
    let small = b.pd.reg_mr(b.memory.addr(40_000), 4096, b.memory.addr(40_000), 0xf).expect("a region");
    assert!(!(0..2000).any(|_| done(&a, &SendWr { rkey: small.rkey(), sges: &sges, ..write(&b, 40_960, &[]) })));
}

#[test]
fn a_direct_write_keeps_its_order_among_sends() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    for round in 1..3000u64 {
        b.recv(1, 1024, 8);
        b.recv(2, 1024, 8);
        a.memory.put_word(0, round);
        a.memory.put_word(8, round + 1_000_000);
        let (one, two) = (a.sge(0, 8), a.sge(8, 8));
        a.post_all(&[write(&b, 0, &one), SendWr { sges: &two, ..SendWr::default() }]);
        assert_eq!(b.received().status, 0);
        assert_eq!(b.memory.word(0), round);
        // A SEND, and behind it a WRITE whose data must not arrive before the SEND.
        a.post_all(&[SendWr { sges: &one, ..SendWr::default() }, write(&b, 0, &two)]);
        assert_eq!(b.received().status, 0);
        for _ in 0..4 {
            assert_eq!(a.sent().status, 0);
        }
        assert_eq!(b.memory.word(0), round + 1_000_000);
    }
}

#[test]
fn a_write_does_not_overtake_a_send_that_finds_no_receive_request() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    b.memory.put_word(64, 1);
    a.memory.put_word(0, 2);
    let sges = a.sge(0, 8);
    a.post(&SendWr { sges: &sges, ..SendWr::default() });
    a.post(&write(&b, 64, &sges));
    for _ in 0..20_000 {
        assert!(matches!((a.scq.poll_one(), b.rcq.poll_one()), (Ok(None), Ok(None))));
        assert_eq!(b.memory.word(64), 1);
    }
    b.recv(1, 1024, 8);
    assert_eq!((a.sent().status, a.sent().status, b.received().status), (0, 0, 0));
    assert_eq!(b.memory.word(64), 2);
}

#[test]
fn many_at_once_complete_in_order_and_come_to_go_direct() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let sges = a.sge(0, 4096);
    let (mut posted, mut polled) = (0u64, 0u64);
    let mut enough = 0;
    let limit = Instant::now() + PATIENCE;
    // As in a benchmark, the queue is always full.
    while enough < 1000 {
        while posted - polled < 32 {
            a.post(&SendWr { wr_id: posted, ..write(&b, 4096 * (posted as usize % 8), &sges) });
            posted += 1;
        }
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (polled, 0));
        polled += 1;
        enough += u32::from(a.qp.carried_directly() > 0);
        assert!(Instant::now() < limit, "no request went direct");
    }
}

#[test]
fn no_write_lands_after_dereg_mr_has_returned() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan { memory: 256 * 1024, ..Plan::rc() });
    a.memory.put(0, &[1; 128 * 1024]);
    let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let (mut count, mut more) = (0u64, 0);
            loop {
                // This limit ends the loop if nothing else does.
                more += u32::from(ended.load(Ordering::SeqCst));
                assert!(more < 1000, "written after dereg_mr");
                a.post(&write(&b, 0, &a.sge(0, 128 * 1024)));
                let wc = a.sent();
                count += 1;
                begun.store(count > 100, Ordering::SeqCst);
                if wc.status != 0 {
                    return wc.status;
                }
            }
        });
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        b.mr.dereg().expect("deregistered");
        b.memory.put(0, &[2; 128 * 1024]);
        ended.store(true, Ordering::SeqCst);
        let status = stream.join().expect("the stream ends");
        assert_eq!(status, 10, "IBV_WC_REM_ACCESS_ERR");
        assert!(b.memory.get(0, 128 * 1024).iter().all(|byte| *byte == 2));
    });
}

#[test]
fn a_region_that_changes_is_asked_for_anew() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    b.memory.put_word(0, 5);
    b.mr.rereg(4, None, 0, 0, right::REMOTE_READ).expect("reregistered");
    assert!(!done(&a, &read(&b, 0, &a.sge(0, 8))), "what was granted of it has ended");
    until_direct(&a, &read(&b, 0, &a.sge(0, 8)));
    assert_eq!(a.memory.word(0), 5);
    a.memory.put_word(0, 6);
    a.post(&write(&b, 0, &a.sge(0, 8)));
    assert_eq!((a.sent().status, b.memory.word(0)), (10, 5));
}

#[test]
fn rights_of_the_region_and_of_the_queue_pair_hold() {
    let fabric = Fabric::start();
    let readable = Plan { mr_access: right::REMOTE_READ | right::LOCAL_WRITE, ..Plan::rc() };
    let (a, b) = fabric.pair(&readable);
    b.memory.put_word(0, 5);
    until_direct(&a, &read(&b, 0, &a.sge(0, 8)));
    a.post(&write(&b, 0, &a.sge(8, 8)));
    assert_eq!((a.sent().status, b.memory.word(0)), (10, 5));

    let (a, b) = direct_pair(&fabric, &Plan::rc());
    b.memory.put_word(0, 5);
    let fewer = ModifyQp { attr_mask: attr::ACCESS_FLAGS, qp_access_flags: right::REMOTE_READ, ..ModifyQp::default() };
    b.qp.modify(&fewer).expect("fewer rights");
    assert!(!done(&a, &read(&b, 0, &a.sge(0, 8))), "the grant was withdrawn");
    until_direct(&a, &read(&b, 0, &a.sge(0, 8)));
    a.post(&write(&b, 0, &a.sge(8, 8)));
    assert_eq!((a.sent().status, b.memory.word(0)), (9, 5), "IBV_WC_REM_INV_REQ_ERR");
}

#[test]
fn a_key_is_another_connections_only_if_that_could_use_it() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    // A QP on another PD, connected to the same program.
    let (c, d) = (Side::new(&a.engine, &Plan::rc()), Side::new(&b.engine, &Plan::rc()));
    connect(&c, &d);
    b.memory.put_word(0, 5);
    c.post(&write(&b, 0, &c.sge(0, 8)));
    assert_eq!((c.sent().status, b.memory.word(0)), (10, 5));
    assert!(done(&a, &write(&b, 0, &a.sge(0, 8))), "the other goes on");
}

#[test]
fn a_direct_write_to_a_destroyed_qp_fails_with_retry_exc_err() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc().hasty());
    b.memory.put_word(0, 5);
    b.qp.destroy().expect("destroyed");
    a.memory.put_word(0, 6);
    a.post(&write(&b, 0, &a.sge(0, 8)));
    assert_eq!((a.sent().status, b.memory.word(0)), (12, 5), "IBV_WC_RETRY_EXC_ERR");

    let (a, b) = direct_pair(&fabric, &Plan::rc().hasty());
    b.memory.put_word(0, 5);
    b.engine.close();
    a.memory.put_word(0, 6);
    a.post(&write(&b, 0, &a.sge(0, 8)));
    assert_eq!((a.sent().status, b.memory.word(0)), (12, 5));
}

#[test]
fn memory_that_vanishes_under_a_grant_is_an_error_and_no_signal() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    b.memory.truncate();
    a.post(&write(&b, 4096, &a.sge(0, 8)));
    assert_eq!(a.sent().status, 11, "IBV_WC_REM_OP_ERR");

    // Unmapped: the grant still covers the registered pages, as on an adapter that has pinned them.
    let (a, mut b) = direct_pair(&fabric, &Plan::rc());
    let wr = write(&b, 0, &[]);
    b.memory.unmap();
    assert!(done(&a, &SendWr { sges: &a.sge(0, 8), ..wr }));

    // The initiator's own memory: the usual error status.
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    a.memory.truncate();
    a.post(&write(&b, 0, &a.sge(4096, 8)));
    assert_eq!(a.sent().status, 4, "IBV_WC_LOC_PROT_ERR");
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    a.post(&write(&b, 0, &[Sge::new(a.memory.addr(0), 8, 0x1234)]));
    assert_eq!(a.sent().status, 4, "IBV_WC_LOC_PROT_ERR");
}

#[test]
fn atomics_of_both_ways_add_up() {
    const EACH: u64 = 30_000;
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    let c = Side::new(&fabric.engine(), &Plan::rc());
    let e = Side::with_srq(&b.engine, &b.pd, &Plan::rc(), None);
    connect(&c, &e);
    // The region contains no whole page, so it is never granted, and the target's engine carries
    // out its requests.
    let small = b.pd.reg_mr(b.memory.addr(64), 8, b.memory.addr(64), 0xf).expect("a region");
    b.memory.put_word(64, 0);
    let add = |side: &Side, rkey: u32| {
        for _ in 0..EACH {
            let sges = side.sge(8, 8);
            let wr = SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, compare_add: 1, rkey, ..write(&b, 64, &sges) };
            side.post(&wr);
            assert_eq!(side.sent().status, 0);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(&a, b.mr.rkey()));
        scope.spawn(|| add(&c, small.rkey()));
    });
    assert_eq!(b.memory.word(64), 2 * EACH);
    assert!(a.qp.carried_directly() >= EACH && c.qp.carried_directly() == 0);
}

#[test]
fn faults_on_demand_see_every_request() {
    let fabric = Fabric::start();
    let (a, b) = direct_pair(&fabric, &Plan::rc());
    fabric.add_faults("loss nth 1000000");
    until("the rules", || (!done(&a, &write(&b, 0, &a.sge(0, 8)))).then_some(()));
    assert!(!(0..100).any(|_| done(&a, &write(&b, 0, &a.sge(0, 8)))));
    fabric.clear_faults();
    // From now on this connection expects losses. Other connections do not.
    assert!(!(0..100).any(|_| done(&a, &write(&b, 0, &a.sge(0, 8)))));
    direct_pair(&fabric, &Plan::rc());
}

#[test]
fn private_memory_stays_private() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let own: Arc<[u64]> = vec![0u64; 64 * 1024].into();
    let addr = own.as_ptr().expose_provenance() as u64;
    let mr = b.pd.reg_mr(addr, 8 * own.len() as u64, addr, 0xf).expect("a region");
    let sges = a.sge(0, 8);
    let wr = SendWr { rkey: mr.rkey(), remote_addr: addr + 8192, ..write(&b, 0, &sges) };
    assert!(!(0..3000).any(|_| done(&a, &wr)));
    mr.dereg().expect("deregistered");
}
