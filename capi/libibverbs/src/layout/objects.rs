//! The objects that belong to a context: PD, MR, MW, completion channel, CQ, SRQ, QP, AH.
//! The principal type is [`Qp`].

use super::base::{Cond, Mutex, Op, mirror};
use super::device::Context;
use bytemuck::Zeroable;
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    /// `struct ibv_pd`.
    16 "ibv_pd" struct Pd {
        0 context: *mut Context,
        8 handle: u32,
    }
}

mirror! {
    /// `struct ibv_mr`.
    48 "ibv_mr" struct Mr {
        0 context: *mut Context,
        8 pd: *mut Pd,
        16 addr: *mut c_void,
        24 length: usize,
        32 handle: u32,
        36 lkey: u32,
        40 rkey: u32,
    }
}

mirror! {
    /// `struct ibv_mr_init_attr`. Programs built before v64 have no `buf`.
    72 "ibv_mr_init_attr" struct MrInitAttr {
        0 length: usize,
        8 access: c_int,
        16 comp_mask: u64,
        24 iova: u64,
        32 addr: *mut c_void,
        40 fd: c_int,
        48 fd_offset: u64,
        56 dmah: *mut Dmah,
        64 buf: *mut c_void,
    }
}

mirror! {
    /// `struct ibv_dmah`.
    8 "ibv_dmah" struct Dmah {
        0 context: *mut Context,
    }
}

mirror! {
    /// `struct ibv_dmah_init_attr`.
    12 "ibv_dmah_init_attr" struct DmahInitAttr {
        0 comp_mask: u32,
        4 cpu_id: u32,
        8 ph: u8,
        9 tph_mem_type: u8,
    }
}

mirror! {
    /// `struct ibv_mw`.
    32 "ibv_mw" struct Mw {
        0 context: *mut Context,
        8 pd: *mut Pd,
        16 rkey: u32,
        20 handle: u32,
        24 kind: c_uint,
    }
}

mirror! {
    /// `struct ibv_dm`.
    32 "ibv_dm" struct Dm {
        0 context: *mut Context,
        8 memcpy_to_dm: Op,
        16 memcpy_from_dm: Op,
        24 comp_mask: u32,
        28 handle: u32,
    }
}

mirror! {
    /// `struct ibv_alloc_dm_attr`.
    16 "ibv_alloc_dm_attr" struct AllocDmAttr {
        0 length: usize,
        8 log_align_req: u32,
        12 comp_mask: u32,
    }
}

mirror! {
    /// `struct ibv_comp_channel`.
    16 "ibv_comp_channel" struct CompChannel {
        0 context: *mut Context,
        8 fd: c_int,
        12 refcnt: c_int,
    }
}

mirror! {
    /// `struct ibv_cq`.
    128 "ibv_cq" struct Cq {
        0 context: *mut Context,
        8 channel: *mut CompChannel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: Mutex,
        72 cond: Cond,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
    }
}

mirror! {
    /// `struct ibv_cq_ex`.
    288 "ibv_cq_ex" struct CqEx {
        0 context: *mut Context,
        8 channel: *mut CompChannel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: Mutex,
        72 cond: Cond,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
        128 comp_mask: u32,
        132 status: c_uint,
        136 wr_id: u64,
        144 start_poll: Op,
        152 next_poll: Op,
        160 end_poll: Op,
        168 read_opcode: Op,
        176 read_vendor_err: Op,
        184 read_byte_len: Op,
        192 read_imm_data: Op,
        200 read_qp_num: Op,
        208 read_src_qp: Op,
        216 read_wc_flags: Op,
        224 read_slid: Op,
        232 read_sl: Op,
        240 read_dlid_path_bits: Op,
        248 read_completion_ts: Op,
        256 read_cvlan: Op,
        264 read_flow_tag: Op,
        272 read_tm_info: Op,
        280 read_completion_wallclock_ns: Op,
    }
}

mirror! {
    /// `struct ibv_srq`.
    128 "ibv_srq" struct Srq {
        0 context: *mut Context,
        8 srq_context: *mut c_void,
        16 pd: *mut Pd,
        24 handle: u32,
        32 mutex: Mutex,
        72 cond: Cond,
        120 events_completed: u32,
    }
}

mirror! {
    /// `struct ibv_qp`.
    160 "ibv_qp" struct Qp {
        0 context: *mut Context,
        8 qp_context: *mut c_void,
        16 pd: *mut Pd,
        24 send_cq: *mut Cq,
        32 recv_cq: *mut Cq,
        40 srq: *mut Srq,
        48 handle: u32,
        52 qp_num: u32,
        56 state: c_uint,
        60 qp_type: c_uint,
        64 mutex: Mutex,
        104 cond: Cond,
        152 events_completed: u32,
    }
}

mirror! {
    /// `struct ibv_qp_ex`.
    360 "ibv_qp_ex" struct QpEx {
        0 qp_base: Qp,
        160 comp_mask: u64,
        168 wr_id: u64,
        176 wr_flags: c_uint,
        184 wr_atomic_cmp_swp: Op,
        192 wr_atomic_fetch_add: Op,
        200 wr_bind_mw: Op,
        208 wr_local_inv: Op,
        216 wr_rdma_read: Op,
        224 wr_rdma_write: Op,
        232 wr_rdma_write_imm: Op,
        240 wr_send: Op,
        248 wr_send_imm: Op,
        256 wr_send_inv: Op,
        264 wr_send_tso: Op,
        272 wr_set_ud_addr: Op,
        280 wr_set_xrc_srqn: Op,
        288 wr_set_inline_data: Op,
        296 wr_set_inline_data_list: Op,
        304 wr_set_sge: Op,
        312 wr_set_sge_list: Op,
        320 wr_start: Op,
        328 wr_complete: Op,
        336 wr_abort: Op,
        344 wr_atomic_write: Op,
        352 wr_flush: Op,
    }
}

mirror! {
    /// `struct ibv_td`.
    8 "ibv_td" struct Td {
        0 context: *mut Context,
    }
}

mirror! {
    /// `struct ibv_xrcd`.
    8 "ibv_xrcd" struct Xrcd {
        0 context: *mut Context,
    }
}

mirror! {
    /// `struct ibv_ah`.
    24 "ibv_ah" struct Ah {
        0 context: *mut Context,
        8 pd: *mut Pd,
        16 handle: u32,
    }
}
