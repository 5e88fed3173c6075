//! A subnet with hosts at its adapters. Principal type: [`Net`].

use std::time::Duration;

use crate::common::{Plan, Side};
use abi::ah::AhAttr;
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Ah, Service};
use fabric::simulation::{Conditions, HostId, Simulation};
use mad::topology::Topology;
use sm::Config;
use sm::config::Qos;
use std::sync::Arc;
use subnet::state::Event;
use subnet::{End, Managed, NodeId};
use wire::smp::VlWeight;

/// Longer than a link trains, and than the manager needs for a small subnet.
const BEGIN: Duration = Duration::from_secs(2);

pub(crate) struct Net {
    pub(crate) simulation: Simulation,
    hosts: Vec<HostId>,
}

impl Net {
    fn new(seed: u64, text: &str) -> Self {
        let topology = Topology::from_text(text).expect("a topology");
        let mut simulation = Simulation::with_subnet(seed, Managed::new(&topology).expect("a subnet"));
        // Pauses of processors would hide what the links do.
        simulation.set_conditions(Conditions { pauses: 0.0, ..Conditions::default() });
        Self { simulation, hosts: Vec::new() }
    }

    /// Hosts at the adapters "H1" to "H`hosts`" of a subnet that a manager brings up.
    pub(crate) fn managed(seed: u64, text: &str, hosts: usize, config: Config) -> Self {
        let mut net = Self::new(seed, text);
        net.add_hosts(hosts);
        assert!(net.simulation.start_subnet_manager(config), "a port for the manager");
        net.simulation.run_for(BEGIN);
        (1..=hosts).for_each(|host| assert_ne!(net.lid(host), 0, "seed {seed}: H{host} has no LID"));
        net
    }

    /// The same with tables by hand: H`n` has the LID n, and `route` tells a switch's port to a
    /// LID.
    pub(crate) fn by_hand(seed: u64, text: &str, hosts: usize, route: impl Fn(&str, u16) -> u8) -> Self {
        let mut net = Self::new(seed, text);
        net.model(|model| {
            for lid in 1..=hosts as u16 {
                let end = end(model, &format!("H{lid}"), 1);
                model.fabric_mut().settings_mut(end).expect("a port").identity.lid = lid;
            }
        });
        net.set_routes(hosts, route);
        net.add_hosts(hosts);
        net.simulation.run_for(BEGIN);
        net.model(|model| {
            for node in (0..model.fabric().len() as u32).map(NodeId) {
                for port in 1..=model.fabric().node(node).expect("a node").ports() {
                    for event in [Event::SetArmed, Event::SetActive] {
                        let _ = model.fabric_mut().set_state(End { node, port }, event);
                    }
                }
            }
        });
        net
    }

    /// Sets the tables of all switches.
    pub(crate) fn set_routes(&mut self, hosts: usize, route: impl Fn(&str, u16) -> u8) {
        self.model(|model| {
            for node in (0..model.fabric().len() as u32).map(NodeId) {
                let name = model.name(node).expect("a name").to_owned();
                if let Some(switch) = model.fabric_mut().switch_mut(node) {
                    switch.top = hosts as u16;
                    (1..=switch.top).for_each(|lid| switch.set_route(lid, route(&name, lid)));
                }
            }
        });
    }

    fn add_hosts(&mut self, hosts: usize) {
        for host in 1..=hosts {
            let added = self.simulation.host_on(&format!("H{host}"), &format!("10.0.0.{}", 100 + host));
            self.hosts.push(added.expect("a host"));
        }
    }

    pub(crate) fn model<T>(&mut self, action: impl FnOnce(&mut Managed) -> T) -> T {
        self.simulation.subnet(action).expect("a subnet")
    }

    /// A program on a host, with one queue pair.
    pub(crate) fn side(&mut self, host: usize, plan: &Plan) -> Side {
        Side::new(&self.simulation.connect(self.hosts[host - 1]).expect("an engine"), plan)
    }

    pub(crate) fn lid(&mut self, host: usize) -> u16 {
        self.model(|model| {
            let end = end(model, &format!("H{host}"), 1);
            model.fabric().port(end).expect("a port").settings().identity.lid
        })
    }

    /// Everything that ports have dropped.
    pub(crate) fn drops(&mut self) -> u64 {
        self.model(|model| {
            let nodes = (0..model.fabric().len() as u32).map(NodeId);
            let ends = nodes.flat_map(|node| (0..=16).map(move |port| End { node, port }));
            let ports = ends.filter_map(|end| model.fabric().port(end));
            ports.flat_map(|port| port.counters().drops()).map(|(_, count)| count).sum()
        })
    }
}

pub(crate) fn end(model: &Managed, node: &str, port: u8) -> End {
    End { node: model.id(node).expect("a node"), port }
}

/// A manager that puts service level 1 on lane 1, with these weights for the two lanes.
pub(crate) fn two_lanes(weights: [u8; 2]) -> Config {
    let low = (0..).zip(weights).map(|(vl, weight)| VlWeight { vl, weight }).collect();
    let mut sl_to_vl = [0; 16];
    sl_to_vl[1] = 1;
    Config { qos: Some(Qos { sl_to_vl, high: Vec::new(), low, high_limit: 0 }), ..Config::default() }
}

/// Connects two sides by LID, with this service level.
pub(crate) fn connect_by_lid(ends: [(&Side, u16); 2], sl: u8) {
    for (at, (side, _)) in ends.into_iter().enumerate() {
        side.init();
        let (peer, dlid) = ends[1 - at];
        side.modify(&ModifyQp {
            dest: Dest { dlid, sl, port_num: 1, ..Dest::default() },
            ..side.rtr_request([0; 16], peer.qp.qpn(), 5)
        });
        side.rts();
    }
}

/// Brings a datagram queue pair to RTS.
pub(crate) fn start(side: &Side) {
    assert_eq!(side.plan.service, Service::Ud);
    side.init();
    side.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::RTR, ..ModifyQp::default() });
    side.rts();
}

/// An address handle for a LID.
pub(crate) fn handle(side: &Side, dlid: u16, sl: u8) -> Arc<Ah> {
    side.pd.create_ah(&AhAttr { dlid, sl, port_num: 1, ..AhAttr::default() }).expect("a handle")
}
