//! Queue memory: the place of a queue ([`Mapping`]), the private tails of the create commands, and
//! the control words.
//!
//! The agent allocates regions (sealed memfds) and grants pieces of them. The client maps a region
//! when its fd arrives, and unmaps it when the last object in it is destroyed. Both sides write to
//! the regions. All words are little endian and 4 bytes unless noted. The crates that map the
//! memory read and write it.

record! {
    /// A piece of queue memory.
    pub struct Mapping[32] {
        /// Number of the region; never used again after the region is gone.
        0 => region: u32,
        /// See `mapping_flags`.
        4 => flags: u32,
        /// Length of the region in bytes.
        8 => region_len: u64,
        /// Where the piece begins in the region, bytes.
        16 => offset: u64,
        /// Length of the piece, bytes.
        24 => length: u64,
    }

    /// Private tail of the answer of GET_CONTEXT.
    pub struct ContextOut[40] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// Index of the device on the board.
        4 => device: u32,
        /// The context page.
        8 => page: Mapping,
    }

    /// Private tail of the answers of CREATE_CQ, EX_CREATE_CQ and RESIZE_CQ.
    pub struct CqOut[56] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// CQ number, for people to read.
        4 => number: u32,
        /// Control line and entries.
        8 => mapping: Mapping,
        /// Entries, a power of two.
        40 => cqe_count: u32,
        /// Bytes per entry: 64.
        44 => cqe_size: u32,
        /// 0.
        48 => reserved: [u32; 2],
    }

    /// Private tail of the answers of CREATE_QP and EX_CREATE_QP. Offsets count from
    /// `mapping.offset`, where the control line is.
    pub struct QpOut[72] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// QP number.
        4 => qpn: u32,
        /// Control line, send queue and receive queue.
        8 => mapping: Mapping,
        /// Where the send queue begins.
        40 => sq_offset: u32,
        /// Entries of the send queue, a power of two.
        44 => sq_count: u32,
        /// Bytes per send queue entry.
        48 => sq_stride: u32,
        /// Where the receive queue begins.
        52 => rq_offset: u32,
        /// Entries of the receive queue, a power of two; 0 with an SRQ.
        56 => rq_count: u32,
        /// Bytes per receive queue entry.
        60 => rq_stride: u32,
        /// See `qp_kind`.
        64 => kind: u32,
        /// 0.
        68 => reserved: u32,
    }

    /// Private tail of the answer of CREATE_SRQ. The offset counts from `mapping.offset`, where the
    /// control line is.
    pub struct SrqOut[56] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// SRQ number, unique among all devices of the agent.
        4 => number: u32,
        /// Control line and queue.
        8 => mapping: Mapping,
        /// Where the queue begins.
        40 => offset: u32,
        /// Entries, a power of two.
        44 => count: u32,
        /// Bytes per entry.
        48 => stride: u32,
        /// 0.
        52 => reserved: u32,
    }

    /// Private tail of the answer of ALLOC_PD.
    pub struct PdOut[8] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// PD number, for people to read.
        4 => number: u32,
    }

    /// Private tail of the request of REG_MR, optional: where the agent finds the memory if the
    /// agent executes the work requests (proxy engine).
    pub struct MrIn[24] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// See `mr_flags`.
        4 => flags: u32,
        /// Offset of the region's first byte in the memfd, a multiple of 4096. Then `start` and
        /// `hca_va` must be multiples of 4096, too.
        8 => offset: u64,
        /// Handle of the device memory.
        16 => dm_handle: u32,
        /// 0.
        20 => reserved: u32,
    }
}

record! {
    /// Private tail of the request of DEALLOC_MW, optional.
    pub struct MwIn[8] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// The window's last key: binding changes the lower 8 bits, and their last value is not
        /// used again soon.
        4 => key: u32,
    }
}

record! {
    /// Datagrams to one LID, in a subnet with switches. The sender counts them for all ports on the
    /// way.
    pub struct DatagramFlow[32] {
        /// Number of packets; 0 for an empty place. Written last.
        0 => packets: u64,
        /// Words of 4 bytes, from LRH to ICRC.
        8 => words: u64,
        /// The destination LID.
        16 => dlid: u16,
        /// Index of the P_Key in the table of the sender's port.
        18 => pkey_index: u16,
        /// The service level.
        20 => sl: u8,
        /// The sender's port.
        21 => port: u8,
        /// 0 if the engine has sent them; else there was no path, and this is the code of the MTU
        /// that they need.
        22 => lost: u8,
        /// 0.
        23 => reserved: [u8; 9],
    }
}

record! {
    /// What routers see of the datagrams of a flow. It is zero for datagrams within the subnet.
    pub struct DatagramRoute[32] {
        /// The destination GID.
        0 => dgid: [u8; 16],
        /// The hop limit.
        16 => hop_limit: u8,
        /// The traffic class.
        17 => traffic_class: u8,
        /// 0.
        18 => reserved: [u8; 14],
    }
}

impl DatagramFlow {
    /// Offset of the number of packets.
    pub const PACKETS: usize = 0;
    /// Offset of the words.
    pub const WORDS: usize = 8;
}

/// Revision of every private tail.
pub const REV: u32 = 1;

constants! {
    /// Bits of `Mapping::flags`.
    pub mod mapping_flags: u32 {
        /// The region's fd is attached to this reply; map it now.
        FD_ATTACHED = 1,
    }

    /// Bits of `MrIn::flags`.
    pub mod mr_flags: u32 {
        /// A memfd with the memory is attached.
        MEMFD = 1,
        /// A region without memory: it starts at 0, contains every address, and is for local use
        /// only.
        NOTHING = 2,
        /// A region of device memory, zero-based: `start` is its offset in the device memory.
        DEVICE = 4,
    }

    /// The control line of a CQ (64 bytes at `mapping.offset`), byte offsets. Entries begin at 64.
    pub mod cq: usize {
        /// Index of the next entry to be written.
        PRODUCER = 0,
        /// Index of the next entry to be taken.
        CONSUMER = 4,
        /// 0 not armed, 1 the next solicited completion, 2 the next completion.
        ARMED = 8,
        /// 1 after an overrun.
        OVERRUN = 12,
        /// Completion events read.
        COMP_EVENTS_REPORTED = 16,
        /// Async events read.
        ASYNC_EVENTS_REPORTED = 20,
        /// First entry.
        ENTRIES = 64,
    }

    /// An entry of a CQ (64 bytes), byte offsets.
    pub mod cqe: usize {
        /// The completion (`Wc`, 48 bytes).
        WC = 0,
        /// When it was added, u64: see `hca_core_clock` of EX_QUERY_DEVICE.
        TIMESTAMP = 48,
        /// Private to the engine, 8 bytes.
        SPARE = 56,
    }

    /// The control line of a QP (64 bytes at `mapping.offset`), byte offsets.
    pub mod qp: usize {
        /// The authoritative state of the QP, as `ModifyQp::qp_state`.
        STATE = 0,
        /// Bit 0: the send queue drains.
        FLAGS = 4,
        /// Lane in use, 0 for none, `ON_WIRE` for the wire.
        LANE = 8,
        /// Engine at the other end, 0 for none.
        PEER_ENGINE = 12,
        /// Index of the oldest send work request that is not complete.
        SQ_HEAD = 16,
        /// Index of the next send work request to be posted.
        SQ_TAIL = 20,
        /// Index of the next receive work request to be taken.
        RQ_HEAD = 24,
        /// Index of the next receive work request to be posted.
        RQ_TAIL = 28,
        /// Async events read.
        EVENTS_REPORTED = 32,
        /// Next PSN to send.
        SQ_PSN = 36,
        /// Next expected PSN. Valid for a QP to another host, and only while an acknowledgement is
        /// owed.
        RQ_PSN = 40,
        /// `OWED` and the MSN: all packets before RQ_PSN have arrived and are not acknowledged yet.
        /// If the process ends now, the agent acknowledges them. 0: no acknowledgement is due.
        OWED = 44,
        /// 1: MODIFY_QP of it succeeds and changes nothing, as FREEZE_QP has requested; only the
        /// agent writes the word. 0: MODIFY_QP takes effect.
        FROZEN = 48,
        /// The path migration state (see `qp::migration`), and `QP_PATHS_SWAPPED`.
        MIGRATION = 52,
        /// The state of the stream of a QP of iWARP (see `stream::state`).
        STREAM = 56,
        /// Packets sent, u64: as on a link with the path MTU. This word and the next three count
        /// for the port, and no target of XRC has them.
        SENT_PACKETS = 64,
        /// Words of 4 bytes sent, u64, from LRH to ICRC.
        SENT_WORDS = 72,
        /// Packets received, u64: from other hosts, datagrams, and answers to requests that were
        /// carried out directly. Other packets are counted by their sender only.
        RECEIVED_PACKETS = 80,
        /// Words of 4 bytes received, u64, in the same way.
        RECEIVED_WORDS = 88,
        /// Packets that had no path, u64: requests, also repeated ones, and answers. They are not
        /// among the packets sent.
        LOST_PACKETS = 96,
        /// Words of 4 bytes of these packets, u64.
        LOST_WORDS = 104,
        /// Bytes of FPDUs that the socket of a stream has taken, u64.
        STREAM_SENT = 112,
        /// Bytes of FPDUs that the socket of a stream has given, u64.
        STREAM_RECEIVED = 120,
    }

    /// The control line of an SRQ (64 bytes at `mapping.offset`), byte offsets.
    pub mod srq: usize {
        /// Index of the next work request to be taken.
        HEAD = 0,
        /// Index of the next work request to be posted.
        TAIL = 4,
        /// Armed limit, 0 when not armed.
        LIMIT = 8,
        /// Async events read.
        EVENTS_REPORTED = 12,
        /// Work requests posted and not yet taken.
        OUTSTANDING = 16,
    }

    /// A receive queue entry, byte offsets.
    pub mod recv_wqe: usize {
        /// The caller's name for it, u64.
        WR_ID = 0,
        /// Number of scatter entries.
        NUM_SGE = 8,
        /// Sum of their lengths.
        TOTAL_LEN = 12,
        /// First scatter entry (`Sge`, 16 bytes each).
        SGES = 16,
    }

    /// What a client counts for a port: the numbers of the counters. The names, in small letters,
    /// are those of `hw_counters` in sysfs.
    pub mod hw_counter: usize {
        /// Requests that were repeated after they had been carried out.
        DUPLICATE_REQUEST = 0,
        /// Answers that arrived before the data of an earlier READ or atomic.
        IMPLIED_NAK_SEQ_ERR = 1,
        /// Times when no answer came in time.
        LOCAL_ACK_TIMEOUT_ERR = 2,
        /// Notifications of congestion (CNPs) that were sent.
        NP_CNP_SENT = 3,
        /// Packets that a switch or host had marked for congestion (ECN).
        NP_ECN_MARKED_ROCE_PACKETS = 4,
        /// Messages that found no receive request.
        OUT_OF_BUFFER = 5,
        /// Requests that arrived before an earlier one.
        OUT_OF_SEQUENCE = 6,
        /// Missing packets that a peer reported.
        PACKET_SEQ_ERR = 7,
        /// Times when a peer had no receive request.
        RNR_NAK_RETRY_ERR = 8,
        /// CNPs that were received and obeyed.
        RP_CNP_HANDLED = 9,
    }

    /// The context page (4096 bytes), byte offsets: a ring of async records that the agent has
    /// made. After it come records that the engine writes and the agent shows: the last reasons
    /// (`reason::ReasonRecord`, each followed by its sentence), the dropped packets
    /// (`reason::DropRecord`), and the datagrams by their destination (`DatagramFlow`). Memory that
    /// an engine never writes is not allocated.
    pub mod context_page: usize {
        /// Number of records written, modulo 2^32. The agent writes the record, then this word,
        /// then the eventfd.
        HEAD = 0,
        /// Number of records taken, written by the client.
        CONSUMER = 64,
        /// Datagrams that the client dropped for their Q_Key: one word for port 1, the next for
        /// port 2. They stop at 2^32 - 1.
        QKEY_VIOLATIONS = 72,
        /// Packets that the client dropped for their P_Key, counted in the same way.
        PKEY_VIOLATIONS = 80,
        /// First record (`AsyncRecord`, 16 bytes each).
        RECORDS = 128,
        /// Events at port 1 that the client has counted modulo 2^32, in words: the first is that of
        /// `hw_counter` 0. 64 bytes further: those at port 2.
        HW_COUNTERS = 2176,
        /// Number of reasons written, modulo 2^32. The engine writes the record, then this word.
        REASONS_HEAD = 2304,
        /// First reason: number `n` is at `n` modulo 64, 512 bytes each.
        REASONS = 4096,
        /// First kind of dropped packets, 64 of 64 bytes each.
        DROPS = 36864,
        /// Faults on demand (`fault::area`): which rules apply to the engine, and how often each
        /// has acted.
        FAULTS = 40960,
        /// First datagram flow, 512 of 32 bytes each. Places are taken in their order, and kept.
        DATAGRAM_FLOWS = 40960 + crate::fault::page::AREA_LEN,
        /// First route of a datagram flow (`DatagramRoute`), 512 of 32 bytes each, in the same
        /// order. The engine writes it before the flow.
        DATAGRAM_ROUTES = 40960 + crate::fault::page::AREA_LEN + 512 * 32,
    }
}

/// Bytes of the `hw_counter`s of a port in the context page.
pub const HW_COUNTERS_LEN: usize = 64;

/// Bytes of a control line.
pub const CONTROL_LEN: usize = 64;
/// Bytes of the two control lines of a QP.
pub const QP_CONTROL_LEN: usize = 128;
/// `qp::MIGRATION` bit: the QP has migrated to its alternate path, and the agent does not know it
/// yet.
pub const QP_PATHS_SWAPPED: u32 = 1 << 31;
/// Bytes of a CQ entry.
pub const CQE_LEN: usize = 64;
/// `qp::LANE`: packets go to another host.
pub const ON_WIRE: u32 = u32::MAX;
/// `qp::OWED` bit: an acknowledgement is owed.
pub const OWED: u32 = 1 << 31;
/// `qp::FLAGS` bit: the send queue drains.
pub const QP_SQ_DRAINING: u32 = 1;
/// `cq::ARMED`: no event wanted.
pub const CQ_ARMED_NONE: u32 = 0;
/// `cq::ARMED`: the next solicited completion gives an event.
pub const CQ_ARMED_SOLICITED: u32 = 1;
/// `cq::ARMED`: the next completion gives an event.
pub const CQ_ARMED_NEXT: u32 = 2;
/// Bytes of the context page.
pub const CONTEXT_PAGE_LEN: usize = 4096;
/// Bytes of the context page with the reasons, drops and faults behind it.
pub const CONTEXT_LEN: usize = context_page::DATAGRAM_ROUTES + DATAGRAM_FLOWS * DATAGRAM_ROUTE_LEN;
/// Reasons behind the context page.
pub const REASONS: u32 = 64;
/// Bytes of a reason.
pub const REASON_LEN: usize = 512;
/// Kinds of dropped packets behind the context page.
pub const DROPS: usize = 64;
/// Bytes of a kind of dropped packets.
pub const DROP_LEN: usize = 64;
/// Datagram flows behind the context page.
pub const DATAGRAM_FLOWS: usize = 512;
/// Bytes of a datagram flow.
pub const DATAGRAM_FLOW_LEN: usize = 32;
/// Bytes of the route of a datagram flow.
pub const DATAGRAM_ROUTE_LEN: usize = 32;
/// Records in the context page.
pub const CONTEXT_RECORDS: u32 = 128;
/// Bytes of a send queue entry of a connection before its gather entries or inline data; private to
/// the engine.
pub const SEND_WQE_HEADER: usize = 16;
/// Bytes before gather entries or inline data in a send queue entry of a queue pair that sends
/// datagrams. Each entry contains its destination.
pub const DATAGRAM_WQE_HEADER: usize = 64;
/// Bytes of a receive queue entry before its scatter entries.
pub const RECV_WQE_HEADER: usize = 16;
/// Bytes of a gather or scatter entry.
pub const SGE_LEN: u32 = 16;

/// Bytes of a send queue entry before its gather entries, of a connection or of a queue pair that
/// sends datagrams.
#[must_use]
pub const fn send_header(datagrams: bool) -> usize {
    if datagrams { DATAGRAM_WQE_HEADER } else { SEND_WQE_HEADER }
}

/// Bytes per send queue entry.
#[must_use]
pub const fn send_stride(datagrams: bool, max_sge: u32, max_inline: u32) -> usize {
    let sges = (SGE_LEN * max_sge) as usize;
    let inline = max_inline as usize;
    (send_header(datagrams) + if sges > inline { sges } else { inline }).next_multiple_of(32)
}

/// Bytes per receive queue entry.
#[must_use]
pub const fn recv_stride(max_sge: u32) -> usize {
    (RECV_WQE_HEADER + (SGE_LEN * max_sge) as usize).next_multiple_of(32)
}

const _: () = assert!(context_page::RECORDS + 16 * CONTEXT_RECORDS as usize <= context_page::HW_COUNTERS);
const _: () = assert!(4 * hw_counter::ALL.len() <= HW_COUNTERS_LEN);
const _: () = assert!(context_page::HW_COUNTERS + 2 * HW_COUNTERS_LEN <= context_page::REASONS_HEAD);
const _: () = assert!(context_page::REASONS + REASON_LEN * REASONS as usize <= context_page::DROPS);
const _: () = assert!(context_page::DROPS + DROP_LEN * DROPS <= context_page::FAULTS);
const _: () =
    assert!(context_page::DATAGRAM_FLOWS + DATAGRAM_FLOWS * DATAGRAM_FLOW_LEN <= context_page::DATAGRAM_ROUTES);
const _: () = assert!(CONTEXT_LEN.is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides() {
        assert_eq!(send_stride(false, 1, 16), 32);
        assert_eq!(send_stride(false, 4, 64), 96);
        assert_eq!(send_stride(false, 4, 256), 288);
        assert_eq!(send_stride(false, 8, 16), 160);
        assert_eq!(send_stride(true, 1, 16), 96);
        assert_eq!(send_stride(true, 4, 64), 128);
        assert_eq!(recv_stride(1), 32);
        assert_eq!(recv_stride(2), 64);
        assert_eq!(recv_stride(30), 512);
    }
}
