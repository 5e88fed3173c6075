//! What an interface tells its owner. Principal types: [`Event`], [`Outgoing`].

use wire::cm::Gid;

use crate::address::LinkAddress;
use crate::groups::Membership;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// To a queue pair, whose path was resolved.
    Neighbour(LinkAddress),
    /// To a group, which was joined.
    Group(Gid),
    /// To a neighbour, on the connection to it.
    Connection(LinkAddress),
}

/// What becomes of a packet of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// The owner sends it now, with its header before it.
    To(Target),
    /// It waits for an answer. An event sends it, or the host gets an error.
    Held,
    /// It is lost.
    Lost(Loss),
}

/// Why a packet is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is no IP packet.
    Malformed,
    /// It is too long for its destination. The host was told.
    TooBig,
    /// The interface is not up yet, or the queue for its destination is full.
    Full,
}

/// What the owner shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Send this payload, which has its header.
    Send(Target, Vec<u8>),
    /// Give this packet to the host.
    Deliver(Vec<u8>),
    /// Find the path to a port, and call [`resolved`](crate::Interface::resolved).
    Resolve(LinkAddress),
    /// Forget what was kept for a neighbour.
    Forget(LinkAddress),
    /// Join a group, or another time with another membership, and call
    /// [`joined`](crate::Interface::joined).
    Join(Gid, Membership),
    /// Leave a group.
    Leave(Gid),
    /// Connect to a neighbour, and call [`connected`](crate::Interface::connected).
    Connect(LinkAddress),
    /// End the connection to a neighbour, if there is one.
    Disconnect(LinkAddress),
    /// The host has changed its groups: call [`set_groups`](crate::Interface::set_groups).
    GroupsChanged,
}
