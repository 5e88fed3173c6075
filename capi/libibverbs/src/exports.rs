//! The export list of the public interface: every name and version that `libibverbs.so.1` has had
//! since rdma-core v44, and the function behind it. The names of each release are in
//! `releases.txt`. `symbols.txt` lists the exported symbols for `cargo xtask abi-check`.

use crate::export::export;
use crate::provider::ignored;
use crate::{
    address, buffer, channel, counters, cq, device, devices, dm, dmah, ece, events, fork, import, kern, mcast, memory,
    pd, qp, query, rates, srq, sysfs, text, why,
};

export!("@@IBVERBS_1.0":
    ibv_copy_path_rec_from_kern = kern::copy_path_rec_from_kern,
    ibv_copy_path_rec_to_kern = kern::copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern = kern::copy_qp_attr_from_kern,
    ibv_create_comp_channel = channel::create,
    ibv_destroy_comp_channel = channel::destroy,
    ibv_get_sysfs_path = sysfs::get_sysfs_path,
    ibv_rate_to_mult = rates::rate_to_mult,
    ibv_read_sysfs_file = sysfs::read_sysfs_file,
    mult_to_ibv_rate = rates::mult_to_rate,
);

export!("@@IBVERBS_1.1":
    ibv_ack_async_event = events::ack_async_event,
    ibv_ack_cq_events = channel::ack_cq_events,
    ibv_alloc_pd = pd::alloc,
    ibv_attach_mcast = mcast::attach,
    ibv_close_device = device::close_device,
    ibv_copy_ah_attr_from_kern = kern::copy_ah_attr_from_kern,
    ibv_create_ah = address::create,
    ibv_create_ah_from_wc = address::create_from_wc,
    ibv_create_cq = cq::create,
    ibv_create_qp = qp::create,
    ibv_create_srq = srq::create,
    ibv_dealloc_pd = pd::dealloc,
    ibv_dereg_mr = memory::dereg,
    ibv_destroy_ah = address::destroy,
    ibv_destroy_cq = cq::destroy,
    ibv_destroy_qp = qp::destroy,
    ibv_destroy_srq = srq::destroy,
    ibv_detach_mcast = mcast::detach,
    ibv_dofork_range = fork::dofork_range,
    ibv_dontfork_range = fork::dontfork_range,
    ibv_event_type_str = text::event_type_str,
    ibv_fork_init = fork::fork_init,
    ibv_free_device_list = devices::free_device_list,
    ibv_get_async_event = events::get_async_event,
    ibv_get_cq_event = channel::get_cq_event,
    ibv_get_device_guid = devices::get_device_guid,
    ibv_get_device_list = devices::get_device_list,
    ibv_get_device_name = devices::get_device_name,
    ibv_init_ah_from_wc = address::init_from_wc,
    ibv_modify_qp = qp::modify,
    ibv_modify_srq = srq::modify,
    ibv_node_type_str = text::node_type_str,
    ibv_open_device = device::open_device,
    ibv_port_state_str = text::port_state_str,
    ibv_query_device = query::query_device,
    ibv_query_gid = query::query_gid,
    ibv_query_pkey = query::query_pkey,
    ibv_query_port = query::query_port_compat,
    ibv_query_qp = qp::query,
    ibv_query_srq = srq::query,
    ibv_rate_to_mbps = rates::rate_to_mbps,
    ibv_reg_mr = memory::reg,
    ibv_register_driver = ignored,
    ibv_rereg_mr = memory::rereg,
    ibv_resize_cq = cq::resize,
    ibv_resolve_eth_l2_from_gid = address::resolve_eth_l2,
    ibv_wc_status_str = text::wc_status_str,
    mbps_to_ibv_rate = rates::mbps_to_rate,
);

export!("@@IBVERBS_1.5": ibv_get_pkey_index = query::pkey_index);

export!("@@IBVERBS_1.6": ibv_qp_to_qp_ex = qp::to_qp_ex);

export!("@@IBVERBS_1.7": ibv_reg_mr_iova = memory::reg_iova);

export!("@@IBVERBS_1.8": ibv_reg_mr_iova2 = memory::reg_iova2);

export!("@@IBVERBS_1.9": ibv_get_device_index = devices::get_device_index);

export!("@@IBVERBS_1.10":
    ibv_import_device = import::import_device,
    ibv_import_mr = import::import_mr,
    ibv_import_pd = import::import_pd,
    ibv_query_ece = ece::query,
    ibv_set_ece = ece::set,
    ibv_unimport_mr = import::unimport_mr,
    ibv_unimport_pd = import::unimport_pd,
);

export!("@@IBVERBS_1.11":
    _ibv_query_gid_ex = query::query_gid_ex,
    _ibv_query_gid_table = query::query_gid_table,
);

export!("@@IBVERBS_1.12": ibv_reg_dmabuf_mr = memory::reg_dmabuf);

export!("@@IBVERBS_1.13":
    ibv_import_dm = dm::import,
    ibv_is_fork_initialized = fork::is_fork_initialized,
    ibv_unimport_dm = dm::unimport,
);

export!("@@IBVERBS_1.14": ibv_query_qp_data_in_order = qp::query_data_in_order);

export!("@@IBVERBS_1.15":
    ibv_alloc_dmah = dmah::alloc,
    ibv_dealloc_dmah = dmah::dealloc,
    ibv_reg_mr_ex = memory::reg_ex,
);

export!("@@IBVERBS_1.16":
    ibv_dm_export_dmabuf_fd = dm::export,
    ibv_query_port_speed = query::query_port_speed,
);

export!("@@IBVERBS_1.17":
    ibv_alloc_buf = buffer::alloc,
    ibv_free_buf = buffer::free,
    ibv_reg_buf_mr = buffer::register,
);

export!("@@IBVERBS_1.18":
    _ibv_query_comp_cntr_caps = counters::refused,
    ibv_create_comp_cntr = counters::create,
    ibv_destroy_comp_cntr = counters::refused,
    ibv_export_buf_dmabuf_fd = buffer::export,
    ibv_inc_comp_cntr = counters::refused,
    ibv_inc_err_comp_cntr = counters::refused,
    ibv_qp_attach_comp_cntr = counters::refused,
    ibv_read_comp_cntr = counters::refused,
    ibv_read_err_comp_cntr = counters::refused,
    ibv_set_comp_cntr = counters::refused,
    ibv_set_err_comp_cntr = counters::refused,
);

export!("@@SOFTHCA_1.0":
    softhca_find_qp = qp::find,
    softhca_note = why::note,
    softhca_why = why::why,
);
