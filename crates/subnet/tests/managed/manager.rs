//! A small subnet manager for tests and measurements: it discovers a fabric by directed routes,
//! gives LIDs, fills the linear tables with shortest paths, and takes all links to ACTIVE. Not a
//! manager for use: it trusts its fabric and does nothing at a later change. Principal type:
//! [`Manager`].

use softhca_subnet::managed::{Datagram, Managed, Output};
use softhca_subnet::{End, Time};
use std::collections::{BTreeMap, HashMap, VecDeque};
use wire::layout::Layout;
use wire::mad::{BASE_VERSION, CLASS_SUBN_DIRECTED, METHOD_GET, METHOD_SET, RESPONSE};
use wire::smp::{
    CLASS_VERSION, LinearTable, LinkState, NodeDescription, NodeInfo, NodeType, PERMISSIVE_LID, PortInfo, Smp,
    SwitchInfo,
};

/// How long a request waits for its answer: 200 ms.
const TIMEOUT: Time = 200_000_000_000;

/// A node that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) info: NodeInfo,
    pub(crate) description: String,
    /// The egress ports of the directed route to it.
    pub(crate) path: Vec<u8>,
    /// The node and port at the other end of each link, by port.
    pub(crate) links: BTreeMap<u8, (usize, u8)>,
    pub(crate) lid: u16,
}

impl Found {
    fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::Switch as u8
    }
}

/// The manager and what it knows.
pub(crate) struct Manager {
    pub(crate) from: End,
    pub(crate) found: Vec<Found>,
    by_guid: HashMap<u64, usize>,
    transaction: u64,
    /// Requests that were sent.
    pub(crate) requests: u64,
    pub(crate) mkey: u64,
}

impl Manager {
    /// A manager at an end port, which it attaches to.
    pub(crate) fn new(net: &mut Managed, from: End) -> Manager {
        net.attach(from).unwrap();
        let (found, by_guid) = (Vec::new(), HashMap::new());
        Manager { from, found, by_guid, transaction: 0, requests: 0, mkey: 0 }
    }

    /// Sends a request on a directed route, and waits for its answer.
    pub(crate) fn ask<T: Layout>(
        &mut self,
        net: &mut Managed,
        path: &[u8],
        (method, attribute, modifier): (u8, u16, u32),
        data: T,
    ) -> Option<Smp> {
        let mut smp = Smp {
            base_version: BASE_VERSION,
            class: CLASS_SUBN_DIRECTED,
            class_version: CLASS_VERSION,
            method,
            attribute,
            modifier,
            mkey: self.mkey,
            dr_slid: PERMISSIVE_LID,
            dr_dlid: PERMISSIVE_LID,
            hop_count: u8::try_from(path.len()).unwrap(),
            ..Smp::default()
        };
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        data.write(&mut smp.data);
        self.request(net, PERMISSIVE_LID, smp)
    }

    /// Sends a request of subnet management, and waits for its answer.
    pub(crate) fn request(&mut self, net: &mut Managed, dlid: u16, smp: Smp) -> Option<Smp> {
        self.transaction += 1;
        self.requests += 1;
        let own = net.port_info(self.from).unwrap().lid;
        let slid = if own == 0 { PERMISSIVE_LID } else { own };
        let mad = Smp { transaction: self.transaction, ..smp }.to_mad();
        net.send(self.from, &Datagram::smp(slid, dlid, 0, mad)).ok()?;
        let answer = self.wait(net, |datagram| {
            let smp = Smp::parse(&datagram.mad);
            datagram.dest_qp == 0 && smp.method & RESPONSE != 0 && smp.transaction == self.transaction
        })?;
        Some(Smp::parse(&answer.mad))
    }

    /// Runs until a datagram for the manager's port is the right one.
    pub(crate) fn wait(&self, net: &mut Managed, is_it: impl Fn(&Datagram) -> bool) -> Option<Datagram> {
        let deadline = net.now() + TIMEOUT;
        loop {
            let next = net.next_event().filter(|time| *time <= deadline)?;
            for output in net.advance(next) {
                if let Output::Datagram(delivered) = output
                    && delivered.end == self.from
                    && is_it(&delivered.datagram)
                {
                    return Some(delivered.datagram);
                }
            }
        }
    }

    pub(crate) fn get<T: Layout + Default>(
        &mut self,
        net: &mut Managed,
        path: &[u8],
        attribute: u16,
        modifier: u32,
    ) -> Option<T> {
        let answer = self.ask(net, path, (METHOD_GET, attribute, modifier), LinearTable::default())?;
        (answer.status == 0).then(|| T::read(&answer.data)).flatten()
    }

    /// Sets an attribute. Returns the status of the answer.
    pub(crate) fn set<T: Layout>(
        &mut self,
        net: &mut Managed,
        path: &[u8],
        (attribute, modifier): (u16, u32),
        data: T,
    ) -> Option<u16> {
        Some(self.ask(net, path, (METHOD_SET, attribute, modifier), data)?.status)
    }

    /// Reads PortInfo, lets `change` change it, and sets it without a change of the states.
    pub(crate) fn change_port(
        &mut self,
        net: &mut Managed,
        path: &[u8],
        port: u8,
        change: impl FnOnce(&mut PortInfo),
    ) -> Option<u16> {
        let mut info: PortInfo = self.get(net, path, PortInfo::ATTRIBUTE, port.into())?;
        (info.link.state, info.link.phys_state) = (0, 0);
        change(&mut info);
        self.set(net, path, (PortInfo::ATTRIBUTE, port.into()), info)
    }

    /// Finds all nodes and links.
    pub(crate) fn discover(&mut self, net: &mut Managed) {
        let own: NodeInfo = self.get(net, &[], NodeInfo::ATTRIBUTE, 0).unwrap();
        let mut open = VecDeque::from([self.add(net, own, Vec::new())]);
        while let Some(at) = open.pop_front() {
            let node = self.found[at].clone();
            let ports =
                if node.is_switch() { 1..=node.info.ports } else { node.info.local_port..=node.info.local_port };
            // A route goes on through a switch; it begins at the manager's own port.
            for port in ports.filter(|_| node.is_switch() || at == 0) {
                let info: PortInfo = self.get(net, &node.path, PortInfo::ATTRIBUTE, port.into()).unwrap();
                if info.link.state == LinkState::Down as u8 {
                    continue;
                }
                let path = [&node.path[..], &[port]].concat();
                let Some(there) = self.get::<NodeInfo>(net, &path, NodeInfo::ATTRIBUTE, 0) else { continue };
                let known = self.by_guid.get(&there.node_guid).copied();
                let peer = known.unwrap_or_else(|| {
                    let new = self.add(net, there, path);
                    open.push_back(new);
                    new
                });
                self.found[at].links.insert(port, (peer, there.local_port));
                self.found[peer].links.insert(there.local_port, (at, port));
            }
        }
    }

    fn add(&mut self, net: &mut Managed, info: NodeInfo, path: Vec<u8>) -> usize {
        let description = self.get::<NodeDescription>(net, &path, NodeDescription::ATTRIBUTE, 0).unwrap().to_string();
        self.by_guid.insert(info.node_guid, self.found.len());
        let lid = u16::try_from(self.found.len() + 1).unwrap();
        self.found.push(Found { info, description, path, links: BTreeMap::new(), lid });
        self.found.len() - 1
    }

    /// The egress port of each LID at a switch: the first of the shortest ways, or another one of
    /// them, by the LID.
    fn routes(&self) -> Vec<Vec<u8>> {
        let mut routes = vec![vec![255; self.found.len() + 1]; self.found.len()];
        for (target, node) in self.found.iter().enumerate().filter(|(_, node)| node.is_switch()) {
            let mut distance = HashMap::from([(target, 0)]);
            let mut open = VecDeque::from([target]);
            while let Some(at) = open.pop_front() {
                for (peer, _) in self.found[at].links.values().filter(|(peer, _)| self.found[*peer].is_switch()) {
                    if !distance.contains_key(peer) {
                        distance.insert(*peer, distance[&at] + 1);
                        open.push_back(*peer);
                    }
                }
            }
            // Of an adapter with several links, the port that was found first has the LID.
            let is_end = |found: &Found, port| !found.is_switch() && found.info.local_port == port;
            let ends = node.links.iter().filter(|(_, (peer, port))| is_end(&self.found[*peer], *port));
            let ends: Vec<(u8, u16)> = ends.map(|(port, (peer, _))| (*port, self.found[*peer].lid)).collect();
            for (port, lid) in [(0, node.lid)].iter().chain(&ends) {
                routes[target][usize::from(*lid)] = *port;
            }
            for (at, far) in distance.iter().filter(|(at, _)| **at != target) {
                let nearer = |(_, (peer, _)): &(&u8, &(usize, u8))| distance.get(peer).is_some_and(|near| near < far);
                let ways: Vec<u8> = self.found[*at].links.iter().filter(nearer).map(|(port, _)| *port).collect();
                for lid in std::iter::once(node.lid).chain(ends.iter().map(|(_, lid)| *lid)) {
                    routes[*at][usize::from(lid)] = ways[usize::from(lid) % ways.len()];
                }
            }
        }
        routes
    }

    /// Gives LIDs and tables, and takes the links to ACTIVE.
    pub(crate) fn configure(&mut self, net: &mut Managed) {
        let own = self.found[0].lid;
        for node in self.found.clone() {
            let port = if node.is_switch() { 0 } else { node.info.local_port };
            let lid = |info: &mut PortInfo| (info.lid, info.master_sm_lid) = (node.lid, own);
            assert_eq!(self.change_port(net, &node.path, port, lid), Some(0));
        }
        let routes = self.routes();
        for (node, routes) in self.found.clone().iter().zip(routes).filter(|(node, _)| node.is_switch()) {
            let mut info: SwitchInfo = self.get(net, &node.path, SwitchInfo::ATTRIBUTE, 0).unwrap();
            info.linear_top = u16::try_from(routes.len() - 1).unwrap();
            assert_eq!(self.set(net, &node.path, (SwitchInfo::ATTRIBUTE, 0), info), Some(0));
            for (block, routes) in (0..).zip(routes.chunks(64)) {
                let mut table = LinearTable { ports: [255; 64] };
                table.ports[..routes.len()].copy_from_slice(routes);
                assert_eq!(self.set(net, &node.path, (LinearTable::ATTRIBUTE, block), table), Some(0));
            }
        }
        for state in [LinkState::Armed, LinkState::Active] {
            for node in self.found.clone() {
                for port in node.links.keys() {
                    let set = |info: &mut PortInfo| info.link.state = state as u8;
                    assert_eq!(self.change_port(net, &node.path, *port, set), Some(0));
                }
            }
        }
    }

    /// The node with this description.
    pub(crate) fn node(&self, description: &str) -> &Found {
        self.found.iter().find(|node| node.description == description).unwrap()
    }
}
