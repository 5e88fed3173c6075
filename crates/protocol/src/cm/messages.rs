//! How the communication manager sends a message to a peer, once or until the peer answers, and an
//! event to a user. The messages themselves are in [`wire::cm`]. Adds to [`Cm`].

use super::Cm;
use super::entry::Last;
use super::event::{Event, Kind, Output};
use super::origin::{Origin, Path};
use super::state::CmState;
use crate::cm::error::Error;
use crate::time::Time;
use wire::cm::{Attribute, Data, Message, Reason, Rej, Rejected};
use wire::mad::Mad;

impl Cm {
    /// Queues a datagram. If memory is short, the datagram is lost, as on a network.
    pub(super) fn send(&mut self, path: Path, mad: Mad, owner: u32) {
        if self.outputs.try_reserve(1).is_err() {
            return;
        }
        self.outputs.push_back(Output::Send { path, mad, owner });
    }

    /// Sends a message to an entry's peer, in the entry's transaction, and keeps it for repetition.
    pub(super) fn say(&mut self, index: u32, message: &Message, options: u32) {
        let entry = self.table.entry_mut(index);
        let mad = message.emit(entry.transaction, options);
        entry.last = Some(Last { attribute: message.attribute(), mad: Box::new(mad) });
        let (path, owner) = (entry.facts.path, entry.owner);
        self.send(path, mad, owner);
    }

    /// Sends the last message again.
    pub(super) fn repeat(&mut self, index: u32) {
        let entry = self.table.entry(index);
        if let Some(last) = &entry.last {
            let (path, mad, owner) = (entry.facts.path, *last.mad, entry.owner);
            self.send(path, mad, owner);
        }
    }

    /// Whether the last message was of this kind.
    pub(super) fn said(&self, index: u32, attribute: Attribute) -> bool {
        self.table.entry(index).last.as_ref().is_some_and(|last| last.attribute == attribute)
    }

    /// Enters a state that awaits an answer. The last message is repeated until the answer comes.
    pub(super) fn await_answer(&mut self, now: Time, index: u32, state: CmState) {
        let entry = self.table.entry_mut(index);
        entry.retries = entry.max_retries;
        let deadline = now.after(entry.interval);
        self.table.enter(index, state, Some(deadline));
    }

    /// Answers a message that belongs to no entry, on the path on which it came.
    pub(super) fn answer(&mut self, origin: &Origin, transaction: u64, message: &Message) {
        self.send(origin.back(), message.emit(transaction, 0), 0);
    }

    /// Reports an event to the user of an entry.
    pub(super) fn tell(&mut self, index: u32, kind: Kind) {
        if !self.table.entry(index).orphan {
            let id = self.table.id(index);
            self.outputs.push_back(Output::Event(Event { id, kind }));
        }
    }

    /// Begins a transaction, whose number no other transaction of ours has.
    pub(super) fn begin_transaction(&mut self, index: u32) -> u64 {
        self.transactions = self.transactions.wrapping_add(1);
        let entry = self.table.entry_mut(index);
        let high = self.transactions ^ (self.config.secret >> 32) as u32;
        entry.transaction = u64::from(high) << 32 | u64::from(entry.facts.local_comm_id);
        entry.transaction
    }

    /// The REJ that fits an entry's state.
    pub(super) fn rejection(&self, index: u32, reason: Reason) -> Rej {
        let facts = &self.table.entry(index).facts;
        let message = match facts.state {
            CmState::ReqRcvd | CmState::MraReqSent | CmState::ReqSent | CmState::MraReqRcvd => Rejected::Req,
            CmState::RepRcvd | CmState::MraRepSent => Rejected::Rep,
            _ => Rejected::Other,
        };
        Rej { local_comm_id: facts.local_comm_id, remote_comm_id: facts.remote_comm_id, message, ..Rej::new(reason) }
    }

    /// The error of a call that does not fit the state.
    pub(super) fn misplaced(&self, index: u32, call: &'static str) -> Error {
        Error::State { call, state: self.table.entry(index).facts.state }
    }
}

/// The private data of a message, if it fits.
pub(super) fn fit<const N: usize>(message: Attribute, bytes: &[u8]) -> Result<Data<N>, Error> {
    Data::new(bytes).ok_or(Error::PrivateData { message, len: bytes.len(), max: N })
}

/// The additional information of a message and its length, if it fits.
pub(super) fn fit_info(message: Attribute, bytes: &[u8]) -> Result<(Data<72>, u8), Error> {
    let info = fit(message, bytes)?;
    Ok((info, u8::try_from(bytes.len()).unwrap_or(72)))
}
