//! Work requests, work completions and asynchronous events. The principal type is [`SendWr`].

use super::base::mirror;
use super::objects::{Ah, Mr, Mw};
use bytemuck::Zeroable;
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    /// `struct ibv_sge`.
    16 "ibv_sge" struct Sge {
        0 addr: u64,
        8 length: u32,
        12 lkey: u32,
    }
}

mirror! {
    /// `struct ibv_send_wr`.
    128 "ibv_send_wr" struct SendWr {
        0 wr_id: u64,
        8 next: *mut SendWr,
        16 sg_list: *mut Sge,
        24 num_sge: c_int,
        28 opcode: c_uint,
        32 send_flags: c_uint,
        36 imm_data: u32,
        40 wr: WrTarget,
        72 remote_srqn: u32,
        80 tail: WrTail,
    }
}

/// The last union of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) union WrTail {
    pub(crate) bind_mw: WrBindMw,
    pub(crate) tso: [u64; 3],
}

/// Binding a memory window.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct WrBindMw {
    pub(crate) mw: *mut Mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo,
}

/// The `wr` union of `struct ibv_send_wr`. The opcode and the QP type decide which member is valid.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) union WrTarget {
    pub(crate) rdma: WrRdma,
    pub(crate) atomic: WrAtomic,
    pub(crate) ud: WrUd,
}

/// RDMA READ and WRITE.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct WrRdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// Atomics.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct WrAtomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// Sends on a UD QP.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct WrUd {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

const _: () = {
    assert!(size_of::<WrTarget>() == 32);
    assert!(size_of::<WrTail>() == 48);
    assert!(std::mem::offset_of!(WrBindMw, bind_info) == 16);
    assert!(std::mem::offset_of!(WrRdma, rkey) == 8);
    assert!(std::mem::offset_of!(WrAtomic, swap) == 16);
    assert!(std::mem::offset_of!(WrAtomic, rkey) == 24);
    assert!(std::mem::offset_of!(WrUd, remote_qkey) == 12);
};

mirror! {
    /// `struct ibv_recv_wr`.
    32 "ibv_recv_wr" struct RecvWr {
        0 wr_id: u64,
        8 next: *mut RecvWr,
        16 sg_list: *mut Sge,
        24 num_sge: c_int,
    }
}

mirror! {
    /// `struct ibv_wc`.
    48 "ibv_wc" struct Wc {
        0 wr_id: u64,
        8 status: c_uint,
        12 opcode: c_uint,
        16 vendor_err: u32,
        20 byte_len: u32,
        24 imm_data: u32,
        28 qp_num: u32,
        32 src_qp: u32,
        36 wc_flags: c_uint,
        40 pkey_index: u16,
        42 slid: u16,
        44 sl: u8,
        45 dlid_path_bits: u8,
    }
}

mirror! {
    /// `struct ibv_mw_bind_info`.
    32 "ibv_mw_bind_info" struct MwBindInfo {
        0 mr: *mut Mr,
        8 addr: u64,
        16 length: u64,
        24 mw_access_flags: c_uint,
    }
}

mirror! {
    /// `struct ibv_mw_bind`.
    48 "ibv_mw_bind" struct MwBind {
        0 wr_id: u64,
        8 send_flags: c_uint,
        16 bind_info: MwBindInfo,
    }
}

mirror! {
    /// `struct ibv_data_buf`.
    16 "ibv_data_buf" struct DataBuf {
        0 addr: *mut c_void,
        8 length: usize,
    }
}

mirror! {
    /// `struct ibv_async_event`.
    16 "ibv_async_event" struct AsyncEvent {
        0 element: *mut c_void,
        8 event_type: c_uint,
    }
}
