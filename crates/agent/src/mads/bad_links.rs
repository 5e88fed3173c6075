//! Fault rules about links of the topology: which paths they concern, which links they hold down,
//! and where ports count what they harm. Engines lose, damage and delay the packets. Principal type:
//! [`BadLinks`].

use std::collections::BTreeSet;
use std::iter::once;

use abi::fault::{Way, link_bit};
use mad::counters::Counter;
use subnet::Managed;
use subnet::fabric::{End, Fabric as Model, Hop, Path};

/// The rules about links.
#[derive(Debug, Default)]
pub(super) struct BadLinks {
    /// Of the agent's rules, when they were looked at last.
    pub(super) version: u64,
    pub(super) list: Vec<BadLink>,
    /// The answers about paths do not know these rules yet.
    pub(super) are_new: bool,
}

/// What a rule does to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadLink {
    /// The number of the rule.
    pub(super) rule: u32,
    pub(super) end: End,
    /// The direction of packets at this end.
    pub(super) way: Way,
    pub(super) harm: Harm,
}

/// How packets are harmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Harm {
    /// They do not arrive as packets.
    Loss,
    /// They arrive with a wrong VCRC.
    Corruption,
    Delay,
    /// The link is down.
    Down,
}

impl BadLink {
    /// Whether it harms packets that leave a port.
    fn is_behind(&self, model: &Model, egress: End) -> bool {
        let comes_in = || model.peer(egress) == Some(self.end);
        self.harm != Harm::Down
            && match self.way {
                Way::Out => self.end == egress,
                Way::In => comes_in(),
                Way::Both => self.end == egress || comes_in(),
            }
    }
}

impl BadLinks {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The rules about links on a path, as bits.
    pub(super) fn on(&self, model: &Model, start: End, hops: &[Hop]) -> u64 {
        let rules =
            egresses(start, hops).flat_map(|egress| self.list.iter().filter(move |it| it.is_behind(model, egress)));
        rules.fold(0, |bits, it| bits | link_bit(it.rule))
    }

    /// The first link of a path on which packets are lost: how many hops are before it, and how
    /// they are lost.
    pub(super) fn first_lossy(&self, model: &Model, start: End, path: &Path) -> Option<(usize, Harm)> {
        let loses = |egress| {
            let lossy = self.list.iter().filter(|it| matches!(it.harm, Harm::Loss | Harm::Corruption));
            lossy.map(|it| (it, it.harm)).find(|(it, _)| it.is_behind(model, egress)).map(|(_, harm)| harm)
        };
        egresses(start, &path.hops).enumerate().find_map(|(at, egress)| Some((at, loses(egress)?)))
    }

    /// The links that are held down, each by one of its ends.
    pub(super) fn down(&self, model: &Model) -> BTreeSet<End> {
        let down = self.list.iter().filter(|it| it.harm == Harm::Down).map(|it| it.end);
        down.map(|end| model.peer(end).map_or(end, |peer| end.min(peer))).collect()
    }
}

/// The ports that packets leave.
fn egresses(start: End, hops: &[Hop]) -> impl Iterator<Item = End> + '_ {
    once(start).chain(hops.iter().map(|hop| End { node: hop.node, port: hop.egress }))
}

/// Counts packets that are lost on a link: at the ports that they pass, and as errors at the port
/// behind the link (IBA 16.1.3.5). `hops` are before it.
pub(super) fn count_errors(net: &mut Managed, start: End, hops: &[Hop], (harm, packets): (Harm, u64)) {
    let last = egresses(start, hops).last().unwrap_or(start);
    let Some(peer) = net.fabric().peer(last) else { return };
    net.add(peer, Counter::SymbolErrors, packets);
    if harm == Harm::Corruption {
        net.add(peer, Counter::ReceiveErrors, packets);
    }
}
