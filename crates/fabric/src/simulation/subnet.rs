//! The InfiniBand subnet of a simulation: hosts' ports on a fabric of links and switches
//! (`subnet::Managed`), in the time of the simulation. A packet that an engine sends waits at its
//! port for credits and arbitration, as on hardware, and comes out at the port that the tables lead
//! to. Management of the subnet is by hand, or by a subnet manager. Principal type: [`Links`].

use std::collections::BTreeMap;
use std::time::Duration;

use agent::port_change::PortChange;
use agent::{OwnManager, change_of, change_of_link};
use mad::sma::NodeEvent;
use softhca::Gid;
use subnet::managed::{Delivered, Managed, Output};
use subnet::{End, Frame, Time};
use wire::mad::{CLASS_CM, Header};

use super::link_packet::{is_local, lid_of, to_host, to_link};
use crate::head::Head;

/// Picoseconds of the model in a nanosecond of the simulation.
const PS: Time = 1000;
/// Packets that wait at a host's port. More are lost, as in a full socket.
const ROOM: usize = 4096;

/// A host's port.
struct Port {
    end: End,
    /// The host's first address.
    gid: Gid,
}

/// The links and switches, and the hosts at their ends.
pub(super) struct Links {
    net: Managed,
    manager: Option<OwnManager>,
    /// Times of the model and of the simulation that are the same.
    began: (Time, u64),
    ports: BTreeMap<usize, Port>,
    hosts: BTreeMap<End, usize>,
    /// Packets that have come out, with the host that gets them.
    pub(super) arrived: Vec<(usize, Head, Vec<u8>)>,
    /// What has changed at hosts' ports.
    pub(super) changes: Vec<(usize, PortChange)>,
}

impl Links {
    pub(super) fn new(net: Managed, now: u64) -> Self {
        let (ports, hosts, arrived, changes) = Default::default();
        Self { began: (net.now(), now), net, manager: None, ports, hosts, arrived, changes }
    }

    /// Starts a subnet manager. Returns false if there is no port for it.
    pub(super) fn start_manager(&mut self, config: sm::Config) -> bool {
        self.manager = OwnManager::with(&mut self.net, config, 1);
        self.manager.is_some()
    }

    /// The port of a node, if nobody has it.
    pub(super) fn free_end(&self, node: &str) -> Option<End> {
        let end = End { node: self.net.id(node)?, port: 1 };
        (self.net.is_end(end) && !self.hosts.contains_key(&end)).then_some(end)
    }

    /// Puts a host at an end port.
    pub(super) fn add(&mut self, host: usize, end: End, gid: Gid) {
        // The end was found to be one.
        let _ = self.net.attach(end);
        self.ports.insert(host, Port { end, gid });
        self.hosts.insert(end, host);
        let Some(port) = self.net.fabric().port(end) else { return };
        let (state, identity) = (port.logical(), &port.settings().identity);
        let mut change = self.net.port_info(end).map_or_else(PortChange::default, |info| change_of_link(&info, state));
        if identity.lid != 0 {
            (change.subnet.lid, change.subnet.lmc) = (Some(identity.lid), Some(identity.lmc));
        }
        self.changes.push((host, change));
    }

    /// The end port of a host.
    pub(super) fn end(&self, host: usize) -> Option<End> {
        self.ports.get(&host).map(|port| port.end)
    }

    /// The model, at this time of the simulation.
    pub(super) fn model(&mut self, now: u64) -> &mut Managed {
        self.advance(now);
        &mut self.net
    }

    /// When something happens next.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        if !self.arrived.is_empty() || !self.changes.is_empty() {
            return Some(now);
        }
        let timer = self.manager.as_ref().and_then(OwnManager::next);
        let timer = timer.map(|at| Time::try_from(at.as_nanos()).map_or(Time::MAX, |at| at.saturating_mul(PS)));
        let at = self.net.next_event().into_iter().chain(timer).min()?;
        Some(self.began.1 + at.saturating_sub(self.began.0).div_ceil(PS))
    }

    /// Lets everything happen up to a time of the simulation. Returns whether the outside learns
    /// anything.
    pub(super) fn advance(&mut self, now: u64) -> bool {
        let until = (self.began.0 + (now - self.began.1) * PS).max(self.net.now());
        let mut tells = false;
        loop {
            let next = self.net.next_event().filter(|time| *time <= until);
            let outputs = self.net.advance(next.unwrap_or(until));
            tells |= !outputs.is_empty();
            outputs.into_iter().for_each(|output| self.take(output));
            let clock = self.clock();
            let asks = self.manager.as_mut().is_some_and(|manager| manager.run(&mut self.net, clock));
            tells |= asks;
            if next.is_none() && !asks {
                return tells;
            }
        }
    }

    /// A host sends a packet of a burst. Returns whether its port has taken it, and the LID.
    pub(super) fn send(&mut self, host: usize, to: Option<usize>, head: &Head, id: u16, packet: &[u8]) -> (bool, u16) {
        let Some(Port { end, .. }) = self.ports.get(&host) else { return (false, 0) };
        let (end, lid) = (*end, |end: End| self.net.fabric().port(end).map_or(0, |port| port.settings().identity.lid));
        let slid = lid(end);
        let of_host = || to.and_then(|to| self.end(to)).map(lid);
        let dlid = match head.to {
            group if group.is_multicast() => Some(abi::lid::of_group(&group.0)),
            _ if is_local(head) => lid_of(&head.from, &head.to),
            _ => of_host().or_else(|| lid_of(&head.from, &head.to)),
        };
        let Some(dlid) = dlid else { return (false, 0) };
        let is_full = self.net.fabric().port(end).is_some_and(|port| port.backlog() >= ROOM);
        let frame = to_link(head, id, packet, (slid, dlid)).filter(|_| !is_full);
        (frame.is_some_and(|frame| self.net.inject(end, frame).is_ok()), dlid)
    }

    /// The time as the manager counts it.
    fn clock(&self) -> Duration {
        Duration::from_nanos(self.net.now() / PS)
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Packet(delivery) => self.arrive(delivery.end, &delivery.frame),
            Output::Datagram(delivered) => self.take_datagram(&delivered),
            // The states of links come as such. Nobody asks the model for violations.
            Output::Changed { event: NodeEvent::Active | NodeEvent::Inactive | NodeEvent::Link(_), .. }
            | Output::Changed { event: NodeEvent::Cleared(_), .. }
            | Output::Violation { .. }
            | Output::Asked { .. } => {}
            Output::Changed { end, event } => {
                let port = self.net.node(end.node).and_then(|node| node.port(end.port));
                let change = port.map(|port| change_of(port, &[event]));
                self.change(end, change);
            }
            Output::Link { end, state } => {
                let change = self.net.port_info(end).map(|info| change_of_link(&info, state));
                self.change(end, change);
            }
            // A simulated subnet is whole: no link leads to another agent.
            Output::Tunnel { .. }
            | Output::Reach { .. }
            | Output::Count
            | Output::Passed { .. }
            | Output::Seen { .. } => {}
        }
    }

    fn change(&mut self, end: End, change: Option<PortChange>) {
        if let (Some(host), Some(change)) = (self.hosts.get(&end), change) {
            self.changes.push((*host, change));
        }
    }

    /// A management datagram is for the manager, or for the connection manager of a host.
    fn take_datagram(&mut self, delivered: &Delivered) {
        let clock = self.clock();
        if self.manager.as_mut().is_some_and(|manager| manager.takes(delivered, clock)) {
            return;
        }
        let datagram = &delivered.datagram;
        match datagram.to_frame() {
            Some(frame) if datagram.dest_qp == 1 && Header::of(&datagram.mad).class == CLASS_CM => {
                self.arrive(delivered.end, &frame);
            }
            _ => self.net.refuse(delivered),
        }
    }

    fn arrive(&mut self, end: End, frame: &Frame) {
        let Some(host) = self.hosts.get(&end) else { return };
        let own = self.ports.get(host).map(|port| port.gid).unwrap_or_default();
        if let Some((head, packet)) = to_host(frame, &own) {
            self.arrived.push((*host, head, packet));
        }
    }
}
