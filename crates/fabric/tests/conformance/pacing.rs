//! How fast a QP may send: the rate limit of `ibv_modify_qp(3)`, and the static rate of a path.
//! Tests beside the code check in simulated time that the number of sent bytes matches the rate.

use std::time::{Duration, Instant};

use abi::cq::Wc;
use abi::errno::Errno;
use abi::post::opcode;
use abi::qp::{ModifyQp, RATE_LIMIT_MAX, attr, state};

use crate::common::{self, Fabric, Plan, Side, everywhere};
use engine::{RateLimit, SendWr, Service};

fn limit(side: &Side, kbps: u32) -> Result<(), Errno> {
    let request = ModifyQp { attr_mask: attr::RATE_LIMIT, ..ModifyQp::default() };
    side.qp.modify_paced(&request, RateLimit { kbps, burst: 0 }).map_err(|error| error.errno)
}

/// Sends 1000 bytes to the peer.
fn send(side: &Side, wr_id: u64, ah: &engine::Ah, peer: &Side) {
    let ud = (side.plan.service == Service::Ud).then_some((ah, peer.qp.qpn(), common::QKEY));
    side.post(&SendWr { wr_id, sges: &side.sge(0, 1000), ud, ..SendWr::default() });
}

fn rate_limit_holds_back_sends_alone(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        let (a, b) = fabric.pair(&plan);
        let (to_b, to_a) = (a.ah(&b), b.ah(&a));
        (1..=4).for_each(|wr_id| b.recv(wr_id, 0, 2000));
        a.recv(9, 8000, 2000);
        // At this rate the first message takes more than eight seconds, and the second leaves after
        // this time.
        limit(&a, 1).expect("the slowest rate");
        assert_eq!(a.qp.rate_limit().kbps, 1);
        send(&a, 1, &to_b, &b);
        assert_eq!((a.sent().wr_id, b.received().wr_id), (1, 1));
        send(&a, 2, &to_b, &b);
        // The rate does not limit the receive queue and its responses.
        send(&b, 3, &to_a, &a);
        assert_eq!((b.sent().status, a.received().wr_id), (0, 9));
        let came = [&a.scq, &b.rcq].map(|cq| cq.poll(&mut [Wc::default()]));
        assert_eq!(came, [Ok(0), Ok(0)], "{}: the second has to wait", plan.service);
        limit(&a, 0).expect("no limit");
        assert_eq!((a.sent().wr_id, b.received().wr_id), (2, 2), "{}", plan.service);
        send(&a, 3, &to_b, &b);
        send(&a, 4, &to_b, &b);
        assert_eq!([a.sent().wr_id, a.sent().wr_id], [3, 4]);
    }
}

fn rate_limit_is_kept_without_anybody_asking(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    limit(&a, 16_000).expect("2 MB a second");
    let begun = Instant::now();
    for wr_id in 1..=4 {
        let to = (b.memory.addr(0), b.mr.rkey());
        let (sges, opcode) = (a.sge(0, 32 * 1024), opcode::RDMA_WRITE);
        a.post(&SendWr { wr_id, opcode, sges: &sges, remote_addr: to.0, rkey: to.1, ..SendWr::default() });
    }
    (1..=4).for_each(|wr_id| assert_eq!(a.sent().wr_id, wr_id));
    // When the last message begins, the time of three messages of 16 ms is over, minus the bytes
    // that may leave in advance.
    assert!(begun.elapsed() > Duration::from_millis(45), "{:?}", begun.elapsed());
    // READ responses have no rate limit.
    limit(&b, 1).expect("the slowest rate");
    limit(&a, 0).expect("no limit");
    for wr_id in 5..=8 {
        let (sges, opcode) = (a.sge(0, 32 * 1024), opcode::RDMA_READ);
        let to = (b.memory.addr(0), b.mr.rkey());
        a.post(&SendWr { wr_id, opcode, sges: &sges, remote_addr: to.0, rkey: to.1, ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
    }
}

fn rate_limit_is_checked_and_ends_with_reset(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    assert_eq!(limit(&a, RATE_LIMIT_MAX), Ok(()));
    assert_eq!(limit(&a, RATE_LIMIT_MAX + 1), Err(Errno::EINVAL));
    assert!(engine::reason::last(1)[0].contains("rate limit of 100000001 kbit/s"), "{:?}", engine::reason::last(1));
    assert_eq!(a.qp.rate_limit().kbps, RATE_LIMIT_MAX);
    a.to(state::RESET);
    assert_eq!(a.qp.rate_limit(), RateLimit::default());
    // The rate limit is refused in RESET and in the transition to INIT.
    assert_eq!(limit(&a, 5), Err(Errno::EINVAL));
    let init = ModifyQp {
        attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS | attr::RATE_LIMIT,
        qp_state: state::INIT,
        port_num: 1,
        ..ModifyQp::default()
    };
    let paced = |request: &ModifyQp, kbps| a.qp.modify_paced(request, RateLimit { kbps, burst: 0 });
    assert!(paced(&init, 5).is_err());
    a.init();
    // Both later transitions accept a rate limit, and the later value counts.
    let rtr = a.rtr_request(b.gid(), b.qp.qpn(), 1);
    paced(&ModifyQp { attr_mask: rtr.attr_mask | attr::RATE_LIMIT, ..rtr }, 7).expect("RTR");
    assert_eq!(a.qp.rate_limit().kbps, 7);
    a.rts();
    assert_eq!(a.qp.rate_limit().kbps, 7, "nothing was said of it");
    assert_eq!(limit(&a, 9), Ok(()));
    a.to(state::SQD);
    assert_eq!(limit(&a, 5), Err(Errno::EINVAL), "not in SQD");
    assert_eq!(a.qp.rate_limit().kbps, 9);
    // Without its bit in the mask, the value is ignored.
    paced(&ModifyQp { attr_mask: attr::STATE, qp_state: state::RTS, ..ModifyQp::default() }, u32::MAX).expect("RTS");
    assert_eq!(a.qp.rate_limit().kbps, 9);
}

fn static_rate_of_a_slow_path_is_kept(fabric: &Fabric) {
    const GBPS_2_5: u8 = 2;
    const COUNT: u64 = 64;
    let plan = Plan { caps: engine::Caps { max_send_wr: COUNT as u32, ..Plan::rc().caps }, ..Plan::rc() };
    let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
    for (side, peer) in [(&a, &b), (&b, &a)] {
        side.init();
        let mut rtr = side.rtr_request(peer.gid(), peer.qp.qpn(), 3);
        // Values that are no code, and a code for a rate faster than the port.
        for unknown in [1, 25, 255] {
            rtr.dest.static_rate = unknown;
            assert_eq!(side.qp.modify(&rtr).map_err(|error| error.errno), Err(Errno::EINVAL), "code {unknown}");
        }
        rtr.dest.static_rate = GBPS_2_5;
        side.modify(&rtr);
        side.rts();
    }
    let begun = Instant::now();
    let (sges, to) = (a.sge(0, 64 * 1024), b.memory.addr(0));
    for wr_id in 1..=COUNT {
        let wr = SendWr { wr_id, opcode: opcode::RDMA_WRITE, sges: &sges, ..SendWr::default() };
        a.post(&SendWr { remote_addr: to, rkey: b.mr.rkey(), ..wr });
    }
    (1..=COUNT).for_each(|wr_id| assert_eq!(a.sent().wr_id, wr_id));
    // 4 MiB, minus the bytes that may leave in advance.
    assert!(begun.elapsed() > Duration::from_millis(12), "{:?}", begun.elapsed());
}

fn static_rate_of_an_address_handle_may_be_any_number(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let vector = *a.ah(&b).vector();
    let with = |static_rate| a.pd.create_ah(&engine::AddressVector { static_rate, ..vector });
    // 2.5 Gbit/s, and numbers that are no code.
    for rate in [2, 1, 25, 255] {
        let path = with(rate).expect("an address handle");
        (1..=8).for_each(|wr_id| b.recv(wr_id, 0, 2000));
        for wr_id in 1..=8 {
            send(&a, wr_id, &path, &b);
            assert_eq!((a.sent().status, b.received().wr_id), (0, wr_id));
        }
    }
}

everywhere! {
    rate_limit_holds_back_sends_alone
    rate_limit_is_kept_without_anybody_asking
    rate_limit_is_checked_and_ends_with_reset
    static_rate_of_a_slow_path_is_kept
    static_rate_of_an_address_handle_may_be_any_number
}
