//! Datagram services (SIDR): which queue pair serves a service id. Connections are not handled
//! here. Adds to [`Cm`]. IBA 12.11.

use super::entry::{CmEntry, Key};
use super::error::{Dropped, Error};
use super::event::Kind;
use super::messages::{fit, fit_info};
use super::origin::Origin;
use super::params::{Connection, SidrReply, SidrRequest};
use super::state::CmState;
use super::{Attribute, Cm, Ece, Id};
use crate::time::Time;
use wire::cm::{Message, SidrRep, SidrReq};
use wire::mad::Header;

/// A SIDR_REQ does not say how long its sender may repeat it. This side assumes a response timeout
/// of about four seconds.
const ECHO: u8 = 20;

impl Cm {
    /// Asks which queue pair serves a service id with datagrams. Sends SIDR_REQ, and repeats it
    /// until [`Kind::SidrAnswered`] or [`Kind::TimedOut`].
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::PrivateData`] beyond 216 bytes.
    pub fn sidr_request(&mut self, now: Time, request: &SidrRequest<'_>) -> Result<Id, Error> {
        let private_data = fit(Attribute::SidrReq, request.private_data)?;
        let mut entry = CmEntry::new(Connection {
            active: true,
            service_id: request.service_id,
            path: request.path,
            ..Connection::default()
        });
        entry.owner = request.owner;
        entry.max_retries = request.max_cm_retries.min(15);
        entry.set_interval(request.remote_response_timeout);
        let index = self.table.insert(entry).ok_or(Error::Full)?;
        self.begin_transaction(index);
        let req = SidrReq {
            request_id: self.table.entry(index).facts.local_comm_id,
            pkey: request.path.pkey,
            service_id: request.service_id,
            private_data,
        };
        self.say(index, &Message::SidrReq(req), 0);
        self.await_answer(now, index, CmState::SidrReqSent);
        Ok(self.table.id(index))
    }

    /// Answers [`Kind::SidrIncoming`], also to decline: sends SIDR_REP. The id then has nothing
    /// more to do. A repeated SIDR_REQ gets the same answer for a while.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 136 bytes, or 72 of
    /// `info`.
    pub fn sidr_reply(&mut self, now: Time, id: Id, reply: &SidrReply<'_>) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let entry = self.table.entry_mut(index);
        if entry.facts.state != CmState::SidrReqRcvd {
            return Err(self.misplaced(index, "SIDR_REP"));
        }
        let (info, info_len) = fit_info(Attribute::SidrRep, reply.info)?;
        let private_data = fit(Attribute::SidrRep, reply.private_data)?;
        entry.facts.local_qpn = reply.qpn;
        let rep = SidrRep {
            request_id: entry.facts.remote_comm_id,
            status: reply.status,
            info_len,
            vendor_id: reply.ece.vendor_id,
            qpn: reply.qpn,
            service_id: entry.facts.service_id,
            qkey: reply.qkey,
            info,
            private_data,
        };
        self.say(index, &Message::SidrRep(rep), reply.ece.options);
        self.rest(now, index, CmState::SidrAnswered);
        Ok(())
    }

    /// Handles a SIDR_REQ.
    pub(super) fn on_sidr_req(&mut self, origin: &Origin, header: &Header, req: &SidrReq) -> Result<(), Dropped> {
        let message = Attribute::SidrReq;
        if let Some(index) = self.table.find_key(&Key::question(req.request_id, origin.source)) {
            let entry = self.table.entry(index);
            let facts = &entry.facts;
            let same = entry.transaction == header.transaction && facts.service_id == req.service_id;
            match facts.state {
                CmState::SidrAnswered if !same => self.idle(index),
                _ if !same => return Err(Dropped::Mismatch { message, comm_id: req.request_id }),
                _ => {
                    self.repeat(index);
                    return Err(Dropped::Repeated { message });
                }
            }
        }
        let counts = self.table.counts();
        if counts.undecided >= self.config.undecided as usize || self.table.is_full() {
            return Err(Dropped::Full { message, held: counts.undecided });
        }
        let mut path = origin.back();
        path.pkey = req.pkey;
        let mut entry = CmEntry::new(Connection {
            service_id: req.service_id,
            path,
            remote_comm_id: req.request_id,
            ..Connection::default()
        });
        entry.transaction = header.transaction;
        entry.set_echo(ECHO);
        let index = self.table.insert(entry).ok_or(Dropped::Full { message, held: counts.ids })?;
        self.table.enter(index, CmState::SidrReqRcvd, None);
        self.table.link_number(index);
        self.tell(index, Kind::SidrIncoming { req: *req, origin: *origin });
        Ok(())
    }

    /// Handles a SIDR_REP.
    pub(super) fn on_sidr_rep(&mut self, origin: &Origin, rep: &SidrRep, ece: Ece) -> Result<(), Dropped> {
        let message = Attribute::SidrRep;
        let comm_id = rep.request_id;
        let index = self.table.find(comm_id).ok_or(Dropped::Unknown { message, comm_id })?;
        let entry = self.table.entry_mut(index);
        if !entry.is_from(origin) {
            return Err(Dropped::Foreign { message, comm_id, from: origin.source });
        }
        if entry.facts.state != CmState::SidrReqSent {
            return Err(Dropped::Unexpected { message, state: entry.facts.state });
        }
        entry.facts.remote_qpn = rep.qpn;
        entry.facts.remote_qkey = rep.qkey;
        self.tell(index, Kind::SidrAnswered { rep: *rep, ece });
        self.idle(index);
        Ok(())
    }
}
