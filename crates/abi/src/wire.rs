//! The wire between hosts, as far as agent and engine share it: the records of a wire lane, the
//! reader of the sockets, and the commands with which an engine joins (WIRE_OPEN, WIRE_SOCKETS).
//!
//! A *wire lane* is an ordinary lane between the agent (side A) and one engine (side B). Its
//! records are [`Arrival`]s in both directions: datagrams that the agent received for the engine,
//! datagrams that the engine received for other engines, and multicast datagrams that the engine
//! sends to other agents of its InfiniBand subnet. The crate `wire` parses the datagrams. The board
//! shows which addresses have the wire.

use crate::layout::Record;

/// UDP port of RoCE version 2.
pub const PORT: u16 = 4791;

record! {
    /// Header of a record on a wire lane. A record holds datagrams for one engine that came from
    /// one source together. Their bytes, each from the BTH to the ICRC, follow the header or are in
    /// the lane's bulk ring.
    pub struct Arrival[52] {
        /// See `arrival_kind`.
        0 => kind: u8,
        /// See `arrival_flags`.
        1 => flags: u8,
        /// Traffic class (IPv4: TOS) of the datagrams.
        2 => traffic_class: u8,
        /// Hop limit (IPv4: TTL) of the datagrams.
        3 => hop_limit: u8,
        /// Bytes of each datagram except the last, which has the remaining bytes.
        4 => segment: u16,
        /// UDP source port of the datagrams.
        6 => from_port: u16,
        /// Bytes of all datagrams together.
        8 => len: u32,
        /// Their place in the bulk ring; 0 without BULK.
        12 => bulk: u32,
        /// Source address as a GID.
        16 => from: [u8; 16],
        /// Destination address as a GID; of a multicast datagram, the group.
        32 => to: [u8; 16],
        /// Of TO_GROUP: the LID of the group. Of DATAGRAMS to a group that came over the links of
        /// the subnet: the sender's LID. Otherwise 0.
        48 => lid: u16,
        /// Of TO_GROUP: the service level. Otherwise 0.
        50 => sl: u8,
        /// Of TO_GROUP: the sender's port, from 1. Otherwise 0.
        51 => port: u8,
    }

    /// WIRE_OPEN (197), request: the engine asks for datagrams from other hosts.
    pub struct WireOpen[8] {
        /// 0.
        0 => flags: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// WIRE_OPEN (197), answer. Two fds are attached: the wire lane's memfd, and the eventfd that
    /// wakes the agent for it. With SHARED a third fd is attached: the memfd of the lease page.
    pub struct WireOut[16] {
        /// See `open_flags`.
        0 => flags: u32,
        /// 0.
        4 => reserved: u32,
        /// Length of the lane's memory in bytes.
        8 => lane_len: u64,
    }

    /// WIRE_SOCKETS (198), request: the agent's receiving sockets.
    pub struct WireSockets[8] {
        /// Index of the first socket wanted, from 0.
        0 => first: u32,
        /// Most sockets wanted, up to 6.
        4 => max: u32,
    }

    /// One socket in the answer of WIRE_SOCKETS.
    pub struct WireSocket[24] {
        /// The address that it receives on, as a GID.
        0 => gid: [u8; 16],
        /// Network interface that the address belongs to.
        16 => ifindex: u32,
        /// See `socket_flags`.
        20 => flags: u32,
    }

    /// WIRE_SOCKETS (198), answer. `count` fds are attached, in the order of the entries.
    pub struct WireSocketsAnswer[160] {
        /// The board's WIRE_EPOCH for which the answer holds.
        0 => epoch: u32,
        /// Sockets in this answer.
        4 => count: u32,
        /// Number of all sockets of the agent.
        8 => total: u32,
        /// 0.
        12 => reserved: u32,
        /// The sockets.
        16 => entries: [WireSocket; 6],
    }
}

constants! {
    /// `Arrival::kind`.
    pub mod arrival_kind: u8 {
        /// Datagrams to port 4791.
        DATAGRAMS = 1,
        /// Multicast datagrams of this engine, for ports of other agents in its subnet. The agent
        /// sends them over the links of the subnet. They have the form of datagrams to port 4791.
        TO_GROUP = 2,
    }

    /// `Arrival::flags`.
    pub mod arrival_flags: u8 {
        /// The bytes are in the bulk ring; the receiver frees them.
        BULK = 1,
    }

    /// `WireOut::flags`.
    pub mod open_flags: u32 {
        /// The engine may get the agent's sockets (WIRE_SOCKETS), and read them while it holds the
        /// lease.
        SHARED = 1,
    }

    /// `WireSocket::flags`.
    pub mod socket_flags: u32 {
        /// The socket is connected: it receives from one sender only. The engine that reads
        /// connects it. There is another socket for the same address.
        CONNECTED = 1,
    }

    /// The lease page (4096 bytes), byte offsets: which engine reads the sockets now. Engines of
    /// the agent's own user write it, so an invalid value counts as free.
    pub mod lease: usize {
        /// The reader. 0: the agent. An engine's number: the agent still reads, and this engine
        /// asks for the lease. The number with GRANTED: this engine reads.
        LEASE = 0,
        /// The reader adds 1 each time it looks at the sockets.
        BEATS = 64,
    }
}

/// In `lease::LEASE`: the agent has stopped reading the sockets, and the engine may read them.
pub const GRANTED: u32 = 0x8000_0000;
/// Bytes of the lease page.
pub const LEASE_PAGE_LEN: usize = 4096;
/// Most sockets in one answer of WIRE_SOCKETS.
pub const SOCKETS_MAX: usize = 6;
/// Bytes of datagrams that a record without BULK has room for, in a lane whose records are
/// `record_max` bytes.
#[must_use]
pub const fn inline_max(record_max: usize) -> usize {
    record_max.saturating_sub(Arrival::LAYOUT.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_in_bytes() {
        let arrival = Arrival {
            kind: arrival_kind::DATAGRAMS,
            flags: arrival_flags::BULK,
            traffic_class: 2,
            hop_limit: 64,
            segment: 1044,
            from_port: 0xc001,
            len: 2088,
            bulk: 64,
            from: [0xa1; 16],
            to: [0xb2; 16],
            lid: 0xc003,
            sl: 5,
            port: 1,
        };
        let mut bytes = vec![1, 1, 2, 64, 0x14, 4, 1, 0xc0, 0x28, 8, 0, 0, 64, 0, 0, 0];
        bytes.extend([0xa1; 16]);
        bytes.extend([0xb2; 16]);
        bytes.extend([3, 0xc0, 5, 1]);
        assert_eq!(arrival.bytes(), bytes);
        assert_eq!(Arrival::read(&bytes), Some(arrival));
        assert_eq!(inline_max(300), 248);
    }
}
