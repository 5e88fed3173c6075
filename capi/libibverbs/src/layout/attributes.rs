//! The structs that a program fills in to create, modify or address an object. The principal
//! type is [`QpAttr`].

use super::base::{Gid, Op, mirror};
use super::objects::{CompChannel, Cq, Pd, Srq, Td};
use bytemuck::Zeroable;
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    /// `struct ibv_poll_cq_attr`.
    4 "ibv_poll_cq_attr" struct PollCqAttr {
        0 comp_mask: u32,
    }
}

mirror! {
    /// `struct ibv_cq_init_attr_ex`.
    56 "ibv_cq_init_attr_ex" struct CqInitAttrEx {
        0 cqe: u32,
        8 cq_context: *mut c_void,
        16 channel: *mut CompChannel,
        24 comp_vector: u32,
        32 wc_flags: u64,
        40 comp_mask: u32,
        44 flags: u32,
        48 parent_domain: *mut Pd,
    }
}

mirror! {
    /// `struct ibv_srq_attr`.
    12 "ibv_srq_attr" struct SrqAttr {
        0 max_wr: u32,
        4 max_sge: u32,
        8 srq_limit: u32,
    }
}

mirror! {
    /// `struct ibv_srq_init_attr`.
    24 "ibv_srq_init_attr" struct SrqInitAttr {
        0 srq_context: *mut c_void,
        8 attr: SrqAttr,
    }
}

mirror! {
    /// `struct ibv_srq_init_attr_ex`.
    64 "ibv_srq_init_attr_ex" struct SrqInitAttrEx {
        0 srq_context: *mut c_void,
        8 attr: SrqAttr,
        20 comp_mask: u32,
        24 srq_type: c_uint,
        32 pd: *mut Pd,
        40 xrcd: *mut c_void,
        48 cq: *mut Cq,
        56 tm_cap: TmCap,
    }
}

mirror! {
    /// `struct ibv_tm_cap`.
    8 "ibv_tm_cap" struct TmCap {
        0 max_num_tags: u32,
        4 max_ops: u32,
    }
}

mirror! {
    /// `struct ibv_qp_cap`.
    20 "ibv_qp_cap" struct QpCap {
        0 max_send_wr: u32,
        4 max_recv_wr: u32,
        8 max_send_sge: u32,
        12 max_recv_sge: u32,
        16 max_inline_data: u32,
    }
}

mirror! {
    /// `struct ibv_qp_init_attr`.
    64 "ibv_qp_init_attr" struct QpInitAttr {
        0 qp_context: *mut c_void,
        8 send_cq: *mut Cq,
        16 recv_cq: *mut Cq,
        24 srq: *mut Srq,
        32 cap: QpCap,
        52 qp_type: c_uint,
        56 sq_sig_all: c_int,
    }
}

mirror! {
    /// `struct ibv_qp_init_attr_ex`.
    136 "ibv_qp_init_attr_ex" struct QpInitAttrEx {
        0 qp_context: *mut c_void,
        8 send_cq: *mut Cq,
        16 recv_cq: *mut Cq,
        24 srq: *mut Srq,
        32 cap: QpCap,
        52 qp_type: c_uint,
        56 sq_sig_all: c_int,
        60 comp_mask: u32,
        64 pd: *mut Pd,
        72 xrcd: *mut c_void,
        80 create_flags: u32,
        84 max_tso_header: u16,
        88 rwq_ind_tbl: *mut c_void,
        96 rx_hash_conf: RxHashConf,
        120 source_qpn: u32,
        128 send_ops_flags: u64,
    }
}

mirror! {
    /// `struct ibv_td_init_attr`.
    4 "ibv_td_init_attr" struct TdInitAttr {
        0 comp_mask: u32,
    }
}

mirror! {
    /// `struct ibv_parent_domain_init_attr`.
    48 "ibv_parent_domain_init_attr" struct ParentDomainInitAttr {
        0 pd: *mut Pd,
        8 td: *mut Td,
        16 comp_mask: u32,
        24 alloc: Op,
        32 free: Op,
        40 pd_context: *mut c_void,
    }
}

mirror! {
    /// `struct ibv_xrcd_init_attr`.
    12 "ibv_xrcd_init_attr" struct XrcdInitAttr {
        0 comp_mask: u32,
        4 fd: c_int,
        8 oflags: c_int,
    }
}

mirror! {
    /// `struct ibv_qp_open_attr`.
    32 "ibv_qp_open_attr" struct QpOpenAttr {
        0 comp_mask: u32,
        4 qp_num: u32,
        8 xrcd: *mut c_void,
        16 qp_context: *mut c_void,
        24 qp_type: c_uint,
    }
}

mirror! {
    /// `struct ibv_rx_hash_conf`.
    24 "ibv_rx_hash_conf" struct RxHashConf {
        0 rx_hash_function: u8,
        1 rx_hash_key_len: u8,
        8 rx_hash_key: *mut u8,
        16 rx_hash_fields_mask: u64,
    }
}

mirror! {
    /// `struct ibv_global_route`.
    24 "ibv_global_route" struct GlobalRoute {
        0 dgid: Gid,
        16 flow_label: u32,
        20 sgid_index: u8,
        21 hop_limit: u8,
        22 traffic_class: u8,
    }
}

mirror! {
    /// `struct ibv_ah_attr`.
    32 "ibv_ah_attr" struct AhAttr {
        0 grh: GlobalRoute,
        24 dlid: u16,
        26 sl: u8,
        27 src_path_bits: u8,
        28 static_rate: u8,
        29 is_global: u8,
        30 port_num: u8,
    }
}

mirror! {
    /// `struct ibv_qp_attr`.
    144 "ibv_qp_attr" struct QpAttr {
        0 qp_state: c_uint,
        4 cur_qp_state: c_uint,
        8 path_mtu: c_uint,
        12 path_mig_state: c_uint,
        16 qkey: u32,
        20 rq_psn: u32,
        24 sq_psn: u32,
        28 dest_qp_num: u32,
        32 qp_access_flags: c_uint,
        36 cap: QpCap,
        56 ah_attr: AhAttr,
        88 alt_ah_attr: AhAttr,
        120 pkey_index: u16,
        122 alt_pkey_index: u16,
        124 en_sqd_async_notify: u8,
        125 sq_draining: u8,
        126 max_rd_atomic: u8,
        127 max_dest_rd_atomic: u8,
        128 min_rnr_timer: u8,
        129 port_num: u8,
        130 timeout: u8,
        131 retry_cnt: u8,
        132 rnr_retry: u8,
        133 alt_port_num: u8,
        134 alt_timeout: u8,
        136 rate_limit: u32,
    }
}

mirror! {
    /// `struct ibv_qp_rate_limit_attr`.
    16 "ibv_qp_rate_limit_attr" struct QpRateLimitAttr {
        0 rate_limit: u32,
        4 max_burst_sz: u32,
        8 typical_pkt_sz: u16,
        12 comp_mask: u32,
    }
}

mirror! {
    /// `struct ibv_ece`.
    12 "ibv_ece" struct Ece {
        0 vendor_id: u32,
        4 options: u32,
        8 comp_mask: u32,
    }
}

mirror! {
    /// `struct ibv_grh`.
    40 "ibv_grh" struct Grh {
        0 version_tclass_flow: u32,
        4 paylen: u16,
        6 next_hdr: u8,
        7 hop_limit: u8,
        8 sgid: Gid,
        24 dgid: Gid,
    }
}

mirror! {
    /// `struct ibv_sa_path_rec`.
    64 "ibv_sa_path_rec" struct SaPathRec {
        0 dgid: Gid,
        16 sgid: Gid,
        32 dlid: u16,
        34 slid: u16,
        36 raw_traffic: c_int,
        40 flow_label: u32,
        44 hop_limit: u8,
        45 traffic_class: u8,
        48 reversible: c_int,
        52 numb_path: u8,
        54 pkey: u16,
        56 sl: u8,
        57 mtu_selector: u8,
        58 mtu: u8,
        59 rate_selector: u8,
        60 rate: u8,
        61 packet_life_time_selector: u8,
        62 packet_life_time: u8,
        63 preference: u8,
    }
}

mirror! {
    /// `struct ibv_moderate_cq`.
    4 "ibv_moderate_cq" struct ModerateCq {
        0 cq_count: u16,
        2 cq_period: u16,
    }
}

mirror! {
    /// `struct ibv_modify_cq_attr`.
    8 "ibv_modify_cq_attr" struct ModifyCqAttr {
        0 attr_mask: u32,
        4 moderate: ModerateCq,
    }
}
