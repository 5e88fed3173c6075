//! The records of a capture ring of `softhca capture`: copies of packets, and records about dropped
//! packets.
//!
//! An engine (or the agent, for QP 1) writes, and the capturing program reads. A record is its
//! writer's claim. The principal type is [`CaptureRecord`].

record! {
    /// Header of a record on a capture ring. After it come the kept bytes of the packet, and then a
    /// text (UTF-8) about the packet.
    pub struct CaptureRecord[128] {
        /// See `kind`.
        0 => kind: u32,
        /// See `path`.
        4 => path: u32,
        /// Nanoseconds since 1970.
        8 => time: u64,
        /// Why the packet was dropped, a number of `reason::Cause`; 0 if no cause is known.
        16 => cause: u32,
        /// The lane.
        20 => lane: u32,
        /// The engine at the lane's other end.
        24 => peer: u32,
        /// Its process id.
        28 => peer_pid: u32,
        /// The QP that it comes from, 0 where that is not known.
        32 => src_qp: u32,
        /// DROP, and packets with `record_flag::TCP`: the QP that it is for.
        36 => dest_qp: u32,
        /// DROP: the packet's PSN.
        40 => psn: u32,
        /// DROP: the packet's opcode.
        44 => opcode: u32,
        /// Source address as a GID, all zeros where it is not known.
        48 => from: [u8; 16],
        /// Destination address as a GID.
        64 => to: [u8; 16],
        /// UDP or TCP source port.
        80 => from_port: u16,
        /// IPv4 identification; with `record_flag::TCP` the destination port.
        82 => id: u16,
        /// Traffic class (IPv4: TOS).
        84 => traffic_class: u8,
        /// Hop limit (IPv4: TTL), 0 for any.
        85 => hop_limit: u8,
        /// See `record_flag`.
        86 => flags: u16,
        /// Bytes of the whole packet, from the BTH to the ICRC.
        88 => len: u32,
        /// Bytes of the packet that follow this header.
        92 => kept: u32,
        /// Bytes of text after them.
        96 => words: u32,
        /// DROP: the packet's value.
        100 => got: u32,
        /// DROP: the expected value.
        104 => expected: u32,
        /// DROP: the QP that did not accept it, 0 for none.
        108 => qpn: u32,
        /// The source LID, if the packet is one of an InfiniBand link (`record_flag::LINK`).
        112 => slid: u16,
        /// The destination LID.
        114 => dlid: u16,
        /// The service level.
        116 => sl: u8,
        /// The virtual lane at the port.
        117 => vl: u8,
        /// The port that sends, or that receives; 0 where that is not known.
        118 => port: u8,
        /// The code of the link's MTU for this packet; 0 if the packet is not longer.
        119 => mtu: u8,
        /// The flow label of the GRH.
        120 => flow_label: u32,
        /// The agent's packets: the device's index, plus 1. 0: the writer's device.
        124 => device: u32,
    }
}

constants! {
    /// `CaptureRecord::kind`.
    pub mod kind: u32 {
        /// A packet.
        PACKET = 1,
        /// A packet was dropped. An earlier record may show the packet; else it was never sent.
        DROP = 2,
    }

    /// `CaptureRecord::path`: where a packet was seen.
    pub mod path: u32 {
        /// It left over a lane.
        LANE_OUT = 1,
        /// It came over a lane.
        LANE_IN = 2,
        /// It left for another host.
        WIRE_OUT = 3,
        /// It came from another host.
        WIRE_IN = 4,
        /// From QP 1 of this agent to itself.
        INSIDE = 5,
        /// A management datagram left an InfiniBand port.
        LINK_OUT = 6,
        /// A management datagram came to an InfiniBand port.
        LINK_IN = 7,
    }

    /// Bits of `CaptureRecord::flags`.
    pub mod record_flag: u16 {
        /// The packet went over a lane and has no ICRC.
        UNSEALED = 1,
        /// The packet is one of an InfiniBand link.
        LINK = 2,
        /// On an InfiniBand link: the packet has a GRH, with the addresses of the record.
        GLOBAL = 4,
        /// The bytes are a part of the byte stream of a TCP connection: iWARP. `kept` and `len`
        /// may be 0.
        TCP = 8,
        /// With `TCP`: the sender's direction ends behind the bytes.
        FIN = 16,
        /// With `TCP`: the connection is reset.
        RESET = 32,
        /// With `TCP`: the bytes begin inside of a frame.
        INSIDE = 64,
    }

    /// Bits of `LaneOut::side` of a CAPTURE push.
    pub mod flag: u32 {
        /// Packets that arrive over lanes are wanted too, because some peers' packets cannot be
        /// captured where they leave.
        LANES_IN = 1,
    }
}

/// The longest text of a record, in bytes.
pub const WORDS_MAX: usize = 256;
/// The most bytes of a packet: the payload of the longest UDP datagram.
pub const PACKET_MAX: usize = 65_507;
