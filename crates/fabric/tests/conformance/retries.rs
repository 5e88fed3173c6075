//! Section 7: timeouts, receivers that are not ready, and the behaviour of unreliable services in
//! these cases.

use std::time::{Duration, Instant};

use abi::cq::{Wc, status};
use abi::qp::state;
use abi::reason::Cause;

use crate::common::wait::{dropped, until};
use crate::common::{Fabric, Plan, QKEY, Side, even_with_losses, everywhere};
use engine::SendWr;

/// 4.096 us times a power of two.
fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

fn retry_timeout_is_waited_for_each_try(fabric: &Fabric) {
    for (timeout, retry_cnt) in [(10, 0), (11, 1), (9, 7)] {
        let (a, b) = fabric.pair(&Plan { timeout, retry_cnt, ..Plan::rc() });
        b.to(state::RESET);
        let begin = Instant::now();
        a.post(&SendWr::default());
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
        let least = ack_timeout(timeout) * (u32::from(retry_cnt) + 1);
        assert!(begin.elapsed() >= least, "timeout {timeout}, retry_cnt {retry_cnt}: {:?}", begin.elapsed());
    }
}

fn retry_history_counts_for_nothing(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { timeout: 14, retry_cnt: 5, ..Plan::rc() });
    // With packet loss, all messages together need more retries than one message may have.
    for wr_id in 0..300 {
        b.recv(wr_id, 0, 0);
        a.post(&SendWr::default());
        assert_eq!((a.sent().status, b.received().wr_id), (0, wr_id));
    }
}

fn retry_causes_a_peer_below_rtr(fabric: &Fabric) {
    let plan = Plan { timeout: 14, ..Plan::rc() };
    let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
    a.init();
    a.rtr(b.gid(), b.qp.qpn());
    a.rts();
    b.init();
    b.recv(1, 0, 0);
    let begin = Instant::now();
    a.post(&SendWr::default());
    until("a timeout", || {
        assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
        (begin.elapsed() > ack_timeout(14) * 3 / 2).then_some(())
    });
    b.rtr(a.gid(), a.qp.qpn());
    assert_eq!((a.sent().status, b.received().wr_id), (0, 1), "it only took longer");
}

fn retry_rnr_waits_and_comes_again(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { rnr_retry: 7, min_rnr_timer: 1, ..Plan::rc() });
    for wr_id in 0..3 {
        a.post(&SendWr::default());
        until("a moment", || (a.scq.poll(&mut [Wc::default()]) == Ok(0)).then_some(()));
        b.recv(wr_id, 0, 0);
        assert_eq!((a.sent().status, b.received().wr_id), (0, wr_id));
    }
}

fn retry_rnr_table_is_kept(fabric: &Fabric) {
    // 12: 0.64 ms; 14: 1.28 ms; 20: 10.24 ms; 22: 20.48 ms. These times are long enough to tell a
    // busy machine from a requester that waits.
    for (code, micros) in [(12, 640), (14, 1280), (20, 10_240), (22, 20_480)] {
        let (a, _b) = fabric.pair(&Plan { rnr_retry: 6, min_rnr_timer: code, ..Plan::rc() });
        let begin = Instant::now();
        a.post(&SendWr::default());
        assert_eq!(a.sent().status, status::RNR_RETRY_EXC_ERR);
        assert!(begin.elapsed() >= Duration::from_micros(micros) * 6, "code {code}: {:?}", begin.elapsed());
    }
}

fn retry_unreliable_services_drop_in_silence(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::uc());
    let (c, d) = fabric.pair(&Plan::ud());
    let to_d = c.ah(&d);
    for (from, to, ud) in [(&a, &b, None), (&c, &d, Some((&*to_d, d.qp.qpn(), QKEY)))] {
        from.post(&SendWr { ud, sges: &from.sge(0, 1), ..SendWr::default() });
        assert_eq!(from.sent().status, 0);
        // After the RNR grace time.
        dropped(to, Cause::NoReceive);
        to.recv(1, 0, 100);
        from.post(&SendWr { ud, sges: &from.sge(0, 2), ..SendWr::default() });
        let header = if ud.is_some() { 40 } else { 0 };
        assert_eq!((from.sent().status, to.received().byte_len), (0, 2 + header), "the first is gone");
        assert_eq!(to.qp.state(), u32::from(state::RTS));
    }
}

fn retry_ack_delay_of_the_device_is_told(fabric: &Fabric) {
    let device = fabric.engine().query_device().expect("an answer");
    assert!(device.local_ca_ack_delay <= 31);
}

fn retry_losses_are_invisible(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 256 * 1024, timeout: 12, ..Plan::rc() });
    for round in 0..8 {
        a.memory.pattern(0, 60_000, round);
        b.recv(round as u64, 0, 60_000);
        a.post(&SendWr { sges: &a.sge(0, 60_000), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().wr_id), (0, round as u64));
        assert!(b.memory.get(0, 60_000) == a.memory.get(0, 60_000));
    }
}

everywhere! {
    retry_timeout_is_waited_for_each_try
    retry_causes_a_peer_below_rtr
    retry_rnr_waits_and_comes_again
    retry_rnr_table_is_kept
    retry_unreliable_services_drop_in_silence
    retry_ack_delay_of_the_device_is_told
}

even_with_losses! {
    retry_history_counts_for_nothing
    retry_losses_are_invisible
}
