//! How a target sends requests to other engines, and what it does with their replies. Adds to
//! [`Qp`] and [`Engine`].

use std::sync::Arc;

use abi::command::number as command;
use abi::target::{XrcFind, XrcFindAnswer};
use protocol::{Nak, Outcome, Response, ResponseData, Status, Step};
use shm::Source;
use wire::{Headers, Opcode, Operation, Transport};

use super::{AT_ONE, FetchRange, Fetched, RemoteSrq};
use crate::cell::{Packet, Payload};
use crate::engine::Engine;
use crate::kept::KeptPacket;
use crate::put::Sent;
use crate::qp::{Inner, Lane, Qp};
use crate::srq_request::{Kind, SrqReply, SrqRequest, about};
use crate::{access, request};

type RemoteRequest = super::RemoteRequest<Qp>;
type Stage = super::Stage<Qp>;

impl Qp {
    /// Whether a request has to wait for one that is at another engine. `Some(false)`: there is no
    /// room for it.
    #[cold]
    pub(crate) fn waits_for_remote_srq(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) -> Option<bool> {
        let remote = inner.xrc.remote_srq.as_mut().filter(|remote| remote.is_busy())?;
        if remote.bytes + KeptPacket::bytes_of(payload.len()) > AT_ONE {
            return Some(false);
        }
        let Some(kept) = KeptPacket::new(&self.engine().kept_bytes, packet, payload) else { return Some(false) };
        remote.bytes += kept.bytes();
        remote.queue.push_back(kept);
        Some(true)
    }

    /// Asks another engine to carry out the step that the responder requires.
    #[cold]
    pub(crate) fn send_away(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>, step: &Step) {
        // The SRQ's engine checks whether a message continues with the SRQ of its first packet. No
        // message continues with an SRQ of this engine any more.
        inner.xrc.named = None;
        let request = SrqRequest {
            port: inner.attributes.port_num,
            sl: packet.path.sl,
            peer: inner.attributes.dest_qp_num,
            token: self.token(),
            connection: self.connection(inner),
            ..SrqRequest::of(step)
        };
        let payload = match access::copied(payload) {
            Ok(payload) => payload,
            Err(refusal) => {
                self.happened(format_args!("could not keep a request for another process: {refusal}"));
                inner.responder.finish(Outcome::Refused(Nak::RemoteOperational));
                return self.after_refusal(inner, None);
            }
        };
        let remote = inner.xrc.remote_srq.get_or_insert_default();
        let request = SrqRequest { id: remote.next_id(), ..request };
        remote.current = Some(RemoteRequest { request, packet: *packet, payload, stage: Stage::New });
    }

    /// Where the bytes of a READ response are; starts a fetch if they are in another engine's
    /// memory.
    #[inline]
    pub(crate) fn source_of_response<'a>(&self, inner: &'a mut Inner, response: &Response) -> Fetched<'a> {
        match (&self.target, response.source) {
            (Some(target), ResponseData::Read { va, rkey, offset, len, xrc_srq }) if target.token != 0 && len > 0 => {
                let wanted = (xrc_srq, rkey, va.wrapping_add(u64::from(offset)), len);
                if self.engine().xrc_srqs.find(xrc_srq).is_some() {
                    return Fetched::Here;
                }
                let headers = inner.responder.headers(response);
                self.fetch_remote(inner, wanted, headers)
            }
            _ => Fetched::Here,
        }
    }

    #[cold]
    fn fetch_remote<'a>(&self, inner: &'a mut Inner, wanted: FetchRange, headers: Headers) -> Fetched<'a> {
        let (port, peer) = (inner.attributes.port_num, inner.attributes.dest_qp_num);
        let remote = inner.xrc.remote_srq.get_or_insert_default();
        if remote.fetch.is_none() && remote.fetched.as_ref().is_none_or(|(which, _)| *which != wanted) {
            let opcode = Opcode::new(Transport::Xrc, Operation::ReadRequest);
            let read = Headers { opcode, xrc_srq: wanted.0, psn: headers.psn, ..Headers::default() };
            let step = Step::Read { va: wanted.2, rkey: wanted.1, len: wanted.3 };
            let request = SrqRequest {
                id: remote.next_id(),
                kind: Kind::Fetch,
                port,
                token: self.token(),
                peer,
                ..SrqRequest::of(&step)
            };
            let packet = about(self.qpn(), read, 0);
            remote.fetch =
                Some((wanted, RemoteRequest { request, packet, payload: Box::default(), stage: Stage::New }));
        }
        match &remote.fetched {
            Some((which, Ok(bytes))) if *which == wanted => Fetched::Bytes(headers, bytes),
            Some((which, Err(nak))) if *which == wanted => Fetched::Refused(*nak),
            _ => Fetched::Waits,
        }
    }

    /// Sends the pending requests to other engines. Returns true if some cannot be sent and a NAK
    /// is to be sent.
    #[cold]
    pub(crate) fn send_srq_requests(&self, inner: &mut Inner) -> bool {
        let Some(mut remote) = inner.xrc.remote_srq.take() else { return false };
        // The other engine may carry out the request before any peer learns of it, but not before
        // it is recorded.
        if remote.current.as_ref().is_some_and(|away| matches!(away.stage, Stage::New)) {
            inner.xrc.remote_srq = Some(remote);
            self.record_progress(inner);
            let Some(taken) = inner.xrc.remote_srq.take() else { return false };
            remote = taken;
        }
        let RemoteSrq { current, fetch, .. } = &mut *remote;
        let mut full = None;
        let (mut lost, mut lost_fetch) = (false, false);
        let step = current.as_mut().map(|away| (away, &mut lost));
        let read = fetch.as_mut().map(|(_, away)| (away, &mut lost_fetch));
        for (away, lost) in step.into_iter().chain(read) {
            if full.is_some() || !matches!(away.stage, Stage::New) {
                continue;
            }
            match self.lane_to(away.packet.headers.xrc_srq) {
                None => {
                    away.stage = Stage::Asked;
                    if let Some(qp) = self.arc() {
                        self.engine().helper_work.need_srq_engine.lock().push(qp);
                        self.engine().waker.kick();
                    }
                }
                Some(lane) if lane.is_dead() => *lost = true,
                Some(lane) => match self.push_srq_request(&lane, away) {
                    Sent::Yes => away.stage = Stage::Sent(lane),
                    _ => full = Some(lane),
                },
            }
        }
        inner.xrc.remote_srq = Some(remote);
        if let Some(lane) = full
            && let Some(qp) = self.arc()
        {
            inner.link.blocked = true;
            lane.block(&qp, &qp.engine().waker);
        }
        self.refuse_lost(inner, (lost, lost_fetch));
        lost || lost_fetch
    }

    /// The lane to the engine that has an SRQ, if both are known.
    fn lane_to(&self, number: u32) -> Option<Arc<Lane>> {
        let engine = self.engine();
        let owner = *engine.srq_owners.lock().get(&(self.token(), number))?;
        let known = engine.lanes.route(owner, self.lane_index);
        if known.is_none() {
            // The engine may be gone; then the agent has no such SRQ.
            engine.srq_owners.lock().remove(&(self.token(), number));
        }
        known
    }

    fn push_srq_request(&self, lane: &Lane, away: &RemoteRequest) -> Sent {
        let packet = about(self.qpn(), away.packet.headers, away.payload.len() as u16);
        self.push_record(lane, packet, SrqRequest::len(&packet), &away.payload, |packet, record| {
            away.request.encode(packet, record)
        })
    }

    /// Puts a record with its payload on a lane.
    pub(crate) fn push_record(
        &self,
        lane: &Lane,
        mut packet: Packet,
        head: usize,
        payload: &[u8],
        encode: impl FnOnce(&Packet, &mut [u8]) -> usize,
    ) -> Sent {
        let mut sender = lane.sender.lock();
        let sender = &mut *sender;
        let mut slot = None;
        if head + payload.len() > shm::RECORD_MAX {
            match sender.tx.bulk.put(payload) {
                Ok(Some(place)) => {
                    packet.payload = Payload::Bulk(place.offset);
                    slot = Some(place);
                    sender.load.add(payload.len() as u32);
                }
                Ok(None) => {
                    sender.wanted = payload.len() as u32;
                    return Sent::Full;
                }
                Err(shm::Broken) => return self.broken(lane),
            }
        }
        let mut len = encode(&packet, &mut sender.record);
        if slot.is_none() {
            sender.record[len..len + payload.len()].copy_from_slice(payload);
            len += payload.len();
        }
        match sender.tx.ring.push(&sender.record[..len]) {
            Ok(()) => {
                lane.notify();
                Sent::Yes
            }
            Err(shm::PushError::Full) => {
                if let Some(slot) = slot {
                    sender.tx.bulk.cancel(slot);
                }
                Sent::Full
            }
            Err(shm::PushError::Broken(_)) => self.broken(lane),
        }
    }

    /// An engine has replied. Its reply counts only for the request that was sent over this lane.
    pub(crate) fn on_srq_reply(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        packet: &Packet,
        payload: Source<'_>,
        reply: &SrqReply,
    ) {
        let mut inner = self.lock();
        let Some(remote) = &mut inner.xrc.remote_srq else { return };
        let from_here = |away: &RemoteRequest| {
            away.request.id == reply.id && matches!(&away.stage, Stage::Sent(sent) if Arc::ptr_eq(sent, lane))
        };
        if let Some(away) = remote.current.take_if(|away| from_here(away)) {
            self.finish_remote(&mut inner, &away, lane, reply.outcome, reply.status);
            self.go_on_queued(&mut inner);
        } else if let Some((wanted, _)) = remote.fetch.take_if(|(_, away)| from_here(away)) {
            let bytes = match reply.outcome {
                Outcome::Done if u32::from(packet.len) == wanted.3 => {
                    access::copied(payload).map_err(|_| Nak::RemoteOperational)
                }
                Outcome::Refused(nak) => Err(nak),
                _ => Err(Nak::RemoteOperational),
            };
            remote.fetched = Some((wanted, bytes));
        }
        self.pump(&mut inner);
    }

    fn finish_remote(
        &self,
        inner: &mut Inner,
        away: &RemoteRequest,
        lane: &Arc<Lane>,
        outcome: Outcome,
        status: Option<Status>,
    ) {
        // Only an atomic returns a value, and it always does.
        let outcome = match (outcome, away.request.kind) {
            (Outcome::Done, Kind::Atomic) => Outcome::Refused(Nak::RemoteOperational),
            (Outcome::AtomicDone(_), kind) if kind != Kind::Atomic => Outcome::Refused(Nak::RemoteOperational),
            (outcome, _) => outcome,
        };
        let goes_on = away.request.kind == Kind::Receive && !away.packet.headers.opcode.place().ends();
        if let Some(remote) = &mut inner.xrc.remote_srq
            && outcome == Outcome::Done
        {
            remote.half = goes_on.then(|| (away.packet.headers.xrc_srq, Arc::clone(lane)));
        }
        if outcome == Outcome::Refused(Nak::InvalidRd) {
            self.engine().srq_owners.lock().remove(&(self.token(), away.packet.headers.xrc_srq));
            crate::reason!(
                "QP {:#x}: {} names SRQ {}, which its process has not (any more)",
                self.qpn(),
                away.packet.headers.opcode,
                away.packet.headers.xrc_srq
            );
        }
        inner.responder.finish(outcome);
        self.after_refusal(inner, status);
    }

    /// Continues with waiting requests, until one is at another engine again.
    fn go_on_queued(&self, inner: &mut Inner) {
        while let Some(remote) = inner.xrc.remote_srq.as_mut().filter(|remote| remote.current.is_none()) {
            let Some(kept) = remote.queue.pop_front() else { return };
            remote.bytes -= kept.bytes();
            if inner.is_dead() || !inner.state.serves() {
                continue;
            }
            self.on_request(inner, &kept.packet, Source::from(&kept.payload[..]));
        }
    }

    /// The reply to the current request, or to the fetch, will not come any more.
    fn refuse_lost(&self, inner: &mut Inner, (current, fetch): (bool, bool)) {
        let Some(remote) = &mut inner.xrc.remote_srq else { return };
        if fetch && let Some((wanted, _)) = remote.fetch.take() {
            remote.fetched = Some((wanted, Err(Nak::RemoteAccess)));
        }
        if current && let Some(away) = remote.current.take() {
            let number = away.packet.headers.xrc_srq;
            self.engine().srq_owners.lock().remove(&(self.token(), number));
            crate::reason!(
                "QP {:#x}: {} names SRQ {number}, which no process has in the target's XRC domain",
                self.qpn(),
                away.packet.headers.opcode
            );
            inner.responder.finish(Outcome::Refused(Nak::InvalidRd));
            self.after_refusal(inner, None);
            self.go_on_queued(inner);
        }
    }

    /// The other end of a lane is gone, so its requests are lost.
    pub(crate) fn lose_srq_requests(&self, inner: &mut Inner, lane: u32) {
        let Some(remote) = &mut inner.xrc.remote_srq else { return };
        let by = |away: &RemoteRequest| matches!(&away.stage, Stage::Sent(sent) if sent.id == lane);
        if remote.half.as_ref().is_some_and(|(_, half)| half.id == lane) {
            remote.half = None;
        }
        let lost = (remote.current.as_ref().is_some_and(by), remote.fetch.as_ref().is_some_and(|(_, away)| by(away)));
        self.refuse_lost(inner, lost);
    }

    /// The target stops serving: notifies the engine that has part of a message that the rest will
    /// not come.
    pub(crate) fn abandon_remote_srq(&self, inner: &mut Inner) {
        let Some(remote) = &mut inner.xrc.remote_srq else { return };
        remote.bytes = 0;
        remote.queue.clear();
        (remote.fetch, remote.fetched) = (None, None);
        let by_current = remote.current.take().and_then(|away| match away.stage {
            Stage::Sent(lane) => Some((away.packet.headers.xrc_srq, lane)),
            _ => None,
        });
        let half = remote.half.take().or(by_current);
        // Not if this engine ends: another engine continues the target and the message, or the end
        // of the lane reports that none does.
        if let Some((xrc_srq, lane)) = half.filter(|_| !self.engine().is_gone()) {
            let opcode = Opcode::new(Transport::Xrc, Operation::SendOnly);
            let packet = about(self.qpn(), Headers { opcode, xrc_srq, ..Headers::default() }, 0);
            let request = SrqRequest { kind: Kind::End, token: self.token(), ..SrqRequest::of(&Step::Reply) };
            // If the lane is full, its engine does not receive. The next message then uses the
            // receive request that this one leaves.
            self.push_record(&lane, packet, SrqRequest::len(&packet), &[], |packet, record| {
                request.encode(packet, record)
            });
        }
    }

    /// The number of an SRQ whose engine must be found.
    fn asks_for(&self) -> Option<u32> {
        let inner = self.lock();
        let remote = inner.xrc.remote_srq.as_ref()?;
        let asked = |away: &&RemoteRequest| matches!(away.stage, Stage::Asked);
        let away =
            remote.current.as_ref().filter(asked).or(remote.fetch.as_ref().map(|(_, away)| away).filter(asked))?;
        Some(away.packet.headers.xrc_srq)
    }
}

impl Engine {
    /// Finds the engines for which targets wait, and opens lanes to them. Waits for the agent, so
    /// it runs on the helper thread.
    pub(crate) fn locate_srqs(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut *self.helper_work.need_srq_engine.lock());
        for qp in waiting {
            let Some(number) = qp.asks_for() else { continue };
            let body = XrcFind { qp_handle: qp.handle(), srqn: number };
            let request = request::private(command::XRC_FIND, &body, size_of::<XrcFindAnswer>());
            let found = self.call(&request).and_then(|answer| {
                let XrcFindAnswer { engine, .. } = answer.get(0)?;
                self.open_lane(engine, qp.lane_index).map(|_| engine)
            });
            if let Ok(engine) = found {
                self.srq_owners.lock().insert((qp.token(), number), engine);
            }
            let mut inner = qp.lock();
            let mut lost = (false, false);
            if let Some(remote) = &mut inner.xrc.remote_srq {
                let RemoteSrq { current, fetch, .. } = &mut **remote;
                let mut answer = |away: &mut RemoteRequest| {
                    let asked = matches!(away.stage, Stage::Asked) && away.packet.headers.xrc_srq == number;
                    if asked {
                        away.stage = Stage::New;
                    }
                    asked && found.is_err()
                };
                lost.0 = current.as_mut().is_some_and(&mut answer);
                lost.1 = fetch.as_mut().is_some_and(|(_, away)| answer(away));
            }
            qp.refuse_lost(&mut inner, lost);
            qp.pump(&mut inner);
        }
    }
}
