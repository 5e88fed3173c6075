//! Other alternate paths for an established connection, LAP and APR, and MRA, which asks for more
//! time. The paths that REQ and REP agree on are not handled here. Adds to [`Cm`]. IBA 12.8,
//! 12.6.6.

use super::entry::{Suggested, span};
use super::error::{Dropped, Error};
use super::event::Kind;
use super::messages::{fit, fit_info};
use super::origin::{Origin, Path};
use super::params::Suggestion;
use super::state::{CmState, PathState};
use super::{Attribute, Cm, Id};
use crate::time::Time;
use wire::cm::{Apr, AprStatus, Data, Lap, Message, Mra, Mraed};
use wire::mad::{Header, Mad};

impl Cm {
    /// Sends MRA: the answer to the peer's REQ, REP or LAP takes longer, up to `service_timeout` (a
    /// code of 5 bits).
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 222 bytes.
    pub fn mra(&mut self, id: Id, service_timeout: u8, private_data: &[u8]) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let private_data = fit(Attribute::Mra, private_data)?;
        self.ask_for_time(index, service_timeout, private_data).ok_or_else(|| self.misplaced(index, "MRA"))
    }

    /// Sends MRA if the peer waits for an answer and has not got an MRA yet.
    pub(super) fn ask_for_time(&mut self, index: u32, service_timeout: u8, private_data: Data<222>) -> Option<()> {
        let entry = self.table.entry(index);
        let (message, next) = match (entry.facts.state, entry.path_state) {
            (CmState::ReqRcvd, _) => (Mraed::Req, CmState::MraReqSent),
            (CmState::RepRcvd, _) => (Mraed::Rep, CmState::MraRepSent),
            (CmState::Established, PathState::LapRcvd) => (Mraed::Lap, CmState::Established),
            _ => return None,
        };
        let (local_comm_id, remote_comm_id) = (entry.facts.local_comm_id, entry.facts.remote_comm_id);
        let mra = Message::Mra(Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data });
        if message == Mraed::Lap {
            self.say_of_path(index, &mra, PathState::MraLapSent);
        } else {
            self.say(index, &mra, 0);
            self.table.enter(index, next, None);
        }
        Some(())
    }

    /// The peer repeats a message about which the user has not decided: answers with MRA if
    /// configured.
    pub(super) fn answer_repetition(&mut self, index: u32) {
        if self.config.patience != 0 {
            let _ = self.ask_for_time(index, self.config.patience, Data::default());
        }
    }

    /// Handles an MRA.
    pub(super) fn on_mra(&mut self, now: Time, origin: &Origin, mra: &Mra) -> Result<(), Dropped> {
        let message = Attribute::Mra;
        let index = self.connection_of(origin, message, mra.remote_comm_id, mra.local_comm_id)?;
        let entry = self.table.entry_mut(index);
        let patience = span(mra.service_timeout) + 2 * span(entry.facts.path.packet_life);
        let deadline = Some(now.after(patience.max(entry.interval)));
        match (entry.facts.state, entry.path_state, mra.message) {
            (CmState::ReqSent, _, Mraed::Req) => self.table.enter(index, CmState::MraReqRcvd, deadline),
            (CmState::RepSent, _, Mraed::Rep) => self.table.enter(index, CmState::MraRepRcvd, deadline),
            (CmState::Established, PathState::LapSent, Mraed::Lap) => {
                entry.path_state = PathState::MraLapRcvd;
                self.table.arm(index, deadline);
            }
            (CmState::MraReqRcvd, _, Mraed::Req)
            | (CmState::MraRepRcvd, _, Mraed::Rep)
            | (CmState::Established, PathState::MraLapRcvd, Mraed::Lap) => return Err(Dropped::Repeated { message }),
            (state, ..) => return Err(Dropped::Unexpected { message, state }),
        }
        self.tell(index, Kind::Later(*mra));
        Ok(())
    }

    /// Suggests another alternate path for an established connection: sends LAP. After that comes
    /// [`Kind::PathAnswered`] or [`Kind::TimedOut`]. Only the active side may suggest a path.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 168 bytes.
    pub fn load_path(&mut self, now: Time, id: Id, suggestion: &Suggestion<'_>) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let entry = self.table.entry(index);
        let facts = &entry.facts;
        if facts.state != CmState::Established || entry.path_state != PathState::Idle || !facts.active {
            return Err(self.misplaced(index, "LAP"));
        }
        let lap = Lap {
            local_comm_id: facts.local_comm_id,
            remote_comm_id: facts.remote_comm_id,
            remote_qpn: facts.remote_qpn,
            remote_response_timeout: suggestion.remote_response_timeout,
            alternate: suggestion.path.info(suggestion.ack_timeout),
            private_data: fit(Attribute::Lap, suggestion.private_data)?,
        };
        let transaction = self.begin_transaction(index);
        let entry = self.table.entry_mut(index);
        entry.suggested = Some(Box::new(Suggested {
            transaction,
            info: lap.alternate,
            packet_life: suggestion.path.packet_life,
            said: None,
        }));
        entry.set_interval(suggestion.remote_response_timeout);
        entry.retries = entry.max_retries;
        let deadline = now.after(entry.interval);
        self.table.arm(index, Some(deadline));
        self.say_of_path(index, &Message::Lap(lap), PathState::LapSent);
        Ok(())
    }

    /// Answers [`Kind::PathSuggested`]: sends APR. With [`AprStatus::LOADED`], the suggested path
    /// becomes the alternate path.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 148 bytes, or 72 of
    /// `info`.
    pub fn answer_path(&mut self, id: Id, status: AprStatus, info: &[u8], private: &[u8]) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let entry = self.table.entry(index);
        if !matches!(entry.path_state, PathState::LapRcvd | PathState::MraLapSent) {
            return Err(self.misplaced(index, "APR"));
        }
        let (info, info_len) = fit_info(Attribute::Apr, info)?;
        let apr = Apr {
            local_comm_id: entry.facts.local_comm_id,
            remote_comm_id: entry.facts.remote_comm_id,
            info_len,
            status,
            info,
            private_data: fit(Attribute::Apr, private)?,
        };
        if status == AprStatus::LOADED {
            let entry = self.table.entry_mut(index);
            let facts = &mut entry.facts;
            let back = |suggested: &Suggested| Path::back(&suggested.info, facts.path.pkey, facts.path.mtu);
            facts.alternate = entry.suggested.as_deref().map(back);
        }
        self.say_of_path(index, &Message::Apr(apr), PathState::Idle);
        Ok(())
    }

    /// Handles a LAP.
    pub(super) fn on_lap(&mut self, origin: &Origin, header: &Header, lap: &Lap) -> Result<(), Dropped> {
        let message = Attribute::Lap;
        let index = match self.connection_of(origin, message, lap.remote_comm_id, lap.local_comm_id) {
            Ok(index) => index,
            Err(foreign @ Dropped::Foreign { .. }) => return Err(foreign),
            Err(dropped) => {
                self.refuse_path(origin, header, lap, AprStatus::INVALID_COMM_ID);
                return Err(dropped);
            }
        };
        let entry = self.table.entry_mut(index);
        if lap.remote_qpn != entry.facts.local_qpn {
            self.refuse_path(origin, header, lap, AprStatus::INVALID_QPN);
            return Err(Dropped::Mismatch { message, comm_id: lap.remote_comm_id });
        }
        if entry.facts.state != CmState::Established || entry.facts.active {
            return Err(Dropped::Unexpected { message, state: entry.facts.state });
        }
        if entry.suggested.as_ref().is_some_and(|suggested| suggested.transaction == header.transaction) {
            self.repeat_of_path(index);
            return Err(Dropped::Repeated { message });
        }
        if entry.path_state != PathState::Idle {
            return Err(Dropped::Unexpected { message, state: CmState::Established });
        }
        let (transaction, info) = (header.transaction, lap.alternate);
        let current = &entry.facts.path;
        let is_current = (info.remote_gid, info.local_gid) == (current.sgid, current.dgid);
        let (local_comm_id, remote_comm_id) = (entry.facts.local_comm_id, entry.facts.remote_comm_id);
        entry.suggested = Some(Box::new(Suggested { transaction, info, packet_life: 0, said: None }));
        entry.path_state = PathState::LapRcvd;
        if is_current {
            let apr = Apr { local_comm_id, remote_comm_id, status: AprStatus::IS_CURRENT, ..Apr::default() };
            self.say_of_path(index, &Message::Apr(apr), PathState::Idle);
        } else {
            self.tell(index, Kind::PathSuggested(*lap));
        }
        Ok(())
    }

    /// Refuses a suggestion for a connection that does not exist, or that has another queue pair.
    fn refuse_path(&mut self, origin: &Origin, header: &Header, lap: &Lap, status: AprStatus) {
        let (local_comm_id, remote_comm_id) = (lap.remote_comm_id, lap.local_comm_id);
        let apr = Apr { local_comm_id, remote_comm_id, status, ..Apr::default() };
        self.answer(origin, header.transaction, &Message::Apr(apr));
    }

    /// Handles an APR.
    pub(super) fn on_apr(&mut self, origin: &Origin, header: &Header, apr: &Apr) -> Result<(), Dropped> {
        let message = Attribute::Apr;
        let index = self.connection_of(origin, message, apr.remote_comm_id, apr.local_comm_id)?;
        let entry = self.table.entry_mut(index);
        let waits = matches!(entry.path_state, PathState::LapSent | PathState::MraLapRcvd);
        let ours = entry.suggested.take_if(|suggested| waits && suggested.transaction == header.transaction);
        let Some(suggested) = ours else {
            return Err(Dropped::Unexpected { message, state: entry.facts.state });
        };
        if apr.status == AprStatus::LOADED {
            let Suggested { info, packet_life, .. } = *suggested;
            let path = &entry.facts.path;
            let back = Path::back(&info, path.pkey, path.mtu);
            entry.facts.alternate = Some(Path {
                sgid: info.local_gid,
                dgid: info.remote_gid,
                slid: back.dlid,
                dlid: back.slid,
                packet_life,
                ..back
            });
        }
        entry.path_state = PathState::Idle;
        self.table.arm(index, None);
        self.tell(index, Kind::PathAnswered(*apr));
        Ok(())
    }

    /// Sends a message about the suggested path, and keeps it for repetition. RTU stays the
    /// connection's last message.
    fn say_of_path(&mut self, index: u32, message: &Message, next: PathState) {
        let entry = self.table.entry_mut(index);
        entry.path_state = next;
        if let Some(suggested) = &mut entry.suggested {
            suggested.said = Some(message.emit(suggested.transaction, 0));
        }
        self.repeat_of_path(index);
    }

    /// Repeats the last message about the suggested path.
    pub(super) fn repeat_of_path(&mut self, index: u32) {
        let entry = self.table.entry(index);
        let said: Option<Mad> = entry.suggested.as_ref().and_then(|suggested| suggested.said);
        if let Some(mad) = said {
            let (path, owner) = (entry.facts.path, entry.owner);
            self.send(path, mad, owner);
        }
    }
}
