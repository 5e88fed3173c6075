//! Section 3.5: shared receive queues.

use std::sync::Arc;

use abi::cq::status;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::{Sge, opcode};
use abi::qp::state;
use abi::srq::attr;

use crate::common::wait::{event, no_event, until};
use crate::common::{ALL_RIGHTS, Fabric, Plan, QKEY, Side, connect, everywhere, register};
use engine::{Mr, RecvWr, SendWr, Service, Srq, SrqSpec};

const COOKIE: u64 = 9;

struct Shared {
    srq: Arc<Srq>,
    takers: [Side; 2],
    peers: [Side; 2],
}

impl Shared {
    fn new(fabric: &Fabric) -> Self {
        let (plan, ours) = (Plan { memory: 256 * 1024, ..Plan::rc() }, fabric.engine());
        let pd = ours.alloc_pd().expect("a PD");
        let srq = ours.create_srq(&pd, &SrqSpec { max_wr: 8, max_sge: 1, cookie: COOKIE }).expect("an SRQ");
        let takers = [(); 2].map(|()| Side::with_srq(&ours, &pd, &plan, Some(&srq)));
        let theirs = fabric.engine();
        let peers = [(); 2].map(|()| Side::new(&theirs, &plan));
        takers.iter().zip(&peers).for_each(|(taker, peer)| connect(taker, peer));
        Self { srq, takers, peers }
    }

    fn post(&self, wr_id: u64) {
        self.srq.post(&RecvWr { wr_id, sges: &[] }).expect("a place");
    }

    /// Sends a message to one of the QPs, and returns the receive request that it took.
    fn send(&self, to: usize) -> (u64, u32) {
        self.peers[to].post(&SendWr::default());
        assert_eq!(self.peers[to].sent().status, 0);
        let wc = self.takers[to].received();
        (wc.wr_id, wc.qp_num)
    }
}

fn v_50_requests_are_taken_in_the_order_of_posting(fabric: &Fabric) {
    let shared = Shared::new(fabric);
    (0..6).for_each(|wr_id| shared.post(wr_id));
    for (wr_id, to) in [(0, 1), (1, 0), (2, 0), (3, 1), (4, 1), (5, 0)] {
        assert_eq!(shared.send(to).0, wr_id);
    }
}

fn v_51_the_limit_tells_once(fabric: &Fabric) {
    let shared = Shared::new(fabric);
    let engine = &shared.takers[0].engine;
    (0..4).for_each(|wr_id| shared.post(wr_id));
    let max_wr = shared.srq.max_wr();
    assert_eq!(shared.srq.modify(attr::LIMIT, 0, max_wr + 1).expect_err("too high").errno, Errno::EINVAL);
    shared.srq.modify(attr::LIMIT, 0, 3).expect("armed");
    shared.send(0);
    no_event(engine);
    shared.send(1);
    let told = event(engine);
    assert_eq!((told.kind, told.element), (kind::SRQ_LIMIT_REACHED, COOKIE));
    assert_eq!(shared.srq.query().expect("an answer").srq_limit, 0, "disarmed");
    shared.send(0);
    no_event(engine);
    shared.srq.modify(attr::LIMIT, 0, 3).expect("armed, and below already");
    assert_eq!(event(engine).kind, kind::SRQ_LIMIT_REACHED);
}

fn v_53_a_queue_pair_that_ends_leaves_the_requests(fabric: &Fabric) {
    let shared = Shared::new(fabric);
    let [dying, living] = &shared.takers;
    // Only the first half of this message arrives. The message has taken its receive request.
    let peer = &shared.peers[0];
    let whole = Sge::new(dying.memory.addr(0), 200_000, dying.mr.lkey());
    shared.srq.post(&RecvWr { wr_id: 1, sges: &[whole] }).expect("a place");
    shared.post(2);
    peer.memory.put(0, &[7; 8]);
    let sges = [peer.sge(0, 100_000)[0], Sge::new(peer.memory.addr(0), 8, peer.mr.lkey() ^ 0xff00)];
    peer.post(&SendWr { sges: &sges, ..SendWr::default() });
    assert_eq!(peer.sent().status, status::LOC_PROT_ERR);
    until("the first half", || (dying.memory.get(0, 8) == [7; 8]).then_some(()));
    dying.to(state::ERR);
    let wc = dying.received();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (1, status::WR_FLUSH_ERR, dying.qp.qpn()));
    assert_eq!(event(&dying.engine).kind, kind::QP_LAST_WQE_REACHED);
    assert_eq!(shared.send(1), (2, living.qp.qpn()), "the other gets what is left");
}

/// Receive buffers belong to the SRQ's domain, everything else to the QP's domain.
fn v_55_a_queue_may_be_of_another_domain(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::ud()] {
        let (a, far) = (Side::new(&fabric.engine(), &plan), fabric.engine());
        let pds = [far.alloc_pd().expect("a PD"), far.alloc_pd().expect("a PD")];
        let srq = far.create_srq(&pds[1], &SrqSpec { max_wr: 8, max_sge: 2, cookie: COOKIE }).expect("an SRQ");
        let b = Side::with_srq(&far, &pds[0], &plan, Some(&srq));
        connect(&a, &b);
        let of_srq = register(&pds[1], &b.memory, ALL_RIGHTS);
        let to_b = a.ah(&b);
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        let before = if ud.is_some() { 40 } else { 0 };
        for len in [8, 1000] {
            let sges = [Sge::new(b.memory.addr(0), 2000, of_srq.lkey())];
            srq.post(&RecvWr { wr_id: 1, sges: &sges }).expect("a place");
            a.memory.pattern(0, len, len);
            a.post(&SendWr { ud, sges: &a.sge(0, len), ..SendWr::default() });
            assert_eq!((a.sent().status, b.received().status), (0, 0), "{:?}", engine::reason::last(2));
            assert_eq!(b.memory.get(before, len), a.memory.get(0, len));
        }
        if ud.is_none() {
            let at = |mr: &Mr| SendWr { remote_addr: b.memory.addr(0), rkey: mr.rkey(), ..SendWr::default() };
            a.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(0, 8), ..at(&b.mr) });
            assert_eq!(a.sent().status, 0, "peers' keys are of the QP's domain");
        }
        srq.post(&RecvWr { wr_id: 2, sges: &b.sge(0, 100) }).expect("a place");
        a.post(&SendWr { ud, sges: &a.sge(0, 8), ..SendWr::default() });
        let expected = if ud.is_some() { status::SUCCESS } else { status::REM_OP_ERR };
        assert_eq!((a.sent().status, b.received().status), (expected, status::LOC_PROT_ERR), "the QP's domain");
    }
}

everywhere! {
    v_55_a_queue_may_be_of_another_domain
    v_50_requests_are_taken_in_the_order_of_posting
    v_51_the_limit_tells_once
    v_53_a_queue_pair_that_ends_leaves_the_requests
}
