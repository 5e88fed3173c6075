//! Section 3.5: shared receive queues.

use std::sync::Arc;

use abi::cq::status;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::Sge;
use abi::qp::state;
use abi::srq::attr;

use crate::common::wait::{event, no_event, until};
use crate::common::{Fabric, Plan, Side, connect, everywhere};
use engine::{RecvWr, SendWr, Srq, SrqSpec};

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

    /// A message to one of them; the request it took.
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
    // A message of which only the first half comes: its request is taken.
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

everywhere! {
    v_50_requests_are_taken_in_the_order_of_posting
    v_51_the_limit_tells_once
    v_53_a_queue_pair_that_ends_leaves_the_requests
}
