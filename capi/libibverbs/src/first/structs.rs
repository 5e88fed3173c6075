//! The structs of the first interface. A struct that has not changed since is today's struct inside
//! [`First`], because the objects that it points to have changed.

use super::Old;
use crate::layout::{self, Ah, Mutex, Op, Pd, Qp, Sge, Srq, WrTarget, mirror};
use crate::object::{Named, get};
use bytemuck::Zeroable;
use std::ffi::{c_int, c_uint, c_void};

/// A struct with today's layout that points to structs of the first interface.
#[repr(transparent)]
pub(crate) struct First<T>(pub(super) T);

mirror! {
    /// `struct ibv_device` of 2006, which is opaque to programs. `now` takes the place of a driver
    /// pointer.
    40 "first ibv_device" struct Device {
        0 obsolete: [Op; 2],
        16 now: *mut layout::Device,
        24 ops: [Op; 2],
    }
}

mirror! {
    /// The operations of a context. Inline functions called only the named ones.
    216 "first ibv_context_ops" struct ContextOps {
        0 before_poll: [Op; 7],
        56 poll_cq: Op,
        64 req_notify_cq: Op,
        72 before_post_srq: [Op; 7],
        128 post_srq_recv: Op,
        136 before_post: [Op; 4],
        168 post_send: Op,
        176 post_recv: Op,
        184 after_post: [Op; 4],
    }
}

mirror! {
    /// `struct ibv_context` of 2006.
    240 "first ibv_context" struct Context {
        0 device: *mut Device,
        8 ops: ContextOps,
        224 cmd_fd: c_int,
        228 async_fd: c_int,
        232 num_comp_vectors: c_int,
    }
}

mirror! {
    /// `struct ibv_mr` of 2006: without the address and the length.
    32 "first ibv_mr" struct Mr {
        0 context: *mut Context,
        8 pd: *mut c_void,
        16 handle: u32,
        20 lkey: u32,
        24 rkey: u32,
    }
}

mirror! {
    /// `struct ibv_cq` of 2006: without the channel.
    120 "first ibv_cq" struct Cq {
        0 context: *mut Context,
        8 cq_context: *mut c_void,
        16 handle: u32,
        20 cqe: c_int,
        24 mutex: Mutex,
        64 cond: layout::Cond,
        112 comp_events_completed: u32,
        116 async_events_completed: u32,
    }
}

mirror! {
    /// `struct ibv_send_wr` of 2006.
    72 "first ibv_send_wr" struct SendWr {
        0 next: *mut SendWr,
        8 wr_id: u64,
        16 sg_list: *mut Sge,
        24 num_sge: c_int,
        28 opcode: c_uint,
        32 send_flags: c_uint,
        36 imm_data: u32,
        40 wr: WrTarget,
    }
}

mirror! {
    /// `struct ibv_recv_wr` of 2006.
    32 "first ibv_recv_wr" struct RecvWr {
        0 next: *mut RecvWr,
        8 wr_id: u64,
        16 sg_list: *mut Sge,
        24 num_sge: c_int,
    }
}

/// For each object: its name in refusals, whether a descriptor identifies it, the field that
/// identifies it, and today's struct.
macro_rules! old {
    ($($old:ty, $name:literal, $is_descriptor:literal, |$pointer:ident| $value:expr, $now:ty;)+) => {$(
        impl Named for $old {
            const NAME: &'static str = $name;
            const IS_DESCRIPTOR: bool = $is_descriptor;

            fn name($pointer: *const Self) -> u32 {
                $value
            }
        }

        impl Old for $old {
            type Now = $now;
        }
    )+};
}

old! {
    Context, "open device", true, |_c| 0, layout::Context;
    First<Pd>, "PD", false, |c| get!(c, 0.handle), Pd;
    Mr, "MR", false, |c| get!(c, handle), layout::Mr;
    Cq, "CQ", false, |c| get!(c, handle), layout::Cq;
    First<Srq>, "SRQ", false, |c| get!(c, 0.handle), Srq;
    First<Qp>, "QP", false, |c| get!(c, 0.handle), Qp;
    First<Ah>, "AH", false, |c| get!(c, 0.handle), Ah;
}
