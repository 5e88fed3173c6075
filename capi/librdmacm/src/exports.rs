//! The export list: every name and version that `librdmacm.so.1` has had since rdma-core v44, and
//! the function behind it. `symbols.txt` is the same list for `cargo xtask abi-check`. The
//! functions of rsockets (`rsocket`, `rbind`, … `riowrite`, all RDMACM_1.0) are exported in
//! `rsocket/exports.rs`.

use crate::export::export;
use crate::{
    address, addrinfo, attributes, channel, connection, devices, ece, endpoint, event, get_event, group, id_life,
    option, qp, resolve_info, srq,
};

export!("@@RDMACM_1.0":
    rdma_accept = connection::accept,
    rdma_ack_cm_event = event::ack,
    rdma_bind_addr = address::bind,
    rdma_connect = connection::connect,
    rdma_create_ep = endpoint::create,
    rdma_create_event_channel = channel::create,
    rdma_create_id = id_life::create,
    rdma_create_qp = qp::create,
    rdma_create_qp_ex = qp::create_ex,
    rdma_create_srq = srq::create,
    rdma_create_srq_ex = srq::create_ex,
    rdma_destroy_ep = endpoint::destroy,
    rdma_destroy_event_channel = channel::destroy,
    rdma_destroy_id = id_life::destroy,
    rdma_destroy_qp = qp::destroy,
    rdma_destroy_srq = srq::destroy,
    rdma_disconnect = connection::disconnect,
    rdma_event_str = event::name,
    rdma_free_devices = devices::free,
    rdma_freeaddrinfo = addrinfo::free,
    rdma_get_cm_event = get_event::get,
    rdma_get_devices = devices::get,
    rdma_get_dst_port = address::dst_port,
    rdma_get_request = endpoint::get_request,
    rdma_get_src_port = address::src_port,
    rdma_getaddrinfo = addrinfo::get,
    rdma_join_multicast = group::join,
    rdma_leave_multicast = group::leave,
    rdma_listen = connection::listen,
    rdma_migrate_id = id_life::migrate,
    rdma_notify = connection::notify,
    rdma_reject = connection::reject,
    rdma_resolve_addr = address::resolve_addr,
    rdma_resolve_route = address::resolve_route,
    rdma_set_option = option::set,
);

export!("@@RDMACM_1.1": rdma_join_multicast_ex = group::join_ex);

export!("@@RDMACM_1.2":
    rdma_establish = connection::establish,
    rdma_init_qp_attr = attributes::init_qp_attr,
);

export!("@@RDMACM_1.3":
    rdma_get_remote_ece = ece::get_remote,
    rdma_reject_ece = connection::reject_ece,
    rdma_set_local_ece = ece::set_local,
);

export!("@@RDMACM_1.4":
    rdma_query_addrinfo = resolve_info::query,
    rdma_resolve_addrinfo = resolve_info::resolve,
    rdma_write_cm_event = event::write,
);
