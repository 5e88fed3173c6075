//! What an operator and the owner of end ports do to a managed fabric, and what they ask it: names,
//! paths, faults, capabilities. Not management, which comes in datagrams.

use super::{Managed, Unsent};
use crate::counters::Cause;
use crate::fabric::{Delivery, End, Fabric, NoPath, NodeId, Passage, Path, Probe};
use crate::port::{CutBy, Fault, LINK_LOCAL};
use crate::rate::Time;
use crate::service::SlToVl;
use mad::counters::Counter;
use mad::node::Node;
use wire::lrh::VL_MANAGEMENT;

impl Managed {
    /// The links, states and tables. Its counters are not those that performance management has
    /// cleared.
    #[must_use]
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The links and switches, for an owner that sets tables, settings and states by hand. The
    /// agents do not know of it, so what a manager sets later wins.
    pub const fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.fabric.now()
    }

    /// The node with this name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<NodeId> {
        self.ids.get(name).copied()
    }

    /// The name of a node.
    #[must_use]
    pub fn name(&self, node: NodeId) -> Option<&str> {
        self.names.get(node.0 as usize).map(|name| &**name)
    }

    /// What management has set at a node. The states and rates of links are in
    /// [`Managed::port_info`].
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(node.0 as usize)
    }

    /// All end ports: those of adapters and routers, and port 0 of switches.
    pub fn ends(&self) -> impl Iterator<Item = End> + '_ {
        let nodes = (0..).map(NodeId).zip(&self.nodes);
        nodes.flat_map(|(node, own)| {
            let ports = if own.switch.is_some() { 0..=0 } else { 1..=own.info.ports };
            ports.map(move |port| End { node, port })
        })
    }

    /// A number that changes whenever a path may have changed.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.fabric.epoch()
    }

    /// The path from an end port to a LID. It holds until the epoch changes.
    ///
    /// # Errors
    /// Packets would be dropped, where, and why.
    pub fn resolve(&self, from: End, dlid: u16, sl: u8) -> Result<Path, NoPath> {
        self.fabric.resolve(from, dlid, sl)
    }

    /// The path from an end port to an address, also in another subnet.
    ///
    /// # Errors
    /// Packets would be dropped, where, and why.
    pub fn resolve_to(&self, from: End, to: &Probe) -> Result<Path, NoPath> {
        self.fabric.resolve_to(from, to)
    }

    /// Whether packets from an end port to an address pass, for all service levels.
    #[must_use]
    pub fn passage(&self, from: End, to: &Probe) -> Passage {
        self.fabric.passage(from, to)
    }

    /// The virtual lane of a service level at an end port; 15 if the port drops it.
    #[must_use]
    pub fn virtual_lane(&self, from: End, sl: u8) -> u8 {
        let table = self.fabric.port(from).map(|port| port.settings.sl_to_vl);
        table.and_then(|table| table.vl(sl)).unwrap_or(VL_MANAGEMENT)
    }

    /// Hands out what attached ports send and receive as [`Output::Seen`], or not any more.
    pub fn show_datagrams(&mut self, shown: bool) {
        self.shown = shown;
    }

    /// Sets the capability mask of an end port: a manager begins or ends there, for example. The
    /// port tells the master manager.
    ///
    /// # Errors
    /// It is no end port.
    pub fn set_capability(&mut self, end: End, mask: u32) -> Result<(), Unsent> {
        if !self.is_end(end) {
            return Err(Unsent::NoEnd(end));
        }
        let node = self.nodes.get_mut(end.node.0 as usize);
        if let Some(notice) = node.and_then(|node| node.change_capability(end.port, mask)) {
            self.trap(end, notice);
        }
        Ok(())
    }

    /// Cuts the cable of a port.
    pub fn cut(&mut self, end: End, by: CutBy) {
        self.fabric.cut(end, by);
        self.tunnels_follow();
    }

    /// Takes back a cut. The cable passes if nothing else cuts it.
    pub fn mend(&mut self, end: End, by: CutBy) {
        self.fabric.mend(end, by);
        self.tunnels_follow();
    }

    /// The operator cuts all cables of a node.
    pub fn remove(&mut self, node: NodeId) {
        self.cables(node).into_iter().for_each(|end| self.cut(end, CutBy::Operator));
    }

    /// Takes back what the operator has cut at a node, also before [`Managed::remove`].
    pub fn restore(&mut self, node: NodeId) {
        self.cables(node).into_iter().for_each(|end| self.mend(end, CutBy::Operator));
    }

    /// An adapter or router loses its power: it is absent, and its ports forget what a manager has
    /// set. When it has power again, a manager sets it up as a new one.
    pub fn power_off(&mut self, node: NodeId) {
        for end in self.cables(node) {
            self.cut(end, CutBy::Absence);
            // The link is down at once: there is nothing to recover.
            self.restart(end);
        }
        let (is_switch, ports) = self.shape(node);
        for end in (1..=ports).filter(|_| !is_switch).map(|port| End { node, port }) {
            if let Some(port) = self.port_mut(end) {
                port.forget(LINK_LOCAL);
            }
            self.apply_port(end);
            self.apply_pkeys(end);
            if let Some(settings) = self.fabric.settings_mut(end) {
                settings.sl_to_vl = SlToVl::default();
            }
        }
    }

    /// A node has power again.
    pub fn power_on(&mut self, node: NodeId) {
        self.cables(node).into_iter().for_each(|end| self.mend(end, CutBy::Absence));
    }

    fn cables(&self, node: NodeId) -> Vec<End> {
        let ends = (1..=self.shape(node).1).map(|port| End { node, port });
        ends.filter(|end| self.fabric.peer(*end).is_some()).collect()
    }

    /// Makes one direction of a link bad: what this port sends.
    pub fn set_fault(&mut self, end: End, fault: Fault) {
        self.fabric.set_fault(end, fault);
    }

    /// Adds to a counter of a port: errors for a test, or traffic that the owner carries by itself
    /// along a path.
    pub fn add(&mut self, end: End, counter: Counter, more: u64) {
        if let Some(port) = self.port_mut(end) {
            port.counters.add(counter, more);
        }
    }

    /// Counts packets that the owner carries by itself, and that a port would drop.
    pub fn add_drops(&mut self, end: End, cause: Cause, count: u64) {
        self.fabric.count_drops(end, cause, count);
    }

    /// The value of a counter as performance management shows it.
    pub fn counter(&mut self, end: End, counter: Counter) -> u64 {
        self.count(end.node, end.port);
        self.port(end).map_or(0, |port| port.counters.value(counter))
    }

    /// The owner of an end port takes no more packets. They stay in the port's buffer.
    pub fn stop(&mut self, end: End) {
        self.fabric.stop(end);
    }

    /// The owner takes packets again.
    pub fn resume(&mut self, end: End) {
        self.fabric.resume(end);
    }

    /// Begins or ends to keep copies of the packets that a port sends.
    pub fn capture(&mut self, end: End, on: bool) {
        self.fabric.capture(end, on);
    }

    /// The copies that were kept.
    pub fn captured(&mut self) -> Vec<Delivery> {
        self.fabric.captured()
    }
}
