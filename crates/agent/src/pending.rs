//! The contexts for which records or pushes wait.
//!
//! Code that adds a record or a push notes the context here. `World::flush` looks only at noted
//! contexts, so the agent's thread never walks over all contexts at once. A context without room is
//! looked at again in the next round. The principal type is [`PendingContexts`].

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ids::ContextId;

/// The contexts.
#[derive(Debug, Default)]
pub struct PendingContexts {
    /// Contexts that were noted and not looked at yet.
    noted: Noted,
    /// Contexts that were looked at and wait for the next round.
    waiting: BTreeSet<ContextId>,
    /// Contexts of the current round that were not looked at yet.
    round: BTreeSet<ContextId>,
    /// The context that was looked at last.
    last: ContextId,
}

type Noted = Arc<Mutex<Notes>>;

#[derive(Debug, Default)]
struct Notes {
    /// The contexts that were noted and not looked at yet.
    all: BTreeSet<ContextId>,
    /// Those that the current piece of work has noted. They may have been noted before, too.
    news: Vec<ContextId>,
}

impl Notes {
    fn note(&mut self, context: ContextId) {
        self.all.insert(context);
        if self.news.last() != Some(&context) {
            self.news.push(context);
        }
    }
}

/// A handle with which one context is noted.
#[derive(Debug)]
pub struct PendingContext {
    noted: Noted,
    context: ContextId,
}

impl PendingContexts {
    /// The handle for `context`.
    pub fn of(&self, context: ContextId) -> PendingContext {
        PendingContext { noted: Arc::clone(&self.noted), context }
    }

    /// Begins a round: each waiting context will be looked at again.
    pub fn begin_round(&mut self) {
        self.round.append(&mut self.waiting);
        self.round.append(&mut self.noted.lock().all);
    }

    /// The next context to look at, and whether it belongs to the round. Contexts take turns, so
    /// none that is noted again and again delays the others.
    pub fn next_due(&mut self) -> Option<(ContextId, bool)> {
        let mut noted = self.noted.lock();
        let first = |from| {
            let sets = [&noted.all, &self.round].map(|set| set.range((from, Bound::Unbounded)).next());
            sets.into_iter().flatten().min().copied()
        };
        let id = first(Bound::Excluded(self.last)).or_else(|| first(Bound::Unbounded))?;
        self.last = id;
        noted.all.remove(&id);
        if noted.all.is_empty() {
            // None of them is news any more.
            noted.news.clear();
        }
        Some((id, self.round.remove(&id)))
    }

    /// A piece of work begins: what is noted from now on are its news.
    pub fn begin_work(&self) {
        self.noted.lock().news.clear();
    }

    /// The contexts that the current piece of work has noted and that were not looked at since.
    /// The caller looks at them.
    pub fn take_news(&self) -> Vec<ContextId> {
        let mut noted = self.noted.lock();
        let Notes { all, news } = &mut *noted;
        let mut taken = std::mem::take(news);
        taken.retain(|id| all.remove(id));
        taken
    }

    /// Notes that a context was looked at and waits.
    pub fn wait(&mut self, context: ContextId) {
        self.waiting.insert(context);
    }

    /// Whether there are more contexts to look at.
    pub fn has_more(&self) -> bool {
        !self.round.is_empty() || !self.noted.lock().all.is_empty()
    }

    /// Notes a context again.
    pub fn note(&self, context: ContextId) {
        self.noted.lock().note(context);
    }
}

impl PendingContext {
    /// Notes the context.
    pub fn note(&self) {
        self.noted.lock().note(self.context);
    }
}

#[cfg(test)]
mod tests {
    use abi::command::{legacy, number};
    use abi::device::GetContext;
    use abi::event::AsyncRecord;

    use crate::config::Config;
    use crate::dispatch::dispatch;
    use crate::ids::{ContextId, Peer};
    use crate::pending::PendingContexts;
    use crate::world::World;

    /// No call of `flush` may walk over all waiting contexts.
    #[test]
    fn contexts_that_wait_are_looked_at_once_and_then_when_their_time_has_come() {
        const CONTEXTS: u32 = 300;
        let mut world = World::new(&Config::default(), "a test").expect("a world");
        for pid in 0..CONTEXTS {
            let id = world.open(0, 0, Peer { pid, uid: 1, comm: String::new() }).expect("open");
            let get = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48);
            assert_eq!(dispatch(&mut world, id, &get, Vec::new()).status, 0);
        }
        // More records than fit into a context.
        (0..400).for_each(|element| world.raise(0, AsyncRecord { element, event_type: 18, reserved: 0 }));
        let mut turns = 1;
        while world.flush(false).more {
            turns += 1;
        }
        assert!((4..=6).contains(&turns), "{CONTEXTS} contexts take several turns: {turns}");
        assert!(world.pending.next_due().is_none(), "nobody is looked at");
        assert!(world.flush(false).waits, "and all wait");
        world.pending.begin_round();
        assert_eq!(
            std::iter::from_fn(|| world.pending.next_due()).filter(|(_, again)| *again).count(),
            CONTEXTS as usize
        );
    }

    #[test]
    fn news_are_what_the_current_piece_of_work_has_noted() {
        let mut pending = PendingContexts::default();
        let [a, b, c] = [3, 1, 2].map(ContextId);
        pending.note(a);
        pending.begin_work();
        [a, b, b, a, c].iter().for_each(|id| pending.note(*id));
        assert_eq!(pending.next_due(), Some((b, false)), "it is looked at, and so not news any more");
        assert_eq!(pending.take_news(), [a, c]);
        assert!(!pending.has_more() && pending.take_news().is_empty());
    }
}
