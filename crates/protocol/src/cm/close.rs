//! How connections end or fail to begin: REJ, MRA timeouts, DREQ, DREP, the time-wait that follows,
//! and ids that are destroyed. Adds to [`Cm`]. IBA 12.9.7, 12.9.8.

use super::entry::Key;
use super::error::{Dropped, Error};
use super::event::Kind;
use super::messages::{fit, fit_info};
use super::origin::Origin;
use super::params::SidrReply;
use super::state::{CmState, PathState};
use super::{Attribute, Cm, Id, Reason};
use crate::time::Time;
use wire::cm::{Data, Drep, Dreq, Message, Rej, SidrStatus};
use wire::mad::Header;

impl Cm {
    /// Sends REJ. Rejects the peer's REQ or REP, or withdraws our own REP or REQ. For our own REQ,
    /// the reason is always [`Reason::TIMEOUT`]. A repeated REQ gets the same answer for a while.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 148 bytes, or 72 of
    /// `info`.
    pub fn reject(&mut self, now: Time, id: Id, reason: Reason, info: &[u8], private: &[u8]) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        let state = self.table.entry(index).facts.state;
        let (info, info_len) = fit_info(Attribute::Rej, info)?;
        let private_data = fit(Attribute::Rej, private)?;
        let rej = Rej { info, info_len, private_data, ..self.rejection(index, reason) };
        match state {
            CmState::ReqRcvd | CmState::MraReqSent => {
                self.say(index, &Message::Rej(rej), 0);
                // A repeated REQ to a service id without a listener is rejected again anyway, so no
                // entry is needed.
                if reason == Reason::INVALID_SERVICE_ID {
                    self.idle(index)
                } else {
                    self.rest(now, index, CmState::Declined)
                }
            }
            CmState::ReqSent | CmState::MraReqRcvd => {
                self.reject_for_time(index);
                self.idle(index);
            }
            CmState::RepRcvd | CmState::MraRepSent => {
                self.say(index, &Message::Rej(rej), 0);
                self.idle_but_heard(index);
            }
            CmState::RepSent | CmState::MraRepRcvd => {
                self.say(index, &Message::Rej(rej), 0);
                self.rest(now, index, CmState::TimeWait);
            }
            _ => return Err(self.misplaced(index, "REJ")),
        }
        Ok(())
    }

    /// Drops an incoming request and its id without an answer. The peer repeats the request, as
    /// with a full backlog.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`].
    pub fn forget(&mut self, id: Id) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        if !self.table.entry(index).facts.state.is_undecided() {
            return Err(self.misplaced(index, "forgetting a request"));
        }
        self.table.remove(index);
        Ok(())
    }

    /// Ends an established connection. Sends DREQ, and repeats it until DREP comes
    /// ([`Kind::Disconnected`]) or the retries are used up ([`Kind::TimedOut`]). If the peer's DREQ
    /// came first, sends DREP. Then the id rests until [`Kind::Rested`].
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::State`]; [`Error::PrivateData`] beyond 220 bytes.
    pub fn disconnect(&mut self, now: Time, id: Id, private_data: &[u8]) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        match self.table.entry(index).facts.state {
            CmState::Established => {
                let private_data = fit(Attribute::Dreq, private_data)?;
                self.ask_for_end(now, index, private_data);
                Ok(())
            }
            CmState::DreqRcvd => {
                fit::<220>(Attribute::Drep, private_data)?;
                let private_data = fit(Attribute::Drep, private_data)?;
                self.agree_to_end(now, index, private_data);
                Ok(())
            }
            _ => Err(self.misplaced(index, "DREQ")),
        }
    }

    /// Destroys an id. Unfinished work ends as the specification asks: with REJ for a connection
    /// that is requested or not yet agreed, with DREQ (repeated until its answer) for an
    /// established connection, and with a declining SIDR_REP for a SIDR request. The time-wait is
    /// kept.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn destroy(&mut self, now: Time, id: Id) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        match self.table.entry(index).facts.state {
            CmState::SidrReqSent => self.idle(index),
            CmState::ReqSent
            | CmState::MraReqRcvd
            | CmState::ReqRcvd
            | CmState::MraReqSent
            | CmState::RepRcvd
            | CmState::MraRepSent
            | CmState::RepSent
            | CmState::MraRepRcvd => {
                self.reject(now, id, Reason::CONSUMER_DEFINED, &[], &[])?;
            }
            CmState::SidrReqRcvd => {
                let declined = SidrReply { status: SidrStatus::REJECTED, ..SidrReply::default() };
                self.sidr_reply(now, id, &declined)?;
            }
            CmState::Established => self.ask_for_end(now, index, Data::default()),
            CmState::DreqRcvd => self.agree_to_end(now, index, Data::default()),
            CmState::Idle | CmState::DreqSent | CmState::TimeWait | CmState::Declined | CmState::SidrAnswered => {}
        }
        let entry = self.table.entry_mut(index);
        entry.orphan = true;
        if entry.facts.state == CmState::Idle {
            self.table.remove(index);
        }
        Ok(())
    }

    /// Handles a REJ.
    pub(super) fn on_rej(&mut self, now: Time, origin: &Origin, rej: &Rej) -> Result<(), Dropped> {
        let message = Attribute::Rej;
        let index = match self.rejected_by_adapter(origin, rej) {
            Some(index) => index,
            None => self.connection_of(origin, message, rej.remote_comm_id, rej.local_comm_id)?,
        };
        let state = self.table.entry(index).facts.state;
        match state {
            CmState::ReqSent | CmState::MraReqRcvd | CmState::RepRcvd | CmState::MraRepSent => {
                self.tell(index, Kind::Rejected(*rej));
                self.idle(index);
            }
            // The peer no longer wants our answer. The id rests, so that a late repetition of the
            // REQ does not look like a new REQ.
            CmState::ReqRcvd | CmState::MraReqSent | CmState::RepSent | CmState::MraRepRcvd => {
                self.tell(index, Kind::Rejected(*rej));
                self.table.entry_mut(index).last = None;
                self.rest(now, index, CmState::Declined);
            }
            CmState::Established => {
                self.tell(index, Kind::Rejected(*rej));
                self.rest(now, index, CmState::TimeWait);
            }
            CmState::DreqSent => {
                self.tell(index, Kind::Disconnected { private_data: None });
                self.rest(now, index, CmState::TimeWait);
            }
            state => return Err(Dropped::Unexpected { message, state }),
        }
        Ok(())
    }

    /// Finds the id for a REJ with reason timeout from a peer that never learned our communication
    /// id. Such a REJ contains the GUID of the peer's adapter and the peer's own communication id.
    pub(super) fn rejected_by_adapter(&self, origin: &Origin, rej: &Rej) -> Option<u32> {
        let ca_guid = rej.told().first_chunk::<8>()?;
        if rej.reason != Reason::TIMEOUT || rej.remote_comm_id != 0 {
            return None;
        }
        self.table.find_key(&Key::number(rej.local_comm_id, u64::from_be_bytes(*ca_guid), origin.source))
    }

    /// Sends REJ with reason timeout. It names our adapter, because the peer's number may not be
    /// known.
    pub(super) fn reject_for_time(&mut self, index: u32) {
        let ca_guid = self.table.entry(index).ca_guid.to_be_bytes();
        let info = Data::new(&ca_guid).unwrap_or_default();
        let rej = Rej { info, info_len: 8, ..self.rejection(index, Reason::TIMEOUT) };
        self.say(index, &Message::Rej(rej), 0);
    }

    /// Handles a DREQ.
    pub(super) fn on_dreq(&mut self, now: Time, origin: &Origin, header: &Header, dreq: &Dreq) -> Result<(), Dropped> {
        let message = Attribute::Dreq;
        let comm_id = dreq.remote_comm_id;
        let index = match self.connection_of(origin, message, comm_id, dreq.local_comm_id) {
            Ok(index) => index,
            Err(foreign @ Dropped::Foreign { .. }) => return Err(foreign),
            // The connection has ended here already, or never existed. DREP tells the peer so.
            Err(dropped) => {
                let (local_comm_id, remote_comm_id) = (dreq.remote_comm_id, dreq.local_comm_id);
                let drep = Drep { local_comm_id, remote_comm_id, private_data: Data::default() };
                self.answer(origin, header.transaction, &Message::Drep(drep));
                return Err(dropped);
            }
        };
        let entry = self.table.entry_mut(index);
        let state = entry.facts.state;
        if dreq.remote_qpn != entry.facts.local_qpn {
            return Err(Dropped::Mismatch { message, comm_id });
        }
        match state {
            CmState::RepSent | CmState::MraRepRcvd | CmState::RepRcvd | CmState::MraRepSent | CmState::Established => {
                entry.transaction = header.transaction;
                self.stop_suggesting(index);
                self.table.enter(index, CmState::DreqRcvd, None);
                self.table.entry_mut(index).last = None;
                self.tell(index, Kind::DisconnectWanted(*dreq));
            }
            // Both sides sent DREQ at once, and both may stop.
            CmState::DreqSent => {
                entry.transaction = header.transaction;
                self.tell(index, Kind::Disconnected { private_data: None });
                self.agree_to_end(now, index, Data::default());
            }
            CmState::DreqRcvd => return Err(Dropped::Repeated { message }),
            CmState::TimeWait | CmState::Idle => {
                if self.said(index, Attribute::Drep) {
                    self.repeat(index);
                } else {
                    self.table.entry_mut(index).transaction = header.transaction;
                    self.say_drep(index, Data::default());
                }
                return Err(Dropped::Repeated { message });
            }
            _ => return Err(Dropped::Unexpected { message, state }),
        }
        Ok(())
    }

    /// Handles a DREP.
    pub(super) fn on_drep(&mut self, now: Time, origin: &Origin, drep: &Drep) -> Result<(), Dropped> {
        let message = Attribute::Drep;
        let index = self.connection_of(origin, message, drep.remote_comm_id, drep.local_comm_id)?;
        match self.table.entry(index).facts.state {
            CmState::DreqSent => {
                self.tell(index, Kind::Disconnected { private_data: Some(drep.private_data) });
                self.rest(now, index, CmState::TimeWait);
                Ok(())
            }
            state => Err(Dropped::Unexpected { message, state }),
        }
    }

    /// Sends DREQ, and repeats it until it is answered.
    fn ask_for_end(&mut self, now: Time, index: u32, private_data: Data<220>) {
        self.stop_suggesting(index);
        self.begin_transaction(index);
        let facts = &self.table.entry(index).facts;
        let dreq = Dreq {
            local_comm_id: facts.local_comm_id,
            remote_comm_id: facts.remote_comm_id,
            remote_qpn: facts.remote_qpn,
            private_data,
        };
        self.say(index, &Message::Dreq(dreq), 0);
        self.await_answer(now, index, CmState::DreqSent);
    }

    /// Answers DREQ with DREP.
    fn agree_to_end(&mut self, now: Time, index: u32, private_data: Data<224>) {
        self.say_drep(index, private_data);
        self.rest(now, index, CmState::TimeWait);
    }

    fn say_drep(&mut self, index: u32, private_data: Data<224>) {
        let facts = &self.table.entry(index).facts;
        let (local_comm_id, remote_comm_id) = (facts.local_comm_id, facts.remote_comm_id);
        self.say(index, &Message::Drep(Drep { local_comm_id, remote_comm_id, private_data }), 0);
    }

    /// The peer uses its queue pair for another connection, so this connection is gone.
    pub(super) fn forgotten(&mut self, now: Time, index: u32) {
        self.tell(index, Kind::PeerForgot);
        match self.table.entry(index).facts.state {
            CmState::Established => self.ask_for_end(now, index, Data::default()),
            CmState::ReqRcvd | CmState::MraReqSent => {
                self.say_stale(index);
                self.rest(now, index, CmState::Declined);
            }
            CmState::RepSent | CmState::MraRepRcvd => {
                self.say_stale(index);
                self.rest(now, index, CmState::TimeWait);
            }
            _ => {
                self.say_stale(index);
                self.idle(index);
            }
        }
    }

    fn say_stale(&mut self, index: u32) {
        let rej = self.rejection(index, Reason::STALE_CONNECTION);
        self.say(index, &Message::Rej(rej), 0);
    }

    fn stop_suggesting(&mut self, index: u32) {
        let entry = self.table.entry_mut(index);
        entry.path_state = PathState::Idle;
        entry.suggested = None;
    }

    /// Enters a state that ends by itself. If too many ids rest already, the state ends at once.
    pub(super) fn rest(&mut self, now: Time, index: u32, state: CmState) {
        if self.table.counts().resting >= self.config.resting as usize
            && !self.table.entry(index).facts.state.is_resting()
        {
            return self.rested(index, state);
        }
        let entry = self.table.entry(index);
        let time = if state == CmState::TimeWait { entry.rest() } else { entry.echo };
        self.stop_suggesting(index);
        self.table.enter(index, state, Some(now.after(time)));
    }

    /// The time of a resting id is over.
    pub(super) fn rested(&mut self, index: u32, state: CmState) {
        if state == CmState::TimeWait {
            self.tell(index, Kind::Rested);
        }
        self.idle(index);
    }

    /// Puts an id to the idle state, without a message to repeat. Removes it if its user has
    /// destroyed it.
    pub(super) fn idle(&mut self, index: u32) {
        self.table.entry_mut(index).last = None;
        self.idle_but_heard(index);
    }

    /// Like [`Cm::idle`], but keeps the last message for repetition.
    fn idle_but_heard(&mut self, index: u32) {
        self.stop_suggesting(index);
        self.table.enter(index, CmState::Idle, None);
        if self.table.entry(index).orphan {
            self.table.remove(index);
        }
    }
}
