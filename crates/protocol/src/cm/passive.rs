//! The passive side: REP, the handling of RTU. Adds to [`Cm`]; the handling of REQ is in
//! [`super::incoming`]. IBA 12.9.6 (passive states).

use super::error::{Dropped, Error};
use super::event::Kind;
use super::messages::fit;
use super::origin::Origin;
use super::params::Reply;
use super::state::CmState;
use super::{Attribute, Cm, Id, TransportType};
use crate::time::Time;
use wire::cm::{Message, Rep, Rtu};

impl Cm {
    /// Accepts an incoming request: sends REP, and repeats it until RTU or data come, or the
    /// retries are used up. After that comes [`Kind::Established`], [`Kind::Rejected`] or
    /// [`Kind::TimedOut`].
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 196 bytes.
    pub fn reply(&mut self, now: Time, id: Id, reply: &Reply<'_>) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let entry = self.table.entry(index);
        if !matches!(entry.facts.state, CmState::ReqRcvd | CmState::MraReqSent) {
            return Err(self.misplaced(index, "REP"));
        }
        let private_data = fit(Attribute::Rep, reply.private_data)?;
        let mut rep = Rep {
            local_comm_id: entry.facts.local_comm_id,
            remote_comm_id: entry.facts.remote_comm_id,
            local_qkey: reply.qkey,
            local_qpn: reply.qpn,
            vendor_id: reply.ece.vendor_id,
            local_eecn: 0,
            starting_psn: reply.psn,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            target_ack_delay: reply.target_ack_delay,
            failover_accepted: reply.failover_accepted,
            flow_control: reply.flow_control,
            rnr_retry_count: reply.rnr_retry_count,
            srq: reply.srq,
            local_ca_guid: reply.ca_guid,
            private_data,
        };
        // For an XRC connection, the target's queue pair takes the field of the RD end-to-end
        // context.
        if entry.facts.transport == TransportType::Xrc {
            rep = Rep { local_eecn: reply.qpn.value(), local_qpn: wire::Qpn::default(), srq: true, ..rep };
        }
        let entry = self.table.entry_mut(index);
        entry.ca_guid = reply.ca_guid;
        entry.facts.local_qpn = reply.qpn;
        entry.facts.receive_psn = reply.psn;
        entry.facts.responder_resources = reply.responder_resources;
        entry.facts.initiator_depth = reply.initiator_depth;
        if reply.failover_accepted != 0 {
            entry.facts.alternate = None;
        }
        self.say(index, &Message::Rep(rep), reply.ece.options);
        self.await_answer(now, index, CmState::RepSent);
        Ok(())
    }

    /// Data came before the RTU, so the peer is ready: the connection is established, and
    /// [`Kind::Established`] follows. IBA 12.9.7.2 calls this the communication-established event.
    ///
    /// # Errors
    /// [`Error::Stale`]; [`Error::State`], also if the connection is already established.
    pub fn established_by_data(&mut self, id: Id) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        if !matches!(self.table.entry(index).facts.state, CmState::RepSent | CmState::MraRepRcvd) {
            return Err(self.misplaced(index, "the end of waiting for RTU"));
        }
        self.established(index, Kind::Established { private_data: None });
        Ok(())
    }

    /// Handles an RTU.
    pub(super) fn on_rtu(&mut self, origin: &Origin, rtu: &Rtu) -> Result<(), Dropped> {
        let message = Attribute::Rtu;
        let index = self.connection_of(origin, message, rtu.remote_comm_id, rtu.local_comm_id)?;
        match self.table.entry(index).facts.state {
            CmState::RepSent | CmState::MraRepRcvd => {
                self.established(index, Kind::Established { private_data: Some(rtu.private_data) });
                Ok(())
            }
            CmState::Established => Err(Dropped::Repeated { message }),
            state => Err(Dropped::Unexpected { message, state }),
        }
    }

    fn established(&mut self, index: u32, kind: Kind) {
        self.table.enter(index, CmState::Established, None);
        self.table.entry_mut(index).last = None;
        self.tell(index, kind);
    }
}
