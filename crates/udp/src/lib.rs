//! UDP sockets as RoCEv2 needs them: one call sends a burst of segments, one call receives segments that the kernel merged.
//!
//! * [`Socket`] with its ways to be made: [`Socket::sender`], [`Socket::receiver`], [`Socket::receiver_pair`], [`Socket::group_receiver`].
//! * [`Outgoing`] and [`Received`]: what goes out, and what is known of what came in.
//!
//! This crate knows the port number and nothing else of RDMA: what is in a datagram is the business of `wire`, who gets it that
//! of the agent. It never waits and never allocates.
//!
//! Facts of Linux that the settings rest on, as seen between two network namespaces (Linux 6.18, a veth pair, IPv4 and IPv6):
//!
//! * IPv4's identification is covered by RoCEv2's ICRC but not in the program's hands. Every datagram of an *unconnected* socket
//!   that forbids fragments (`IP_PMTUDISC_DO`) has identification 0; each burst (`UDP_SEGMENT`) that the kernel cuts begins with 0
//!   again and counts 0, 1, 2, also to a multicast group. A *connected* socket has a counter of its own, from which each call takes one
//!   number, whatever it sends and to whom; a burst begins with that number and counts on.
//! * Between namespaces a burst need not be cut at all (`tx-udp-segmentation` on): it arrives as it was sent, in one call.
//! * A receiver whose interface merges (GRO) gets a burst that was cut as one again, 64 segments and a shorter last one too: the
//!   segments of a merged datagram (`UDP_GRO`) have one length, but the last may be shorter. Single datagrams, which all have
//!   identification 0, are not merged.
//! * A segment that is longer than the interface's MTU is refused when it is sent (`EMSGSIZE`), in a burst too.
//! * Of the sockets of one address and port, the kernel compares a datagram with the first one before it looks up the datagram's way, and
//!   saves the lookup if that one is connected to its sender.
//! * A multicast datagram for which the interface is named takes IPv4's source address from the same place, or it would be one
//!   that the ICRC does not have; the TTL of multicast is 1 if it is not set.
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

pub use socket::Socket;

use std::net::SocketAddr;

/// The port of RoCEv2.
pub const PORT: u16 = 4791;
/// Segments that one burst may have.
pub const SEGMENTS_MAX: usize = 64;
/// Bytes that one burst may have.
pub const BATCH_MAX: usize = 65_000;

/// What [`Socket::send`] sends: a datagram, or a burst of them to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The destination, with its scope when it is link-local.
    pub to: SocketAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 means 64.
    pub hop_limit: u8,
    /// Bytes of each segment but the last, which may be shorter. 0, or as long as `bytes` or longer: one datagram.
    pub segment: usize,
    /// For multicast: the interface that it leaves by. Otherwise 0.
    pub interface: u32,
    /// The destination is the one that the socket is connected to ([`Socket::connect_sender`]).
    pub connected: bool,
    /// The segments, one behind the other: at most [`BATCH_MAX`] bytes and [`SEGMENTS_MAX`] segments.
    pub bytes: &'a [u8],
}

/// What [`Socket::receive`] received: a datagram, or several of one sender that the kernel merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of each segment but the last, which may be shorter; `len` when nothing was merged.
    pub segment: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit as it arrived, after [`Socket::tell_hops`]; 0 before.
    pub hop_limit: u8,
}
