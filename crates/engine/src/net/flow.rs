//! Flows: all that a packet needs to reach the destination of an address vector.
//!
//! A flow is found once. It stays valid until the GID tables or the agent's sockets change. Flows
//! are found in `flow/finding.rs`. Principal type: [`Flow`]; its input is a [`Vector`], and
//! [`NoFlow`] says why there is no flow.

mod finding;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};

use abi::qp::Dest;
use wire::icrc::Envelope;
use wire::lids;

use crate::memory::DatagramEntry;
use crate::net::batch::Destination;
use crate::net::datagrams::capable;
use crate::net::peer::Peer;
use crate::net::port::{PORTS_PER_ADDRESS, Port};
use crate::network::address;

/// The fields of an address that decide where packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Vector {
    pub(crate) dgid: [u8; 16],
    pub(crate) port_num: u8,
    pub(crate) sgid_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    pub(crate) hop_limit: u8,
    pub(crate) port_index: u32,
    /// The LID of the group, if the agent sends the packets on over the links of the subnet;
    /// otherwise 0.
    pub(crate) mlid: u16,
    /// The LIDs that datagrams to another agent of the subnet say.
    pub(crate) lids: Option<lids::Header>,
}

impl Vector {
    /// The vector of a connection.
    pub(crate) fn of_connection(dest: &Dest, port_num: u8, qpn: u32) -> Self {
        Self {
            dgid: dest.dgid,
            port_num,
            sgid_index: dest.sgid_index,
            traffic_class: capable(dest.traffic_class),
            sl: dest.sl,
            hop_limit: dest.hop_limit,
            port_index: qpn % PORTS_PER_ADDRESS,
            mlid: 0,
            lids: None,
        }
    }

    /// The vector of a datagram.
    pub(crate) fn of_datagram(entry: &DatagramEntry, port_num: u8, qpn: u32) -> Self {
        Self {
            dgid: entry.dgid,
            port_num,
            sgid_index: entry.sgid_index,
            traffic_class: entry.traffic_class,
            sl: entry.sl,
            hop_limit: entry.hop_limit,
            port_index: qpn % PORTS_PER_ADDRESS,
            mlid: 0,
            lids: None,
        }
    }
}

/// Why there is no flow to a host.
#[derive(Debug)]
pub(crate) enum NoFlow {
    /// The source GID index is empty.
    NoSource(u8),
    /// The agent does not receive at the source GID: it is no address, or the agent has no socket.
    NotReceiving([u8; 16]),
    /// One address is IPv4 and the other is not.
    Families([u8; 16], [u8; 16]),
    /// The network could not open a socket.
    Socket([u8; 16], io::Error),
}

impl fmt::Display for NoFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSource(index) => write!(f, "GID index {index}, from which it sends, is empty"),
            Self::NotReceiving(gid) => write!(
                f,
                "nothing from other hosts arrives at {}, so it sends nothing there; `softhca devices -v` says why, and \
                 lists the other GIDs",
                address(*gid)
            ),
            Self::Families(source, dest) => {
                write!(f, "{} and {} are not of one address family", address(*source), address(*dest))
            }
            Self::Socket(gid, error) => write!(f, "no UDP socket on {}: {error}", address(*gid)),
        }
    }
}

/// What packets need to reach one host.
pub(crate) struct Flow<Q> {
    pub(crate) source: [u8; 16],
    pub(crate) target: Destination,
    pub(crate) envelope: Envelope,
    pub(crate) port: Arc<Port>,
    pub(crate) peer: Arc<Peer<Q>>,
    /// See [`Vector`].
    pub(crate) lids: Option<lids::Header>,
    /// The epoch of the tables for which the flow is valid.
    epoch: u32,
    complained: AtomicBool,
}

impl<Q> Flow<Q> {
    /// Sending has failed: reports the reason, once.
    pub(crate) fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            let hint = match error.raw_os_error() {
                Some(libc::EMSGSIZE | libc::EINVAL) => "; a path MTU above the port's active MTU has this effect",
                _ => "",
            };
            crate::reason!("packets from {} to {} are lost: {error}{hint}", address(self.source), self.target.to.ip());
        }
    }
}
