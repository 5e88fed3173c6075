//! The communication manager of a whole agent as one state machine: queue pairs find each other, agree on numbers, and part. IBA
//! chapter 12.
//!
//! No clock, no socket, no random source: [`Cm`] is told what its users want ([`Cm::request`], [`Cm::reply`], [`Cm::disconnect`] …),
//! which datagrams came ([`Cm::on_mad`]) and what time it is ([`Cm::on_time`], at [`Cm::next_time`]); what is to be sent and what
//! its users should know is taken with [`Cm::poll_output`] until nothing is left, after every call.
//!
//! ```text
//!  active                            passive
//!  request()    ── REQ ──────────▶   Kind::Incoming
//!  Kind::Later  ◀───────── MRA ───   mra()                     if it takes long
//!  Kind::Agreed ◀───────── REP ───   reply()
//!  ready()      ── RTU ──────────▶   Kind::Established         or established_by_data(), when data come first
//!  disconnect() ── DREQ ─────────▶   Kind::DisconnectWanted
//!  Kind::Disconnected ◀─── DREP ──   disconnect()
//!  Kind::Rested                      Kind::Rested              when the time-wait is over
//! ```
//!
//! There is no table of listeners: every new REQ and SIDR_REQ is an event with an id of its own, which the user answers with
//! [`Cm::reply`], [`Cm::reject`] (nobody listens: [`Reason::INVALID_SERVICE_ID`]) or, so that the peer tries again, [`Cm::forget`].
//!
//! An [`Id`] that was given out stays until [`Cm::destroy`], in whichever state; that says to the peer what is left to say, and the
//! machine goes on alone until the connection's time-wait is over. No event comes for an id that was destroyed.
//!
//! Everything in a datagram is a claim. One that does not come from the address that its connection is with, or that names ids which
//! do not belong together, is dropped, and [`Dropped`] says why.

mod active;
mod close;
mod entry;
mod error;
mod event;
mod incoming;
mod messages;
mod number;
mod origin;
mod owner;
mod params;
mod passive;
mod paths;
mod receive;
mod sidr;
mod state;
mod table;
mod timers;

pub use error::{Dropped, Error};
pub use event::{Event, Kind, Output};
pub use origin::{Origin, Path};
pub use params::{Connection, Reply, Request, SidrReply, SidrRequest, Suggestion};
pub use state::{PathState, State};
pub use wire::cm::{Attribute, Ece, Gid, Reason, TransportType};
pub use wire::mad::Mad;

use std::collections::VecDeque;
use table::Table;

/// Names a connection, or a datagram service's question, from [`Cm::request`] or [`Kind::Incoming`] until [`Cm::destroy`]. Index
/// and generation: one that was destroyed is [`Error::Stale`], never another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    index: u32,
    generation: u32,
}

/// How much a [`Cm`] may hold, and its secret.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// A number that nobody can guess: communication ids, transaction ids and the tables' order come from it.
    pub secret: u64,
    /// Ids at a time, those included that only rest; at most 2^20. More requests find it [`Error::Full`], more REQs are dropped.
    pub ids: u32,
    /// REQs and SIDR_REQs at a time that nobody has answered yet; more are dropped, and their senders try again.
    pub undecided: u32,
    /// Ids at a time that only rest, in time-wait or to repeat an answer; with more, the rest is cut short.
    pub resting: u32,
    /// What a peer is told that repeats its REQ or REP while the user has not decided: how much longer that may take, a code of 5
    /// bits. 0 tells it nothing, so that the user has as long as the peer's tries last.
    pub patience: u8,
}

impl Default for Config {
    fn default() -> Config {
        Config { secret: 0, ids: 1 << 18, undecided: 1 << 12, resting: 1 << 15, patience: 24 }
    }
}

/// How much a [`Cm`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ids, those included that only rest.
    pub ids: usize,
    /// REQs and SIDR_REQs that nobody has answered yet.
    pub undecided: usize,
    /// Ids that only rest.
    pub resting: usize,
    /// Timers that run.
    pub timers: usize,
    /// Peers' numbers that lead to an id.
    pub keys: usize,
}

/// The communication manager. Its calls stand with the side that makes them: the active side's in `active`, the passive side's in
/// `passive`, what ends a connection in `close`, alternate paths in `paths`, datagram services in `sidr`; what datagrams do is in
/// `receive`, what time does in `timers`.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    table: Table,
    outputs: VecDeque<Output>,
    /// How many transactions we have begun.
    transactions: u32,
}

impl Cm {
    /// One that holds nothing.
    #[must_use]
    pub fn new(config: Config) -> Cm {
        Cm { config, table: Table::new(&config), outputs: VecDeque::new(), transactions: 0 }
    }

    /// In which state an id is.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn state(&self, id: Id) -> Result<State, Error> {
        Ok(self.table.entry(self.table.resolve(id)?).facts.state)
    }

    /// What both sides have said so far: what a queue pair's attributes are made of.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn connection(&self, id: Id) -> Result<Connection, Error> {
        Ok(self.table.entry(self.table.resolve(id)?).facts)
    }

    /// How much is held.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.table.counts()
    }

    /// What is to be sent or told next, in the order in which it happened.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            match self.outputs.pop_front() {
                // Destroyed since: nobody is there to be told.
                Some(Output::Event(event)) if self.table.resolve(event.id).is_err() => {}
                Some(output) => return Some(output),
                None => {
                    // A burst leaves no memory behind.
                    if self.outputs.capacity() > 64 {
                        self.outputs = VecDeque::new();
                    }
                    return None;
                }
            }
        }
    }
}
