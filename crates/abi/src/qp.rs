//! Queue pairs: CREATE_QP, QUERY_QP, MODIFY_QP, DESTROY_QP, EX_CREATE_QP, EX_MODIFY_QP, with types,
//! states and attribute masks.
//!
//! `protocol::modify` has the attributes that each transition needs.

record! {
    /// The address vector of a connected QP, as MODIFY_QP and QUERY_QP lay it out.
    pub struct Dest[32] {
        /// Destination GID, network byte order.
        0 => dgid: [u8; 16],
        /// GRH flow label, 20 bits, host byte order.
        16 => flow_label: u32,
        /// Destination LID (0 on RoCE).
        20 => dlid: u16,
        /// 0.
        22 => reserved: u16,
        /// Index of the source GID in the port's table.
        24 => sgid_index: u8,
        /// GRH hop limit.
        25 => hop_limit: u8,
        /// GRH traffic class.
        26 => traffic_class: u8,
        /// Service level.
        27 => sl: u8,
        /// Source path bits (0 on RoCE).
        28 => src_path_bits: u8,
        /// Static rate; 0 is as fast as the port.
        29 => static_rate: u8,
        /// 1 when the GRH fields count; RoCE needs it.
        30 => is_global: u8,
        /// Port, from 1.
        31 => port_num: u8,
    }

    /// CREATE_QP (24), request.
    pub struct CreateQp[56] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the QP; events carry it.
        8 => user_handle: u64,
        /// PD of the QP.
        16 => pd_handle: u32,
        /// CQ of the send queue.
        20 => send_cq_handle: u32,
        /// CQ of the receive queue.
        24 => recv_cq_handle: u32,
        /// SRQ, when `is_srq` is set.
        28 => srq_handle: u32,
        /// Least number of send work requests.
        32 => max_send_wr: u32,
        /// Least number of receive work requests; ignored with an SRQ.
        36 => max_recv_wr: u32,
        /// Least number of gather entries per send work request.
        40 => max_send_sge: u32,
        /// Least number of scatter entries per receive work request; ignored with an SRQ.
        44 => max_recv_sge: u32,
        /// Least number of inline bytes per send work request.
        48 => max_inline_data: u32,
        /// 1: every send work request gives a completion.
        52 => sq_sig_all: u8,
        /// See `kind`.
        53 => qp_type: u8,
        /// 1: receives come from the SRQ.
        54 => is_srq: u8,
        /// 0.
        55 => reserved: u8,
    }

    /// CREATE_QP (24), answer; `QpOut` follows.
    pub struct CreateQpAnswer[32] {
        /// Handle of the new QP.
        0 => qp_handle: u32,
        /// Its number, unique among all devices of the agent.
        4 => qpn: u32,
        /// Send work requests that it holds.
        8 => max_send_wr: u32,
        /// Receive work requests that it holds.
        12 => max_recv_wr: u32,
        /// Gather entries per send work request.
        16 => max_send_sge: u32,
        /// Scatter entries per receive work request.
        20 => max_recv_sge: u32,
        /// Inline bytes per send work request.
        24 => max_inline_data: u32,
        /// 0.
        28 => reserved: u32,
    }

    /// QUERY_QP (25), request.
    pub struct QueryQp[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the QP.
        8 => qp_handle: u32,
        /// Which attributes are wanted (all are answered): see `attr`.
        12 => attr_mask: u32,
    }

    /// QUERY_QP (25), answer.
    pub struct QueryQpAnswer[128] {
        /// Primary path.
        0 => dest: Dest,
        /// Alternate path.
        32 => alt_dest: Dest,
        /// Send work requests that it holds.
        64 => max_send_wr: u32,
        /// Receive work requests that it holds.
        68 => max_recv_wr: u32,
        /// Gather entries per send work request.
        72 => max_send_sge: u32,
        /// Scatter entries per receive work request.
        76 => max_recv_sge: u32,
        /// Inline bytes per send work request.
        80 => max_inline_data: u32,
        /// Q_Key (UD).
        84 => qkey: u32,
        /// First PSN expected.
        88 => rq_psn: u32,
        /// First PSN sent.
        92 => sq_psn: u32,
        /// QP number of the peer.
        96 => dest_qp_num: u32,
        /// Rights of the peer: see `mr::access`.
        100 => qp_access_flags: u32,
        /// P_Key index.
        104 => pkey_index: u16,
        /// P_Key index of the alternate path.
        106 => alt_pkey_index: u16,
        /// See `state`.
        108 => qp_state: u8,
        /// See `state`.
        109 => cur_qp_state: u8,
        /// Path MTU code.
        110 => path_mtu: u8,
        /// See `migration`.
        111 => path_mig_state: u8,
        /// 1 while the send queue drains.
        112 => sq_draining: u8,
        /// READs and atomics outstanding as initiator, at most.
        113 => max_rd_atomic: u8,
        /// READs and atomics outstanding as responder, at most.
        114 => max_dest_rd_atomic: u8,
        /// RNR timer code sent to the peer.
        115 => min_rnr_timer: u8,
        /// Port, from 1.
        116 => port_num: u8,
        /// Acknowledge timeout code: 4.096 µs * 2^n; 0 for ever.
        117 => timeout: u8,
        /// Retries after a timeout, 0..7.
        118 => retry_cnt: u8,
        /// Retries after an RNR NAK, 0..6; 7 for ever.
        119 => rnr_retry: u8,
        /// Port of the alternate path.
        120 => alt_port_num: u8,
        /// Timeout code of the alternate path.
        121 => alt_timeout: u8,
        /// 1: every send work request gives a completion.
        122 => sq_sig_all: u8,
        /// 0.
        123 => reserved: [u8; 5],
    }

    /// MODIFY_QP (26), request; no answer, and no response field.
    pub struct ModifyQp[112] {
        /// Primary path (with AV).
        0 => dest: Dest,
        /// Alternate path (with ALT_PATH).
        32 => alt_dest: Dest,
        /// Handle of the QP.
        64 => qp_handle: u32,
        /// Which fields count: see `attr`.
        68 => attr_mask: u32,
        /// Q_Key (with QKEY).
        72 => qkey: u32,
        /// First PSN expected (with RQ_PSN).
        76 => rq_psn: u32,
        /// First PSN sent (with SQ_PSN).
        80 => sq_psn: u32,
        /// QP number of the peer (with DEST_QPN).
        84 => dest_qp_num: u32,
        /// Rights of the peer (with ACCESS_FLAGS): see `mr::access`.
        88 => qp_access_flags: u32,
        /// P_Key index (with PKEY_INDEX).
        92 => pkey_index: u16,
        /// P_Key index of the alternate path (with ALT_PATH).
        94 => alt_pkey_index: u16,
        /// State to go to (with STATE): see `state`.
        96 => qp_state: u8,
        /// State that the caller believes it is in (with CUR_STATE).
        97 => cur_qp_state: u8,
        /// Path MTU code (with PATH_MTU).
        98 => path_mtu: u8,
        /// See `migration` (with PATH_MIG_STATE).
        99 => path_mig_state: u8,
        /// 1: SQ_DRAINED event wanted (with EN_SQD_ASYNC_NOTIFY).
        100 => en_sqd_async_notify: u8,
        /// READs and atomics outstanding as initiator (with MAX_QP_RD_ATOMIC).
        101 => max_rd_atomic: u8,
        /// READs and atomics outstanding as responder (with MAX_DEST_RD_ATOMIC).
        102 => max_dest_rd_atomic: u8,
        /// RNR timer code (with MIN_RNR_TIMER).
        103 => min_rnr_timer: u8,
        /// Port, from 1 (with PORT).
        104 => port_num: u8,
        /// Acknowledge timeout code (with TIMEOUT).
        105 => timeout: u8,
        /// Retries after a timeout (with RETRY_CNT).
        106 => retry_cnt: u8,
        /// Retries after an RNR NAK (with RNR_RETRY).
        107 => rnr_retry: u8,
        /// Port of the alternate path (with ALT_PATH).
        108 => alt_port_num: u8,
        /// Timeout code of the alternate path (with ALT_PATH).
        109 => alt_timeout: u8,
        /// 0.
        110 => reserved: [u8; 2],
    }

    /// DESTROY_QP (27), request.
    pub struct DestroyQp[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the QP.
        8 => qp_handle: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// DESTROY_QP (27), answer.
    pub struct DestroyQpAnswer[4] {
        /// Async events of the QP that were read.
        0 => events_reported: u32,
    }

    /// EX_CREATE_QP (24, extended), request.
    pub struct ExCreateQp[64] {
        /// The caller's name for the QP; events carry it.
        0 => user_handle: u64,
        /// PD of the QP.
        8 => pd_handle: u32,
        /// CQ of the send queue.
        12 => send_cq_handle: u32,
        /// CQ of the receive queue.
        16 => recv_cq_handle: u32,
        /// SRQ, when `is_srq` is set.
        20 => srq_handle: u32,
        /// Least number of send work requests.
        24 => max_send_wr: u32,
        /// Least number of receive work requests.
        28 => max_recv_wr: u32,
        /// Least number of gather entries per send work request.
        32 => max_send_sge: u32,
        /// Least number of scatter entries per receive work request.
        36 => max_recv_sge: u32,
        /// Least number of inline bytes per send work request.
        40 => max_inline_data: u32,
        /// 1: every send work request gives a completion.
        44 => sq_sig_all: u8,
        /// See `kind`.
        45 => qp_type: u8,
        /// 1: receives come from the SRQ.
        46 => is_srq: u8,
        /// 0.
        47 => reserved: u8,
        /// Bit 0: `rwq_ind_tbl_handle` counts (not supported).
        48 => comp_mask: u32,
        /// See `create_flags`.
        52 => create_flags: u32,
        /// Indirection table.
        56 => rwq_ind_tbl_handle: u32,
        /// QP number to send as (with SOURCE_QPN).
        60 => source_qpn: u32,
    }

    /// EX_CREATE_QP (24, extended), answer; `QpOut` in the provider area.
    pub struct ExCreateQpAnswer[40] {
        /// As CREATE_QP.
        0 => base: CreateQpAnswer,
        /// 0.
        32 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        36 => response_length: u32,
    }

    /// EX_MODIFY_QP (26, extended), request.
    pub struct ExModifyQp[120] {
        /// As MODIFY_QP.
        0 => base: ModifyQp,
        /// Rate limit in kbit/s, 0 is none (with RATE_LIMIT).
        112 => rate_limit: u32,
        /// 0.
        116 => reserved: u32,
    }

    /// EX_MODIFY_QP (26, extended), answer.
    pub struct ExModifyQpAnswer[8] {
        /// 0.
        0 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        4 => response_length: u32,
    }
}

/// Shortest input of EX_CREATE_QP: up to and with `create_flags`.
pub const EX_CREATE_QP_MIN: usize = 56;
/// Shortest input of EX_MODIFY_QP: without the rate limit.
pub const EX_MODIFY_QP_MIN: usize = 112;
/// The least rate limit, in kbit/s; 0 is none.
pub const RATE_LIMIT_MIN: u32 = 1;
/// The largest rate limit, in kbit/s: the speed of a port.
pub const RATE_LIMIT_MAX: u32 = 100_000_000;

constants! {
    /// `CreateQp::qp_type` (IBV_QPT_*).
    pub mod kind: u8 {
        /// Subnet management QP (kernel only).
        SMI = 0,
        /// General services QP (kernel only).
        GSI = 1,
        /// Reliable connection.
        RC = 2,
        /// Unreliable connection.
        UC = 3,
        /// Unreliable datagram.
        UD = 4,
        /// Raw IPv6.
        RAW_IPV6 = 5,
        /// Raw ethertype.
        RAW_ETHERTYPE = 6,
        /// Raw packet.
        RAW_PACKET = 8,
        /// XRC initiator.
        XRC_INI = 9,
        /// XRC target.
        XRC_TGT = 10,
        /// Driver specific.
        DRIVER = 255,
    }

    /// QP states (IBV_QPS_*).
    pub mod state: u8 {
        /// As created.
        RESET = 0,
        /// Receives may be posted.
        INIT = 1,
        /// Ready to receive.
        RTR = 2,
        /// Ready to send.
        RTS = 3,
        /// Send queue drained or draining.
        SQD = 4,
        /// Send queue error (UC, UD).
        SQE = 5,
        /// Error.
        ERR = 6,
    }

    /// Bits of `ModifyQp::attr_mask` (IBV_QP_*).
    pub mod attr: u32 {
        /// `qp_state`.
        STATE = 1 << 0,
        /// `cur_qp_state`.
        CUR_STATE = 1 << 1,
        /// `en_sqd_async_notify`.
        EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// `qp_access_flags`.
        ACCESS_FLAGS = 1 << 3,
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4,
        /// `port_num`.
        PORT = 1 << 5,
        /// `qkey`.
        QKEY = 1 << 6,
        /// `dest`.
        AV = 1 << 7,
        /// `path_mtu`.
        PATH_MTU = 1 << 8,
        /// `timeout`.
        TIMEOUT = 1 << 9,
        /// `retry_cnt`.
        RETRY_CNT = 1 << 10,
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        MAX_QP_RD_ATOMIC = 1 << 13,
        /// `alt_dest`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`.
        ALT_PATH = 1 << 14,
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 17,
        /// `path_mig_state`.
        PATH_MIG_STATE = 1 << 18,
        /// Capacities (MODIFY_QP has no field for them).
        CAP = 1 << 19,
        /// `dest_qp_num`.
        DEST_QPN = 1 << 20,
        /// `rate_limit` of EX_MODIFY_QP.
        RATE_LIMIT = 1 << 25,
    }

    /// Path migration states.
    pub mod migration: u8 {
        /// Migrated (also: never armed).
        MIGRATED = 0,
        /// To be armed again.
        REARM = 1,
        /// Armed.
        ARMED = 2,
    }

    /// Bits of `ExCreateQp::create_flags`.
    pub mod create_flags: u32 {
        /// Multicast sent by the QP does not come back to it.
        BLOCK_MULTICAST_LOOPBACK = 1 << 1,
        /// Scatter the frame check sequence (raw packet).
        SCATTER_FCS = 1 << 8,
        /// Strip the VLAN tag (raw packet).
        CVLAN_STRIPPING = 1 << 9,
        /// `source_qpn` counts.
        SOURCE_QPN = 1 << 10,
        /// Pad writes at the end.
        PCI_WRITE_END_PADDING = 1 << 11,
    }
}
