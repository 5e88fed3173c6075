//! The handling of a REQ: a new id, a repetition of the last answer, or a rejection that needs no
//! user. Adds to [`Cm`]; the user's reply is in [`super::passive`]. IBA 12.9.8.

use super::entry::{CmEntry, Key};
use super::error::Dropped;
use super::event::Kind;
use super::origin::{Origin, Path};
use super::params::Connection;
use super::state::CmState;
use super::{Attribute, Cm, Ece, Reason, TransportType};
use crate::time::Time;
use wire::cm::{Data, Message, PathInfo, Rej, Rejected, Req};
use wire::mad::{Header, Mad};

impl Cm {
    /// Handles a REQ.
    pub(super) fn on_req(
        &mut self,
        now: Time,
        origin: &Origin,
        header: &Header,
        req: &Req,
        ece: Ece,
    ) -> Result<(), Dropped> {
        let message = Attribute::Req;
        // The path in a REQ is a claim. It is believed only about the sender itself.
        if req.primary.local_gid != origin.source {
            return Err(Dropped::Foreign { message, comm_id: 0, from: origin.source });
        }
        let key = Key::number(req.local_comm_id, req.local_ca_guid, origin.source);
        if let Some(index) = self.table.find_key(&key) {
            return self.on_req_again(index, origin, header, req);
        }
        if let Some((reason, info)) = unfit(origin, req) {
            return Err(self.reject_req(origin, header, req.local_comm_id, reason, &info));
        }
        let facts = facts(origin, req);
        let qpn_key = Key::qpn(facts.remote_qpn.value(), facts.remote_ca_guid, facts.path.dgid);
        if let Some(index) = self.table.find_key(&qpn_key) {
            let dropped = self.reject_req(origin, header, req.local_comm_id, Reason::STALE_CONNECTION, &[]);
            self.forgotten(now, index);
            return Err(dropped);
        }
        let undecided = self.table.counts().undecided;
        if undecided >= self.config.undecided as usize {
            return Err(Dropped::Full { message, held: undecided });
        }
        let mut entry = CmEntry::new(facts);
        entry.transaction = header.transaction;
        entry.max_retries = req.max_cm_retries;
        entry.set_claimed_interval(req.local_response_timeout);
        entry.set_echo(req.remote_response_timeout);
        let held = self.table.counts().ids;
        let index = self.table.insert(entry).ok_or(Dropped::Full { message, held })?;
        self.table.enter(index, CmState::ReqRcvd, None);
        self.table.link_number(index);
        self.table.link_qpn(index);
        self.tell(index, Kind::Incoming { req: *req, origin: *origin, ece });
        Ok(())
    }

    /// Handles a REQ whose number is known: a repetition, or another REQ that reuses the number by
    /// mistake.
    fn on_req_again(&mut self, index: u32, origin: &Origin, header: &Header, req: &Req) -> Result<(), Dropped> {
        let message = Attribute::Req;
        let known = &self.table.entry(index).facts;
        let new = facts(origin, req);
        if (known.remote_qpn, known.send_psn, known.service_id) != (new.remote_qpn, new.send_psn, new.service_id) {
            let reason = Reason::DUPLICATE_LOCAL_COMM_ID;
            return Err(self.reject_req(origin, header, req.local_comm_id, reason, &[]));
        }
        match known.state {
            CmState::ReqRcvd => self.answer_repetition(index),
            // The last message was MRA, REP or REJ.
            CmState::MraReqSent | CmState::RepSent | CmState::MraRepRcvd | CmState::Declined => self.repeat(index),
            CmState::TimeWait if self.said(index, Attribute::Rej) => self.repeat(index),
            state => return Err(Dropped::Unexpected { message, state }),
        }
        Err(Dropped::Repeated { message })
    }

    /// Rejects a REQ without an entry.
    fn reject_req(&mut self, origin: &Origin, header: &Header, comm_id: u32, reason: Reason, info: &[u8]) -> Dropped {
        let rej = Rej {
            remote_comm_id: comm_id,
            message: Rejected::Req,
            info: Data::new(info).unwrap_or_default(),
            info_len: u8::try_from(info.len()).unwrap_or(0),
            ..Rej::new(reason)
        };
        self.answer(origin, header.transaction, &Message::Rej(rej));
        Dropped::Rejected { message: Attribute::Req, reason }
    }

    /// A message has an unsupported version. The sender of a REQ is told.
    pub(super) fn on_other_version(&mut self, origin: &Origin, mad: &Mad) {
        let header = Header::of(mad);
        if header.attribute == Attribute::Req as u16 {
            let comm_id = u32::from_be_bytes([mad[24], mad[25], mad[26], mad[27]]);
            self.reject_req(origin, &header, comm_id, Reason::INVALID_CLASS_VERSION, &[]);
        }
    }
}

/// Why a REQ is unacceptable, and the acceptable value.
fn unfit(origin: &Origin, req: &Req) -> Option<(Reason, Vec<u8>)> {
    match req.transport {
        TransportType::Rc | TransportType::Uc | TransportType::Xrc => {}
        TransportType::Rd | TransportType::Unknown(_) => return Some((Reason::INVALID_TRANSPORT_TYPE, Vec::new())),
    }
    if !(1..=5).contains(&req.mtu) {
        return Some((Reason::INVALID_MTU, vec![5]));
    }
    if req.primary.remote_gid != origin.destination {
        return Some((Reason::INVALID_GID, origin.destination.to_vec()));
    }
    None
}

/// The connection that a REQ describes, as seen by the passive side.
fn facts(origin: &Origin, req: &Req) -> Connection {
    let back = |info: &PathInfo| Path::back(&origin.seen_here(info), req.pkey, req.mtu);
    let path = back(&req.primary);
    Connection {
        state: CmState::Idle,
        active: false,
        service_id: req.service_id,
        transport: req.transport,
        path,
        alternate: req.alternate.as_ref().map(back),
        remote_comm_id: req.local_comm_id,
        remote_ca_guid: req.local_ca_guid,
        remote_qpn: req.local_qpn,
        remote_qkey: req.local_qkey,
        send_psn: req.starting_psn,
        // Set before the reply, because the QP may go to RTR before that. The PSN is the same in
        // both directions unless the reply has another one.
        receive_psn: req.starting_psn,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        ack_timeout: req.primary.ack_timeout,
        srq: req.srq,
        ..Connection::default()
    }
}
