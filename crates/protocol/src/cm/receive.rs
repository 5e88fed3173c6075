//! Incoming datagrams: which message each one is, and to which id it belongs. Adds to [`Cm`]. How
//! each message is handled is in the file of the side that receives it.

use super::error::Dropped;
use super::origin::Origin;
use super::{Attribute, Cm, Mad};
use crate::time::Time;
use wire::cm::Message;

impl Cm {
    /// Handles a datagram for QP 1 from `origin`. A datagram that is not a CM message is
    /// [`Dropped::Malformed`].
    ///
    /// # Errors
    /// Why it was dropped. An answer may still be sent: the last message again, or a REJ to a REP
    /// that no connection waits for.
    pub fn on_mad(&mut self, now: Time, origin: &Origin, mad: &Mad) -> Result<(), Dropped> {
        let (header, message) = match Message::parse(mad) {
            Ok(parsed) => parsed,
            Err(error) => {
                if matches!(error, wire::Error::CmVersion(_)) {
                    self.on_other_version(origin, mad);
                }
                return Err(Dropped::Malformed(error));
            }
        };
        let ece = message.ece(&header);
        match &message {
            Message::Req(req) => self.on_req(now, origin, &header, req, ece),
            Message::Mra(mra) => self.on_mra(now, origin, mra),
            Message::Rej(rej) => self.on_rej(now, origin, rej),
            Message::Rep(rep) => self.on_rep(now, origin, &header, rep, ece),
            Message::Rtu(rtu) => self.on_rtu(origin, rtu),
            Message::Dreq(dreq) => self.on_dreq(now, origin, &header, dreq),
            Message::Drep(drep) => self.on_drep(now, origin, drep),
            Message::SidrReq(req) => self.on_sidr_req(origin, &header, req),
            Message::SidrRep(rep) => self.on_sidr_rep(origin, rep, ece),
            Message::Lap(lap) => self.on_lap(origin, &header, lap),
            Message::Apr(apr) => self.on_apr(origin, &header, apr),
        }
    }

    /// The connection of a message. The message must have both of the connection's numbers, and
    /// come from its peer.
    pub(super) fn connection_of(
        &self,
        origin: &Origin,
        message: Attribute,
        comm_id: u32,
        remote_comm_id: u32,
    ) -> Result<u32, Dropped> {
        let index = self.table.find(comm_id).ok_or(Dropped::Unknown { message, comm_id })?;
        let entry = self.table.entry(index);
        if !entry.is_from(origin) {
            return Err(Dropped::Foreign { message, comm_id, from: origin.source });
        }
        if entry.knows_remote() && entry.facts.remote_comm_id != remote_comm_id {
            return Err(Dropped::Mismatch { message, comm_id });
        }
        Ok(index)
    }
}
