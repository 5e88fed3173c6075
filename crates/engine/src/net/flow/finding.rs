//! How flows and their ports are found. Adds to [`Engine`].

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use wire::icrc::Envelope;

use super::{Flow, NoFlow, Vector};
use crate::board::DevicePort;
use crate::engine::Engine;
use crate::lock::Mutex;
use crate::net::FLOWS;
use crate::net::batch::{Batch, Destination};
use crate::net::peer::Peer;
use crate::net::port::{FIRST, Port};
use crate::net::to_agent::ToGroup;
use crate::network::{Outlet, address, scope};
use crate::qp::Qp;

impl Engine {
    /// Whether a flow is still valid.
    pub(crate) fn holds(&self, flow: &Flow<Qp>) -> bool {
        flow.epoch == self.board.wire_epoch()
    }

    /// The flow for `vector`: found now or earlier.
    pub(crate) fn flow(&self, vector: &Vector) -> Result<Arc<Flow<Qp>>, NoFlow> {
        if let Some(flow) = self.net.flows.read().get(vector).filter(|flow| self.holds(flow)) {
            return Ok(Arc::clone(flow));
        }
        let flow = Arc::new(self.find_flow(vector)?);
        let mut flows = self.net.flows.write();
        if flows.len() >= FLOWS {
            flows.clear();
        }
        flows.insert(*vector, Arc::clone(&flow));
        Ok(flow)
    }

    fn find_flow(&self, vector: &Vector) -> Result<Flow<Qp>, NoFlow> {
        let epoch = self.board.wire_epoch();
        let (port_num, index) = (u32::from(vector.port_num), u32::from(vector.sgid_index));
        let source = self.board.gid(self.device(), port_num, index).filter(|gid| gid != &[0; 16]);
        let source = source.ok_or(NoFlow::NoSource(vector.sgid_index))?;
        if vector.mlid != 0 {
            return self.find_flow_to_agent(vector, source, epoch);
        }
        if self.board.gid_wire(self.device(), port_num, index) == 0 {
            return Err(NoFlow::NotReceiving(source));
        }
        let (from, to) = (address(source), address(vector.dgid));
        if from.is_ipv4() != to.is_ipv4() {
            return Err(NoFlow::Families(source, vector.dgid));
        }
        let ifindex = self.board.gid_ifindex(self.device(), port_num, index);
        let port = self.net_port(source, ifindex, vector.port_index).map_err(|error| NoFlow::Socket(source, error))?;
        if let Some(inbox) = self.net.inbox() {
            inbox.expect_at(&source);
        }
        let to_socket = match to {
            IpAddr::V4(v4) => SocketAddr::from((v4, udp::PORT)),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, udp::PORT, 0, scope(to, ifindex)).into(),
        };
        Ok(Flow {
            source,
            target: Destination {
                to: to_socket,
                traffic_class: vector.traffic_class,
                sl: vector.sl,
                priority: self.board.priority(DevicePort { device: self.device(), port: port_num }, vector.sl),
                hop_limit: vector.hop_limit,
                interface: if to.is_multicast() { ifindex } else { 0 },
            },
            envelope: Envelope::new(&source, &vector.dgid, port.outlet.port()),
            port,
            peer: self.net_peer(vector.dgid),
            lids: vector.lids,
            epoch,
            complained: AtomicBool::new(false),
        })
    }

    /// The flow of a group whose packets the agent sends on.
    fn find_flow_to_agent(&self, vector: &Vector, source: [u8; 16], epoch: u32) -> Result<Flow<Qp>, NoFlow> {
        let inbox = self.net.inbox().ok_or(NoFlow::NotReceiving(source))?;
        let outlet = ToGroup::new(Arc::clone(&inbox.agent), source, vector);
        let Vector { dgid, traffic_class, sl, hop_limit, .. } = *vector;
        let batch = Mutex::new(Batch::with_capture_hook(Arc::clone(&self.net.capture_hook), source));
        let to = SocketAddr::new(address(dgid), udp::PORT);
        Ok(Flow {
            source,
            target: Destination { to, traffic_class, sl, priority: None, hop_limit, interface: 0 },
            envelope: Envelope::new(&source, &dgid, outlet.port()),
            port: Arc::new(Port { outlet: Arc::new(outlet), batch }),
            peer: self.net_peer(dgid),
            lids: None,
            epoch,
            complained: AtomicBool::new(false),
        })
    }

    fn net_peer(&self, gid: [u8; 16]) -> Arc<Peer<Qp>> {
        let mut peers = self.net.peers.lock();
        Arc::clone(peers.entry(gid).or_default())
    }

    /// The peer at an address, if this engine has ever sent there.
    pub(crate) fn known_peer(&self, gid: &[u8; 16]) -> Option<Arc<Peer<Qp>>> {
        self.net.peers.lock().get(gid).cloned()
    }

    /// The port for an address of this host.
    pub(crate) fn net_port(&self, source: [u8; 16], ifindex: u32, port_index: u32) -> io::Result<Arc<Port>> {
        let mut ports = self.net.ports.lock();
        if let Some(port) = ports.get(&(source, port_index)) {
            return Ok(Arc::clone(port));
        }
        // Spread the port numbers, so that engines that start together do not all try the same
        // ones.
        let spread = self.number().wrapping_mul(2_654_435_761).wrapping_add(port_index.wrapping_mul(7919)) >> 4;
        let outlet = self.net.network.open(source, ifindex, FIRST | (spread as u16 & 0x3fff))?;
        let port = Arc::new(Port {
            outlet,
            batch: Mutex::new(Batch::with_capture_hook(Arc::clone(&self.net.capture_hook), source)),
        });
        ports.insert((source, port_index), Arc::clone(&port));
        Ok(port)
    }
}
