//! Tests retries: receivers that are not ready, peers that do not exist, and when a sender gives
//! up.

use std::time::{Duration, Instant};

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side, connect};
use abi::cq::{Wc, status};
use abi::post::{Sge, opcode};
use abi::qp::state;
use engine::SendWr;

fn assert_gave_up(side: &Side, expected: u32) {
    let wc = side.sent();
    assert_eq!((wc.wr_id, wc.status), (1, expected), "{:?}", engine::reason::last(3));
    let wc = side.sent();
    assert_eq!((wc.wr_id, wc.status), (2, status::WR_FLUSH_ERR));
    assert_eq!(side.qp.state(), u32::from(state::ERR));
}

fn send_two(side: &Side, code: u32) {
    let wr = SendWr { opcode: code, ..SendWr::default() };
    side.post_all(&[SendWr { wr_id: 1, ..wr }, SendWr { wr_id: 2, ..wr }]);
}

fn a_receiver_that_never_gets_ready(fabric: &Fabric) {
    for code in [opcode::SEND, opcode::SEND_WITH_IMM, opcode::RDMA_WRITE_WITH_IMM] {
        for rnr_retry in 0..=6 {
            let (a, b) = fabric.pair(&Plan { rnr_retry, min_rnr_timer: 14, ..Plan::rc() });
            let begin = Instant::now();
            send_two(&a, code);
            assert_gave_up(&a, status::RNR_RETRY_EXC_ERR);
            // The sender waited 1.28 ms before each retry.
            assert!(begin.elapsed() >= Duration::from_micros(1280) * u32::from(rnr_retry), "rnr_retry {rnr_retry}");
            let reason = engine::reason::last(64)
                .into_iter()
                .rev()
                .find(|reason| reason.contains(&format!("{:#x}", a.qp.qpn())) && reason.contains("rnr_retry"));
            assert!(reason.is_some(), "{:?}", engine::reason::last(3));
            // The receiver's state is unchanged.
            assert_eq!(b.qp.state(), u32::from(state::RTS));
            b.recv(3, 0, 0);
            assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
        }
    }
}

fn a_receiver_that_gets_ready_late(fabric: &Fabric) {
    for (rnr_retry, code) in [(7, opcode::SEND), (7, opcode::RDMA_WRITE_WITH_IMM)] {
        let (a, b) = fabric.pair(&Plan { rnr_retry, min_rnr_timer: 1, ..Plan::rc() });
        a.post(&SendWr { wr_id: 1, opcode: code, imm: 5, ..SendWr::default() });
        // A hundred times 10 us: more retries than any count except "infinite" allows.
        let begin = Instant::now();
        until("time", || {
            assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
            (begin.elapsed() > Duration::from_millis(5)).then_some(())
        });
        b.recv(2, 0, 0);
        assert_eq!((a.sent().status, b.received().wr_id), (0, 2));
    }
    // Later messages that need no receive request wait behind the SEND, in order.
    let (a, b) = fabric.pair(&Plan::rc());
    a.memory.put_word(0, 77);
    let write =
        SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
    a.post_all(&[SendWr::default(), SendWr { wr_id: 4, sges: &a.sge(0, 8), ..write }]);
    until("nothing", || (a.scq.poll(&mut [Wc::default()]) == Ok(0)).then_some(()));
    assert_eq!(b.memory.word(0), 0, "V-60");
    b.recv(1, 0, 0);
    assert_eq!((a.sent().status, a.sent().wr_id, b.memory.word(0)), (0, 4, 77));
}

/// Less than the RNR grace time, after which the peer gets an RNR NAK.
const SHORTER_THAN_GRACE: Duration = Duration::from_millis(40);

/// A receiver that was only interrupted counts as ready, even if its peer allows no retry.
fn a_receiver_that_is_late_within_the_grace_time(fabric: &Fabric) {
    const LEN: usize = 10_000;
    for code in [opcode::SEND, opcode::RDMA_WRITE_WITH_IMM] {
        // On a busy machine the receiver may really be too late. That try proves nothing.
        until("a try that was quick enough", || {
            let (a, b) = fabric.pair(&Plan { rnr_retry: 0, ..Plan::rc() });
            a.memory.put_word(0, 77);
            let to = SendWr { remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
            let write = SendWr { opcode: opcode::RDMA_WRITE, ..to };
            let needs = SendWr { opcode: code, remote_addr: b.memory.addr(LEN), sges: &a.sge(LEN, LEN), ..to };
            for at in LEN..2 * LEN {
                a.memory.put(at, &[at as u8]);
            }
            let begin = Instant::now();
            a.post_all(&[
                SendWr { sges: &a.sge(0, 8), ..write },
                SendWr { wr_id: 1, ..needs },
                SendWr { wr_id: 2, ..needs },
                SendWr { wr_id: 3, remote_addr: b.memory.addr(8), sges: &a.sge(0, 8), ..write },
            ]);
            until("the first write", || {
                assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
                (b.memory.word(0) == 77).then_some(())
            });
            b.recv(5, LEN, LEN);
            b.recv(6, LEN, LEN);
            let done: Vec<u32> = (0..4).map(|_| a.sent().status).collect();
            if begin.elapsed() > SHORTER_THAN_GRACE {
                return None;
            }
            assert_eq!(done, [0; 4], "{:?}", engine::reason::last(3));
            assert_eq!((b.received().wr_id, b.received().wr_id), (5, 6));
            let came = b.memory.get(LEN, LEN);
            assert!(came.iter().enumerate().all(|(at, byte)| *byte == (LEN + at) as u8));
            assert_eq!(b.memory.word(8), 77, "what is behind comes behind");
            Some(())
        });
    }
}

/// The RNR grace queue cannot keep everything. Packets without room are retransmitted.
fn a_receiver_that_is_late_for_much(fabric: &Fabric) {
    const LEN: usize = 48 * 1024;
    let (a, b) = fabric.pair(&Plan { memory: 32 * LEN, ..Plan::rc() });
    for number in 0..32 {
        a.memory.put(number * LEN, &[number as u8; LEN]);
    }
    let elements: Vec<_> = (0..32).map(|number| a.sge(number * LEN, LEN)).collect();
    let requests: Vec<_> = elements.iter().map(|sges| SendWr { sges, ..SendWr::default() }).collect();
    a.post_all(&requests);
    for number in 0..32 {
        assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
        b.recv(number as u64, number * LEN, LEN);
        assert_eq!((b.received().wr_id, a.sent().status), (number as u64, 0));
        assert!(b.memory.get(number * LEN, LEN).iter().all(|byte| *byte == number as u8), "message {number}");
    }
}

/// A message that waits for a receive request is lost when the receiver fails for another reason.
fn a_receiver_that_fails_while_something_waits(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { timeout: 10, retry_cnt: 3, ..Plan::rc() });
    send_two(&a, opcode::SEND);
    until("a poll", || (a.scq.poll(&mut [Wc::default()]) == Ok(0)).then_some(()));
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
    b.post(&SendWr { sges: &[Sge::new(b.memory.addr(0), 8, b.mr.lkey() ^ 0x100)], ..SendWr::default() });
    assert_eq!(b.sent().status, status::LOC_PROT_ERR);
    assert_gave_up(&a, status::RETRY_EXC_ERR);
}

/// The timeout, 4.096 us · 2^code, times the number of tries.
fn patience(plan: &Plan) -> Duration {
    Duration::from_nanos(4096 << plan.timeout) * (u32::from(plan.retry_cnt) + 1)
}

/// A way in which a peer goes away.
type Leave = fn(&Side);

fn a_peer_that_is_not_there(fabric: &Fabric) {
    let plan = Plan { timeout: 10, retry_cnt: 3, ..Plan::rc() };
    let cases: [(&str, Leave); 5] = [
        ("in RESET", |peer| peer.to(state::RESET)),
        ("in ERR", |peer| peer.to(state::ERR)),
        ("destroyed", |peer| {
            peer.qp.destroy().expect("destroyed");
        }),
        ("closed", |peer| peer.engine.close()),
        ("connected with another", |peer| {
            peer.to(state::RESET);
            peer.init();
            peer.rtr(peer.gid(), 0x12345);
        }),
    ];
    for (what, leave) in cases {
        for code in [opcode::SEND, opcode::RDMA_READ] {
            let (a, b) = fabric.pair(&plan);
            leave(&b);
            let begin = Instant::now();
            send_two(&a, code);
            assert_gave_up(&a, status::RETRY_EXC_ERR);
            assert!(begin.elapsed() >= patience(&plan), "{what}: after {:?}", begin.elapsed());
        }
        // Requests are outstanding when it happens: they wait for a receive request.
        let (a, b) = fabric.pair(&Plan { rnr_retry: 7, ..plan });
        send_two(&a, opcode::SEND);
        until("a poll", || (a.scq.poll(&mut [Wc::default()]) == Ok(0)).then_some(()));
        leave(&b);
        assert_gave_up(&a, status::RETRY_EXC_ERR);
    }
}

#[test]
fn a_peer_that_never_was() {
    let fabric = Fabric::start();
    let plan = Plan { retry_cnt: 1, ..Plan::rc().hasty() };
    let a = Side::new(&fabric.engine(), &plan);
    for (gid, qpn) in [(a.gid(), 0x80_0000), ([0xfd; 16], a.qp.qpn())] {
        a.init();
        a.rtr(gid, qpn);
        a.rts();
        let begin = Instant::now();
        send_two(&a, opcode::SEND);
        assert_gave_up(&a, status::RETRY_EXC_ERR);
        assert!(begin.elapsed() >= patience(&plan), "{gid:?} after {:?}", begin.elapsed());
        a.to(state::RESET);
    }
    // Unreliable services never notice, and complete the request.
    let b = Side::new(&fabric.engine(), &Plan::uc());
    b.init();
    b.rtr(a.gid(), 0x80_0000);
    b.rts();
    b.post(&SendWr::default());
    assert_eq!((b.sent().status, b.qp.state()), (0, u32::from(state::RTS)));
}

fn a_peer_that_comes_late(fabric: &Fabric) {
    let plan = Plan { timeout: 14, retry_cnt: 7, ..Plan::rc() };
    for code in [opcode::SEND, opcode::RDMA_READ, opcode::RDMA_WRITE] {
        let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
        a.init();
        a.rtr(b.gid(), b.qp.qpn());
        a.rts();
        b.init();
        b.recv(1, 0, 0);
        let begin = Instant::now();
        a.post(&SendWr { opcode: code, ..SendWr::default() });
        // At least one retry happens before the peer is ready.
        until("time", || {
            assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0), "{code}");
            (begin.elapsed() > Duration::from_nanos(4096 << plan.timeout) * 3 / 2).then_some(())
        });
        b.rtr(a.gid(), a.qp.qpn());
        assert_eq!(a.sent().status, 0, "{code}: {:?}", engine::reason::last(3));
        b.rts();
        // After that the connection works as usual.
        for wr_id in 2..20 {
            b.recv(wr_id, 0, 0);
            a.post(&SendWr::default());
            assert_eq!(a.sent().status, 0);
        }
    }
}

fn a_qp_that_gave_up_can_be_connected_again(fabric: &Fabric) {
    let plan = Plan { rnr_retry: 0, ..Plan::rc() };
    let (a, b) = fabric.pair(&plan);
    for _ in 0..3 {
        send_two(&a, opcode::SEND);
        assert_gave_up(&a, status::RNR_RETRY_EXC_ERR);
        a.to(state::RESET);
        b.to(state::RESET);
        connect(&a, &b);
        b.recv(1, 0, 0);
        a.post(&SendWr::default());
        assert_eq!((a.sent().status, b.received().wr_id), (0, 1));
    }
}

crate::common::everywhere! {
    a_receiver_that_never_gets_ready
    a_receiver_that_is_late_within_the_grace_time
    a_receiver_that_is_late_for_much
    a_receiver_that_fails_while_something_waits
    a_peer_that_is_not_there
    a_peer_that_comes_late
    a_qp_that_gave_up_can_be_connected_again
}

crate::common::even_with_losses! {
    a_receiver_that_gets_ready_late
}
