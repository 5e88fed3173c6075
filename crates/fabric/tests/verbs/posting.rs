//! Posting: the errors of a full queue, a wrong state and an invalid request, and the order in
//! which requests take effect.

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side};
use abi::cq::Wc;
use abi::errno::Errno;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::state;
use engine::{Caps, PostCause, PostError, RecvWr, SendWr};

fn small(caps: Caps) -> Plan {
    Plan { sq_sig_all: false, caps, ..Plan::rc() }
}

/// Posts empty WRITEs until the queue is full, and returns how many fitted.
fn fill(side: &Side, flags: u32) -> u32 {
    let mut batch = side.qp.send_batch().expect("a batch");
    let wr = SendWr { opcode: opcode::RDMA_WRITE, send_flags: flags, ..SendWr::default() };
    for count in 0.. {
        match batch.push(&wr) {
            Ok(()) => assert!(count < 1000, "the queue has no end"),
            Err(error) => {
                assert_eq!(error.cause, PostCause::QueueFull { depth: side.qp.caps().max_send_wr });
                batch.finish();
                return count;
            }
        }
    }
    unreachable!("the queue is full before the numbers end")
}

fn a_send_queue_is_full_until_a_signalled_completion_is_polled(fabric: &Fabric) {
    let (a, b) = fabric.pair(&small(Caps { max_send_wr: 8, ..Plan::rc().caps }));
    let depth = a.qp.caps().max_send_wr;
    assert!(depth >= 8);
    let wr =
        SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
    a.memory.put_word(0, 1);
    a.post_all(&vec![wr; depth as usize - 1]);
    a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
    until("the last write", || (b.memory.word(0) == 1).then_some(()));
    // V-63: all requests have completed, but the program has polled no completion, so their places
    // stay taken.
    assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
    assert_eq!(fill(&a, 0), 0);
    drop(b);

    // If every fourth request is signalled, one poll frees four places.
    let (a, _b) = fabric.pair(&small(Caps { max_send_wr: 8, ..Plan::rc().caps }));
    for round in 0..5u64 {
        for index in 0..depth {
            let signal = if index % 4 == 3 { send_flags::SIGNALED } else { 0 };
            a.post(&SendWr {
                wr_id: round * 100 + u64::from(index),
                opcode: opcode::RDMA_WRITE,
                send_flags: signal,
                ..SendWr::default()
            });
        }
        assert_eq!(fill(&a, 0), 0, "nothing is polled yet");
        for group in 0..depth / 4 {
            assert_eq!(a.sent().wr_id, round * 100 + u64::from(group * 4 + 3));
        }
    }
    assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0), "unsignalled requests give no completion");
}

fn a_receive_queue_is_full_until_completions_are_polled(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { caps: Caps { max_recv_wr: 4, ..Plan::rc().caps }, ..Plan::rc() });
    let depth = u64::from(b.qp.caps().max_recv_wr);
    (0..depth).for_each(|wr_id| b.recv(wr_id, 0, 0));
    let extra = RecvWr { wr_id: 99, sges: &[] };
    assert_eq!(b.qp.post_recv(&extra).map_err(PostError::errno), Err(Errno::ENOMEM));
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, 0);
    // A message has taken the receive request, but the program has not polled its completion.
    assert_eq!(b.qp.post_recv(&extra).map_err(PostError::errno), Err(Errno::ENOMEM));
    assert_eq!(b.received().wr_id, 0);
    b.qp.post_recv(&extra).expect("one place is free");
    for wr_id in (1..depth).chain([99]) {
        a.post(&SendWr::default());
        assert_eq!((b.received().wr_id, a.sent().status), (wr_id, 0));
    }
}

fn requests_that_do_not_fit_are_refused_at_once(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let refused =
        |side: &Side, wr: &SendWr<'_>| side.qp.send_batch().expect("a batch").push(wr).map_err(PostError::errno);
    let sge = a.sge(0, 1)[0];
    let (many, inline) =
        (vec![sge; a.qp.caps().max_send_sge as usize + 1], a.sge(0, a.qp.caps().max_inline_data as usize + 1));
    let wr = SendWr::default();
    assert_eq!(refused(&a, &SendWr { sges: &many, ..wr }), Err(Errno::EINVAL));
    assert_eq!(refused(&a, &SendWr { sges: &inline, send_flags: send_flags::INLINE, ..wr }), Err(Errno::EINVAL));
    for code in [opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD, opcode::ATOMIC_CMP_AND_SWP] {
        let wr = SendWr { opcode: code, send_flags: send_flags::INLINE, ..wr };
        assert_eq!(refused(&a, &wr), Err(Errno::EINVAL), "{code} inline");
    }
    for code in [opcode::TSO, opcode::BIND_MW, opcode::FLUSH, 77] {
        assert_eq!(refused(&a, &SendWr { opcode: code, ..wr }), Err(Errno::EINVAL), "opcode {code}");
    }
    let many = vec![sge; b.qp.caps().max_recv_sge as usize + 1];
    assert_eq!(b.qp.post_recv(&RecvWr { wr_id: 0, sges: &many }).map_err(PostError::errno), Err(Errno::EINVAL));
    // Inline data that is not mapped.
    let gone = [Sge::new(8, 8, 0)];
    assert_eq!(refused(&a, &SendWr { sges: &gone, send_flags: send_flags::INLINE, ..wr }), Err(Errno::EFAULT));
    assert!(engine::reason::last(64).iter().any(|reason| reason.contains(&format!("{:#x}", a.qp.qpn()))));

    // None of these requests was posted. Requests before an invalid one are posted (V-64).
    b.recv(5, 0, 8);
    let mut batch = a.qp.send_batch().expect("a batch");
    batch.push(&SendWr { wr_id: 6, ..wr }).expect("room");
    assert_eq!(batch.push(&SendWr { opcode: 77, ..wr }).map_err(PostError::errno), Err(Errno::EINVAL));
    batch.finish();
    assert_eq!((b.received().wr_id, a.sent().wr_id), (5, 6));

    for (plan, codes) in [
        (Plan::uc(), &[opcode::RDMA_READ, opcode::ATOMIC_CMP_AND_SWP, opcode::ATOMIC_FETCH_AND_ADD][..]),
        (
            Plan::ud(),
            &[opcode::RDMA_WRITE, opcode::RDMA_WRITE_WITH_IMM, opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD],
        ),
    ] {
        let (a, b) = fabric.pair(&plan);
        let ah = a.ah(&b);
        for &code in codes {
            let wr = SendWr { opcode: code, ud: Some((&ah, b.qp.qpn(), crate::common::QKEY)), ..wr };
            assert_eq!(refused(&a, &wr), Err(Errno::EINVAL), "opcode {code} on {}", plan.service);
        }
    }
}

#[test]
fn posting_needs_the_right_state() {
    let fabric = Fabric::start();
    let (engine, plan) = (fabric.engine(), Plan::rc());
    let (a, b) = (Side::new(&engine, &plan), Side::new(&engine, &plan));
    let send = |side: &Side| side.qp.send_batch().expect("a batch").push(&SendWr::default()).map_err(PostError::errno);
    let recv = |side: &Side| side.qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno);
    assert_eq!((send(&a), recv(&a)), (Err(Errno::EINVAL), Err(Errno::EINVAL)), "RESET");
    a.init();
    assert_eq!((send(&a), recv(&a)), (Err(Errno::EINVAL), Ok(())), "INIT");
    a.rtr(b.gid(), b.qp.qpn());
    assert_eq!((send(&a), recv(&a)), (Err(Errno::EINVAL), Ok(())), "RTR");
    a.rts();
    assert_eq!((send(&a), recv(&a)), (Ok(()), Ok(())), "RTS");
    a.to(state::SQD);
    assert_eq!((send(&a), recv(&a)), (Ok(()), Ok(())), "SQD");
    a.to(state::ERR);
    assert_eq!((send(&a), recv(&a)), (Ok(()), Ok(())), "ERR");
    a.qp.destroy().expect("destroyed");
    assert!(a.qp.send_batch().is_err());
    assert_eq!(recv(&a), Err(Errno::EINVAL));
    assert!(a.qp.destroy().is_err(), "once is enough");
}

fn completions_come_in_the_order_of_posting(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 1 << 20, ..Plan::rc() });
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    for round in 0..20u64 {
        (0..4).for_each(|index| b.recv(round * 4 + index, (index * 1000) as usize, 1000));
        let base = SendWr { remote_addr, rkey, ..SendWr::default() };
        let kinds = [
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(0, 100_000), ..base },
            SendWr { opcode: opcode::SEND, sges: &a.sge(0, 900), ..base },
            SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(300_000, 40_000), ..base },
            SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, sges: &a.sge(500_000, 8), ..base },
            SendWr { opcode: opcode::SEND_WITH_IMM, ..base },
            SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, ..base },
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(200_000, 1), ..base },
            SendWr { opcode: opcode::SEND, sges: &a.sge(0, 1), ..base },
        ];
        let wrs: Vec<_> = (0..).zip(kinds).map(|(wr_id, wr)| SendWr { wr_id, ..wr }).collect();
        a.post_all(&wrs);
        for wr_id in 0..8 {
            let wc = a.sent();
            assert_eq!((wc.wr_id, wc.status), (wr_id, 0));
        }
        for index in 0..4 {
            let wc = b.received();
            assert_eq!((wc.wr_id, wc.status), (round * 4 + index, 0));
        }
    }
}

fn a_fence_waits_for_reads_and_atomics(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 4 << 20, ..Plan::rc() });
    let len = 1 << 20;
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    for round in 0..10usize {
        b.memory.pattern(0, len, round);
        a.memory.pattern(0, len, round + 100);
        let before = b.memory.get(0, 8);
        let base = SendWr { remote_addr, rkey, ..SendWr::default() };
        // The data of the READ is written to another place. It is correct only if the READ
        // completes before the engine gathers the WRITE's data (V-65).
        a.post_all(&[
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(0, len), ..base },
            SendWr {
                opcode: opcode::RDMA_WRITE,
                send_flags: send_flags::FENCE,
                remote_addr: b.memory.addr(len),
                sges: &a.sge(0, len),
                ..base
            },
            SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, compare_add: 1, sges: &a.sge(2 * len, 8), ..base },
            SendWr {
                opcode: opcode::RDMA_WRITE,
                send_flags: send_flags::FENCE,
                remote_addr: b.memory.addr(2 * len),
                sges: &a.sge(2 * len, 8),
                ..base
            },
        ]);
        for _ in 0..4 {
            assert_eq!(a.sent().status, 0);
        }
        assert!(b.memory.get(8, len - 8) == b.memory.get(len + 8, len - 8), "round {round}");
        assert_eq!(b.memory.get(2 * len, 8), before);
    }
}

fn more_reads_than_may_be_under_way_wait_their_turn(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Plan::rc() });
    b.memory.put_word(0, 0);
    let wr = SendWr {
        opcode: opcode::ATOMIC_FETCH_AND_ADD,
        compare_add: 1,
        remote_addr: b.memory.addr(0),
        rkey: b.mr.rkey(),
        ..SendWr::default()
    };
    let sges: Vec<_> = (0..24).map(|index| a.sge(index * 8, 8)).collect();
    let wrs: Vec<_> = sges.iter().map(|sges| SendWr { sges, ..wr }).collect();
    a.post_all(&wrs);
    for index in 0..24 {
        assert_eq!(a.sent().status, 0);
        assert_eq!(a.memory.word(index * 8), index as u64);
    }
}

fn polling_takes_as_many_as_there_is_room_for(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    (0..10).for_each(|wr_id| b.recv(wr_id, 0, 0));
    a.post_all(&[SendWr::default(); 10]);
    (0..10).for_each(|_| assert_eq!(a.sent().status, 0));
    let mut seen = Vec::new();
    until("ten completions", || {
        let mut wcs = [Wc::default(); 3];
        let count = b.rcq.poll(&mut wcs).expect("it polls");
        seen.extend(wcs[..count].iter().map(|wc| wc.wr_id));
        (seen.len() == 10).then_some(())
    });
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    assert_eq!(b.rcq.poll(&mut []), Ok(0));
}

crate::common::everywhere! {
    a_send_queue_is_full_until_a_signalled_completion_is_polled
    requests_that_do_not_fit_are_refused_at_once
}

crate::common::even_with_losses! {
    a_receive_queue_is_full_until_completions_are_polled
    completions_come_in_the_order_of_posting
    a_fence_waits_for_reads_and_atomics
    more_reads_than_may_be_under_way_wait_their_turn
    polling_takes_as_many_as_there_is_room_for
}
