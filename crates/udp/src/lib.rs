//! UDP sockets for RoCEv2: one call sends a burst of segments, one call receives segments that the
//! kernel merged.
//!
//! * [`Socket`] and its constructors: [`Socket::sender`], [`Socket::receiver`],
//!   [`Socket::receiver_pair`], [`Socket::group_receiver`].
//! * [`Outgoing`] and [`Received`]: a datagram to send, and what is known of a received one.
//!
//! Of RDMA this crate knows only the port number. The crate `wire` parses datagrams, and the agent
//! decides who gets them. This crate never waits and never allocates.
//!
//! The socket options rely on these facts of Linux, observed between two network namespaces (Linux
//! 6.18, a veth pair, IPv4 and IPv6):
//!
//! * RoCEv2's ICRC covers the IPv4 identification, but the program does not control it. Every
//!   datagram of an *unconnected* socket that forbids fragments (`IP_PMTUDISC_DO`) has
//!   identification 0. Each burst (`UDP_SEGMENT`) that the kernel splits begins with 0 again and
//!   counts 0, 1, 2, also to a multicast group. A *connected* socket has its own counter, from
//!   which each call takes one number, whatever it sends and to whom; a burst begins with that
//!   number and counts on.
//! * Between namespaces a burst need not be split (`tx-udp-segmentation` on): it arrives as it was
//!   sent, in one call.
//! * A receiver whose interface merges (GRO) gets a split burst as one datagram again, also 64
//!   segments and a shorter last one. The segments of a merged datagram (`UDP_GRO`) have one
//!   length, except that the last may be shorter. Single datagrams, which all have identification
//!   0, are not merged.
//! * The kernel refuses to send a segment that is longer than the interface's MTU (`EMSGSIZE`),
//!   also in a burst.
//! * The kernel compares a datagram with the first socket of its address and port before it looks
//!   up the datagram's route. If that socket is connected to the sender, the kernel skips the
//!   lookup.
//! * The control message that names the interface of a multicast datagram also sets IPv4's source
//!   address. It must be set there, or the packet has an address that its ICRC does not cover. The
//!   TTL of multicast is 1 if it is not set.
#![deny(unsafe_code)]

mod address;
mod connected_receiver;
mod connected_sender;
mod control;
mod socket;
#[allow(unsafe_code, reason = "the calls that rustix leaves out")]
mod sys;
#[cfg(test)]
mod tests;

pub use socket::{Socket, widen_receive_buffer};

use std::net::SocketAddr;

/// The port of RoCEv2.
pub const PORT: u16 = 4791;
/// Maximum number of segments in a burst.
pub const SEGMENTS_MAX: usize = 64;
/// Maximum number of bytes in a burst.
pub const BATCH_MAX: usize = 65_000;

/// A datagram, or a burst of datagrams to one destination, for [`Socket::send`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The destination, with its scope when it is link-local.
    pub to: SocketAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// The service level, for networks that have one; UDP has none.
    pub service_level: u8,
    /// The priority (`SO_PRIORITY`), 0 to 6, from which a VLAN interface derives that of the VLAN
    /// tag. `None`: Linux derives the priority from the traffic class. The datagrams of one socket
    /// all have a priority, or none of them has.
    pub priority: Option<u8>,
    /// TTL or hop limit; 0 means 64.
    pub hop_limit: u8,
    /// Length of each segment except the last, which may be shorter. 0, or at least the length of
    /// `bytes`, means one datagram.
    pub segment: usize,
    /// For multicast: the interface to send by. Otherwise 0.
    pub interface: u32,
    /// The destination is the one that the socket is connected to ([`Socket::connect_sender`]).
    pub connected: bool,
    /// The segments, one after the other: at most [`BATCH_MAX`] bytes and [`SEGMENTS_MAX`]
    /// segments.
    pub bytes: &'a [u8],
}

/// A datagram from [`Socket::receive`], or several of one sender that the kernel merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes in the buffer.
    pub len: usize,
    /// Length of each segment except the last, which may be shorter; `len` when nothing was merged.
    pub segment: usize,
    /// The sender.
    pub from: SocketAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit at arrival, after [`Socket::tell_hops`]; 0 before.
    pub hop_limit: u8,
}
