//! How rules reach the engines, and how the counts return.
//!
//! Behind its context page, each engine finds the rules that touch it, as text. There it writes how
//! often each rule was asked and has acted. These counts are the program's claim about itself, and
//! are shown as that. The rules of engines at the other ends of its lanes follow, because a
//! connection must be ready for losses at either end.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::Ordering;

use abi::fault::{FaultKind, PLACES, TEXT_MAX, area, state};
use abi::private::{Push, push};
use abi::queue::context_page::FAULTS;

use super::ended::Row;
use super::{Book, Entry, Scope};
use crate::context::Context;
use crate::ids::ContextId;
use crate::queue_memory::Block;
use crate::world::World;

fn page(context: &Context) -> Option<&Block> {
    context.events.as_ref().map(|events| events.page())
}

/// The counts of an engine for a rule.
pub(super) fn counts(context: &Context, id: u32) -> (u64, u64) {
    let at = FAULTS + area::COUNTS + 8 * (id % PLACES) as usize;
    page(context).map_or((0, 0), |page| (page.read(at).into(), page.read(at + 4).into()))
}

impl Entry {
    /// The part of a rule that outlives the program of `context`, which brought it.
    fn ended(&self, context: &Context) -> Row {
        let counted = [self.armed.counts(), self.counted, counts(context, self.armed.id)];
        Row {
            peer: context.peer.clone(),
            id: self.armed.id,
            rule: self.rule().to_string(),
            seen: counted.iter().map(|(seen, _)| seen).sum(),
            acted: counted.iter().map(|(_, acted)| acted).sum(),
        }
    }
}

/// Whether an engine has not read its latest rules yet.
pub(super) fn is_behind(context: &Context) -> bool {
    let read = |at: usize| page(context).map(|page| page.read(FAULTS + at));
    context.engine.is_some() && read(area::TAKEN) != read(area::EPOCH)
}

/// The content of the area behind a context page.
struct Notice {
    text: String,
    bits: u32,
}

/// What the engine of a context must know, if its lanes lead to `neighbours`. These are the rules
/// that touch it, and the neighbours' rules that may drop packets of its connections with them. Its
/// other connections are not affected.
fn notice(world: &World, book: &Book, context: &Context, neighbours: &BTreeSet<ContextId>) -> Notice {
    let mut notice = Notice { text: String::new(), bits: 0 };
    let mut far = String::new();
    let is_harmful = |entry: &Entry| entry.rule().is_of_engines() && entry.rule().kind.is_of_packets();
    let mut harm = |entry: &Entry, neighbour: &Context| {
        // Writing to a string does not fail.
        let _ = writeln!(far, "@{} {}", neighbour.id.0, entry.rule());
    };
    let near: Vec<&Context> = neighbours.iter().filter_map(|id| world.contexts.get(id)).collect();
    for entry in book.about(context.id) {
        if entry.touches(context) {
            if entry.rule().is_of_engines() {
                let _ = writeln!(notice.text, "{} {}", entry.armed.id, entry.rule());
            }
            if is_harmful(entry) {
                notice.bits |= state::LOSSY;
            }
            if matches!(entry.rule().kind, FaultKind::Fail { .. }) {
                notice.bits |= state::COMMANDS;
            }
        } else if is_harmful(entry) {
            for neighbour in &near {
                // The rules of a user are not shown to the programs of other users.
                let may_know = entry.scope == Scope::All || neighbour.peer.uid == context.peer.uid;
                if may_know && entry.touches(neighbour) {
                    harm(entry, neighbour);
                    notice.bits |= state::LOSSY;
                }
            }
        }
    }
    for neighbour in near.into_iter().filter(|neighbour| neighbour.peer.uid == context.peer.uid) {
        for entry in book.own(neighbour.id).filter(|entry| is_harmful(entry) && entry.touches(neighbour)) {
            harm(entry, neighbour);
            notice.bits |= state::LOSSY;
        }
    }
    // If there is no room for all of these rules, every connection must be ready for losses.
    if notice.bits & state::LOSSY != 0 && notice.text.len() + far.len() <= TEXT_MAX {
        notice.text += &far;
        notice.bits |= state::NAMED;
    }
    notice
}

impl World {
    /// Publishes to every engine the rules that touch it.
    pub(super) fn publish_faults(&mut self) {
        let ids: Vec<ContextId> = self.contexts.keys().copied().collect();
        self.publish_faults_to(&ids);
    }

    /// Publishes to the engines of these contexts the rules that touch them.
    pub(super) fn publish_faults_to(&mut self, ids: &[ContextId]) {
        let faults = std::sync::Arc::clone(&self.faults);
        faults.version.fetch_add(1, Ordering::Relaxed);
        let book = faults.book.lock();
        faults.on.store(!book.is_empty(), Ordering::Relaxed);
        let harm = !book.own.is_empty() || book.entries.iter().any(|entry| entry.rule().kind.is_of_packets());
        for id in ids {
            let Some(context) = self.contexts.get(id) else { continue };
            let Some(page) = page(context) else { continue };
            let others = self.lanes.neighbours(*id).filter(|other| harm && other != id).collect();
            let Notice { text, bits } = notice(self, &book, context, &others);
            let mut old = vec![0; page.read(FAULTS + area::LEN).min(TEXT_MAX as u32) as usize];
            page.copy_out(FAULTS + area::TEXT, &mut old);
            if old == text.as_bytes() && page.read(FAULTS + area::STATE) == bits {
                continue;
            }
            let store = |at: usize, value: u32| page.word(FAULTS + at).store(value, Ordering::Release);
            let epoch = page.read(FAULTS + area::EPOCH) & !1;
            // The engine reads between two loads of the epoch. An odd epoch tells it to read again.
            store(area::EPOCH, epoch.wrapping_add(1));
            std::sync::atomic::fence(Ordering::SeqCst);
            page.copy_in(FAULTS + area::TEXT, text.as_bytes());
            store(area::LEN, text.len() as u32);
            store(area::STATE, bits);
            store(area::EPOCH, epoch.wrapping_add(2));
            if let Some(engine) = self.contexts.get_mut(id).and_then(|context| context.engine.as_mut()) {
                engine.push(Push { kind: push::FAULTS, ..Push::default() }, Vec::new());
            }
        }
    }

    /// Publishes the rules to a new engine, or to the two engines of a new lane.
    pub(crate) fn show_faults_to(&mut self, ids: &[ContextId]) {
        if self.faults.is_on() {
            self.publish_faults_to(ids);
        }
    }

    /// The rules that the program of a context asks for, from its own memory.
    pub(crate) fn wanted_faults(&self, id: ContextId) -> Option<String> {
        let page = page(self.contexts.get(&id)?)?;
        let mut text = vec![0; page.read(FAULTS + area::LEN).min(TEXT_MAX as u32) as usize];
        page.copy_out(FAULTS + area::TEXT, &mut text);
        String::from_utf8(text).ok()
    }

    /// Handles the end of a context. Its counts stay. Its own rules are removed, but their counts
    /// are kept. `neighbours` are the contexts to which it had lanes.
    pub(crate) fn forget_faults(&mut self, id: ContextId, neighbours: &[ContextId]) {
        if !self.faults.is_on() {
            return;
        }
        let faults = std::sync::Arc::clone(&self.faults);
        let mut book = faults.book.lock();
        if let Some(context) = self.contexts.get(&id) {
            for entry in book.entries.iter_mut().filter(|entry| entry.touches(context)) {
                let (seen, acted) = counts(context, entry.armed.id);
                entry.counted.0 += seen;
                entry.counted.1 += acted;
            }
        }
        let own = book.own.remove(&id);
        let had_own = own.is_some();
        if let Some(context) = self.contexts.get(&id) {
            for entry in own.into_iter().flatten() {
                book.ended.keep(entry.ended(context));
            }
        }
        drop(book);
        if had_own {
            self.publish_faults_to(neighbours);
        }
    }
}
