//! The device and the context: what a program holds open, and the two tables of operations that the
//! inline functions of `verbs.h` call. The principal type is [`VerbsContext`].

use super::base::{Mutex, Op, mirror};
use bytemuck::Zeroable;
use std::ffi::{c_char, c_int, c_uint, c_void};

mirror! {
    /// `struct _ibv_device_ops`.
    16 "_ibv_device_ops" struct DeviceOps {
        0 dummy1: Op,
        8 dummy2: Op,
    }
}

mirror! {
    /// `struct ibv_device`.
    664 "ibv_device" struct Device {
        0 ops: DeviceOps,
        16 node_type: c_uint,
        20 transport_type: c_uint,
        24 name: [c_char; 64],
        88 dev_name: [c_char; 64],
        152 dev_path: [c_char; 256],
        408 ibdev_path: [c_char; 256],
    }
}

mirror! {
    /// `struct ibv_context_ops`.
    256 "ibv_context_ops" struct ContextOps {
        0 compat_query_device: Op,
        8 compat_query_port: Op,
        16 compat_alloc_pd: Op,
        24 compat_dealloc_pd: Op,
        32 compat_reg_mr: Op,
        40 compat_rereg_mr: Op,
        48 compat_dereg_mr: Op,
        56 alloc_mw: Op,
        64 bind_mw: Op,
        72 dealloc_mw: Op,
        80 compat_create_cq: Op,
        88 poll_cq: Op,
        96 req_notify_cq: Op,
        104 compat_cq_event: Op,
        112 compat_resize_cq: Op,
        120 compat_destroy_cq: Op,
        128 compat_create_srq: Op,
        136 compat_modify_srq: Op,
        144 compat_query_srq: Op,
        152 compat_destroy_srq: Op,
        160 post_srq_recv: Op,
        168 compat_create_qp: Op,
        176 compat_query_qp: Op,
        184 compat_modify_qp: Op,
        192 compat_destroy_qp: Op,
        200 post_send: Op,
        208 post_recv: Op,
        216 compat_create_ah: Op,
        224 compat_destroy_ah: Op,
        232 compat_attach_mcast: Op,
        240 compat_detach_mcast: Op,
        248 compat_async_event: Op,
    }
}

mirror! {
    /// `struct ibv_context`.
    328 "ibv_context" struct Context {
        0 device: *mut Device,
        8 ops: ContextOps,
        264 cmd_fd: c_int,
        268 async_fd: c_int,
        272 num_comp_vectors: c_int,
        280 mutex: Mutex,
        320 abi_compat: *mut c_void,
    }
}

mirror! {
    /// `struct verbs_context`.
    696 "verbs_context" struct VerbsContext {
        0 free_buf: Op,
        8 alloc_buf: Op,
        16 dm_export_dmabuf_fd: Op,
        24 reg_mr_ex: Op,
        32 dealloc_dmah: Op,
        40 alloc_dmah: Op,
        48 query_port: Op,
        56 advise_mr: Op,
        64 alloc_null_mr: Op,
        72 read_counters: Op,
        80 attach_counters_point_flow: Op,
        88 create_counters: Op,
        96 destroy_counters: Op,
        104 reg_dm_mr: Op,
        112 alloc_dm: Op,
        120 free_dm: Op,
        128 modify_flow_action_esp: Op,
        136 destroy_flow_action: Op,
        144 create_flow_action_esp: Op,
        152 modify_qp_rate_limit: Op,
        160 alloc_parent_domain: Op,
        168 dealloc_td: Op,
        176 alloc_td: Op,
        184 modify_cq: Op,
        192 post_srq_ops: Op,
        200 destroy_rwq_ind_table: Op,
        208 create_rwq_ind_table: Op,
        216 destroy_wq: Op,
        224 modify_wq: Op,
        232 create_wq: Op,
        240 query_rt_values: Op,
        248 create_cq_ex: Op,
        256 private: Op,
        264 query_device_ex: Op,
        272 ibv_destroy_flow: Op,
        280 abi_placeholder2: Op,
        288 ibv_create_flow: Op,
        296 abi_placeholder1: Op,
        304 open_qp: Op,
        312 create_qp_ex: Op,
        320 get_srq_num: Op,
        328 create_srq_ex: Op,
        336 open_xrcd: Op,
        344 close_xrcd: Op,
        352 abi_placeholder3: u64,
        360 sz: usize,
        368 context: Context,
    }
}
