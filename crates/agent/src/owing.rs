//! Which contexts the agent owes something: records or pushes for which there was no room.
//!
//! Code that finds no room notes the context here. Only noted contexts are looked at again: a turn of the agent's thread does not walk over
//! all contexts. The principal type is [`Owed`].

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ids::ContextId;

/// The contexts.
#[derive(Debug, Default, Clone)]
pub struct Owed {
    contexts: Arc<Mutex<BTreeSet<ContextId>>>,
}

/// Where one context is noted.
#[derive(Debug)]
pub struct Owing {
    owed: Owed,
    context: ContextId,
}

impl Owed {
    /// Where `context` is noted.
    pub fn of(&self, context: ContextId) -> Owing {
        Owing { owed: self.clone(), context }
    }

    /// Takes all that are noted.
    pub fn take(&self) -> BTreeSet<ContextId> {
        let mut contexts = self.contexts.lock();
        if contexts.is_empty() { BTreeSet::new() } else { std::mem::take(&mut *contexts) }
    }

    /// Notes contexts again.
    pub fn put_back(&self, contexts: impl IntoIterator<Item = ContextId>) {
        self.contexts.lock().extend(contexts);
    }
}

impl Owing {
    /// Notes the context.
    pub fn note(&self) {
        self.owed.contexts.lock().insert(self.context);
    }
}
