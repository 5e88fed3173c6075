//! Faults on demand: the agent's rules, which programs each rule touches, and the faults that the
//! agent itself causes.
//!
//! Rules come from the admin node, and from programs that bring their own (`SOFTHCA_FAULTS`). Rules
//! about packets are written behind the context pages of the engines that they touch, and these
//! engines carry them out ([`publish`]). The agent itself carries out the rules about commands,
//! connection requests, ports and devices. A user's rules touch only that user's programs, and a
//! program's rules only that program. The principal type is [`Faults`].

mod ended;
pub(crate) mod manage;
mod publish;
mod toml;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abi::command::Row;
use abi::fault::text::command_name;
use abi::fault::{Armed, Facts, Fate, FaultKind, PLACES, Rule, decide};
use parking_lot::Mutex;

use crate::context::Context;
use crate::ids::{ContextId, Peer};
use crate::refusal::{Outcome, refuse};

pub use toml::rules as rules_of;

/// Maximum number of rules at a time. An engine gets the rules of the admin node and those of one
/// program.
const RULES_MAX: usize = abi::fault::RULES / 2;
/// Maximum number of rules that the programs of one user bring for themselves, if users are kept
/// apart.
const USER_OWN_MAX: usize = 64 * RULES_MAX;

/// The programs that a rule touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All programs of this agent.
    All,
    /// The programs of one user.
    User(u32),
    /// The context that has brought the rule.
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
    /// The device, if the rule is for one only.
    device: Option<usize>,
    /// The port that the rule holds down.
    port: Option<(usize, u32)>,
    /// When the port or the link that it holds down comes up again.
    until: Option<Instant>,
    /// The counts of engines that have ended, and of faults that the agent caused for many programs
    /// at once.
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
    /// Whether there are rules. Without rules, no code looks at them.
    on: AtomicBool,
    book: Mutex<Book>,
    /// Removed devices whose ids have not been told yet.
    removals: Mutex<Vec<Removal>>,
    /// Increased when rules may have changed.
    version: AtomicU64,
}

/// A rule has removed a device, or all devices, from the programs that it touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Removal {
    scope: Scope,
    device: Option<usize>,
    pid: Option<u32>,
}

impl Removal {
    /// Whether the program had the removed device.
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
    /// The words that captures show with the packet.
    pub(crate) words: String,
}

#[derive(Default)]
struct Book {
    /// Rules for many programs.
    entries: Vec<Entry>,
    /// Rules that programs have brought for themselves, by context. Commands of other contexts do
    /// not look at them.
    own: BTreeMap<ContextId, Vec<Entry>>,
    /// Rules that ended programs had brought.
    ended: ended::EndedRules,
    last: u32,
    /// The ports of the topology that have a cable, by the names of their nodes. `None`: there is
    /// no topology.
    cables: Option<BTreeSet<(String, u8)>>,
}

impl Book {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.own.is_empty()
    }

    /// Returns a number for a new rule. Rules that act in the same programs get different places in
    /// the page of those programs ([`abi::fault::PLACES`]).
    fn next_id(&mut self, own: Option<ContextId>) -> u32 {
        let next = self.last + 1..=self.last + PLACES;
        let is_free = |number: u32| self.entries.iter().all(|entry| entry.armed.id % PLACES != number % PLACES);
        let is_free_in =
            |number: u32, id: ContextId| self.own(id).all(|entry| entry.armed.id % PLACES != number % PLACES);
        let is_free_in_all = |number: u32| match own {
            Some(id) => is_free_in(number, id),
            None => self.own.keys().all(|id| is_free_in(number, *id)),
        };
        // The programs' own rules together may have all places.
        let free = next.clone().find(|number| is_free(*number) && is_free_in_all(*number));
        self.last = free.or_else(|| next.clone().find(|number| is_free(*number))).unwrap_or(*next.start());
        self.last
    }

    /// The rules that a context has brought for itself.
    fn own(&self, id: ContextId) -> impl Iterator<Item = &Entry> {
        self.own.get(&id).into_iter().flatten()
    }

    /// The rules that may touch a context.
    fn about(&self, id: ContextId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().chain(self.own(id))
    }
}

/// What happens to a connection request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// It is rejected, with this code.
    Rejected(u16),
    /// It is dropped.
    Swallowed,
}

impl Faults {
    /// Whether there are rules.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Changes when the rules may have changed.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// The links of the topology that rules may name, by the ports at both ends.
    pub(crate) fn know_cables(&self, cables: BTreeSet<(String, u8)>) {
        self.book.lock().cables = Some(cables);
    }

    /// The rules about links, with their numbers.
    pub(crate) fn about_links(&self) -> Vec<(u32, Rule)> {
        let book = self.book.lock();
        let all = book.entries.iter().chain(book.own.values().flatten());
        let some = all.filter(|entry| entry.rule().select.link.is_some());
        some.map(|entry| (entry.armed.id, entry.rule().clone())).collect()
    }

    /// Refuses a command if a rule says so.
    pub(crate) fn check_command(&self, context: &Context, row: &Row) -> Outcome<()> {
        let book = self.book.lock();
        let name = command_name(row.name);
        for entry in book.about(context.id) {
            if let FaultKind::Fail { command, errno } = &entry.rule().kind
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

    /// What happens to a connection request of a local program (`context`) or, without one, of
    /// another host; and the rule that decides.
    pub(crate) fn check_request(&self, context: Option<&Context>, facts: &Facts) -> Option<(RequestFault, By)> {
        let book = self.book.lock();
        let own = context.into_iter().flat_map(|context| book.own(context.id));
        for entry in book.entries.iter().chain(own) {
            let asked = match entry.rule().kind {
                FaultKind::CmReject { reason } => RequestFault::Rejected(reason),
                FaultKind::CmTimeout => RequestFault::Swallowed,
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

    /// What happens to a datagram of the connection manager at the time `now`: its fate, until when
    /// it waits, and the rule that decides.
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

    /// The devices that were removed since the last call.
    pub(crate) fn take_removals(&self) -> Vec<Removal> {
        std::mem::take(&mut *self.removals.lock())
    }

    /// The time until a port comes up again.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        if !self.is_on() {
            return None;
        }
        let ends = self.book.lock().entries.iter().filter_map(|entry| entry.until).min()?;
        Some(ends.saturating_duration_since(Instant::now()))
    }
}

fn gid(address: std::net::IpAddr) -> [u8; 16] {
    match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    }
}
