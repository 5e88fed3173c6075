//! How rules reach the engines, and how their counts come back.
//!
//! Behind its context page each engine finds the rules that touch it, as text, and writes how often each was asked and has acted. What it
//! writes is a program's claim about itself, and is shown as that.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use abi::fault::{PLACES, TEXT_MAX, area, state};
use abi::private::{Push, push};
use abi::queue::context_page::FAULTS;

use super::{Entry, Scope};
use crate::context::{Context, ContextId};
use crate::queue_memory::Block;
use crate::world::World;

fn page(context: &Context) -> Option<&Block> {
    context.events.as_ref().map(|events| events.page())
}

/// What an engine has counted for a rule.
pub(super) fn counts(context: &Context, id: u32) -> (u64, u64) {
    let at = FAULTS + area::COUNTS + 8 * (id % PLACES) as usize;
    page(context).map_or((0, 0), |page| (page.read(at).into(), page.read(at + 4).into()))
}

/// Whether an engine has not taken its rules yet.
pub(super) fn is_behind(context: &Context) -> bool {
    let read = |at: usize| page(context).map(|page| page.read(FAULTS + at));
    context.engine.is_some() && read(area::TAKEN) != read(area::EPOCH)
}

/// The bits for a context: its packets may come to harm by its own rules, or by those of whom it may speak with.
fn bits(world: &World, entries: &[Entry], context: &Context) -> u32 {
    let mut bits = 0;
    for entry in entries {
        let kind = &entry.rule().kind;
        let near = match entry.scope {
            Scope::All => true,
            Scope::User(uid) => context.peer.uid == uid,
            Scope::Own(id) => {
                context.id == id || world.contexts.get(&id).is_some_and(|other| other.peer.uid == context.peer.uid)
            }
        };
        if kind.is_of_packets() && near {
            bits |= state::LOSSY;
        }
        if matches!(kind, abi::fault::Kind::Fail { .. }) && entry.touches(context) {
            bits |= state::COMMANDS;
        }
    }
    bits
}

fn text(entries: &[Entry], context: &Context) -> String {
    let mut text = String::new();
    for entry in entries.iter().filter(|entry| entry.rule().kind.is_of_engines() && entry.touches(context)) {
        let mut rule = entry.rule().clone();
        rule.select.device = entry.device.map(|device| device.to_string());
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {rule}", entry.armed.id);
    }
    text
}

impl World {
    /// Has every engine know the rules that touch it.
    pub(super) fn publish_faults(&mut self) {
        let faults = std::sync::Arc::clone(&self.faults);
        let book = faults.book.lock();
        faults.on.store(!book.entries.is_empty(), Ordering::Relaxed);
        let ids: Vec<ContextId> = self.contexts.keys().copied().collect();
        for id in ids {
            let Some(context) = self.contexts.get(&id) else { continue };
            let Some(page) = page(context) else { continue };
            let (text, bits) = (text(&book.entries, context), bits(self, &book.entries, context));
            let mut old = vec![0; page.read(FAULTS + area::LEN).min(TEXT_MAX as u32) as usize];
            page.copy_out(FAULTS + area::TEXT, &mut old);
            if old == text.as_bytes() && page.read(FAULTS + area::STATE) == bits {
                continue;
            }
            let store = |at: usize, value: u32| page.word(FAULTS + at).store(value, Ordering::Release);
            let epoch = page.read(FAULTS + area::EPOCH) & !1;
            // The engine reads between two looks at the epoch; odd says that it has to look again.
            store(area::EPOCH, epoch.wrapping_add(1));
            std::sync::atomic::fence(Ordering::SeqCst);
            page.copy_in(FAULTS + area::TEXT, text.as_bytes());
            store(area::LEN, text.len() as u32);
            store(area::STATE, bits);
            store(area::EPOCH, epoch.wrapping_add(2));
            if let Some(engine) = self.contexts.get_mut(&id).and_then(|context| context.engine.as_mut()) {
                engine.push(Push { kind: push::FAULTS, ..Push::default() }, Vec::new());
            }
        }
    }

    /// A new engine gets the rules that touch it.
    pub(crate) fn show_faults_to(&mut self, _id: ContextId) {
        if self.faults.is_on() {
            self.publish_faults();
        }
    }

    /// What the program of a context asks for itself, from its own memory.
    pub(crate) fn wanted_faults(&self, id: ContextId) -> Option<String> {
        let page = page(self.contexts.get(&id)?)?;
        let mut text = vec![0; page.read(FAULTS + area::LEN).min(TEXT_MAX as u32) as usize];
        page.copy_out(FAULTS + area::TEXT, &mut text);
        String::from_utf8(text).ok()
    }

    /// A context ends: its counts stay, its own rules go.
    pub(crate) fn forget_faults(&mut self, id: ContextId) {
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
        book.entries.retain(|entry| entry.scope != Scope::Own(id));
        drop(book);
        self.publish_faults();
    }
}
