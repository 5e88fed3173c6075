//! Takes over the fault rules about links of the topology ([`super::bad_links`]). Adds to [`Mads`]
//! and [`Fabric`].

use std::collections::BTreeSet;

use abi::fault::{FaultKind, Way};
use subnet::CutBy;
use subnet::fabric::End;

use super::Mads;
use super::bad_links::{BadLink, Harm};
use super::fabric::Fabric;
use crate::world::World;

impl Mads {
    /// Takes over the rules about links, if they have changed. Returns false if they have not.
    pub(crate) fn follow_faults(&mut self, world: &mut World) -> bool {
        let version = world.faults.version();
        let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.bad_links.version != version) else {
            return false;
        };
        fabric.bad_links.version = version;
        let list = fabric.rules_about_links(world);
        if list == fabric.bad_links.list {
            return false;
        }
        // What was lost until now was lost by the old rules.
        self.count_traffic(world);
        let Some(Fabric { managed, bad_links, .. }) = &mut self.fabric else { return false };
        let before = bad_links.down(managed.fabric());
        (bad_links.list, bad_links.are_new) = (list, true);
        let now = bad_links.down(managed.fabric());
        now.difference(&before).for_each(|end| managed.cut(*end, CutBy::Rule));
        before.difference(&now).for_each(|end| managed.mend(*end, CutBy::Rule));
        self.settle(world);
        true
    }
}

impl Fabric {
    fn rules_about_links(&self, world: &World) -> Vec<BadLink> {
        let rules = world.faults.about_links().into_iter();
        let bad_link = |(rule, fault): (u32, abi::fault::Rule)| {
            let harm = match fault.kind {
                FaultKind::Loss => Harm::Loss,
                FaultKind::Corrupt => Harm::Corruption,
                FaultKind::Delay { .. } => Harm::Delay,
                FaultKind::PortDown { .. } => Harm::Down,
                _ => return None,
            };
            let link = fault.select.link?;
            let end = End { node: self.managed.id(&link.node)?, port: link.port };
            Some(BadLink { rule, end, way: fault.select.direction.unwrap_or(Way::Both), harm })
        };
        rules.filter_map(bad_link).collect()
    }

    /// The ports with a cable, by the names of their nodes.
    pub(super) fn cables(&self) -> BTreeSet<(String, u8)> {
        let model = self.managed.fabric();
        let ends = (0..model.len() as u32).map(subnet::NodeId).flat_map(|node| {
            let ports = 1..=model.node(node).map_or(0, subnet::fabric::Node::ports);
            ports.map(move |port| End { node, port })
        });
        let named = ends.filter(|end| model.peer(*end).is_some());
        named.filter_map(|end| Some((self.managed.name(end.node)?.to_owned(), end.port))).collect()
    }
}
