//! The nodes of a topology as hosts: each port of an adapter has an IP address, and a program that
//! runs on a node has the addresses of this node only. This file makes no system calls. Adds to
//! [`Locals`] and [`Manager`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::Errno;
use abi::ucma::sockaddr::Sockaddr;

use super::binding::scope;
use super::channel::ChannelId;
use super::id;
use super::locals::{Attachment, Locals};
use super::resolving::Finding;
use super::search::Found;
use super::{Manager, subnet};
use crate::refusal::{Outcome, refuse};

impl Manager {
    /// Says on which node of a topology a channel's client runs.
    pub(crate) fn place_on_node(&mut self, channel: ChannelId, node: usize) {
        if let Some(owner) = self.channels.get_mut(&channel) {
            owner.channel.node = Some(node);
        }
    }

    /// The node on which a channel's client runs. `None`: it has the whole agent.
    pub(super) fn node_of(&self, channel: ChannelId) -> Option<usize> {
        self.channels.get(&channel)?.channel.node
    }

    /// Finds the node that has an IP address.
    pub(super) fn find_node(&self, node: Option<usize>, local: Option<Sockaddr>, to: &SocketAddr) -> Outcome<Finding> {
        let ip = to.ip().to_canonical();
        let locals = &self.locals;
        let bound = local.as_ref().and_then(id::ip).filter(|ip| !ip.is_unspecified());
        let own = locals.find_own(node, ip);
        let none = || refuse(Errno::ENETUNREACH, format!("no adapter of the topology has the address {ip}"));
        let target = match locals.nodes.get(&ip) {
            Some(place) => locals.at_port(*place),
            None => own.map(|(_, at)| at),
        };
        // An own node comes first.
        let target = target.map(|at| at.gid).or_else(|| locals.elsewhere.gid(ip));
        if target.is_none() && !ip.is_multicast() {
            return none();
        }
        let source = match bound {
            Some(source) => locals.find_on(node, source, scope(to)).map(|at| (source, at)),
            None => own.or_else(|| locals.usual_on(node, ip.is_ipv4())),
        };
        let Some((source, attachment)) = source else { return none() };
        if attachment.fabric.is_none_or(|fabric| !fabric.is_active) {
            return refuse(Errno::ENETUNREACH, format!("the port with the address {source} is not active"));
        }
        let target = target.unwrap_or_else(|| subnet::mgid(ip, attachment.pkey, true));
        Ok(Finding::Done(Found { source, attachment, target }))
    }
}

impl Locals {
    /// Whether the agent has a topology, whose nodes are hosts.
    pub(super) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// The attachment of a port.
    fn at_port(&self, (device, port): (usize, u8)) -> Option<Attachment> {
        self.attachments.iter().find(|at| (at.device, at.port) == (device, port)).copied()
    }

    /// An address of a node, and where it is. `localhost`, or no address, means the first one.
    /// Other loopback addresses may belong to other nodes, or to none.
    fn find_own(&self, node: Option<usize>, ip: IpAddr) -> Option<(IpAddr, Attachment)> {
        match self.nodes.get(&ip) {
            Some(place) => {
                let is_own = node.is_none_or(|node| node == place.0);
                self.at_port(*place).filter(|_| is_own).map(|at| (ip, at))
            }
            None if is_localhost(ip) || ip.is_unspecified() => self.usual_on(node, ip.is_ipv4()),
            None => None,
        }
    }

    /// Like [`Locals::find`], among the addresses of a node.
    pub(super) fn find_on(&self, node: Option<usize>, ip: IpAddr, scope: u32) -> Option<Attachment> {
        match self.has_nodes() {
            true => self.find_own(node, ip).map(|(_, at)| at),
            false => self.find(ip, scope),
        }
    }

    /// The first address of a node, or of all; of a port that is active, if there is one.
    pub(super) fn usual_on(&self, node: Option<usize>, v4: bool) -> Option<(IpAddr, Attachment)> {
        let of_node = |(_, place): &(&IpAddr, &(usize, u8))| node.is_none_or(|node| place.0 == node);
        let found = self.nodes.iter().filter(|(ip, _)| ip.is_ipv4() == v4).filter(of_node);
        let found = found.filter_map(|(ip, place)| Some((*ip, self.at_port(*place)?)));
        found.min_by_key(|(_, at)| (at.fabric.is_none_or(|fabric| !fabric.is_active), at.device, at.port))
    }
}

fn is_localhost(ip: IpAddr) -> bool {
    ip == IpAddr::V4(Ipv4Addr::LOCALHOST) || ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
}
