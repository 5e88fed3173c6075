//! Flows: from an address vector to what a packet needs to get to its destination.
//!
//! A flow is found once. It stays valid until the GID tables or the agent's sockets change.
//! Principal type: [`Flow`]; its input is a [`Vector`], and [`NoWay`] says why there is no flow.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::qp::Dest;
use wire::icrc::Envelope;

use crate::engine::Engine;
use crate::net::FLOWS;
use crate::net::batch::Target;
use crate::net::congestion::capable;
use crate::net::peer::Peer;
use crate::net::port::{PORTS_PER_ADDRESS, Port};
use crate::network::{address, scope};
use crate::wqe::DatagramEntry;

/// The fields of an address that decide where packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Vector {
    pub(crate) dgid: [u8; 16],
    pub(crate) port_num: u8,
    pub(crate) sgid_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) port_index: u32,
}

impl Vector {
    /// The vector of a connection.
    pub(crate) fn of_connection(dest: &Dest, port_num: u8, qpn: u32) -> Self {
        Self {
            dgid: dest.dgid,
            port_num,
            sgid_index: dest.sgid_index,
            traffic_class: capable(dest.traffic_class),
            hop_limit: dest.hop_limit,
            port_index: qpn % PORTS_PER_ADDRESS,
        }
    }

    /// The vector of a datagram.
    pub(crate) fn of_datagram(entry: &DatagramEntry, port_num: u8, qpn: u32) -> Self {
        Self {
            dgid: entry.dgid,
            port_num,
            sgid_index: entry.sgid_index,
            traffic_class: entry.traffic_class,
            hop_limit: entry.hop_limit,
            port_index: qpn % PORTS_PER_ADDRESS,
        }
    }
}

/// Why there is no way to a host.
#[derive(Debug)]
pub(crate) enum NoWay {
    /// The source GID index is empty.
    NoSource(u8),
    /// The source GID is not an address of the network.
    NotAnAddress([u8; 16]),
    /// The agent does not receive on the source address.
    Deaf([u8; 16]),
    /// One address is IPv4 and the other is not.
    Families([u8; 16], [u8; 16]),
    /// The network gave no socket.
    Socket([u8; 16], io::Error),
}

impl fmt::Display for NoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSource(index) => write!(f, "GID index {index}, from which it sends, is empty"),
            Self::NotAnAddress(gid) => {
                write!(f, "{} reaches programs of the same agent only: use another GID index", Ipv6Addr::from(*gid))
            }
            Self::Deaf(gid) => write!(
                f,
                "this agent does not receive on {}, since UDP port 4791 there is not its own; type `softhca devices`",
                address(*gid)
            ),
            Self::Families(source, dest) => {
                write!(f, "{} and {} are not of one address family", address(*source), address(*dest))
            }
            Self::Socket(gid, error) => write!(f, "no UDP socket on {}: {error}", address(*gid)),
        }
    }
}

/// A way to a host.
pub(crate) struct Flow {
    pub(crate) source: [u8; 16],
    pub(crate) target: Target,
    pub(crate) envelope: Envelope,
    pub(crate) port: Arc<Port>,
    pub(crate) peer: Arc<Peer>,
    /// The epoch of the tables for which the flow is valid.
    epoch: u32,
    complained: AtomicBool,
}

impl Flow {
    /// Sending has failed: reports the reason, once.
    pub(crate) fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            let hint = match error.raw_os_error() {
                Some(libc::EMSGSIZE | libc::EINVAL) => ": is the path MTU more than the interface carries?",
                _ => "",
            };
            crate::reason!("packets from {} to {} are lost: {error}{hint}", address(self.source), self.target.to.ip());
        }
    }
}

impl Engine {
    /// Whether a flow is still valid.
    pub(crate) fn holds(&self, flow: &Flow) -> bool {
        flow.epoch == self.board.wire_epoch()
    }

    /// The flow for `vector`: found now or earlier.
    pub(crate) fn flow(&self, vector: &Vector) -> Result<Arc<Flow>, NoWay> {
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

    fn find_flow(&self, vector: &Vector) -> Result<Flow, NoWay> {
        let epoch = self.board.wire_epoch();
        let (port_num, index) = (u32::from(vector.port_num), u32::from(vector.sgid_index));
        let source = self.board.gid(self.device(), port_num, index).filter(|gid| gid != &[0; 16]);
        let source = source.ok_or(NoWay::NoSource(vector.sgid_index))?;
        if self.board.gid_wire(self.device(), port_num, index) == 0 {
            // Index 0 is made from the port's GUID, not from an address.
            return Err(if index == 0 { NoWay::NotAnAddress(source) } else { NoWay::Deaf(source) });
        }
        let (from, to) = (address(source), address(vector.dgid));
        if from.is_ipv4() != to.is_ipv4() {
            return Err(NoWay::Families(source, vector.dgid));
        }
        let ifindex = self.board.gid_ifindex(self.device(), port_num, index);
        let port = self.net_port(source, ifindex, vector.port_index).map_err(|error| NoWay::Socket(source, error))?;
        if let Some(inbox) = self.net.inbox() {
            inbox.expect_at(&source);
        }
        let to_socket = match to {
            IpAddr::V4(v4) => SocketAddr::from((v4, udp::PORT)),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, udp::PORT, 0, scope(to, ifindex)).into(),
        };
        Ok(Flow {
            source,
            target: Target {
                to: to_socket,
                traffic_class: vector.traffic_class,
                hop_limit: vector.hop_limit,
                interface: if to.is_multicast() { ifindex } else { 0 },
            },
            envelope: Envelope::new(&source, &vector.dgid, port.outlet.port()),
            port,
            peer: self.net_peer(vector.dgid),
            epoch,
            complained: AtomicBool::new(false),
        })
    }

    fn net_peer(&self, gid: [u8; 16]) -> Arc<Peer> {
        let mut peers = self.net.peers.lock();
        Arc::clone(peers.entry(gid).or_default())
    }

    /// The peer at an address, if this engine has ever sent there.
    pub(crate) fn known_peer(&self, gid: &[u8; 16]) -> Option<Arc<Peer>> {
        self.net.peers.lock().get(gid).cloned()
    }
}
