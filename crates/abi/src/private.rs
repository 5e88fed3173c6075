//! softhca's own commands: extended form, numbers from 192, and the records that the agent pushes
//! to an engine.
//!
//! A client that uses only the proxy engine needs none of these commands.

record! {
    /// ENGINE_HELLO (192), request: the client runs an engine. Two fds are attached: the wake
    /// word's memfd and the eventfd that wakes the engine.
    pub struct EngineHello[8] {
        /// Process id, for people to read; the agent uses the socket's credentials.
        0 => pid: u32,
        /// See `hello`.
        4 => flags: u32,
    }

    /// ENGINE_HELLO (192), answer. Two fds are attached: the board (map read-only) and the push
    /// socket (SOCK_SEQPACKET).
    pub struct EngineHelloAnswer[24] {
        /// Number of the engine, from 1; never used again.
        0 => engine: u32,
        /// Index of the device on the board.
        4 => device: u32,
        /// Length of the board in bytes.
        8 => board_len: u64,
        /// 0.
        16 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        20 => response_length: u32,
    }

    /// LANE_OPEN (193), request: a lane to another engine.
    pub struct LaneOpen[8] {
        /// The other engine.
        0 => engine: u32,
        /// Which of several lanes of the pair, from 0.
        4 => lane_index: u32,
    }

    /// LANE_OPEN (193), answer, and the body of a push. Four fds are attached: the lane's memfd,
    /// the eventfd that wakes the receiver of this record, the eventfd that wakes its peer (through
    /// the agent if the peer is another user's), and the peer's wake word memfd.
    pub struct LaneOut[32] {
        /// Number of the lane, from 1.
        0 => lane: u32,
        /// Which end is yours: 0 or 1.
        4 => side: u32,
        /// The engine at the other end.
        8 => engine: u32,
        /// Its process id.
        12 => pid: u32,
        /// Its device: index on the board.
        16 => device: u32,
        /// Which of the lanes of the pair, as LANE_OPEN named it.
        20 => lane_index: u32,
        /// Length of the lane's memory in bytes.
        24 => len: u32,
        /// See `lane_flags`.
        28 => flags: u32,
    }

    /// MCAST_RESOLVE (194), request: which engines have QPs in a multicast group that packets from
    /// a port reach.
    pub struct McastResolve[32] {
        /// Multicast GID, network byte order.
        0 => gid: [u8; 16],
        /// Most engines wanted, up to 64.
        16 => max: u32,
        /// Number of engines that earlier answers have named; they are left out.
        20 => first: u32,
        /// Port of the sender, from 1.
        24 => port: u8,
        /// Hop limit of the packets; routers forward those with more than 1.
        25 => hop_limit: u8,
        /// LID of the group, to which the packets go; 0 on Ethernet.
        26 => lid: u16,
        /// Service level of the packets.
        28 => sl: u8,
        /// 0.
        29 => reserved2: u8,
        /// Index of the packets' P_Key in the table of the sender's port.
        30 => pkey_index: u16,
    }

    /// MCAST_RESOLVE (194), answer.
    pub struct McastResolveAnswer[272] {
        /// The board's `mcast_epoch` for which the answer holds.
        0 => epoch: u32,
        /// Number of all engines, also if it is above `first` + `max`.
        4 => count: u32,
        /// The engines from index `first` on. Their order is valid for one epoch.
        8 => engines: [u32; 64],
        /// See `mcast_flags`.
        264 => flags: u32,
        /// 0.
        268 => reserved: u32,
    }

    /// PATH_RESOLVE (201), request: which packets from a port of this device pass the switches to
    /// a port of this agent. The agent announces a change of the answer (PATHS).
    pub struct PathResolve[32] {
        /// Destination GID, if it is in another subnet; otherwise zeros.
        0 => dgid: [u8; 16],
        /// Device of the destination port: index on the board.
        16 => to_device: u32,
        /// The destination port, from 1.
        20 => to_port: u8,
        /// Port of the sender, from 1.
        21 => port: u8,
        /// Destination LID; 0 for the first LID of the destination port.
        22 => dlid: u16,
        /// Hop limit of the GRH; 0 without one.
        24 => hop_limit: u8,
        /// Traffic class of the GRH.
        25 => traffic_class: u8,
        /// 0.
        26 => reserved: u16,
        /// 0.
        28 => reserved2: u32,
    }

    /// PATH_RESOLVE (201), answer.
    pub struct PathResolveAnswer[112] {
        /// Service levels with which packets reach the port, as bits; 0 if there is no path.
        0 => levels: u32,
        /// MTU code of the link with the smallest MTU.
        4 => mtu: u32,
        /// Entries of the sender's P_Key table with which packets pass, as bits.
        8 => pkeys: [u32; 4],
        /// The board's PATH_EPOCH for which the answer holds.
        24 => epoch: u32,
        /// The LID of the last router on the path, from which packets come to the destination; 0
        /// without routers.
        28 => router: u16,
        /// The service level that this router gives them.
        30 => router_sl: u8,
        /// 0.
        31 => reserved: u8,
        /// The port that sends on that link, such as S1[3]: UTF-8, filled up with zeros.
        32 => narrowest: [u8; 64],
        /// Fault rules about links on the path, as bits: the number of a rule modulo 64.
        96 => links: u64,
        /// The same, with the links on the path back.
        104 => links_both_ways: u64,
    }

    /// CHANNEL_DESTROY (195), request; no answer.
    pub struct ChannelDestroy[8] {
        /// Handle of the completion channel.
        0 => handle: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// RESIZE_UNDO (202), request; no answer. The client cannot map the memory that RESIZE_CQ or
    /// MODIFY_SRQ has named: the queue is in its old memory again, which has stayed valid.
    pub struct ResizeUndo[8] {
        /// Handle of the queue.
        0 => handle: u32,
        /// 0 for a CQ, 1 for an SRQ.
        4 => is_srq: u32,
    }

    /// GID_ENTRY (196), request.
    pub struct GidEntry[8] {
        /// Port, from 1.
        0 => port: u32,
        /// Index in the port's GID table.
        4 => index: u32,
    }

    /// GID_ENTRY (196), answer.
    pub struct GidEntryAnswer[32] {
        /// The GID, network byte order.
        0 => gid: [u8; 16],
        /// Index in the port's GID table.
        16 => gid_index: u32,
        /// Port, from 1.
        20 => port: u32,
        /// See `gid_type`.
        24 => gid_type: u32,
        /// Network interface that the address belongs to, 0 for none.
        28 => ifindex: u32,
    }

    /// DIRECT_ASK (199), request: asks another engine for direct access to memory of its program.
    /// There is no answer. If the other engine agrees, the grant comes as a DIRECT push.
    pub struct DirectAsk[16] {
        /// The engine that is asked.
        0 => engine: u32,
        /// The caller's QP.
        4 => qpn: u32,
        /// The QP that it is connected to.
        8 => dest: u32,
        /// The key of the memory.
        12 => key: u32,
    }

    /// VIOLATION (203), request; no answer: the engine has dropped a packet that came to an
    /// InfiniBand port with a wrong P_Key or Q_Key, and has counted it in the context page. The
    /// port tells its subnet manager. What is not known is 0. Or packets that the engine sends have
    /// no path: then only the port is given, and switches that drop them for their P_Key tell it.
    pub struct Violation[56] {
        /// Port, from 1.
        0 => port: u8,
        /// See `violation`.
        1 => kind: u8,
        /// The packet's service level.
        2 => sl: u8,
        /// 0.
        3 => reserved: u8,
        /// The packet's source LID.
        4 => slid: u16,
        /// Its destination LID.
        6 => dlid: u16,
        /// Its P_Key or Q_Key.
        8 => key: u32,
        /// The QP that it claims to come from.
        12 => src_qp: u32,
        /// The QP that it was for.
        16 => dest_qp: u32,
        /// Source GID of its global route.
        20 => sgid: [u8; 16],
        /// Destination GID of its global route.
        36 => dgid: [u8; 16],
        /// 0.
        52 => reserved2: u32,
    }

    /// DIRECT_GRANT (200), request: an engine's answer to DIRECT_ASK. Two fds are attached: its
    /// grant table, and the file that contains the memory.
    pub struct DirectGrant[16] {
        /// The asking engine.
        0 => engine: u32,
        /// Its QP.
        4 => qpn: u32,
        /// The grant table's line.
        8 => line: u32,
        /// The grant's number.
        12 => number: u32,
    }

    /// One message on the push socket, agent to engine. EOF: the agent is gone.
    pub struct Push[40] {
        /// See `push`.
        0 => kind: u32,
        /// 0.
        4 => reserved: u32,
        /// The lane (LANE: with the fds of LANE_OPEN; LANE_GONE: only `lane` and `engine` count;
        /// TARGET: `lane` is the QP number; CAPTURE, with the capture ring's memfd: `lane` is the
        /// capture's number, `len` the capture ring's room, `lane_index` the most bytes that are
        /// kept of a packet, and `side` see `capture::flag`; CAPTURE_END: `lane` is the capture's
        /// number; DIRECT_ASK: `engine` and `lane` are the asking engine and its QP, `side` is the
        /// receiver's QP, `lane_index` the key; DIRECT, with the fds of DIRECT_GRANT: `engine` is
        /// the granter, `lane` the receiver's QP, `side` the line, `lane_index` the number).
        8 => lane: LaneOut,
    }
}

constants! {
    /// `LaneOut::flags`.
    pub mod lane_flags: u32 {
        /// The engine at the other end is another user's.
        APART = 1,
    }

    /// `McastResolveAnswer::flags`.
    pub mod mcast_flags: u32 {
        /// Packets also reach links to other agents. The engine gives them to the agent (TO_GROUP).
        LEAVES = 1,
        /// Switches drop copies for their P_Key. The engine tells of it when it sends some (VIOLATION,
        /// NO_PATH).
        DROPPED = 2,
    }

    /// `Push::kind`.
    pub mod push: u32 {
        /// Another engine has opened a lane to this one.
        LANE = 1,
        /// The engine at the other end of a lane is gone.
        LANE_GONE = 2,
        /// The agent ends.
        SHUTDOWN = 3,
        /// A wake-up only: there is a record on a lane.
        WAKE = 4,
        /// An XRC target QP that this engine holds is no longer served by an engine: XRC_ADOPT
        /// continues it.
        TARGET = 5,
        /// The state of a port has changed: resolve routes again.
        PORTS = 6,
        /// The fault rules have changed; they are behind the context page.
        FAULTS = 7,
        /// The device is removed, as if the agent ended.
        REMOVED = 8,
        /// Another engine asks for direct access to memory of this engine's program.
        DIRECT_ASK = 9,
        /// Another engine grants direct access to this engine.
        DIRECT = 10,
        /// Packets of this engine pass other switches or service levels now, or pass no more: ask
        /// for paths again.
        PATHS = 11,
        /// A capture begins: copies of packets are wanted.
        CAPTURE = 16,
        /// A capture ends.
        CAPTURE_END = 17,
    }

    /// `Violation::kind`. The first two are in the order of the counters in the context page.
    pub mod violation: u8 {
        /// The Q_Key.
        QKEY = 0,
        /// The P_Key.
        PKEY = 1,
        /// Packets have no path.
        NO_PATH = 2,
    }

    /// Bits of `EngineHello::flags`.
    pub mod hello: u32 {
        /// The program asks for faults; its rules are behind its context page.
        FAULTS = 1,
        /// The rules are TOML.
        TOML = 2,
    }

    /// `GidEntryAnswer::gid_type`, and the board's.
    pub mod gid_type: u32 {
        /// InfiniBand, or RoCE version 1.
        IB = 0,
        /// RoCE version 1.
        ROCE_V1 = 1,
        /// RoCE version 2.
        ROCE_V2 = 2,
    }
}

/// Most engines in one answer of MCAST_RESOLVE.
pub const MCAST_ENGINES_MAX: usize = 64;
