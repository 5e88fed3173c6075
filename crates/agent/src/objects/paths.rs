//! What passes the switches of a topology, as far as engines have asked: paths to ports, and the
//! ports that groups reach. The switches themselves are elsewhere ([`crate::mads`]): it finds what
//! was asked, and keeps the answers current as the tables change. Principal type: [`Paths`].
//!
//! Answers belong to the context that asked. So a program makes the agent work and remember for
//! itself only, and a change concerns the programs whose packets it concerns.

use std::collections::{BTreeMap, BTreeSet};

use subnet::fabric::tree::Tree as Copies;
use subnet::{Cause, NodeId};
use wire::cm::Gid;

use super::elsewhere::Elsewhere;
use super::groups::At;
use crate::ids::ContextId;

/// Maximum number of paths that are kept for a context. If it asks for more, all are forgotten, and
/// it asks again for those that it needs.
pub(crate) const PATHS: usize = 1024;
/// Maximum number of trees of groups that are kept.
const TREES: usize = 4096;
/// Maximum number of questions that wait.
const ASKED: usize = 1024;

/// A question for a path from one port to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question {
    pub(crate) from: At,
    pub(crate) to: At,
    /// The destination LID; 0 stands for the first one of the destination.
    pub(crate) dlid: u16,
    pub(crate) route: GlobalRoute,
}

/// What routers see: the destination GID, the hop limit, the traffic class. Zeros within the subnet.
pub(crate) type GlobalRoute = (Gid, u8, u8);

/// What passes on a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// Service levels, as bits; 0 if there is no path.
    pub(crate) levels: u16,
    /// The code of the smallest MTU.
    pub(crate) mtu: u8,
    /// Entries of the sender's P_Key table, as bits.
    pub(crate) pkeys: u128,
    /// The port that sends on the link with that MTU.
    pub(crate) narrowest: String,
    /// The LID of the last router, and the service level that it gives packets; zeros without one.
    pub(crate) router: (u16, u8),
    pub(crate) links: RuledLinks,
}

/// Fault rules about links, as bits ([`abi::fault::link_bit`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RuledLinks {
    /// Those about links on the path.
    pub(crate) there: u64,
    /// Those about links on the path or on the path back.
    pub(crate) both_ways: u64,
}

/// A question for what packets to a group reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TreeQuestion {
    /// The sender's port.
    pub(crate) from: At,
    /// The LID of the group.
    pub(crate) mlid: u16,
    pub(crate) sl: u8,
    pub(crate) pkey: u16,
    /// What routers see: the GID of the group, and the hop limit. Zeros: they forward nothing.
    pub(crate) route: (Gid, u8),
}

/// An answer, and the nodes and their epoch that it was found by.
#[derive(Debug)]
pub(crate) struct Known<T> {
    pub(crate) answer: T,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) epoch: u64,
}

/// What packets of a sender to a group reach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Ports of this agent.
    pub(crate) ports: BTreeSet<At>,
    /// Links to other agents, too.
    pub(crate) leaves: bool,
    /// The ways of the copies.
    pub(crate) copies: Copies,
}

/// What engines have asked, and the answers.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// There are switches. Without them all packets pass.
    pub(crate) matter: bool,
    pub(crate) known: BTreeMap<ContextId, BTreeMap<Question, Known<Path>>>,
    pub(crate) trees: BTreeMap<TreeQuestion, Known<Tree>>,
    /// The ports of other agents.
    pub(crate) elsewhere: Elsewhere,
    asked: Vec<(ContextId, Question)>,
    asked_trees: Vec<TreeQuestion>,
}

impl Paths {
    /// The answer for a context. `None`: it is being found, ask again.
    pub(crate) fn path(&mut self, context: ContextId, question: &Question) -> Option<&Path> {
        let known = self.known.get(&context).and_then(|paths| paths.get(question));
        if known.is_none() && self.asked.len() < ASKED {
            self.asked.push((context, *question));
        }
        known.map(|known| &known.answer)
    }

    /// Whether packets of a group reach a port. A port always reaches itself; without switches it
    /// reaches all. `None`: it is being found, ask again.
    pub(crate) fn tree(&mut self, question: &TreeQuestion) -> Option<Reach<'_>> {
        if !self.matter {
            return Some(Reach { from: question.from, tree: None });
        }
        let known = self.trees.get(question);
        if known.is_none() && self.asked_trees.len() < ASKED {
            self.asked_trees.push(*question);
        }
        known.map(|known| Reach { from: question.from, tree: Some(&known.answer) })
    }

    /// Whether questions wait.
    pub(crate) fn has_questions(&self) -> bool {
        !self.asked.is_empty() || !self.asked_trees.is_empty()
    }

    /// Takes the questions that wait.
    pub(crate) fn take_questions(&mut self) -> (Vec<(ContextId, Question)>, Vec<TreeQuestion>) {
        (std::mem::take(&mut self.asked), std::mem::take(&mut self.asked_trees))
    }

    /// Keeps an answer. Returns false if the context had too many, and all of them are forgotten.
    pub(crate) fn keep(&mut self, context: ContextId, question: Question, known: Known<Path>) -> bool {
        let paths = self.known.entry(context).or_default();
        let has_room = paths.len() < PATHS || paths.contains_key(&question);
        if !has_room {
            paths.clear();
        }
        paths.insert(question, known);
        has_room
    }

    /// Keeps the tree of a group. Returns false if there were too many, and all of them are
    /// forgotten.
    pub(crate) fn keep_tree(&mut self, question: TreeQuestion, known: Known<Tree>) -> bool {
        let has_room = self.trees.len() < TREES || self.trees.contains_key(&question);
        if !has_room {
            self.trees.clear();
        }
        self.trees.insert(question, known);
        has_room
    }

    /// A context has ended.
    pub(crate) fn forget(&mut self, context: ContextId) {
        self.known.remove(&context);
        self.asked.retain(|(of, _)| *of != context);
    }
}

/// Whether a switch drops packets for their P_Key.
pub(crate) const fn is_of_partition(cause: Cause) -> bool {
    matches!(cause, Cause::PartitionIn | Cause::PartitionOut)
}

/// What packets of one sender to a group reach.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach<'a> {
    from: At,
    tree: Option<&'a Tree>,
}

impl Reach<'_> {
    /// Whether they reach a port.
    pub(crate) fn has(&self, to: At) -> bool {
        self.from == to || self.tree.is_none_or(|tree| tree.ports.contains(&to))
    }

    /// Whether switches drop copies for their P_Key.
    pub(crate) fn is_cut_by_partitions(&self) -> bool {
        self.tree.is_some_and(|tree| tree.copies.lost.iter().any(|lost| is_of_partition(lost.cause)))
    }

    /// Whether they reach links to other agents.
    pub(crate) fn leaves(&self) -> bool {
        self.tree.is_some_and(|tree| tree.leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(dlid: u16) -> Question {
        Question { from: (0, 1), to: (1, 1), dlid, route: ([0; 16], 0, 0) }
    }

    fn known(levels: u16) -> Known<Path> {
        Known { answer: Path { levels, ..Path::default() }, nodes: Vec::new(), epoch: 1 }
    }

    fn group(sl: u8) -> TreeQuestion {
        TreeQuestion { from: (0, 1), mlid: 0xc001, sl, pkey: 0xffff, route: ([0; 16], 0) }
    }

    #[test]
    fn a_question_waits_for_its_answer_and_ends_with_its_context() {
        let mut paths = Paths::default();
        let (one, other) = (ContextId(1), ContextId(2));
        assert_eq!(paths.path(one, &question(5)), None);
        assert_eq!(paths.path(other, &question(5)), None);
        paths.forget(other);
        assert_eq!(paths.take_questions().0, [(one, question(5))]);
        assert!(paths.keep(one, question(5), known(3)));
        assert_eq!(paths.path(one, &question(5)).map(|path| path.levels), Some(3));
        assert_eq!(paths.path(other, &question(5)), None, "it asks for itself");
    }

    #[test]
    fn a_context_that_asks_without_end_forgets_only_its_own_paths() {
        let mut paths = Paths::default();
        let (one, other) = (ContextId(1), ContextId(2));
        assert!(paths.keep(other, question(1), known(1)));
        let kept = (0..=PATHS as u16).map(|dlid| paths.keep(one, question(dlid), known(1)));
        assert_eq!(kept.filter(|has_room| !has_room).count(), 1);
        assert_eq!((paths.known[&one].len(), paths.known[&other].len()), (1, 1));
        (0..2 * ASKED as u16).for_each(|dlid| assert!(paths.path(ContextId(3), &question(dlid)).is_none()));
        assert_eq!(paths.take_questions().0.len(), ASKED);
    }

    #[test]
    fn a_group_reaches_the_ports_of_its_tree() {
        let mut paths = Paths::default();
        assert!(paths.tree(&group(2)).is_some_and(|reach| reach.has((7, 1))), "no switches");
        paths.matter = true;
        assert!(paths.tree(&group(2)).is_none());
        let answer = Tree { ports: [(1, 1)].into(), ..Tree::default() };
        let tree = Known { answer, nodes: Vec::new(), epoch: 1 };
        assert!(paths.keep_tree(group(2), tree));
        let reach = paths.tree(&group(2)).expect("it is known");
        assert!(reach.has((1, 1)) && reach.has((0, 1)) && !reach.has((2, 1)));
        assert!(paths.tree(&group(3)).is_none(), "another service level");
    }
}
