//! The export list: every name and version of `libibumad.so.3`, and the function behind it.
//! `symbols.txt` is the same list for `cargo xtask abi-check`.

use crate::export::export;
use crate::{devices, list, message, names, pairs, port, transfer};

export!("@@IBUMAD_1.0":
    umad_addr_dump = message::dump_address,
    umad_attribute_str = names::attribute,
    umad_class_str = names::class,
    umad_close_port = port::close,
    umad_common_mad_status_str = names::status,
    umad_debug = message::debug,
    umad_done = devices::done,
    umad_dump = message::dump,
    umad_get_ca = devices::get_ca,
    umad_get_ca_portguids = devices::port_guids,
    umad_get_cas_names = devices::names,
    umad_get_fd = port::fd,
    umad_get_issm_path = devices::manager_path,
    umad_get_mad = message::mad,
    umad_get_mad_addr = message::address,
    umad_get_pkey = message::pkey,
    umad_get_port = devices::get_port,
    umad_init = devices::init,
    umad_method_str = names::method,
    umad_open_port = port::open,
    umad_poll = transfer::poll,
    umad_recv = transfer::receive,
    umad_register = port::register,
    umad_register2 = port::register2,
    umad_register_oui = port::register_oui,
    umad_release_ca = devices::release_ca,
    umad_release_port = devices::release_port,
    umad_sa_mad_status_str = names::sa_status,
    umad_send = transfer::send,
    umad_set_addr = message::set_address,
    umad_set_addr_net = message::set_address_net,
    umad_set_grh = message::set_grh,
    umad_set_pkey = message::set_pkey,
    umad_size = message::size,
    umad_status = message::status,
    umad_unregister = port::unregister,
);

export!("@@IBUMAD_1.1":
    umad_free_ca_device_list = list::free,
    umad_get_ca_device_list = list::get,
);

export!("@@IBUMAD_1.2": umad_sort_ca_device_list = list::sort);

export!("@@IBUMAD_1.3": umad_open_smi_port = port::open_smi);

export!("@@IBUMAD_1.4":
    umad_get_smi_gsi_pair_by_ca_name = pairs::named_pair,
    umad_get_smi_gsi_pairs = pairs::all,
);
