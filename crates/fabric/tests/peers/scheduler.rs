//! Tests many connections between two hosts: the share of each, the outstanding bytes of all, and
//! the effect of CE marks.

use std::sync::Arc;
use std::time::Instant;

use crate::common::wait::{next, until};
use crate::common::{Fabric, Plan, Side, connect, cq};
use ::fabric::Faults;
use abi::cq::status;
use abi::post::opcode;
use engine::{Cq, SendWr};

const LONG: usize = 64 * 1024;
/// The initial limit of outstanding bytes from one host to another.
const WINDOW: usize = 128 * 1024;

fn hosts(mtu: usize, faults: Faults) -> Fabric {
    Fabric::hosts(["10.0.0.1", "10.0.0.2"], mtu as u32, faults)
}

fn plan() -> Plan {
    Plan { memory: 2 * LONG, cqe: 4096, ..Plan::rc() }
}

/// Connections that send from one host to the other. All their completions go to one queue.
fn crowd(fabric: &Fabric, count: usize, plan_of: impl Fn(usize) -> Plan) -> (Arc<Cq>, Vec<(Side, Side)>) {
    let (near, far) = (fabric.engine(), fabric.engine());
    let (near_cq, far_cq) = (cq(&near, plan().cqe), cq(&far, plan().cqe));
    let (near_pd, far_pd) = (near.alloc_pd().expect("a PD"), far.alloc_pd().expect("a PD"));
    let pairs = (0..count).map(|number| {
        let plan = plan_of(number);
        let from = Side::on_cqs(&near, &near_pd, &plan, (&near_cq, &near_cq), None);
        let to = Side::on_cqs(&far, &far_pd, &plan, (&far_cq, &far_cq), None);
        connect(&from, &to);
        (from, to)
    });
    let pairs = pairs.collect();
    (near_cq, pairs)
}

/// WRITEs the first half of one side's memory to the other side.
fn write(number: usize, (from, to): &(Side, Side), times: usize) {
    let (sges, remote_addr, rkey) = (from.sge(0, LONG), to.memory.addr(0), to.mr.rkey());
    let wr_id = number as u64;
    let wr = SendWr { wr_id, opcode: opcode::RDMA_WRITE, sges: &sges, remote_addr, rkey, ..SendWr::default() };
    from.post_all(&vec![wr; times]);
}

/// Jain's fairness index: 1 if all connections have equal shares, 1/n if one connection has
/// everything.
fn fairness(parts: &[usize]) -> f64 {
    let (sum, squares) = parts.iter().fold((0.0, 0.0), |(sum, squares), &part| {
        let part = part as f64;
        (sum + part, squares + part * part)
    });
    sum * sum / (parts.len() as f64 * squares)
}

/// The fairness while each connection always has the same number of requests posted. Completions
/// before all connections have started do not count, because their number depends on the machine.
fn fairness_of(fabric: &Fabric, count: usize, times: usize) -> f64 {
    let (cq, pairs) = crowd(fabric, count, |_| plan());
    pairs.iter().enumerate().for_each(|(number, pair)| pair.0.memory.pattern(0, LONG, number));
    pairs.iter().enumerate().for_each(|(number, pair)| write(number, pair, times));
    let mut done = vec![0; count];
    let completed = || {
        let wc = next(&cq);
        assert_eq!(wc.status, status::SUCCESS);
        wc.wr_id as usize
    };
    for counted in [false, true] {
        for _ in 0..count * times {
            let number = completed();
            done[number] += usize::from(counted);
            write(number, &pairs[number], 1);
        }
    }
    (0..count * times).for_each(|_| _ = completed());
    for (from, to) in &pairs {
        assert!(from.memory.get(0, LONG) == to.memory.get(0, LONG));
    }
    fairness(&done)
}

#[test]
fn many_connections_get_equal_parts() {
    for mtu in [1024, 4096] {
        let fair = fairness_of(&hosts(mtu, Faults::default()), 64, 16);
        assert!(fair > 0.9, "{fair} with an MTU of {mtu}");
    }
}

#[test]
fn equal_parts_where_packets_are_lost() {
    let fair = fairness_of(&hosts(1024, Faults::loss(0.002, 5)), 16, 16);
    assert!(fair > 0.7, "{fair}");
}

#[test]
fn many_connections_have_no_more_under_way_than_one() {
    const MTU: usize = 4096;
    let fabric = hosts(MTU, Faults::default());
    // Without a timeout nothing is retransmitted.
    let (_cq, pairs) = crowd(&fabric, 200, |_| Plan { timeout: 0, memory: LONG, ..plan() });
    fabric.host(1).expect("a host").disconnect();
    let before = fabric.switch().counts().packets;
    let since = Instant::now();
    pairs.iter().enumerate().for_each(|(number, pair)| write(number, pair, 1));
    let packets = (fabric.switch().counts().packets - before) as usize;
    let most = WINDOW / MTU;
    assert!(packets >= most / 2, "{packets} packets: something has left");
    // While nothing progresses, one packet is sent every tenth of a second. This goes on for as
    // long as the machine takes for this test.
    let now_and_then = since.elapsed().as_millis() as usize / 100;
    assert!(packets <= most + most / 4 + now_and_then, "{packets} packets are under way");
}

/// The number of packets that one connection sends to a host that no longer answers.
fn packets_under_way(fabric: &Fabric, pair: &(Side, Side)) -> u64 {
    fabric.host(1).expect("a host").disconnect();
    let before = fabric.switch().counts().packets;
    write(0, pair, 4);
    fabric.switch().counts().packets - before
}

#[test]
fn marks_narrow_the_window_before_anything_is_lost() {
    const MTU: usize = 4096;
    let under_way = [false, true].map(|marks| {
        let fabric = hosts(MTU, Faults::default());
        fabric.switch().set_marks(marks);
        let (cq, pairs) = crowd(&fabric, 1, |_| Plan { timeout: 0, ..plan() });
        for _ in 0..64 {
            write(0, &pairs[0], 1);
            assert_eq!(next(&cq).status, status::SUCCESS);
        }
        packets_under_way(&fabric, &pairs[0])
    });
    let [without, with] = under_way;
    assert!(without >= (WINDOW / MTU) as u64, "{without} packets without marks");
    assert!(with <= without / 2, "{with} packets with marks, {without} without");
}

#[test]
fn a_window_that_was_narrowed_widens_again() {
    const MTU: usize = 4096;
    let fabric = hosts(MTU, Faults::default());
    let (cq, pairs) = crowd(&fabric, 1, |_| Plan { timeout: 0, ..plan() });
    for marks in [true, false] {
        fabric.switch().set_marks(marks);
        for _ in 0..256 {
            write(0, &pairs[0], 1);
            assert_eq!(next(&cq).status, status::SUCCESS);
        }
    }
    let packets = packets_under_way(&fabric, &pairs[0]);
    assert!(packets >= (WINDOW / MTU) as u64, "{packets} packets");
}

#[test]
fn a_queued_qp_sends_when_those_before_it_are_destroyed() {
    let fabric = hosts(4096, Faults::default());
    // The first seven connections wait for ever for lost packets.
    let (cq, mut pairs) = crowd(&fabric, 8, |number| Plan { timeout: if number < 7 { 0 } else { 14 }, ..plan() });
    fabric.host(1).expect("a host").disconnect();
    pairs.iter().enumerate().for_each(|(number, pair)| write(number, pair, 4));
    fabric.host(1).expect("a host").reconnect();
    let last = pairs.pop().expect("a pair");
    for (from, _) in pairs {
        from.qp.destroy().expect("it ends");
    }
    for _ in 0..4 {
        let wc = until("the last one's turn", || {
            let wc = next(&cq);
            (wc.wr_id == 7).then_some(wc)
        });
        assert_eq!(wc.status, status::SUCCESS);
    }
    drop(last);
}

#[test]
fn a_link_that_flaps_loses_no_bytes() {
    let fabric = hosts(1024, Faults::default());
    let (cq, pairs) = crowd(&fabric, 16, |_| plan());
    pairs.iter().enumerate().for_each(|(number, pair)| pair.0.memory.pattern(0, LONG, number));
    pairs.iter().enumerate().for_each(|(number, pair)| write(number, pair, 4));
    for done in 0..16 * 4 {
        if done % 16 == 0 {
            fabric.host(1).expect("a host").disconnect();
            fabric.host(1).expect("a host").reconnect();
        }
        assert_eq!(next(&cq).status, status::SUCCESS);
    }
    for (from, to) in &pairs {
        assert!(from.memory.get(0, LONG) == to.memory.get(0, LONG));
    }
}
