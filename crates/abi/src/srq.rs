//! Shared receive queues: CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ, DESTROY_SRQ.

record! {
    /// CREATE_SRQ (32), request.
    pub struct CreateSrq[32] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the SRQ; events carry it.
        8 => user_handle: u64,
        /// PD of the SRQ.
        16 => pd_handle: u32,
        /// Least number of work requests.
        20 => max_wr: u32,
        /// Least number of scatter entries per work request.
        24 => max_sge: u32,
        /// Limit to arm, 0 for none.
        28 => srq_limit: u32,
    }

    /// CREATE_SRQ (32), answer; `SrqOut` follows.
    pub struct CreateSrqAnswer[16] {
        /// Handle of the new SRQ.
        0 => srq_handle: u32,
        /// Number of work requests that it holds.
        4 => max_wr: u32,
        /// Scatter entries per work request.
        8 => max_sge: u32,
        /// SRQ number, which peers name (of an XRC SRQ; else 0).
        12 => srqn: u32,
    }

    /// MODIFY_SRQ (33), request. With MAX_WR, the answer is an `SrqOut` with the queue's new place.
    pub struct ModifySrq[16] {
        /// Handle of the SRQ.
        0 => srq_handle: u32,
        /// See `attr`.
        4 => attr_mask: u32,
        /// New number of work requests (with MAX_WR).
        8 => max_wr: u32,
        /// New limit (with LIMIT).
        12 => srq_limit: u32,
    }

    /// QUERY_SRQ (34), request.
    pub struct QuerySrq[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the SRQ.
        8 => srq_handle: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// QUERY_SRQ (34), answer.
    pub struct QuerySrqAnswer[16] {
        /// Number of work requests that it holds.
        0 => max_wr: u32,
        /// Scatter entries per work request.
        4 => max_sge: u32,
        /// Armed limit, 0 when not armed.
        8 => srq_limit: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// DESTROY_SRQ (35), request.
    pub struct DestroySrq[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the SRQ.
        8 => srq_handle: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// DESTROY_SRQ (35), answer.
    pub struct DestroySrqAnswer[4] {
        /// Async events of the SRQ that were read.
        0 => events_reported: u32,
    }
}

constants! {
    /// Bits of `ModifySrq::attr_mask`.
    pub mod attr: u32 {
        /// Resize.
        MAX_WR = 1,
        /// Arm the limit event.
        LIMIT = 2,
    }
}
