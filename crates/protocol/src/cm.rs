//! The communication manager of a whole agent as one state machine. Through it, queue pairs find
//! each other, agree on numbers, and disconnect. IBA chapter 12. Principal type: [`Cm`].
//!
//! [`Cm`] has no clock, no socket and no random source. Its users call it ([`Cm::request`],
//! [`Cm::reply`], [`Cm::disconnect`] …). Its caller passes in the datagrams that arrive
//! ([`Cm::on_mad`]) and the time ([`Cm::on_time`], at [`Cm::next_time`]). After every call, the
//! caller takes datagrams to send and events for users with [`Cm::poll_output`], until there are no
//! more.
//!
//! ```text
//!  active                            passive
//!  request()    ── REQ ──────────▶   Kind::Incoming
//!  Kind::Later  ◀───────── MRA ───   mra()                     if it takes long
//!  Kind::Agreed ◀───────── REP ───   reply()
//!  ready()      ── RTU ──────────▶   Kind::Established         or established_by_data()
//!  disconnect() ── DREQ ─────────▶   Kind::DisconnectWanted
//!  Kind::Disconnected ◀─── DREP ──   disconnect()
//!  Kind::Rested                      Kind::Rested              when the time-wait is over
//! ```
//!
//! There is no table of listeners. Every new REQ and SIDR_REQ is an event with an id of its own.
//! The user answers it with [`Cm::reply`], or with [`Cm::reject`] (no listener:
//! [`Reason::INVALID_SERVICE_ID`]), or drops it with [`Cm::forget`], so that the peer tries again.
//!
//! An [`Id`] stays valid until [`Cm::destroy`], in any state. `destroy` sends what the protocol
//! still requires, and the machine then continues without its user until the connection's time-wait
//! is over. A destroyed id gets no more events.
//!
//! Everything in a datagram is a claim. A datagram is dropped if it does not come from its
//! connection's peer, or if its ids do not belong together. [`Dropped`] says why.

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
pub use state::{CmState, PathState};
pub use wire::cm::{Attribute, Ece, Gid, Reason, TransportType};
pub use wire::mad::Mad;

use std::collections::VecDeque;
use table::Table;

/// Names a connection, or a SIDR request, from [`Cm::request`] or [`Kind::Incoming`] until
/// [`Cm::destroy`]. It is an index and a generation: a destroyed id is [`Error::Stale`], and never
/// names another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    index: u32,
    generation: u32,
}

/// The limits of a [`Cm`], and its secret.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// A random number that peers cannot guess. Communication ids, transaction ids and the order in
    /// the hash tables depend on it.
    pub secret: u64,
    /// Maximum number of ids, including resting ones; at most 2^20. Beyond that, requests fail with
    /// [`Error::Full`] and REQs are dropped.
    pub ids: u32,
    /// Maximum number of REQs and SIDR_REQs that no user has answered yet. Further ones are
    /// dropped, and their senders try again.
    pub undecided: u32,
    /// Maximum number of resting ids: ids in time-wait, or kept only to repeat an answer. Beyond
    /// that, the rest ends at once.
    pub resting: u32,
    /// The MRA service timeout, a code of 5 bits, for a peer that repeats its REQ or REP before the
    /// user has decided. With 0 no MRA is sent, so the user has as long as the peer's retries last.
    pub patience: u8,
}

impl Default for Config {
    fn default() -> Config {
        Config { secret: 0, ids: 1 << 18, undecided: 1 << 12, resting: 1 << 15, patience: 24 }
    }
}

/// What a [`Cm`] holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ids, including resting ones.
    pub ids: usize,
    /// REQs and SIDR_REQs that no user has answered yet.
    pub undecided: usize,
    /// Resting ids.
    pub resting: usize,
    /// Timers that run.
    pub timers: usize,
    /// Keys of peers that lead to an id.
    pub keys: usize,
}

/// The communication manager. Its methods are in the file of the side that calls them: `active` for
/// the active side, `passive` for the passive side, `close` for the end of a connection, `paths`
/// for alternate paths, `sidr` for datagram services. `receive` handles incoming datagrams,
/// `timers` handles time.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    table: Table,
    outputs: VecDeque<Output>,
    /// The number of transactions that this side has begun.
    transactions: u32,
}

impl Cm {
    /// A communication manager without ids.
    #[must_use]
    pub fn new(config: Config) -> Cm {
        Cm { config, table: Table::new(&config), outputs: VecDeque::new(), transactions: 0 }
    }

    /// The state of an id.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn state(&self, id: Id) -> Result<CmState, Error> {
        Ok(self.table.entry(self.table.resolve(id)?).facts.state)
    }

    /// What both sides have agreed on so far: the source of a queue pair's attributes.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn connection(&self, id: Id) -> Result<Connection, Error> {
        Ok(self.table.entry(self.table.resolve(id)?).facts)
    }

    /// What is held at the moment.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.table.counts()
    }

    /// The next datagram to send or event to report, in the order in which they arose.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            match self.outputs.pop_front() {
                // The id was destroyed since, so no user waits for the event.
                Some(Output::Event(event)) if self.table.resolve(event.id).is_err() => {}
                Some(output) => return Some(output),
                None => {
                    // The memory of a burst is given back.
                    if self.outputs.capacity() > 64 {
                        self.outputs = VecDeque::new();
                    }
                    return None;
                }
            }
        }
    }
}
