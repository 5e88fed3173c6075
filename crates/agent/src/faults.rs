//! Faults on demand: the rules of this agent, whom each touches, and what the agent does about them itself.
//!
//! Rules come from the admin node and from programs that bring their own (`SOFTHCA_FAULTS`). Those about packets are written behind the
//! context pages of the engines that they touch, which carry them out ([`publish`]); commands that fail, connection requests, ports and
//! devices are the agent's own. A user's rules touch that user's programs, a program's rules that program. Principal type: [`Faults`].

mod ended;
pub(crate) mod manage;
mod publish;
mod toml;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abi::command::Row;
use abi::fault::text::command_name;
use abi::fault::{Armed, Facts, Fate, Kind, Rule, decide};
use parking_lot::Mutex;

use crate::context::Context;
use crate::ids::{ContextId, Peer};
use crate::refusal::{Outcome, refuse};

pub use toml::rules as rules_of;

/// The most rules at a time: those of the admin node and those of one program together reach an engine.
const RULES_MAX: usize = abi::fault::RULES / 2;
/// Rules that the programs of one user bring for themselves, where users are kept apart.
const USER_OWN_MAX: usize = 64 * RULES_MAX;

/// Whose programs a rule touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of this agent.
    All,
    /// Those of one user.
    User(u32),
    /// One context, which has brought it.
    Own(ContextId),
}

impl Scope {
    fn touches(self, context: &Context) -> bool {
        match self {
            Self::All => true,
            Self::User(uid) => context.peer.uid == uid,
            Self::Own(id) => context.id == id,
        }
    }
}

/// One rule of the agent.
struct Entry {
    armed: Armed,
    scope: Scope,
    /// The device, if it is for one only.
    device: Option<usize>,
    /// The port that is down for it, and until when.
    port: Option<(usize, u32, Option<Instant>)>,
    /// What engines that have ended have counted, and what the agent did to many at once.
    counted: (u64, u64),
}

impl Entry {
    fn rule(&self) -> &Rule {
        &self.armed.rule
    }

    fn by(&self) -> By {
        let Armed { id, rule, .. } = &self.armed;
        By { rule: *id, words: format!("fault: {} by rule {id} ({rule})", rule.kind.done()) }
    }

    fn touches(&self, context: &Context) -> bool {
        self.scope.touches(context)
            && self.device.is_none_or(|device| device == context.device)
            && self.rule().select.pid.is_none_or(|pid| pid == context.peer.pid)
    }
}

/// The rules.
#[derive(Default)]
pub struct Faults {
    /// Whether there are any: without, nobody looks at them.
    on: AtomicBool,
    book: Mutex<Book>,
    /// Devices that were taken away, of which ids have not been told.
    removals: Mutex<Vec<Removal>>,
}

/// A device, or all of them, was taken away from the programs that a rule touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Removal {
    scope: Scope,
    device: Option<usize>,
    pid: Option<u32>,
}

impl Removal {
    /// Whether this program had the device.
    pub(crate) fn touches(&self, peer: &Peer, device: usize) -> bool {
        let user = match self.scope {
            Scope::All => true,
            Scope::User(uid) => uid == peer.uid,
            Scope::Own(_) => false,
        };
        user && self.device.is_none_or(|gone| gone == device) && self.pid.is_none_or(|pid| pid == peer.pid)
    }
}

/// The rule that has acted.
#[derive(Debug, Clone)]
pub(crate) struct By {
    /// Its number.
    pub(crate) rule: u32,
    /// What is said of a packet beside it.
    pub(crate) words: String,
}

#[derive(Default)]
struct Book {
    /// Those for many programs.
    entries: Vec<Entry>,
    /// Those that a program has brought for itself, by its context: others' commands do not look at them.
    own: BTreeMap<ContextId, Vec<Entry>>,
    /// Those that programs had brought that have ended.
    ended: ended::Ended,
    last: u32,
}

impl Book {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.own.is_empty()
    }

    /// Those that a context has brought for itself.
    fn own(&self, id: ContextId) -> impl Iterator<Item = &Entry> {
        self.own.get(&id).into_iter().flatten()
    }

    /// Those that may touch a context.
    fn about(&self, id: ContextId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().chain(self.own(id))
    }
}

/// What becomes of a connection request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is rejected, with this code.
    Rejected(u16),
    /// It vanishes.
    Swallowed,
}

impl Faults {
    /// Whether there are rules.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Refuses a command that a rule is about.
    pub(crate) fn check_command(&self, context: &Context, row: &Row) -> Outcome<()> {
        let book = self.book.lock();
        let name = command_name(row.name);
        for entry in book.about(context.id) {
            if let Kind::Fail { command, errno } = &entry.rule().kind
                && *command == name
                && entry.touches(context)
                && entry.armed.acts().is_some()
            {
                let text = format!("fault: {name} fails with {errno} by rule {} ({})", entry.armed.id, entry.rule());
                tracing::warn!(target: "softhca::fault", pid = context.peer.pid, "{text}");
                return refuse(*errno, text);
            }
        }
        Ok(())
    }

    /// What becomes of a connection request: one of a program here, or, without, of another host. And by which rule.
    pub(crate) fn check_request(&self, context: Option<&Context>, facts: &Facts) -> Option<(Asked, By)> {
        let book = self.book.lock();
        let own = context.into_iter().flat_map(|context| book.own(context.id));
        for entry in book.entries.iter().chain(own) {
            let asked = match entry.rule().kind {
                Kind::CmReject { reason } => Asked::Rejected(reason),
                Kind::CmTimeout => Asked::Swallowed,
                _ => continue,
            };
            let touches = context.map_or(entry.scope == Scope::All, |context| entry.touches(context));
            let peer = entry.rule().select.peer.is_none_or(|peer| gid(peer) == facts.peer);
            if touches && peer && entry.armed.acts().is_some() {
                let done = entry.rule().kind.done();
                tracing::warn!(target: "softhca::fault", "rule {} ({}) has {done} a connection request", entry.armed.id, entry.rule());
                return Some((asked, entry.by()));
            }
        }
        None
    }

    /// What becomes of a datagram of the connection manager at the time `now`: what is done to it, until when it waits, and by which rule.
    pub(crate) fn check_datagram(&self, facts: &Facts, now: u64) -> Option<(Fate, Option<u64>, By)> {
        let book = self.book.lock();
        let entries: Vec<&Entry> = book.entries.iter().filter(|entry| entry.scope == Scope::All).collect();
        let rules: Vec<&Armed> = entries.iter().map(|entry| &entry.armed).collect();
        let verdict = decide::decide(&rules, facts, now);
        let entry = entries.get(verdict.by?)?;
        let done = entry.rule().kind.done();
        tracing::warn!(target: "softhca::fault", "rule {} ({}) has {done} a management datagram", entry.armed.id, entry.rule());
        Some((verdict.fate, verdict.until, entry.by()))
    }

    /// The devices that were taken away since this was asked last.
    pub(crate) fn take_removals(&self) -> Vec<Removal> {
        std::mem::take(&mut *self.removals.lock())
    }

    /// When a port is to come up again.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        if !self.is_on() {
            return None;
        }
        let ends = self.book.lock().entries.iter().filter_map(|entry| entry.port?.2).min()?;
        Some(ends.saturating_duration_since(Instant::now()))
    }
}

fn gid(address: std::net::IpAddr) -> [u8; 16] {
    match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    }
}
