//! The active side: REQ, the handling of REP, RTU. Adds to [`Cm`]; the passive side is in
//! [`super::passive`]. IBA 12.9.5 (active states).

use super::entry::{CmEntry, sum_of_timeout_codes};
use super::error::{Dropped, Error};
use super::event::Kind;
use super::messages::fit;
use super::origin::Origin;
use super::params::{Connection, Request};
use super::state::CmState;
use super::{Attribute, Cm, Ece, Id, Reason, TransportType};
use crate::time::Time;
use wire::cm::{Message, Rej, Rejected, Rep, Req, Rtu};
use wire::mad::Header;

impl Cm {
    /// Requests a connection: sends REQ, and repeats it until the peer answers or the retries are
    /// used up. After that comes [`Kind::Agreed`], [`Kind::Rejected`] or [`Kind::TimedOut`].
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::PrivateData`] beyond 92 bytes.
    pub fn request(&mut self, now: Time, request: &Request<'_>) -> Result<Id, Error> {
        let private_data = fit(Attribute::Req, request.private_data)?;
        let mut entry = CmEntry::new(Connection {
            active: true,
            service_id: request.service_id,
            transport: request.transport,
            path: request.path,
            alternate: request.alternate,
            local_qpn: request.qpn,
            receive_psn: request.psn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            ..Connection::default()
        });
        entry.owner = request.owner;
        entry.ca_guid = request.ca_guid;
        entry.max_retries = request.max_cm_retries.min(15);
        entry.set_interval(request.remote_response_timeout);
        let index = self.table.insert(entry).ok_or(Error::Full)?;
        self.begin_transaction(index);
        let req = Req {
            local_comm_id: self.table.entry(index).facts.local_comm_id,
            vendor_id: request.ece.vendor_id,
            service_id: request.service_id,
            local_ca_guid: request.ca_guid,
            local_qkey: request.qkey,
            local_qpn: request.qpn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            remote_response_timeout: request.remote_response_timeout,
            transport: request.transport,
            flow_control: request.flow_control,
            starting_psn: request.psn,
            local_response_timeout: request.local_response_timeout,
            retry_count: request.retry_count,
            pkey: request.path.pkey,
            mtu: request.path.mtu,
            rnr_retry_count: request.rnr_retry_count,
            max_cm_retries: request.max_cm_retries.min(15),
            srq: request.srq,
            primary: request.path.info(request.ack_timeout),
            alternate: request.alternate.map(|path| path.info(request.ack_timeout)),
            private_data,
            ..Req::default()
        };
        self.say(index, &Message::Req(req), request.ece.options);
        self.await_answer(now, index, CmState::ReqSent);
        Ok(self.table.id(index))
    }

    /// Accepts the peer's REP: sends RTU, and the connection is established.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 224 bytes.
    pub fn ready(&mut self, id: Id, private_data: &[u8]) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let facts = &self.table.entry(index).facts;
        if !matches!(facts.state, CmState::RepRcvd | CmState::MraRepSent) {
            return Err(self.misplaced(index, "RTU"));
        }
        let rtu = Rtu {
            local_comm_id: facts.local_comm_id,
            remote_comm_id: facts.remote_comm_id,
            private_data: fit(Attribute::Rtu, private_data)?,
        };
        self.say(index, &Message::Rtu(rtu), 0);
        self.table.enter(index, CmState::Established, None);
        Ok(())
    }

    /// Handles a REP.
    pub(super) fn on_rep(
        &mut self,
        now: Time,
        origin: &Origin,
        header: &Header,
        rep: &Rep,
        ece: Ece,
    ) -> Result<(), Dropped> {
        let message = Attribute::Rep;
        let comm_id = rep.remote_comm_id;
        let Some(index) = self.table.find(comm_id) else {
            self.reject_rep(origin, header, rep, Reason::INVALID_COMM_ID);
            return Err(Dropped::Unknown { message, comm_id });
        };
        let entry = self.table.entry(index);
        let facts = &entry.facts;
        if !entry.is_from(origin) {
            return Err(Dropped::Foreign { message, comm_id, from: origin.source });
        }
        if !facts.active {
            return Err(Dropped::Mismatch { message, comm_id });
        }
        if entry.knows_remote() && facts.remote_comm_id != rep.local_comm_id {
            // Two REPs answer one REQ: the peer restarted in between. The second REP is rejected.
            self.reject_rep(origin, header, rep, Reason::INVALID_COMM_INSTANCE);
            return Err(Dropped::Mismatch { message, comm_id });
        }
        let repeated = Dropped::Repeated { message };
        match facts.state {
            CmState::ReqSent | CmState::MraReqRcvd => self.agreed(now, index, origin, header, rep, ece),
            CmState::RepRcvd => {
                self.answer_repetition(index);
                Err(repeated)
            }
            // The last message was MRA or RTU.
            CmState::MraRepSent | CmState::Established => {
                self.repeat(index);
                Err(repeated)
            }
            // This side has rejected the REP, and the peer has not received the REJ.
            CmState::Idle | CmState::TimeWait if self.said(index, Attribute::Rej) => {
                self.repeat(index);
                Err(repeated)
            }
            CmState::Idle | CmState::TimeWait => {
                let state = facts.state;
                self.reject_rep(origin, header, rep, Reason::INVALID_COMM_ID);
                Err(Dropped::Unexpected { message, state })
            }
            state => Err(Dropped::Unexpected { message, state }),
        }
    }

    /// Handles the first REP.
    fn agreed(
        &mut self,
        now: Time,
        index: u32,
        origin: &Origin,
        header: &Header,
        rep: &Rep,
        ece: Ece,
    ) -> Result<(), Dropped> {
        let entry = self.table.entry_mut(index);
        entry.transaction = header.transaction;
        let facts = &mut entry.facts;
        facts.remote_comm_id = rep.local_comm_id;
        facts.remote_ca_guid = rep.local_ca_guid;
        facts.remote_qpn = match facts.transport {
            TransportType::Xrc => wire::Qpn::new(rep.local_eecn),
            _ => rep.local_qpn,
        };
        facts.remote_qkey = rep.local_qkey;
        facts.send_psn = rep.starting_psn;
        // We start no more READs and atomics than the peer can answer. The peer knows our own
        // limit.
        facts.initiator_depth = facts.initiator_depth.min(rep.responder_resources);
        facts.responder_resources = facts.responder_resources.min(rep.initiator_depth);
        facts.rnr_retry_count = rep.rnr_retry_count;
        facts.ack_timeout = sum_of_timeout_codes(facts.ack_timeout, rep.target_ack_delay);
        facts.srq = rep.srq;
        if rep.failover_accepted != 0 {
            facts.alternate = None;
        }
        self.table.enter(index, CmState::RepRcvd, None);
        let key = self.table.entry(index).qpn_key();
        if let Some(stale) = self.table.find_key(&key) {
            self.reject_rep(origin, header, rep, Reason::STALE_CONNECTION);
            self.tell(index, Kind::Rejected(Rej { message: Rejected::Rep, ..Rej::new(Reason::STALE_CONNECTION) }));
            self.idle(index);
            self.forgotten(now, stale);
            return Err(Dropped::Rejected { message: Attribute::Rep, reason: Reason::STALE_CONNECTION });
        }
        self.table.link_qpn(index);
        self.tell(index, Kind::Agreed { rep: *rep, ece });
        Ok(())
    }

    /// Rejects a REP that no connection waits for.
    fn reject_rep(&mut self, origin: &Origin, header: &Header, rep: &Rep, reason: Reason) {
        let (local_comm_id, remote_comm_id) = (rep.remote_comm_id, rep.local_comm_id);
        let rej = Rej { local_comm_id, remote_comm_id, message: Rejected::Rep, ..Rej::new(reason) };
        self.answer(origin, header.transaction, &Message::Rej(rej));
    }
}
