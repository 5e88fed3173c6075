//! XRC: the layouts of the commands 37 to 44 in both profiles.
//!
//! The mainline layouts are those of Linux. For OFED's layouts only the order of the fields is
//! certain, and the agent refuses these commands.

use crate::qp::Dest;

record! {
    /// OPEN_XRCD (37, mainline), request.
    pub struct OpenXrcd[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// -1: the domain is private, and no descriptor is attached. Any other value: a descriptor
        /// of the file whose inode names the domain is attached.
        8 => fd: i32,
        /// O_CREAT, O_EXCL.
        12 => oflags: u32,
    }

    /// OPEN_XRCD (37, mainline) and OPEN_XRC_DOMAIN (38, OFED), answer; in the mainline profile
    /// `XrcdOut` follows.
    pub struct OpenXrcdAnswer[4] {
        /// Handle of the domain.
        0 => xrcd_handle: u32,
    }

    /// Private tail of the answer of OPEN_XRCD.
    pub struct XrcdOut[16] {
        /// Revision of this tail: 1.
        0 => rev: u32,
        /// Number of the domain: handles with one number are one domain.
        4 => number: u32,
        /// A secret that only the openers of the domain know; 0 for a private domain.
        8 => token: u64,
    }

    /// CLOSE_XRCD (38, mainline), request; no answer.
    pub struct CloseXrcd[4] {
        /// Handle of the domain.
        0 => xrcd_handle: u32,
    }

    /// CREATE_XSRQ (39, mainline), request; answer as CREATE_SRQ.
    pub struct CreateXsrq[48] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the SRQ.
        8 => user_handle: u64,
        /// 0 basic, 1 XRC, 2 tag matching.
        16 => srq_type: u32,
        /// PD of the SRQ.
        20 => pd_handle: u32,
        /// Least number of work requests.
        24 => max_wr: u32,
        /// Least number of scatter entries per work request.
        28 => max_sge: u32,
        /// Limit to arm.
        32 => srq_limit: u32,
        /// Tags.
        36 => max_num_tags: u32,
        /// Domain of the SRQ.
        40 => xrcd_handle: u32,
        /// CQ of its receives.
        44 => cq_handle: u32,
    }

    /// OPEN_QP (40, mainline), request; answer as CREATE_QP.
    pub struct OpenQp[32] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the QP.
        8 => user_handle: u64,
        /// Handle of the XRC domain.
        16 => pd_handle: u32,
        /// QP number.
        20 => qpn: u32,
        /// QP type.
        24 => qp_type: u8,
        /// 0.
        25 => reserved: [u8; 7],
    }

    /// CREATE_XRC_SRQ (37, OFED), request; answer as CREATE_SRQ.
    pub struct CreateXrcSrq[40] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the SRQ.
        8 => user_handle: u64,
        /// PD of the SRQ.
        16 => pd_handle: u32,
        /// Least number of work requests.
        20 => max_wr: u32,
        /// Least number of scatter entries per work request.
        24 => max_sge: u32,
        /// Limit to arm.
        28 => srq_limit: u32,
        /// Domain of the SRQ.
        32 => xrcd_handle: u32,
        /// CQ of its receives.
        36 => cq_handle: u32,
    }

    /// OPEN_XRC_DOMAIN (38, OFED), request.
    pub struct OpenXrcDomain[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// File whose inode names the domain, -1 for a private domain.
        8 => fd: i32,
        /// O_CREAT, O_EXCL.
        12 => oflags: u32,
    }

    /// CLOSE_XRC_DOMAIN (39, OFED), request; no answer.
    pub struct CloseXrcDomain[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the domain.
        8 => xrcd_handle: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// CREATE_XRC_RCV_QP (40, OFED), request.
    pub struct CreateXrcRcvQp[48] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the QP.
        8 => user_handle: u64,
        /// Domain of the QP.
        16 => xrc_domain_handle: u32,
        /// Send work requests.
        20 => max_send_wr: u32,
        /// Receive work requests.
        24 => max_recv_wr: u32,
        /// Gather entries.
        28 => max_send_sge: u32,
        /// Scatter entries.
        32 => max_recv_sge: u32,
        /// Inline bytes.
        36 => max_inline_data: u32,
        /// Every send work request gives a completion.
        40 => sq_sig_all: u8,
        /// QP type.
        41 => qp_type: u8,
        /// 0.
        42 => reserved: [u8; 2],
        /// 0.
        44 => reserved1: u32,
    }

    /// CREATE_XRC_RCV_QP (40, OFED), answer.
    pub struct CreateXrcRcvQpAnswer[8] {
        /// QP number.
        0 => qpn: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// MODIFY_XRC_RCV_QP (41, OFED), request; fields as MODIFY_QP.
    pub struct ModifyXrcRcvQp[116] {
        /// Domain of the QP.
        0 => xrc_domain_handle: u32,
        /// QP number.
        4 => qp_num: u32,
        /// Primary path.
        8 => dest: Dest,
        /// Alternate path.
        40 => alt_dest: Dest,
        /// As in `ModifyQp`.
        72 => attr_mask: u32,
        /// As in `ModifyQp`.
        76 => qkey: u32,
        /// As in `ModifyQp`.
        80 => rq_psn: u32,
        /// As in `ModifyQp`.
        84 => sq_psn: u32,
        /// As in `ModifyQp`.
        88 => dest_qp_num: u32,
        /// As in `ModifyQp`.
        92 => qp_access_flags: u32,
        /// As in `ModifyQp`.
        96 => pkey_index: u16,
        /// As in `ModifyQp`.
        98 => alt_pkey_index: u16,
        /// As in `ModifyQp`.
        100 => qp_state: u8,
        /// As in `ModifyQp`.
        101 => cur_qp_state: u8,
        /// As in `ModifyQp`.
        102 => path_mtu: u8,
        /// As in `ModifyQp`.
        103 => path_mig_state: u8,
        /// As in `ModifyQp`.
        104 => en_sqd_async_notify: u8,
        /// As in `ModifyQp`.
        105 => max_rd_atomic: u8,
        /// As in `ModifyQp`.
        106 => max_dest_rd_atomic: u8,
        /// As in `ModifyQp`.
        107 => min_rnr_timer: u8,
        /// As in `ModifyQp`.
        108 => port_num: u8,
        /// As in `ModifyQp`.
        109 => timeout: u8,
        /// As in `ModifyQp`.
        110 => retry_cnt: u8,
        /// As in `ModifyQp`.
        111 => rnr_retry: u8,
        /// As in `ModifyQp`.
        112 => alt_port_num: u8,
        /// As in `ModifyQp`.
        113 => alt_timeout: u8,
        /// 0.
        114 => reserved: [u8; 2],
    }

    /// QUERY_XRC_RCV_QP (42, OFED), request; answer as QUERY_QP.
    pub struct QueryXrcRcvQp[24] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Domain of the QP.
        8 => xrc_domain_handle: u32,
        /// QP number.
        12 => qp_num: u32,
        /// Which attributes are wanted.
        16 => attr_mask: u32,
        /// 0.
        20 => reserved: u32,
    }

    /// REG_XRC_RCV_QP (43, OFED) and UNREG_XRC_RCV_QP (44, OFED), request; no answer.
    pub struct RegXrcRcvQp[8] {
        /// Domain of the QP.
        0 => xrc_domain_handle: u32,
        /// QP number.
        4 => qp_num: u32,
    }
}
