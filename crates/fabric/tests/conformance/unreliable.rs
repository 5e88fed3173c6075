//! Table 15.1 for UC and UD: what a receiver that may not answer does with a message that it cannot
//! receive. Receive requests come from the QP itself or from an SRQ.

use std::sync::Arc;

use abi::cq::{Wc, status};
use abi::event::kind;
use abi::post::Sge;
use abi::qp::state;

use crate::common::wait::{event, until};
use crate::common::{self, Fabric, Plan, Side, connect, everywhere};
use engine::{RecvWr, SendWr, Service, Srq, SrqSpec};

/// A sender, and a receiver with or without an SRQ.
struct Pair {
    a: Side,
    b: Side,
    srq: Option<Arc<Srq>>,
    to_b: Arc<engine::Ah>,
}

impl Pair {
    /// All four kinds of pairs.
    fn each(fabric: &Fabric) -> impl Iterator<Item = Pair> {
        let kinds = [(Service::Uc, false), (Service::Uc, true), (Service::Ud, false), (Service::Ud, true)];
        kinds.into_iter().map(|(service, shared)| Pair::new(fabric, service, shared))
    }

    fn new(fabric: &Fabric, service: Service, shared: bool) -> Pair {
        let plan = Plan { memory: 256 * 1024, ..Plan::new(service) };
        let (a, engine) = (Side::new(&fabric.engine(), &plan), fabric.engine());
        let pd = engine.alloc_pd().expect("a PD");
        let spec = SrqSpec { max_wr: 8, max_sge: 2, cookie: 9 };
        let srq = shared.then(|| engine.create_srq(&pd, &spec).expect("an SRQ"));
        let b = Side::with_srq(&engine, &pd, &plan, srq.as_ref());
        connect(&a, &b);
        let to_b = a.ah(&b);
        Pair { a, b, srq, to_b }
    }

    fn post(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        match &self.srq {
            Some(srq) => srq.post(&wr).expect("a place"),
            None => self.b.qp.post_recv(&wr).expect("a place"),
        }
    }

    /// Sends a message that is successful from the sender's view.
    fn send(&self, len: usize) {
        let ud = (self.a.plan.service == Service::Ud).then_some((&*self.to_b, self.b.qp.qpn(), common::QKEY));
        self.a.post(&SendWr { sges: &self.a.sge(0, len), ud, ..SendWr::default() });
        assert_eq!(self.a.sent().status, 0);
    }

    /// Checks that the first receive request has failed with this status, and the QP with it. The
    /// second receive request is flushed, or stays in the SRQ.
    fn has_failed(&self, with: u32) {
        let what = (self.a.plan.service, self.srq.is_some());
        let wc = self.b.received();
        assert_eq!((wc.wr_id, wc.status), (1, with), "{what:?}");
        until("the error state", || (self.b.qp.state() == u32::from(state::ERR)).then_some(()));
        if self.srq.is_some() {
            let found = until("the last request", || {
                Some(event(&self.b.engine)).filter(|e| e.kind == kind::QP_LAST_WQE_REACHED)
            });
            assert_eq!(found.kind, kind::QP_LAST_WQE_REACHED);
            assert_eq!(self.b.rcq.poll(&mut [Wc::default()]), Ok(0), "the others are not this QP's");
        } else {
            let wc = self.b.received();
            assert_eq!((wc.wr_id, wc.status), (2, status::WR_FLUSH_ERR), "{what:?}");
        }
        assert_eq!(self.a.qp.state(), u32::from(state::RTS), "who sent it is not told");
    }
}

/// Class D: the message is dropped, and its receive request serves the next message. Class E, with
/// an SRQ: the receive request that the message took ends with an error. In both classes the QP
/// continues.
fn fault_unreliable_length_drops_the_message(fabric: &Fabric) {
    for pair in Pair::each(fabric) {
        let what = (pair.a.plan.service, pair.srq.is_some());
        pair.post(1, &pair.b.sge(0, 100));
        pair.post(2, &pair.b.sge(0, 4096));
        // A connection may find out in the middle of a message.
        let len = if pair.a.plan.service == Service::Uc { 200_000 } else { 101 };
        pair.send(len);
        let mut served = 1;
        if pair.srq.is_some() {
            let wc = pair.b.received();
            assert_eq!((wc.wr_id, wc.status, wc.qp_num), (1, status::LOC_LEN_ERR, pair.b.qp.qpn()), "{what:?}");
            served = 2;
        }
        pair.send(50);
        let wc = pair.b.received();
        assert_eq!((wc.wr_id, wc.status), (served, 0), "{what:?}");
        assert_eq!(pair.b.qp.state(), u32::from(state::RTS), "{what:?}");
        let dropped = pair.b.engine.drops();
        assert!(dropped.iter().any(|record| record.cause == abi::reason::Cause::Length as u32), "{what:?}");
    }
}

fn fault_unreliable_scatter_list_ends_the_receiver(fabric: &Fabric) {
    for pair in Pair::each(fabric) {
        let good = pair.b.sge(0, 64)[0];
        pair.post(1, &[good, Sge::new(pair.b.memory.addr(64), 1000, pair.b.mr.lkey() ^ 0xff_ff00)]);
        pair.post(2, &pair.b.sge(0, 4096));
        pair.send(200);
        pair.has_failed(status::LOC_PROT_ERR);
    }
}

fn fault_unreliable_without_a_request_drops_the_message(fabric: &Fabric) {
    for pair in Pair::each(fabric) {
        pair.send(100);
        // Messages and datagrams arrive in order, so the first message came before the receive
        // request was posted. The second message takes the request.
        pair.post(1, &pair.b.sge(0, 4096));
        pair.send(50);
        let wc = pair.b.received();
        assert_eq!((wc.wr_id, wc.status), (1, 0));
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (u32::from(state::RTS), u32::from(state::RTS)));
    }
}

/// A receive request that an abandoned message took serves the next message, also if it came from
/// an SRQ.
fn fault_uc_abandons_what_took_a_shared_request(fabric: &Fabric) {
    let pair = Pair::new(fabric, Service::Uc, true);
    pair.post(1, &pair.b.sge(0, 200_000));
    pair.post(2, &pair.b.sge(0, 200_000));
    let halves = [pair.a.sge(0, 100_000)[0], Sge::new(pair.a.memory.addr(0), 8, pair.a.mr.lkey() ^ 0xff_ff00)];
    pair.a.post(&SendWr { sges: &halves, ..SendWr::default() });
    assert_eq!(pair.a.sent().status, status::LOC_PROT_ERR);
    pair.a.to(state::RTS);
    for wr_id in [1, 2] {
        pair.send(90_000);
        let wc = pair.b.received();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, 0, 90_000));
    }
}

everywhere! {
    fault_unreliable_length_drops_the_message
    fault_unreliable_scatter_list_ends_the_receiver
    fault_unreliable_without_a_request_drops_the_message
    fault_uc_abandons_what_took_a_shared_request
}
