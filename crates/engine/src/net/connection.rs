//! How a QP treats the host at its other end: it meters unreliable traffic and answers probes.
//!
//! How connections keep to their window is in [`crate::net::scheduler`]. The metering itself is in
//! [`crate::net::peer`]; this file decides which QP is charged, and when. Adds to [`Qp`].

use std::sync::Arc;

use protocol::{Service, Time};
use wire::Qpn;
use wire::probe::{self, Probe};

use crate::lid::NO_GRH;
use crate::net::batch::Batch;
use crate::net::datagrams::Datagrams;
use crate::net::flow::Vector;
use crate::net::unanswered::Asked;
use crate::qp::{Flow, Inner, Qp, Route};

/// The approximate number of bytes around the payload of a packet.
const AROUND: u32 = 48;
/// The least that a packet counts. In the receiver's ring, a small packet takes a place as a large
/// one does.
const SMALLEST: u32 = 1024;

impl Qp {
    /// Whether the next unreliable packet may be sent. If not, the QP waits for an answer, or until
    /// no answer is expected any more.
    pub(crate) fn may_go(
        self: &Arc<Self>,
        inner: &mut Inner,
        flow: &Flow,
        batch: &mut Batch,
        len: u32,
        dest_qp: Qpn,
        now: Time,
    ) -> bool {
        let admission = flow.peer.admit((len + AROUND).max(SMALLEST), now);
        if let Some(cookie) = admission.probe {
            let probe = Probe { answer: false, dest_qp, source_qp: Qpn::new(self.qpn()), cookie };
            self.put_probe(flow, batch, &probe);
        }
        let Some(until) = admission.wait else { return true };
        inner.link.blocked = true;
        flow.peer.wait(self);
        self.look_again(inner, until);
        false
    }

    fn put_probe(&self, flow: &Flow, batch: &mut Batch, probe: &Probe) {
        let mut bytes = [0; probe::LEN];
        probe.emit(&mut bytes);
        if let Err(error) = batch.put_bytes(&*flow.port.outlet, (&flow.target, &flow.envelope), &bytes) {
            flow.complain(&error);
        }
    }

    /// Answers a probe, because everything before it has been received. The answer may have to wait
    /// for receive requests.
    pub(crate) fn on_probe(&self, probe: &Probe, datagrams: &Datagrams) {
        let mut inner = self.lock();
        if inner.is_dead() || !inner.state.serves() {
            return;
        }
        let Datagrams { from, to, hop_limit, .. } = *datagrams;
        let (asked, left) = ((*probe, from, to, hop_limit), self.receives_left(&inner));
        let now = self.engine().now();
        if self.srq.is_some() || !inner.incoming.unanswered.waits(&asked, left, self.caps.max_recv_wr, now) {
            self.answer_probe(&inner, &asked);
        } else if let Some(until) = inner.incoming.unanswered.until() {
            self.look_again(&mut inner, until);
        }
    }

    /// Answers the probes whose wait for receive requests is over.
    pub(crate) fn answer_probes(&self, inner: &mut Inner) {
        if inner.incoming.unanswered.until().is_some() {
            let (left, now) = (self.receives_left(inner), self.engine().now());
            for asked in inner.incoming.unanswered.due(left, now) {
                self.answer_probe(inner, &asked);
            }
        }
    }

    /// The number of unused receive requests.
    pub(crate) fn receives_left(&self, inner: &Inner) -> u32 {
        if inner.queues.rq.count() == 0 { 0 } else { inner.queues.rq.used(inner.queues.rq_head, inner.queues.rq_tail) }
    }

    fn answer_probe(&self, inner: &Inner, (probe, from, to, hop_limit): &Asked) {
        let port_num = inner.attributes.port_num;
        let vector = match (self.service, &inner.link.route) {
            (Service::Uc, Route::Wire(_)) if &inner.attributes.dest.dgid == from => {
                Vector::of_connection(&inner.attributes.dest, port_num, self.qpn())
            }
            (Service::Ud, _) => {
                let engine = self.engine();
                let Some(index) = engine.board.index_of(engine.device(), u32::from(port_num), to) else { return };
                // A probe without a GRH has an answer without one: its addresses stand for LIDs.
                let hop_limit = if *hop_limit == NO_GRH { NO_GRH } else { 0 };
                Vector { dgid: *from, port_num, sgid_index: index as u8, hop_limit, ..Vector::default() }
            }
            _ => return,
        };
        let Ok(flow) = self.engine().flow(&vector) else { return };
        let mut batch = flow.port.batch.lock();
        self.put_probe(&flow, &mut batch, &probe.answered());
        if let Err(error) = batch.flush(&*flow.port.outlet) {
            flow.complain(&error);
        }
    }
}
