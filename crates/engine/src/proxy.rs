//! The owner's side of a remote SRQ: executes the requests of another engine's XRC target with this
//! engine's memory, keys and CQ.
//!
//! For each target of another engine this engine keeps a QP without a number of its own. The QP
//! holds the current receive request and the last outcome. The requesting engine must own the
//! target's number and know the domain's token, which only engines that have opened the domain
//! know. If a third engine or this one takes the target over, the last step is not repeated. Adds
//! to [`Engine`] and [`Qp`].

use std::sync::Arc;

use abi::cq::opcode as wc_opcode;
use abi::mr::access as right;
use abi::reason::Cause;
use protocol::{Fault, Nak, Outcome, Status};
use shm::{Sink, Source};
use wire::Headers;

use crate::access::{HeldRegion, Refusal};
use crate::cell::Packet;
use crate::engine::Engine;
use crate::put::Sent;
use crate::qp::{Inner, Lane, Qp};
use crate::remote_srq::{LastRequest, PIECE};
use crate::srq::Srq;
use crate::srq_request::{Kind, SrqReply, SrqRequest, about};

impl Engine {
    /// Handles a request that another engine sends for its target.
    #[cold]
    pub(crate) fn on_srq_request(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        packet: &Packet,
        payload: Source<'_>,
        request: &SrqRequest,
    ) {
        let qpn = packet.src_qp.value();
        if self.board.owner(qpn) != lane.peer {
            return self.drop_of_lane(Cause::Forged, packet, (0, 0));
        }
        let found = self.xrc_srqs.find(packet.headers.xrc_srq);
        let domain =
            found.as_ref().and_then(|srq| srq.xrc.as_ref()).filter(|xrc| xrc.token != 0 && xrc.token == request.token);
        let Some(xrc) = domain else {
            // The sender does not know the domain, or the SRQ is gone.
            let reply = SrqReply { id: request.id, outcome: Outcome::Refused(Nak::InvalidRd), status: None };
            if request.kind != Kind::End {
                let place = self.targets.find(qpn).unwrap_or_else(|| self.foreign_target(qpn, 0, 0));
                place.reply(&mut place.lock(), lane, reply, Box::default());
            }
            return;
        };
        let place = self.foreign_target(qpn, xrc.domain, xrc.token);
        let mut inner = place.lock();
        if !inner.is_dead() {
            // This engine serves the target now.
            return;
        }
        match request.kind {
            Kind::End => {
                place.end_message(&mut inner, None);
                place.show_arrived(&mut inner);
            }
            Kind::Fetch => place.fetch(&mut inner, lane, packet, request, found.as_deref()),
            _ => {
                let reply = place.execute_srq_request(&mut inner, lane, packet, payload, request);
                place.reply(&mut inner, lane, reply, Box::default());
                place.show_arrived(&mut inner);
            }
        }
    }

    /// The other end of a lane is gone. Unfinished messages of its targets end, unless another
    /// engine serves the targets now.
    pub(crate) fn lose_targets(&self, peer: u32) {
        for place in &self.targets.all() {
            let mut inner = place.lock();
            if inner.is_dead() && std::mem::take(&mut inner.link.blocked) {
                // The replies may wait for room on that lane, with replies to other engines behind
                // them.
                place.send_srq_replies(&mut inner);
            }
            if inner.is_dead() && self.board.owner(place.qpn()) == peer {
                place.end_message(&mut inner, None);
                place.show_arrived(&mut inner);
                if place.target.as_ref().is_none_or(|target| target.handle().is_none()) {
                    self.targets.remove(place.qpn());
                }
            }
        }
    }
}

impl Qp {
    fn execute_srq_request(
        self: &Arc<Self>,
        inner: &mut Inner,
        lane: &Arc<Lane>,
        packet: &Packet,
        payload: Source<'_>,
        request: &SrqRequest,
    ) -> SrqReply {
        let psn = packet.headers.psn;
        let before = inner.xrc.remote_srq.as_ref().and_then(|remote| remote.done);
        if let Some(done) = before
            && done.by != lane.peer
            && (done.psn, done.connection) == (psn, request.connection)
        {
            // It is unknown whether the previous server of the target got this reply. It has sent
            // nothing since.
            return SrqReply { id: request.id, ..done.reply };
        }
        (inner.attributes.dest_qp_num, inner.attributes.port_num) = (request.peer, request.port);
        let mut packet = *packet;
        packet.path.sl = request.sl;
        let (outcome, status) = match (request.step(&packet), &self.target) {
            (Some(step), Some(target)) => match self.enter_domain(inner, target, &packet, &step) {
                Err(nak) => (Outcome::Refused(nak), None),
                Ok(None) => (Outcome::Refused(Nak::InvalidRd), None),
                Ok(Some(pd)) => {
                    let status = self.execute_apart(inner, &packet, payload, step, pd);
                    // A message whose first packet was not executed here cannot be continued.
                    let outcome = match inner.responder.take_outcome() {
                        None | Some(Outcome::Dropped) => Outcome::Refused(Nak::InvalidRequest),
                        Some(outcome) => outcome,
                    };
                    (outcome, status)
                }
            },
            _ => (Outcome::Refused(Nak::InvalidRequest), None),
        };
        if status.is_some() || matches!(outcome, Outcome::Refused(_)) {
            self.end_message(inner, Some(status.unwrap_or_else(|| Fault::Executor.receive_status())));
        }
        let reply = SrqReply { id: request.id, outcome, status };
        let remote = inner.xrc.remote_srq.get_or_insert_default();
        let done = LastRequest { by: lane.peer, psn, connection: request.connection, reply };
        remote.done = (outcome != Outcome::Rnr).then_some(done);
        reply
    }

    /// Ends the current receive request, if there is one.
    fn end_message(&self, inner: &mut Inner, status: Option<Status>) {
        if let Some(receive) = inner.incoming.receive.take() {
            self.complete_receive(inner, &receive, status.unwrap_or(Status::WrFlushErr), None, wc_opcode::RECV, None);
        }
    }

    fn fetch(
        self: &Arc<Self>,
        inner: &mut Inner,
        lane: &Arc<Lane>,
        packet: &Packet,
        request: &SrqRequest,
        srq: Option<&Srq>,
    ) {
        let mut bytes = vec![0; request.total.min(PIECE) as usize].into_boxed_slice();
        let read = match srq {
            Some(srq) => {
                let wanted = self.remote(srq.pd(), right::REMOTE_READ);
                let region = &mut HeldRegion::new(self.engine());
                region.read(wanted, (request.rkey, request.va), &mut Sink::from(&mut bytes[..]))
            }
            None => Err(Refusal::NoKey { key: request.rkey }),
        };
        let outcome = match read {
            Ok(()) => Outcome::Done,
            Err(refusal) => {
                bytes = Box::default();
                crate::reason!(
                    "QP {:#x} could not read what SRQ {}'s peer asked for: {refusal}",
                    self.qpn(),
                    packet.headers.xrc_srq
                );
                Outcome::Refused(if refusal.by_key() { Nak::RemoteAccess } else { Nak::RemoteOperational })
            }
        };
        self.reply(inner, lane, SrqReply { id: request.id, outcome, status: None }, bytes);
    }

    fn reply(self: &Arc<Self>, inner: &mut Inner, lane: &Arc<Lane>, reply: SrqReply, bytes: Box<[u8]>) {
        inner.xrc.remote_srq.get_or_insert_default().replies.push_back((Arc::clone(lane), reply, bytes));
        if !inner.link.blocked {
            self.send_srq_replies(inner);
        }
    }

    /// Sends the waiting replies.
    #[cold]
    pub(crate) fn send_srq_replies(self: &Arc<Self>, inner: &mut Inner) {
        while let Some((lane, reply, bytes)) =
            inner.xrc.remote_srq.as_mut().and_then(|remote| remote.replies.pop_front())
        {
            if lane.is_dead() {
                continue;
            }
            let packet = about(self.qpn(), Headers::default(), bytes.len() as u16);
            let sent =
                self.push_record(&lane, packet, SrqReply::LEN, &bytes, |packet, record| reply.encode(packet, record));
            if let Sent::Full = sent
                && !lane.is_dead()
                && let Some(remote) = &mut inner.xrc.remote_srq
            {
                remote.replies.push_front((Arc::clone(&lane), reply, bytes));
                inner.link.blocked = true;
                lane.block(self, &self.engine().waker);
                return;
            }
        }
    }
}
