//! The export list of the first interface: the functions for programs of 2006, whose objects are
//! other structs than today's.

use crate::devices::free_device_list;
use crate::export::export;
use crate::first::{devices, objects};

export!("@IBVERBS_1.0":
    ibv_ack_async_event = devices::ack_async_event,
    ibv_ack_cq_events = devices::ack_cq_events,
    ibv_alloc_pd = objects::alloc_pd,
    ibv_attach_mcast = objects::attach_mcast,
    ibv_close_device = devices::close,
    ibv_create_ah = objects::create_ah,
    ibv_create_cq = objects::create_cq,
    ibv_create_qp = objects::create_qp,
    ibv_create_srq = objects::create_srq,
    ibv_dealloc_pd = objects::dealloc_pd,
    ibv_dereg_mr = objects::dereg_mr,
    ibv_destroy_ah = objects::destroy_ah,
    ibv_destroy_cq = objects::destroy_cq,
    ibv_destroy_qp = objects::destroy_qp,
    ibv_destroy_srq = objects::destroy_srq,
    ibv_detach_mcast = objects::detach_mcast,
    ibv_free_device_list = free_device_list,
    ibv_get_async_event = devices::get_async_event,
    ibv_get_cq_event = devices::get_cq_event,
    ibv_get_device_guid = devices::get_guid,
    ibv_get_device_list = devices::get_list,
    ibv_get_device_name = devices::get_name,
    ibv_modify_qp = objects::modify_qp,
    ibv_modify_srq = objects::modify_srq,
    ibv_open_device = devices::open,
    ibv_query_device = devices::query_device,
    ibv_query_gid = devices::query_gid,
    ibv_query_pkey = devices::query_pkey,
    ibv_query_port = devices::query_port,
    ibv_query_qp = objects::query_qp,
    ibv_query_srq = objects::query_srq,
    ibv_reg_mr = objects::reg_mr,
    ibv_resize_cq = objects::resize_cq,
);
