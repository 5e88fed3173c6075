//! The export list of the private interface: the functions that vendors' libraries look up, which
//! are linked into ordinary programs. Each release of rdma-core has one private node, and changes
//! its number when the vendors' side must change. A library asks for the number of its own release.
//! So every function is exported under the numbers of all releases that have it, and older
//! libraries keep working.

use crate::export::{export, export_flag};
use crate::provider::{final_num_attrs, ignored, refused_code, refused_minus_one, refused_pointer};
use crate::{query, text};

/// Exports functions that came while the private node had this number and stayed: in that node and
/// in all later ones.
macro_rules! export_since {
    (34: $($list:tt)+) => {
        export!("@IBVERBS_PRIVATE_34" "@IBVERBS_PRIVATE_57" "@IBVERBS_PRIVATE_59" "@IBVERBS_PRIVATE_64" "@@IBVERBS_PRIVATE_65": $($list)+);
    };
    (59: $($list:tt)+) => {
        export!("@IBVERBS_PRIVATE_59" "@IBVERBS_PRIVATE_64" "@@IBVERBS_PRIVATE_65": $($list)+);
    };
    (64: $($list:tt)+) => {
        export!("@IBVERBS_PRIVATE_64" "@@IBVERBS_PRIVATE_65": $($list)+);
    };
    (65: $($list:tt)+) => {
        export!("@@IBVERBS_PRIVATE_65": $($list)+);
    };
}

export_flag!("@IBVERBS_PRIVATE_34" "@IBVERBS_PRIVATE_57" "@IBVERBS_PRIVATE_59" "@IBVERBS_PRIVATE_64" "@@IBVERBS_PRIVATE_65":
    verbs_allow_disassociate_destroy);

export!("@@IBVERBS_PRIVATE_34": verbs_register_driver_34 = ignored);
export!("@@IBVERBS_PRIVATE_57": verbs_register_driver_57 = ignored);
export!("@@IBVERBS_PRIVATE_59": verbs_register_driver_59 = ignored);
export!("@@IBVERBS_PRIVATE_64": verbs_register_driver_64 = ignored);
export!("@@IBVERBS_PRIVATE_65": verbs_register_driver_65 = ignored);

export_since!(34:
    ibv_query_gid_type = query::query_gid_type,
    __ioctl_final_num_attrs = final_num_attrs,
    __verbs_log = ignored,
    _verbs_init_and_alloc_context = refused_pointer,
    execute_ioctl = refused_code,
    ibv_cmd_advise_mr = refused_code,
    ibv_cmd_alloc_dm = refused_code,
    ibv_cmd_alloc_mw = refused_code,
    ibv_cmd_alloc_pd = refused_code,
    ibv_cmd_attach_mcast = refused_code,
    ibv_cmd_close_xrcd = refused_code,
    ibv_cmd_create_ah = refused_code,
    ibv_cmd_create_counters = refused_code,
    ibv_cmd_create_cq = refused_code,
    ibv_cmd_create_cq_ex = refused_code,
    ibv_cmd_create_cq_ex2 = refused_code,
    ibv_cmd_create_flow = refused_code,
    ibv_cmd_create_flow_action_esp = refused_code,
    ibv_cmd_create_qp = refused_code,
    ibv_cmd_create_qp_ex = refused_code,
    ibv_cmd_create_qp_ex2 = refused_code,
    ibv_cmd_create_rwq_ind_table = refused_code,
    ibv_cmd_create_srq = refused_code,
    ibv_cmd_create_srq_ex = refused_code,
    ibv_cmd_create_wq = refused_code,
    ibv_cmd_dealloc_mw = refused_code,
    ibv_cmd_dealloc_pd = refused_code,
    ibv_cmd_dereg_mr = refused_code,
    ibv_cmd_destroy_ah = refused_code,
    ibv_cmd_destroy_counters = refused_code,
    ibv_cmd_destroy_cq = refused_code,
    ibv_cmd_destroy_flow = refused_code,
    ibv_cmd_destroy_flow_action = refused_code,
    ibv_cmd_destroy_qp = refused_code,
    ibv_cmd_destroy_rwq_ind_table = refused_code,
    ibv_cmd_destroy_srq = refused_code,
    ibv_cmd_destroy_wq = refused_code,
    ibv_cmd_detach_mcast = refused_code,
    ibv_cmd_free_dm = refused_code,
    ibv_cmd_get_context = refused_code,
    ibv_cmd_modify_cq = refused_code,
    ibv_cmd_modify_flow_action_esp = refused_code,
    ibv_cmd_modify_qp = refused_code,
    ibv_cmd_modify_qp_ex = refused_code,
    ibv_cmd_modify_srq = refused_code,
    ibv_cmd_modify_wq = refused_code,
    ibv_cmd_open_qp = refused_code,
    ibv_cmd_open_xrcd = refused_code,
    ibv_cmd_poll_cq = refused_code,
    ibv_cmd_post_recv = refused_code,
    ibv_cmd_post_send = refused_code,
    ibv_cmd_post_srq_recv = refused_code,
    ibv_cmd_query_context = refused_code,
    ibv_cmd_query_device_any = refused_code,
    ibv_cmd_query_mr = refused_code,
    ibv_cmd_query_port = refused_code,
    ibv_cmd_query_qp = refused_code,
    ibv_cmd_query_srq = refused_code,
    ibv_cmd_read_counters = refused_code,
    ibv_cmd_reg_dm_mr = refused_code,
    ibv_cmd_reg_dmabuf_mr = refused_code,
    ibv_cmd_reg_mr = refused_code,
    ibv_cmd_req_notify_cq = refused_code,
    ibv_cmd_rereg_mr = refused_code,
    ibv_cmd_resize_cq = refused_code,
    ibv_read_ibdev_sysfs_file = refused_minus_one,
    ibv_wr_opcode_str = text::wr_opcode_str,
    verbs_init_cq = ignored,
    verbs_open_device = refused_pointer,
    verbs_set_ops = ignored,
    verbs_uninit_context = ignored,
);

export_since!(59:
    ibv_cmd_alloc_dmah = refused_code,
    ibv_cmd_export_dmabuf_fd = refused_minus_one,
    ibv_cmd_free_dmah = refused_code,
    ibv_cmd_query_port_speed = refused_code,
    ibv_cmd_reg_mr_ex = refused_code,
);

export_since!(64:
    ibv_dmabuf_heap_alloc = refused_pointer,
    ibv_dmabuf_heap_cc_shared_init = refused_pointer,
    ibv_dmabuf_heap_destroy = ignored,
    ibv_dmabuf_heap_free = ignored,
);

export_since!(65:
    ibv_cmd_create_comp_cntr = refused_code,
    ibv_cmd_destroy_comp_cntr = refused_code,
    ibv_cmd_inc_comp_cntr = refused_code,
    ibv_cmd_inc_err_comp_cntr = refused_code,
    ibv_cmd_qp_attach_comp_cntr = refused_code,
    ibv_cmd_query_comp_cntr_caps = refused_code,
    ibv_cmd_read_comp_cntr = refused_code,
    ibv_cmd_read_err_comp_cntr = refused_code,
    ibv_cmd_set_comp_cntr = refused_code,
    ibv_cmd_set_err_comp_cntr = refused_code,
);
