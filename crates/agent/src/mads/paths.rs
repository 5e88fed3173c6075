//! Finds what engines ask of the fabric: which packets pass its switches, by the tables as they
//! are. Packets of queue pairs pass over lanes, and an engine sends only where the model would
//! deliver (PATH_RESOLVE). Adds to [`Mads`].
//!
//! When the fabric has changed, only answers that were found by a changed node are found again,
//! once per piece of work.

use abi::private::{Push, push};
use subnet::NodeId;
use subnet::fabric::{self, End, Kind, Passage, Probe};
use wire::Grh;

use super::Mads;
use super::fabric::Fabric;
use super::traffic::turned;
use super::travel::port_of;
use super::way::PortId;
use crate::ids::ContextId;
use crate::objects::groups::At;
use crate::objects::paths::{Known, Path, Paths, Question, RuledLinks, Tree, TreeQuestion};
use crate::world::World;

impl Mads {
    /// Answers what engines have asked. Called before the next command, which may ask again.
    pub(crate) fn find_paths(&mut self, world: &mut World) {
        if !world.tables.paths.has_questions() {
            return;
        }
        let (paths, trees) = world.tables.paths.take_questions();
        self.renew_paths(world);
        let Some(fabric) = &self.fabric else { return };
        for (context, question) in paths {
            let known = fabric.find(world, &question);
            if world.contexts.contains_key(&context) && !world.tables.paths.keep(context, question, known) {
                world.announce_paths(&[context]);
            }
        }
        for question in trees {
            let known = fabric.find_tree(&question);
            if !world.tables.paths.keep_tree(question, known) {
                world.board.bump_mcast();
            }
        }
    }

    /// Brings the answers up to date with the fabric, if that has changed.
    pub(super) fn renew_paths(&mut self, world: &mut World) {
        let has_changed =
            |fabric: &&mut Fabric| fabric.shown != Some(fabric.managed.epoch()) || fabric.bad_links.are_new;
        let Some(fabric) = self.fabric.as_mut().filter(has_changed) else { return };
        if world.tables.paths.trees.values().any(|known| fabric.is_stale(known)) {
            // What was sent until now took the old ways.
            self.count_traffic(world);
        }
        let Some(fabric) = &mut self.fabric else { return };
        if fabric.shown.is_none() {
            world.tables.paths.matter = true;
            world.board.show_that_paths_matter();
        }
        fabric.shown = Some(fabric.managed.epoch());
        fabric.show_lanes(world);
        let mut paths = std::mem::take(&mut world.tables.paths);
        let changed = fabric.renew(world, &mut paths);
        let trees_changed = fabric.renew_trees(&mut paths);
        world.tables.paths = paths;
        fabric.bad_links.are_new = false;
        world.announce_paths(&changed);
        if fabric.show_remotes(world) {
            world.announce_ports();
        }
        let elsewhere = fabric.remotes.all().collect();
        if world.tables.paths.elsewhere != elsewhere {
            world.tables.paths.elsewhere = elsewhere;
            self.results.ports_changed = true;
            self.log_conflicts(world);
        }
        if trees_changed {
            world.board.bump_mcast();
        }
        if !changed.is_empty() {
            self.follow_paths(world);
        }
    }
}

impl Fabric {
    /// Shows the virtual lanes of each port.
    fn show_lanes(&self, world: &World) {
        for (from, start) in &self.ends {
            world.board.show_lanes(at(*from), |sl| self.managed.virtual_lane(*start, sl));
        }
    }

    /// Finds the paths again that may have changed. Returns the contexts with a changed path.
    fn renew(&self, world: &World, paths: &mut Paths) -> Vec<ContextId> {
        let mut changed = Vec::new();
        for (context, known) in &mut paths.known {
            let mut has_changed = false;
            for (question, known) in known.iter_mut().filter(|(_, known)| self.is_stale(known)) {
                let now = self.find(world, question);
                has_changed |= now.answer != known.answer;
                *known = now;
            }
            changed.extend(has_changed.then_some(*context));
        }
        changed
    }

    fn renew_trees(&self, paths: &mut Paths) -> bool {
        let mut changed = false;
        for (question, known) in paths.trees.iter_mut().filter(|(_, known)| self.is_stale(known)) {
            let now = self.find_tree(question);
            changed |= now.answer != known.answer;
            *known = now;
        }
        changed
    }

    /// Whether an answer may have changed. One without nodes is about a port that was not there.
    pub(super) fn is_stale<T>(&self, known: &Known<T>) -> bool {
        self.bad_links.are_new
            || known.nodes.is_empty()
            || known.nodes.iter().any(|node| self.managed.fabric().changed(*node) > known.epoch)
    }

    /// What passes on a path.
    fn find(&self, world: &World, question: &Question) -> Known<Path> {
        let epoch = self.managed.epoch();
        let ends = [question.from, question.to].map(|(device, port)| self.ends.get(&PortId { device, port }).copied());
        let [Some(from), Some(to)] = ends else {
            return Known { answer: Path::default(), nodes: Vec::new(), epoch };
        };
        let probe = self.target(question, to);
        let Passage { found, mut nodes } = self.managed.passage(from, &probe);
        // The first LID of the destination is that node's.
        nodes.push(to.node);
        let links = found.as_ref().map(|(_, path)| self.ruled_links((from, to), &probe, path, &mut nodes));
        let links = links.unwrap_or_default();
        let answer = found.ok().filter(|(_, path)| path.end == to).map(|(levels, path)| {
            let port = port_of(world, PortId { device: question.from.0, port: question.from.1 });
            let pkeys = port.into_iter().flat_map(|port| (0..port.pkeys.length() as u32).zip(port.pkeys.entries()));
            let passing = pkeys.filter(|(_, pkey)| self.managed.fabric().partition_passes(&path, **pkey));
            Path {
                levels,
                mtu: path.mtu as u8,
                pkeys: passing.fold(0, |bits, (slot, _)| bits | 1_u128.checked_shl(slot).unwrap_or(0)),
                narrowest: self.name(path.narrowest),
                router: self.last_router(&path, question.route.2).unwrap_or_default(),
                links,
            }
        });
        Known { answer: answer.unwrap_or_default(), nodes, epoch }
    }

    /// The fault rules about links on a path, and on it or the path back. `nodes` are those by
    /// which the answer was found.
    fn ruled_links(
        &self,
        (from, to): (End, End),
        probe: &Probe,
        path: &fabric::Path,
        nodes: &mut Vec<NodeId>,
    ) -> RuledLinks {
        if self.bad_links.is_empty() || from == to {
            return RuledLinks::default();
        }
        let model = self.managed.fabric();
        let there = self.bad_links.on(model, from, &path.hops);
        let back = match probe.grh {
            // The answers of another subnet pass the same routers.
            Some(_) => turned(&path.hops),
            None => {
                let dlid = self.managed.port_info(from).map_or(0, |info| info.lid);
                let Passage { found, nodes: more } = self.managed.passage(to, &Probe { dlid, ..Probe::default() });
                nodes.extend(more);
                found.map(|(_, path)| path.hops).unwrap_or_default()
            }
        };
        RuledLinks { there, both_ways: there | self.bad_links.on(model, to, &back) }
    }

    /// The LID by which packets of a path and a traffic class leave the last router, and their
    /// service level from there.
    fn last_router(&self, path: &fabric::Path, traffic_class: u8) -> Option<(u16, u8)> {
        let fabric = self.managed.fabric();
        path.hops.iter().rev().find_map(|hop| {
            let Kind::Router(router) = fabric.node(hop.node)?.kind() else { return None };
            let egress = fabric.port(End { node: hop.node, port: hop.egress })?;
            Some((egress.settings().identity.lid, router.sl_of_class[usize::from(traffic_class >> 4)]))
        })
    }

    /// The address of a question in the model.
    fn target(&self, question: &Question, to: End) -> Probe {
        let first = || self.managed.port_info(to).map_or(0, |info| info.lid);
        let from = self.ends.get(&PortId { device: question.from.0, port: question.from.1 });
        let grh = from.and_then(|from| self.grh(*from, &question.route));
        let dlid = if question.dlid == 0 && grh.is_none() { first() } else { question.dlid };
        Probe { dlid, grh, ..Probe::default() }
    }

    /// What multicast packets reach.
    fn find_tree(&self, question: &TreeQuestion) -> Known<Tree> {
        let TreeQuestion { from, mlid, sl, pkey, route: (dgid, hop_limit) } = *question;
        let fabric = self.managed.fabric();
        let start = self.ends.get(&PortId { device: from.0, port: from.1 });
        let sgid = start.and_then(|start| fabric.port(*start)).map(|port| port.settings().identity.gid());
        let grh = sgid.filter(|_| hop_limit != 0).map(|sgid| Grh { sgid, dgid, hop_limit, ..Grh::default() });
        let probe = Probe { dlid: mlid, sl, grh, pkey: Some(pkey), ..Probe::default() };
        let copies = start.map(|start| fabric.trace_multicast(*start, &probe)).unwrap_or_default();
        let leaves = copies.ends.iter().any(|end| self.managed.leads_out(*end));
        let ports = copies.ends.iter().filter_map(|end| self.port_at(*end)).map(at).collect();
        let nodes = copies.nodes.iter().copied().collect();
        Known { answer: Tree { ports, leaves, copies }, nodes, epoch: self.managed.epoch() }
    }

    fn name(&self, end: End) -> String {
        format!("{}[{}]", self.managed.name(end.node).unwrap_or_default(), end.port)
    }
}

impl World {
    /// Lets engines ask for their paths again.
    fn announce_paths(&mut self, contexts: &[ContextId]) {
        if !contexts.is_empty() {
            // Before the push: who reads the new epoch cannot have an old answer.
            self.board.bump_paths();
        }
        for context in contexts {
            if let Some(engine) = self.contexts.get_mut(context).and_then(|context| context.engine.as_mut()) {
                engine.push(Push { kind: push::PATHS, ..Push::default() }, Vec::new());
            }
        }
    }
}

const fn at(port: PortId) -> At {
    (port.device, port.port)
}

#[cfg(test)]
mod tests;
