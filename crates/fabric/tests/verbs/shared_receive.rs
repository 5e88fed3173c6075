//! Shared receive queues: which QP takes which request, the limit, and what remains when a QP ends.

use std::sync::Arc;

use crate::common::wait::{event, no_event, until};
use crate::common::{Fabric, Plan, Side, connect};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::Sge;
use abi::qp::state;
use abi::srq::attr;
use engine::{PostError, RecvWr, SendWr, Srq, SrqSpec};

/// An SRQ with two QPs on one engine, and a peer for each QP on another engine.
struct Shared {
    srq: Arc<Srq>,
    takers: [Side; 2],
    peers: [Side; 2],
}

const COOKIE: u64 = 77;

fn shared(fabric: &Fabric, plan: &Plan) -> Shared {
    let (ours, theirs) = (fabric.engine(), fabric.engine());
    let pd = ours.alloc_pd().expect("a PD");
    let srq = ours.create_srq(&pd, &SrqSpec { max_wr: 16, max_sge: 2, cookie: COOKIE }).expect("an SRQ");
    let takers = [(); 2].map(|()| Side::with_srq(&ours, &pd, plan, Some(&srq)));
    let peers = [(); 2].map(|()| Side::new(&theirs, plan));
    takers.iter().zip(&peers).for_each(|(taker, peer)| connect(taker, peer));
    Shared { srq, takers, peers }
}

impl Shared {
    fn post(&self, wr_id: u64, at: usize, len: usize) {
        self.srq.post(&RecvWr { wr_id, sges: &self.takers[0].sge(at, len) }).expect("a place");
    }

    /// Sends one message to a QP, and returns the receive request that it took.
    fn send(&self, to: usize) -> u64 {
        self.peers[to].post(&SendWr::default());
        assert_eq!(self.peers[to].sent().status, 0);
        let wc = self.takers[to].received();
        assert_eq!((wc.status, wc.qp_num), (0, self.takers[to].qp.qpn()));
        wc.wr_id
    }
}

fn requests_are_taken_in_post_order_by_whoever_needs_one(fabric: &Fabric) {
    let shared = shared(fabric, &Plan::rc());
    (0..8).for_each(|wr_id| shared.post(wr_id, 0, 0));
    for (wr_id, to) in [0, 1, 1, 0, 0, 0, 1, 0].into_iter().enumerate() {
        assert_eq!(shared.send(to), wr_id as u64);
    }
    // The data goes to the buffer of the receive request.
    shared.post(8, 100, 50);
    shared.peers[1].memory.pattern(0, 40, 4);
    shared.peers[1].post(&SendWr { sges: &shared.peers[1].sge(0, 40), ..SendWr::default() });
    let wc = shared.takers[1].received();
    assert_eq!((wc.wr_id, wc.byte_len), (8, 40));
    assert_eq!(shared.takers[0].memory.get(100, 40), shared.peers[1].memory.get(0, 40));
}

fn receives_beyond_the_limits_of_an_srq_are_refused(fabric: &Fabric) {
    let shared = shared(fabric, &Plan::rc());
    let sge = shared.takers[0].sge(0, 1)[0];
    let many: Vec<Sge> = vec![sge; shared.srq.max_sge() as usize + 1];
    assert_eq!(shared.srq.post(&RecvWr { wr_id: 0, sges: &many }).map_err(PostError::errno), Err(Errno::EINVAL));
    assert_eq!(
        shared.takers[0].qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno),
        Err(Errno::EINVAL)
    );
    (0..u64::from(shared.srq.max_wr())).for_each(|wr_id| shared.post(wr_id, 0, 0));
    assert_eq!(shared.srq.post(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::ENOMEM));
    assert_eq!(shared.send(0), 0);
    shared.post(99, 0, 0);
    assert_eq!(shared.srq.destroy().expect_err("QPs use it").errno, Errno::EBUSY);
}

fn the_limit_tells_once_when_the_queue_runs_low(fabric: &Fabric) {
    let shared = shared(fabric, &Plan::rc());
    let ours = &shared.takers[0].engine;
    (0..6).for_each(|wr_id| shared.post(wr_id, 0, 0));
    let too_high = shared.srq.modify(attr::LIMIT, 0, shared.srq.max_wr() + 1);
    assert_eq!(too_high.expect_err("above its size").errno, Errno::EINVAL);
    shared.srq.modify(attr::LIMIT, 0, 5).expect("armed");
    assert_eq!(shared.srq.query().expect("an answer").srq_limit, 5);
    shared.send(0);
    no_event(ours);
    // Four requests are left, which is below the limit of five.
    shared.send(1);
    let got = event(ours);
    assert_eq!((got.kind, got.element), (kind::SRQ_LIMIT_REACHED, COOKIE));
    assert_eq!(shared.srq.query().expect("an answer").srq_limit, 0, "one-shot (V-51)");
    shared.send(0);
    no_event(ours);
    // A limit above the number of requests triggers the event at once.
    shared.srq.modify(attr::LIMIT, 0, 10).expect("armed");
    assert_eq!(event(ours).kind, kind::SRQ_LIMIT_REACHED);
    shared.srq.modify(attr::LIMIT, 0, 2).expect("armed");
    shared.srq.modify(attr::LIMIT, 0, 0).expect("disarmed");
    for _ in 0..3 {
        shared.send(0);
    }
    no_event(ours);
}

fn an_empty_queue_makes_senders_wait(fabric: &Fabric) {
    let shared = shared(fabric, &Plan::rc());
    shared.peers.iter().for_each(|peer| peer.post(&SendWr::default()));
    // Neither message finds a request. Both are retried without end (rnr_retry 7).
    until("an RNR wait", || (shared.takers[0].rcq.poll(&mut [Default::default()]) == Ok(0)).then_some(()));
    shared.post(1, 0, 0);
    shared.post(2, 0, 0);
    let mut taken = [shared.takers[0].received().wr_id, shared.takers[1].received().wr_id];
    taken.sort_unstable();
    assert_eq!(taken, [1, 2]);
    shared.peers.iter().for_each(|peer| assert_eq!(peer.sent().status, 0));
}

#[test]
fn the_end_of_a_qp_leaves_the_requests_to_the_others() {
    let fabric = Fabric::start();
    let shared = shared(&fabric, &Plan { memory: 128 * 1024, ..Plan::rc() });
    let [dying, living] = &shared.takers;
    shared.post(1, 0, 100_000);
    shared.post(2, 0, 0);
    // Only half of the message arrives, because the sender cannot read the data of the second
    // packet.
    let peer = &shared.peers[0];
    peer.memory.put(0, &[9; 8]);
    let halves = [peer.sge(0, 32 * 1024)[0], Sge::new(peer.memory.addr(0), 100, peer.mr.lkey() ^ 0xff00)];
    peer.post(&SendWr { sges: &halves, ..SendWr::default() });
    assert_eq!(peer.sent().status, abi::cq::status::LOC_PROT_ERR);
    until("the first half", || (dying.memory.get(0, 8) == [9; 8]).then_some(()));
    no_event(&dying.engine);

    dying.to(state::ERR);
    // A request that was taken and has not completed is flushed. The others stay (V-53).
    let wc = dying.received();
    assert_eq!((wc.wr_id, wc.status), (1, abi::cq::status::WR_FLUSH_ERR));
    dying.to(state::ERR);
    let last = event(&dying.engine);
    assert_eq!((last.kind, last.element), (kind::QP_LAST_WQE_REACHED, 2));
    assert_eq!(dying.rcq.poll(&mut [Default::default()]), Ok(0));
    no_event(&living.engine);
    dying.qp.destroy().expect("destroyed");
    assert_eq!(shared.send(1), 2);
}

/// V-52: requests keep their order, the new size has more room, and a size below the number of
/// requests is refused. A change with a limit happens completely or not at all.
fn v_52_a_queue_changes_its_size_while_requests_wait(fabric: &Fabric) {
    let shared = shared(fabric, &Plan::rc());
    let srq = &shared.srq;
    // The ring has wrapped around when it moves.
    (0..12).for_each(|wr_id| shared.post(wr_id, 0, 0));
    (0..10).for_each(|wr_id| assert_eq!(shared.send(0), wr_id));
    (12..22).for_each(|wr_id| shared.post(wr_id, 8 * wr_id as usize, 8));
    srq.modify(attr::MAX_WR, 100, 0).expect("larger");
    assert_eq!((srq.max_wr(), srq.query().expect("an answer").max_wr), (128, 128));
    (22..138).for_each(|wr_id| shared.post(wr_id, 0, 0));
    assert_eq!(srq.post(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::ENOMEM), "one more");
    shared.peers[1].memory.pattern(0, 8, 5);
    for wr_id in 10..22 {
        let wr = SendWr { sges: &shared.peers[1].sge(0, if wr_id < 12 { 0 } else { 8 }), ..SendWr::default() };
        shared.peers[1].post(&wr);
        assert_eq!(shared.takers[1].received().wr_id, wr_id);
        assert_eq!(shared.peers[1].sent().status, 0);
    }
    assert_eq!(shared.takers[0].memory.get(21 * 8, 8), shared.peers[1].memory.get(0, 8), "its scatter list moved too");
    let refused = |mask, max_wr, limit| {
        assert_eq!(srq.modify(mask, max_wr, limit).expect_err("refused").errno, Errno::EINVAL, "{max_wr} {limit}");
        assert_eq!(srq.max_wr(), 128);
    };
    let both = attr::MAX_WR | attr::LIMIT;
    refused(attr::MAX_WR, 115, 0);
    refused(attr::MAX_WR, 0, 0);
    refused(attr::MAX_WR, u32::MAX, 0);
    refused(both, 200, 201);
    assert_eq!(srq.query().expect("an answer").srq_limit, 0, "all or nothing");
    // If both change, the new size decides whether the limit is valid.
    srq.modify(both, 200, 150).expect("larger, and armed");
    let got = event(&shared.takers[0].engine);
    assert_eq!((got.kind, got.element), (kind::SRQ_LIMIT_REACHED, COOKIE), "fewer wait: at once (V-51)");
    srq.modify(attr::LIMIT, 0, 110).expect("armed");
    refused_size(&shared, 105);
    (22..138).for_each(|wr_id| assert_eq!(shared.send(wr_id as usize % 2), wr_id));
    assert_eq!(event(&shared.takers[0].engine).kind, kind::SRQ_LIMIT_REACHED);
    srq.modify(attr::MAX_WR, 1, 0).expect("smaller");
    shared.post(1, 0, 0);
    assert_eq!(srq.post(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::ENOMEM));
    assert_eq!(shared.send(0), 1);
}

/// Checks that a size is refused because it is below the armed limit or below the number of
/// requests.
fn refused_size(shared: &Shared, max_wr: u32) {
    let before = shared.srq.max_wr();
    assert_eq!(shared.srq.modify(attr::MAX_WR, max_wr, 0).expect_err("too small").errno, Errno::EINVAL);
    assert_eq!(shared.srq.max_wr(), before);
}

#[test]
fn events_that_nobody_read_go_with_the_queue() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 16, max_sge: 1, cookie: COOKIE }).expect("an SRQ");
    srq.modify(attr::LIMIT, 0, 3).expect("armed, and below at once");
    assert_eq!(event(&engine).kind, kind::SRQ_LIMIT_REACHED);
    srq.modify(attr::LIMIT, 0, 3).expect("armed again");
    let other = engine.create_srq(&pd, &SrqSpec { max_wr: 16, max_sge: 1, cookie: COOKIE }).expect("an SRQ");
    other.modify(attr::LIMIT, 0, 3).expect("armed");
    assert_eq!(srq.destroy().expect("destroyed"), 1, "one was read");
    assert_eq!(event(&engine).kind, kind::SRQ_LIMIT_REACHED, "the other's, though it has the same name");
    no_event(&engine);
    assert_eq!(other.destroy().expect("destroyed"), 1);
    assert_eq!(srq.post(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::EINVAL));
}

crate::common::everywhere! {
    v_52_a_queue_changes_its_size_while_requests_wait
    receives_beyond_the_limits_of_an_srq_are_refused
    the_limit_tells_once_when_the_queue_runs_low
}

crate::common::even_with_losses! {
    requests_are_taken_in_post_order_by_whoever_needs_one
    an_empty_queue_makes_senders_wait
}

/// Requests that only count WRITEs with immediate data need no scatter elements. Adapters make
/// room for one.
#[test]
fn a_queue_without_scatter_elements_has_room_for_one() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 16, max_sge: 0, cookie: COOKIE }).expect("an SRQ");
    assert_eq!(srq.max_sge(), 1);
    srq.post(&RecvWr { wr_id: 0, sges: &[] }).expect("a request");
    let refused = engine.create_srq(&pd, &SrqSpec { max_wr: 0, max_sge: 1, cookie: COOKIE });
    assert_eq!(refused.map(drop).expect_err("no requests").errno, Errno::EINVAL);
}
