//! Completion channels and queues: CREATE_COMP_CHANNEL, CREATE_CQ, RESIZE_CQ, DESTROY_CQ, POLL_CQ,
//! REQ_NOTIFY_CQ, EX_CREATE_CQ, EX_MODIFY_CQ, and the work completion record [`Wc`] with its
//! statuses and opcodes.

record! {
    /// CREATE_COMP_CHANNEL (17), request.
    pub struct CreateCompChannel[8] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
    }

    /// CREATE_COMP_CHANNEL (17), answer. One fd is attached to the reply: the channel's eventfd.
    pub struct CreateCompChannelAnswer[4] {
        /// Handle of the channel (a kernel puts a file descriptor number here).
        0 => fd: i32,
    }

    /// CREATE_CQ (18), request.
    pub struct CreateCq[32] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the CQ; events carry it.
        8 => user_handle: u64,
        /// Least number of entries.
        16 => cqe: u32,
        /// Completion vector, below `num_comp_vectors` of GET_CONTEXT.
        20 => comp_vector: u32,
        /// Handle of the completion channel, or -1 for none.
        24 => comp_channel: i32,
        /// 0.
        28 => reserved: u32,
    }

    /// CREATE_CQ (18), answer; `CqOut` follows.
    pub struct CreateCqAnswer[8] {
        /// Handle of the new CQ.
        0 => cq_handle: u32,
        /// Actual number of entries; at least the requested number.
        4 => cqe: u32,
    }

    /// RESIZE_CQ (19), request.
    pub struct ResizeCq[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the CQ.
        8 => cq_handle: u32,
        /// Least number of entries.
        12 => cqe: u32,
    }

    /// RESIZE_CQ (19), answer; `CqOut` follows and names the new memory. The client moves the
    /// entries and drops the old memory.
    pub struct ResizeCqAnswer[8] {
        /// New number of entries.
        0 => cqe: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// DESTROY_CQ (20), request.
    pub struct DestroyCq[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the CQ.
        8 => cq_handle: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// DESTROY_CQ (20), answer: how many of its events were read, so that a library can wait until
    /// all are acknowledged.
    pub struct DestroyCqAnswer[8] {
        /// Completion events read.
        0 => comp_events_reported: u32,
        /// Async events read.
        4 => async_events_reported: u32,
    }

    /// POLL_CQ (21), request.
    pub struct PollCq[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the CQ.
        8 => cq_handle: u32,
        /// Most completions to take.
        12 => ne: u32,
    }

    /// POLL_CQ (21), start of the answer; `count` records `Wc` follow.
    pub struct PollCqAnswer[8] {
        /// Number of completions taken.
        0 => count: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// REQ_NOTIFY_CQ (23), request; no answer.
    pub struct ReqNotifyCq[8] {
        /// Handle of the CQ.
        0 => cq_handle: u32,
        /// 0: the next completion gives an event; else only a solicited one or an error does.
        4 => solicited_only: u32,
    }

    /// One work completion. Only wr_id, status, vendor_err and qp_num count when status is not 0.
    pub struct Wc[48] {
        /// The `wr_id` of the work request.
        0 => wr_id: u64,
        /// See `status`.
        8 => status: u32,
        /// See `opcode`.
        12 => opcode: u32,
        /// softhca's detailed cause of an error, 0 on success.
        16 => vendor_err: u32,
        /// Bytes received, or bytes of a READ or atomic result; a UD receive counts its 40 GRH
        /// bytes.
        20 => byte_len: u32,
        /// Immediate data in network byte order, or the key that the peer invalidated.
        24 => imm_data: u32,
        /// QP of the work request.
        28 => qp_num: u32,
        /// Sending QP (UD).
        32 => src_qp: u32,
        /// See `wc_flags`.
        36 => wc_flags: u32,
        /// P_Key index (UD).
        40 => pkey_index: u16,
        /// Source LID (UD; 0 on RoCE).
        42 => slid: u16,
        /// Service level (UD).
        44 => sl: u8,
        /// Low bits of the destination LID (UD; 0 on RoCE).
        45 => dlid_path_bits: u8,
        /// Port (UD; else 0).
        46 => port_num: u8,
        /// 0.
        47 => reserved: u8,
    }

    /// EX_CREATE_CQ (18, extended), request.
    pub struct ExCreateCq[32] {
        /// The caller's name for the CQ; events carry it.
        0 => user_handle: u64,
        /// Least number of entries.
        8 => cqe: u32,
        /// Completion vector.
        12 => comp_vector: u32,
        /// Handle of the completion channel, or -1 for none.
        16 => comp_channel: i32,
        /// 0.
        20 => comp_mask: u32,
        /// See `create_flags`.
        24 => flags: u32,
        /// 0.
        28 => reserved: u32,
    }

    /// EX_CREATE_CQ (18, extended), answer; `CqOut` in the provider area.
    pub struct ExCreateCqAnswer[16] {
        /// Handle of the new CQ.
        0 => cq_handle: u32,
        /// Number of entries that it has.
        4 => cqe: u32,
        /// 0.
        8 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        12 => response_length: u32,
    }

    /// EX_MODIFY_CQ (57, extended), request; no answer.
    pub struct ExModifyCq[16] {
        /// Handle of the CQ.
        0 => cq_handle: u32,
        /// 1: moderation.
        4 => attr_mask: u32,
        /// Completions per event; 0 turns moderation off.
        8 => cq_count: u16,
        /// Longest wait for an event in microseconds; 0 turns moderation off.
        10 => cq_period: u16,
        /// 0.
        12 => reserved: u32,
    }
}

constants! {
    /// `Wc::status` (IBV_WC_*).
    pub mod status: u32 {
        /// Done.
        SUCCESS = 0,
        /// Message longer than the buffer, or than allowed.
        LOC_LEN_ERR = 1,
        /// The work request is not valid for this QP.
        LOC_QP_OP_ERR = 2,
        /// End-to-end context error (RD only).
        LOC_EEC_OP_ERR = 3,
        /// Bad lkey, wrong PD, out of range or without the local right.
        LOC_PROT_ERR = 4,
        /// Not executed: the queue was in error.
        WR_FLUSH_ERR = 5,
        /// Memory window could not be bound.
        MW_BIND_ERR = 6,
        /// A response that does not fit the request.
        BAD_RESP_ERR = 7,
        /// Protection error on a local buffer while receiving.
        LOC_ACCESS_ERR = 8,
        /// The peer found the request invalid.
        REM_INV_REQ_ERR = 9,
        /// The peer refused access: rkey, range, right or PD.
        REM_ACCESS_ERR = 10,
        /// The peer could not execute the request.
        REM_OP_ERR = 11,
        /// No answer after all allowed retries.
        RETRY_EXC_ERR = 12,
        /// The peer had no receive WR, also after all allowed retries.
        RNR_RETRY_EXC_ERR = 13,
        /// RD domain violation (RD only).
        LOC_RDD_VIOL_ERR = 14,
        /// Invalid RD request (RD only).
        REM_INV_RD_REQ_ERR = 15,
        /// The peer aborted the operation.
        REM_ABORT_ERR = 16,
        /// Invalid end-to-end context number (RD only).
        INV_EECN_ERR = 17,
        /// Invalid end-to-end context state (RD only).
        INV_EEC_STATE_ERR = 18,
        /// The device is gone.
        FATAL_ERR = 19,
        /// No response (management datagrams).
        RESP_TIMEOUT_ERR = 20,
        /// Any other error.
        GENERAL_ERR = 21,
        /// Tag matching error.
        TM_ERR = 22,
        /// Tag matching: rendezvous incomplete.
        TM_RNDV_INCOMPLETE = 23,
    }

    /// `Wc::opcode` (IBV_WC_*).
    pub mod opcode: u32 {
        /// Send, with or without immediate data or invalidation.
        SEND = 0,
        /// RDMA WRITE, with or without immediate data.
        RDMA_WRITE = 1,
        /// RDMA READ.
        RDMA_READ = 2,
        /// Compare and swap.
        COMP_SWAP = 3,
        /// Fetch and add.
        FETCH_ADD = 4,
        /// Bind memory window.
        BIND_MW = 5,
        /// Local invalidate.
        LOCAL_INV = 6,
        /// Segmentation offload.
        TSO = 7,
        /// Flush.
        FLUSH = 8,
        /// Atomic write.
        ATOMIC_WRITE = 9,
        /// A receive WR has received a SEND.
        RECV = 128,
        /// A receive WR has received the immediate data of an RDMA WRITE.
        RECV_RDMA_WITH_IMM = 129,
    }

    /// Bits of `Wc::wc_flags`.
    pub mod wc_flags: u32 {
        /// The first 40 bytes of the UD receive buffer hold a GRH.
        GRH = 1,
        /// `imm_data` is immediate data.
        WITH_IMM = 2,
        /// IP checksum verified.
        IP_CSUM_OK = 4,
        /// `imm_data` is a key that the peer invalidated.
        WITH_INV = 8,
    }

    /// Bits of `ExCreateCq::flags`.
    pub mod create_flags: u32 {
        /// Completions carry a timestamp.
        TIMESTAMP_COMPLETION = 1,
        /// An overrun is not an error: entries are overwritten.
        IGNORE_OVERRUN = 2,
    }
}
