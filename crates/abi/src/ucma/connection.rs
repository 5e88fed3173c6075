//! Connections: listen, connect, accept, reject, disconnect, the attributes of QPs, groups, and
//! events.

use super::address::{PathRecData, QueryAddrAnswer};
use super::sockaddr::SockaddrIn6;
use crate::ah::AhAttr;

record! {
    /// The parameters of connect and accept, and of an event about a connection.
    pub struct ConnParam[272] {
        /// Number of the QP.
        0 => qp_num: u32,
        /// Q_Key of datagrams; 0 is the id's own.
        4 => qkey: u32,
        /// Private data. A message holds 92 bytes (REQ), 196 (REP), 148 (REJ), 216 (SIDR_REQ), 136
        /// (SIDR_REP). In all port spaces except IB, REQ and SIDR_REQ hold 36 bytes less.
        8 => private_data: [u8; 256],
        /// Number of valid bytes of private data.
        264 => private_data_len: u8,
        /// 1: the QP has an SRQ.
        265 => srq: u8,
        /// READs and atomics of the peer that are accepted at the same time.
        266 => responder_resources: u8,
        /// READs and atomics that may be outstanding at the same time.
        267 => initiator_depth: u8,
        /// End-to-end flow control.
        268 => flow_control: u8,
        /// Retries after a timeout, 0..7.
        269 => retry_count: u8,
        /// Retries after RNR, 0..7; 7 for ever.
        270 => rnr_retry_count: u8,
        /// ACCEPT: whether the record is valid.
        271 => valid: u8,
    }

    /// The parameters of an event of a datagram id or of a group.
    pub struct UdParam[304] {
        /// Number of the peer's QP; 0xffffff for a group.
        0 => qp_num: u32,
        /// Q_Key.
        4 => qkey: u32,
        /// The address vector that leads to it.
        8 => ah_attr: AhAttr,
        /// Private data.
        40 => private_data: [u8; 256],
        /// Number of valid bytes of private data.
        296 => private_data_len: u8,
        /// 0.
        297 => reserved: [u8; 7],
    }

    /// Enhanced connection establishment: options of one vendor, passed on unchanged.
    pub struct Ece[8] {
        /// The vendor.
        0 => vendor_id: u32,
        /// Its options.
        4 => attr_mod: u32,
    }

    /// CONNECT (6), request; no answer. (Older clients end it before `ece`.)
    pub struct Connect[288] {
        /// The QP and its wanted capabilities.
        0 => conn_param: ConnParam,
        /// The id.
        272 => id: u32,
        /// 0.
        276 => reserved: u32,
        /// Options for the peer.
        280 => ece: Ece,
    }

    /// LISTEN (7), request; no answer.
    pub struct Listen[8] {
        /// The id.
        0 => id: u32,
        /// Most requests that wait to be accepted. A value of 0 or less, or above the limit, stands
        /// for the limit.
        4 => backlog: u32,
    }

    /// ACCEPT (8), request; no answer. (Older clients end it before `ece`.)
    pub struct Accept[296] {
        /// The caller's name for the id; ESTABLISHED carries it.
        0 => uid: u64,
        /// The QP and its wanted capabilities; ignored unless `valid`.
        8 => conn_param: ConnParam,
        /// The id.
        280 => id: u32,
        /// 0.
        284 => reserved: u32,
        /// Options for the peer.
        288 => ece: Ece,
    }

    /// REJECT (9), request; no answer.
    pub struct Reject[264] {
        /// The id.
        0 => id: u32,
        /// Number of valid bytes of `private_data`.
        4 => private_data_len: u8,
        /// Reason: 0 stands for 28 (consumer). 35 (vendor option) is the only other value.
        5 => reason: u8,
        /// 0.
        6 => reserved: [u8; 2],
        /// Private data.
        8 => private_data: [u8; 256],
    }

    /// DISCONNECT (10), request; no answer.
    pub struct Disconnect[4] {
        /// The id.
        0 => id: u32,
    }

    /// INIT_QP_ATTR (11), request.
    pub struct InitQpAttr[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The id.
        8 => id: u32,
        /// The target state of the QP: INIT, RTR or RTS (see `qp::state`).
        12 => qp_state: u32,
    }

    /// INIT_QP_ATTR (11), answer: Linux's `ib_uverbs_qp_attr`.
    pub struct QpAttr[144] {
        /// Which attributes are valid: see `qp::attr`.
        0 => qp_attr_mask: u32,
        /// The state.
        4 => qp_state: u32,
        /// 0.
        8 => cur_qp_state: u32,
        /// MTU code.
        12 => path_mtu: u32,
        /// 0.
        16 => path_mig_state: u32,
        /// Q_Key.
        20 => qkey: u32,
        /// First PSN expected.
        24 => rq_psn: u32,
        /// First PSN sent.
        28 => sq_psn: u32,
        /// The peer's QP.
        32 => dest_qp_num: u32,
        /// Rights of the peer.
        36 => qp_access_flags: u32,
        /// The path.
        40 => ah_attr: AhAttr,
        /// The alternate path.
        72 => alt_ah_attr: AhAttr,
        /// 0.
        104 => max_send_wr: u32,
        /// 0.
        108 => max_recv_wr: u32,
        /// 0.
        112 => max_send_sge: u32,
        /// 0.
        116 => max_recv_sge: u32,
        /// 0.
        120 => max_inline_data: u32,
        /// P_Key index.
        124 => pkey_index: u16,
        /// P_Key index of the alternate path.
        126 => alt_pkey_index: u16,
        /// 0.
        128 => en_sqd_async_notify: u8,
        /// 0.
        129 => sq_draining: u8,
        /// READs and atomics outstanding as initiator, at most.
        130 => max_rd_atomic: u8,
        /// READs and atomics outstanding as responder, at most.
        131 => max_dest_rd_atomic: u8,
        /// RNR timer code.
        132 => min_rnr_timer: u8,
        /// Port, from 1.
        133 => port_num: u8,
        /// Acknowledge timeout code.
        134 => timeout: u8,
        /// Retries after a timeout.
        135 => retry_cnt: u8,
        /// Retries after RNR.
        136 => rnr_retry: u8,
        /// Port of the alternate path.
        137 => alt_port_num: u8,
        /// Acknowledge timeout code of the alternate path.
        138 => alt_timeout: u8,
        /// 0.
        139 => reserved: [u8; 5],
    }

    /// NOTIFY (15), request; no answer.
    pub struct Notify[8] {
        /// The id.
        0 => id: u32,
        /// The async event of its QP: see `event::kind`; COMM_EST is the one that matters.
        4 => event: u32,
    }

    /// JOIN_IP_MCAST (16), request; the answer is `CreateIdAnswer`. MULTICAST_JOIN or
    /// MULTICAST_ERROR follows.
    pub struct JoinIpMcast[48] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the membership; its events carry it.
        8 => uid: u64,
        /// The group.
        16 => addr: SockaddrIn6,
        /// The id.
        44 => id: u32,
    }

    /// JOIN_MCAST (22), request; the answer is `CreateIdAnswer`. MULTICAST_JOIN or MULTICAST_ERROR
    /// follows.
    pub struct JoinMcast[152] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the membership; its events carry it.
        8 => uid: u64,
        /// The id.
        16 => id: u32,
        /// Length of `addr`.
        20 => addr_size: u16,
        /// See `join_flags`.
        22 => join_flags: u16,
        /// The group: an IP address, or the MGID as a `SockaddrIb`.
        24 => addr: [u8; 128],
    }

    /// GET_EVENT (12), request. EAGAIN: there is no event.
    pub struct GetEvent[8] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
    }

    /// GET_EVENT (12), answer. If there is a sentence about the event, it follows in UTF-8, as far
    /// as there is room. Afterwards the caller takes one byte from the event socket.
    pub struct EventAnswer[336] {
        /// The caller's name: of the id, of the membership, or (CONNECT_REQUEST) of the listening
        /// id.
        0 => uid: u64,
        /// The id; for CONNECT_REQUEST the new id.
        8 => id: u32,
        /// See `event`.
        12 => event: u32,
        /// 0, a negative error number, or the reason of a REJECTED.
        16 => status: u32,
        /// The parameters of the event: a `ConnParam`, a `UdParam` (port spaces UDP and IPOIB,
        /// groups), or nothing.
        20 => param: UdParam,
        /// 0.
        324 => reserved: u32,
        /// The peer's options.
        328 => ece: Ece,
    }

    /// NEXT_EVENT (194), request. EAGAIN: there is no event.
    pub struct NextEvent[8] {
        /// 0.
        0 => reserved: u64,
    }

    /// NEXT_EVENT (194), answer. A sentence in UTF-8 about the event may follow. Afterwards the
    /// caller takes one byte from the event socket.
    pub struct NextEventAnswer[1160] {
        /// As GET_EVENT.
        0 => event: EventAnswer,
        /// Which of the following fields are valid: see `known`. They hold the answers that queries
        /// of the event's id would return now.
        336 => known: u32,
        /// The id for which the event counts; for CONNECT_REQUEST this is the listening id. 0: the
        /// event counts for a membership.
        340 => counts: u32,
        /// As QUERY with ADDR.
        344 => addresses: QueryAddrAnswer,
        /// The local GID, as QUERY with GID returns it.
        624 => sgid: [u8; 16],
        /// The peer's GID.
        640 => dgid: [u8; 16],
        /// As QUERY with PATH.
        656 => path: PathRecData,
        /// As INIT_QP_ATTR for INIT.
        728 => init: QpAttr,
        /// As INIT_QP_ATTR for RTR.
        872 => rtr: QpAttr,
        /// As INIT_QP_ATTR for RTS.
        1016 => rts: QpAttr,
    }

    /// WRITE_CM_EVENT (24), request; no answer.
    pub struct WriteCmEvent[320] {
        /// The id.
        0 => id: u32,
        /// 0.
        4 => reserved: u32,
        /// USER or INTERNAL.
        8 => event: u32,
        /// The status of the event.
        12 => status: u32,
        /// The argument of the event: 8 bytes.
        16 => param: UdParam,
    }
}

constants! {
    /// `EventAnswer::event`.
    pub mod event: u32 {
        /// The address is resolved.
        ADDR_RESOLVED = 0,
        /// It is not.
        ADDR_ERROR = 1,
        /// The route is resolved.
        ROUTE_RESOLVED = 2,
        /// It is not.
        ROUTE_ERROR = 3,
        /// A peer asks for a connection.
        CONNECT_REQUEST = 4,
        /// The peer has replied. The id has no QP of its own, so ACCEPT completes the connection.
        CONNECT_RESPONSE = 5,
        /// The connection failed.
        CONNECT_ERROR = 6,
        /// The peer does not answer.
        UNREACHABLE = 7,
        /// The peer has rejected the connection.
        REJECTED = 8,
        /// The connection is established.
        ESTABLISHED = 9,
        /// The connection has ended.
        DISCONNECTED = 10,
        /// The device is gone.
        DEVICE_REMOVAL = 11,
        /// The group is joined.
        MULTICAST_JOIN = 12,
        /// The group was not joined, or the membership has ended.
        MULTICAST_ERROR = 13,
        /// The local address is gone or has moved to another interface.
        ADDR_CHANGE = 14,
        /// The QP may be used again.
        TIMEWAIT_EXIT = 15,
        /// A service is resolved; never sent.
        ADDRINFO_RESOLVED = 16,
        /// A service is not resolved; never sent.
        ADDRINFO_ERROR = 17,
        /// Written by WRITE_CM_EVENT.
        USER = 18,
        /// Written by WRITE_CM_EVENT, for the library itself.
        INTERNAL = 19,
    }

    /// `NextEventAnswer::known`.
    pub mod known: u32 {
        /// `addresses`, `sgid` and `dgid`.
        ADDRESSES = 1,
        /// `path`.
        PATH = 2,
        /// `init`.
        INIT = 4,
        /// `rtr`.
        RTR = 8,
        /// `rts`.
        RTS = 16,
    }

    /// `JoinMcast::join_flags`.
    pub mod join_flags: u16 {
        /// Sends and receives.
        FULLMEMBER = 0,
        /// Only sends.
        SENDONLY_FULLMEMBER = 1,
    }
}

/// The bytes of `EventAnswer` for which every client has room: Linux's record before ECE was added.
pub const EVENT_MIN: usize = 324;
/// Size of `Connect` before ECE was added.
pub const CONNECT_MIN: usize = 280;
/// Size of `Accept` before ECE was added.
pub const ACCEPT_MIN: usize = 288;

impl super::connection::UdParam {
    /// These bytes as the parameters of an event about a connection.
    #[must_use]
    pub fn as_conn(&self) -> ConnParam {
        crate::layout::Record::read_zero_extended(crate::layout::Record::bytes(self))
    }

    /// The bytes of the parameters of an event about a connection, as a `UdParam`.
    #[must_use]
    pub fn from_conn(conn: &ConnParam) -> Self {
        crate::layout::Record::read_zero_extended(crate::layout::Record::bytes(conn))
    }
}
