//! Tests long messages between hosts, whose packets travel in runs: each test changes
//! something in the middle of a message.

use crate::common::{Fabric, Memory, Plan, Side, register};
use ::fabric::Faults;
use abi::cq::status;
use abi::post::{Sge, opcode};
use engine::{RecvWr, SendWr, SrqSpec};

const MTU: usize = 1024;
const PAGE: usize = 4096;
const LONG: usize = 64 * MTU;

fn hosts() -> Fabric {
    Fabric::hosts(["10.0.0.1", "10.0.0.2"], MTU as u32, Faults::default())
}

fn plan() -> Plan {
    Plan { memory: 4 * LONG, ..Plan::rc() }
}

/// A WRITE of `len` bytes from the beginning of `from` to `at` in `to`.
fn write(from: &Side, to: &Side, at: usize, len: usize) {
    let sges = from.sge(0, len);
    let remote_addr = to.memory.addr(at);
    from.post(&SendWr {
        opcode: opcode::RDMA_WRITE,
        sges: &sges,
        remote_addr,
        rkey: to.mr.rkey(),
        ..SendWr::default()
    });
}

#[test]
fn memory_that_ends_in_the_middle_of_a_write() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&plan());
    a.memory.pattern(0, LONG, 1);
    let target = Memory::new(2 * LONG);
    let mr = register(&b.pd, &target, crate::common::ALL_RIGHTS);
    target.truncate_to(5 * PAGE);
    let (sges, remote_addr) = (a.sge(0, LONG), target.addr(100));
    a.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &sges, remote_addr, rkey: mr.rkey(), ..SendWr::default() });
    assert_eq!(a.sent().status, status::REM_OP_ERR);
    // All data before that point has been written.
    let whole = (5 * PAGE - 100) / MTU * MTU;
    assert!(target.get(100, whole) == a.memory.get(0, whole));
}

#[test]
fn memory_that_ends_in_the_middle_of_what_is_sent() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&plan());
    let source = Memory::new(LONG);
    source.pattern(0, LONG, 2);
    let kept = source.get(0, 3 * PAGE);
    let mr = register(&a.pd, &source, crate::common::ALL_RIGHTS);
    source.truncate_to(3 * PAGE);
    // The request before it completes, and the request behind it does not begin.
    a.memory.pattern(0, LONG, 3);
    let before = a.sge(0, LONG);
    let (rkey, remote_addr) = (b.mr.rkey(), b.memory.addr(0));
    let sges = [Sge::new(source.addr(0), LONG as u32, mr.lkey())];
    let wr = SendWr { opcode: opcode::RDMA_WRITE, rkey, ..SendWr::default() };
    a.post_all(&[
        SendWr { wr_id: 1, sges: &before, remote_addr, ..wr },
        SendWr { wr_id: 2, sges: &sges, remote_addr: remote_addr + LONG as u64, ..wr },
        SendWr { wr_id: 3, sges: &before, remote_addr: remote_addr + 2 * LONG as u64, ..wr },
    ]);
    let ends: Vec<_> = (0..3).map(|_| a.sent()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, status::SUCCESS), (2, status::LOC_PROT_ERR), (3, status::WR_FLUSH_ERR)]);
    assert!(b.memory.get(0, LONG) == a.memory.get(0, LONG));
    // The readable part was sent, but no completion says when it arrives.
    let could_be_read = 3 * PAGE - MTU;
    crate::common::wait::until("what could be read", || {
        (b.memory.get(LONG, could_be_read) == kept[..could_be_read]).then_some(())
    });
    let came = b.memory.get(LONG, LONG);
    assert!(came[3 * PAGE..].iter().all(|&byte| byte == 0) && b.memory.get(2 * LONG, MTU) == [0; MTU]);
}

#[test]
fn a_receive_request_that_is_too_short() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&plan());
    a.memory.pattern(0, LONG, 4);
    let room = 20 * MTU + 10;
    b.recv(1, 0, room);
    a.post(&SendWr { sges: &a.sge(0, LONG), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (status::REM_INV_REQ_ERR, status::LOC_LEN_ERR));
    assert!(b.memory.get(0, 20 * MTU) == a.memory.get(0, 20 * MTU));
    assert_eq!(b.memory.get(room, 2 * MTU), [0; 2 * MTU], "nothing goes behind its end");
}

#[test]
fn lists_whose_elements_end_anywhere() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&plan());
    let (near, plan) = (fabric.engine(), plan());
    // The same, with an SRQ on the receiving side.
    let other = fabric.engine();
    let pd = other.alloc_pd().expect("a PD");
    let srq = other.create_srq(&pd, &SrqSpec { max_wr: 8, max_sge: 4, cookie: 1 }).expect("an SRQ");
    let (c, d) = (Side::new(&near, &plan), Side::with_srq(&other, &pd, &plan, Some(&srq)));
    crate::common::connect(&c, &d);
    for (from, to, shared) in [(&a, &b, false), (&c, &d, true)] {
        for (round, cuts) in
            [[1, 2, 3], [1023, 4096, 5000], [3072, 4096, 30_000], [0, 10 * MTU, 10 * MTU + 1]].into_iter().enumerate()
        {
            from.memory.pattern(0, LONG, round);
            let ends = [cuts[0], cuts[1], cuts[2], LONG - 7];
            let list = |side: &Side, gap: usize| {
                let mut at = 0;
                let mut place = 0;
                ends.map(|end| {
                    let sge = Sge::new(side.memory.addr(place), (end - at) as u32, side.mr.lkey());
                    place += end - at + gap;
                    at = end;
                    sge
                })
            };
            let scatter = list(to, 5);
            to.memory.put(0, &vec![0xaa; LONG + 64]);
            let wr = RecvWr { wr_id: 9, sges: &scatter };
            if shared {
                srq.post(&wr).expect("posted")
            } else {
                to.qp.post_recv(&wr).expect("posted")
            }
            from.post(&SendWr { sges: &list(from, 0), ..SendWr::default() });
            assert_eq!((from.sent().status, to.received().byte_len as usize), (0, LONG - 7));
            let sent = from.memory.get(0, LONG - 7);
            let (mut at, mut place) = (0, 0);
            for end in ends {
                assert!(to.memory.get(place, end - at) == sent[at..end], "{cuts:?}, {at} to {end}");
                place += end - at;
                assert_eq!(to.memory.get(place, 5), [0xaa; 5], "{cuts:?}, behind {end}");
                (at, place) = (end, place + 5);
            }
        }
    }
}

#[test]
fn two_connections_and_damage_in_between() {
    let fabric = Fabric::hosts(["10.0.0.1", "10.0.0.2"], MTU as u32, Faults { corruption: 0.03, ..Faults::default() });
    let (near, far) = (fabric.engine(), fabric.engine());
    let pairs: Vec<_> = (0..2).map(|_| (Side::new(&near, &plan()), Side::new(&far, &plan()))).collect();
    pairs.iter().for_each(|(from, to)| crate::common::connect(from, to));
    for round in 0..4 {
        for (index, (from, to)) in pairs.iter().enumerate() {
            from.memory.pattern(0, LONG, 10 * round + index);
            write(from, to, LONG, LONG);
            to.recv(7, 0, LONG);
            from.post(&SendWr { sges: &from.sge(0, LONG), ..SendWr::default() });
        }
        for (from, to) in &pairs {
            assert_eq!((from.sent().status, from.sent().status, to.received().byte_len as usize), (0, 0, LONG));
            let sent = from.memory.get(0, LONG);
            assert!(to.memory.get(0, LONG) == sent && to.memory.get(LONG, LONG) == sent, "round {round}");
        }
    }
    assert!(fabric.damaged() > 0, "nothing was damaged");
}

#[test]
fn a_region_that_goes_in_the_middle() {
    let fabric = hosts();
    let (a, b) = fabric.pair(&plan());
    let mut target = Memory::new(LONG);
    let mr = register(&b.pd, &target, crate::common::ALL_RIGHTS);
    let remote_addr = target.addr(0);
    for _ in 0..16 {
        let sges = a.sge(0, LONG);
        a.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &sges, remote_addr, rkey: mr.rkey(), ..SendWr::default() });
    }
    mr.dereg().expect("deregistered");
    // When dereg_mr has returned, the program may do anything with the memory.
    target.unmap();
    let ends: Vec<_> = (0..16).map(|_| a.sent().status).collect();
    let done = ends.iter().take_while(|&&end| end == status::SUCCESS).count();
    assert!(done == 16 || ends[done] == status::REM_ACCESS_ERR, "{ends:?}");
}
