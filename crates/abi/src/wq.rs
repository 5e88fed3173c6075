//! Flow steering, receive work queues and indirection tables: the layouts of the extended commands
//! 50 to 56, which the agent refuses.

record! {
    /// EX_CREATE_FLOW (50), request; `num_of_specs` specifications follow.
    pub struct ExCreateFlow[24] {
        /// 0.
        0 => comp_mask: u32,
        /// QP that gets the packets.
        4 => qp_handle: u32,
        /// 0 normal, 1 all default, 2 multicast default, 3 sniffer.
        8 => kind: u32,
        /// Length of the specifications in bytes.
        12 => size: u16,
        /// Priority.
        14 => priority: u16,
        /// Number of specifications.
        16 => num_of_specs: u8,
        /// 0.
        17 => reserved: [u8; 2],
        /// Port, from 1.
        19 => port: u8,
        /// 2 don't trap, 4 egress.
        20 => flags: u32,
    }

    /// EX_CREATE_FLOW (50), answer.
    pub struct ExCreateFlowAnswer[8] {
        /// 0.
        0 => comp_mask: u32,
        /// Handle of the flow.
        4 => flow_handle: u32,
    }

    /// EX_DESTROY_FLOW (51), request; no answer.
    pub struct ExDestroyFlow[8] {
        /// 0.
        0 => comp_mask: u32,
        /// Handle of the flow.
        4 => flow_handle: u32,
    }

    /// EX_CREATE_WQ (52), request.
    pub struct ExCreateWq[40] {
        /// 0.
        0 => comp_mask: u32,
        /// 0: receive queue.
        4 => wq_type: u32,
        /// The caller's name for the WQ.
        8 => user_handle: u64,
        /// PD of the WQ.
        16 => pd_handle: u32,
        /// CQ of the WQ.
        20 => cq_handle: u32,
        /// Least number of work requests.
        24 => max_wr: u32,
        /// Least number of scatter entries.
        28 => max_sge: u32,
        /// Flags.
        32 => create_flags: u32,
        /// 0.
        36 => reserved: u32,
    }

    /// EX_CREATE_WQ (52), answer.
    pub struct ExCreateWqAnswer[24] {
        /// 0.
        0 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        4 => response_length: u32,
        /// Handle of the WQ.
        8 => wq_handle: u32,
        /// Work requests that it holds.
        12 => max_wr: u32,
        /// Scatter entries per work request.
        16 => max_sge: u32,
        /// Its number.
        20 => wqn: u32,
    }

    /// EX_MODIFY_WQ (53), request; no answer.
    pub struct ExModifyWq[24] {
        /// 1 state, 2 current state, 4 flags.
        0 => attr_mask: u32,
        /// Handle of the WQ.
        4 => wq_handle: u32,
        /// 0 reset, 1 ready, 2 error.
        8 => wq_state: u32,
        /// The same.
        12 => curr_wq_state: u32,
        /// Flags.
        16 => flags: u32,
        /// Which flags count.
        20 => flags_mask: u32,
    }

    /// EX_DESTROY_WQ (54), request.
    pub struct ExDestroyWq[8] {
        /// 0.
        0 => comp_mask: u32,
        /// Handle of the WQ.
        4 => wq_handle: u32,
    }

    /// EX_DESTROY_WQ (54), answer.
    pub struct ExDestroyWqAnswer[16] {
        /// 0.
        0 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        4 => response_length: u32,
        /// Async events of the WQ that were read.
        8 => events_reported: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// EX_CREATE_RWQ_IND_TBL (55), request; 2^log handles of WQs follow.
    pub struct ExCreateRwqIndTbl[8] {
        /// 0.
        0 => comp_mask: u32,
        /// Binary logarithm of the number of entries.
        4 => log_ind_tbl_size: u32,
    }

    /// EX_CREATE_RWQ_IND_TBL (55), answer.
    pub struct ExCreateRwqIndTblAnswer[16] {
        /// 0.
        0 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        4 => response_length: u32,
        /// Handle of the table.
        8 => ind_tbl_handle: u32,
        /// Its number.
        12 => ind_tbl_num: u32,
    }

    /// EX_DESTROY_RWQ_IND_TBL (56), request; no answer.
    pub struct ExDestroyRwqIndTbl[8] {
        /// 0.
        0 => comp_mask: u32,
        /// Handle of the table.
        4 => ind_tbl_handle: u32,
    }
}
