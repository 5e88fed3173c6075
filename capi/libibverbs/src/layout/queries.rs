//! The structs that the query functions fill in: device and port attributes, GID entries. The
//! principal type is [`DeviceAttr`].

use super::base::{Gid, mirror};
use bytemuck::Zeroable;
use std::ffi::{c_char, c_int, c_uint};

mirror! {
    /// `struct ibv_gid_entry`.
    32 "ibv_gid_entry" struct GidEntry {
        0 gid: Gid,
        16 gid_index: u32,
        20 port_num: u32,
        24 gid_type: u32,
        28 ndev_ifindex: u32,
    }
}

mirror! {
    /// `struct ibv_device_attr`.
    232 "ibv_device_attr" struct DeviceAttr {
        0 fw_ver: [c_char; 64],
        64 node_guid: u64,
        72 sys_image_guid: u64,
        80 max_mr_size: u64,
        88 page_size_cap: u64,
        96 vendor_id: u32,
        100 vendor_part_id: u32,
        104 hw_ver: u32,
        108 max_qp: c_int,
        112 max_qp_wr: c_int,
        116 device_cap_flags: c_uint,
        120 max_sge: c_int,
        124 max_sge_rd: c_int,
        128 max_cq: c_int,
        132 max_cqe: c_int,
        136 max_mr: c_int,
        140 max_pd: c_int,
        144 max_qp_rd_atom: c_int,
        148 max_ee_rd_atom: c_int,
        152 max_res_rd_atom: c_int,
        156 max_qp_init_rd_atom: c_int,
        160 max_ee_init_rd_atom: c_int,
        164 atomic_cap: c_uint,
        168 max_ee: c_int,
        172 max_rdd: c_int,
        176 max_mw: c_int,
        180 max_raw_ipv6_qp: c_int,
        184 max_raw_ethy_qp: c_int,
        188 max_mcast_grp: c_int,
        192 max_mcast_qp_attach: c_int,
        196 max_total_mcast_qp_attach: c_int,
        200 max_ah: c_int,
        204 max_fmr: c_int,
        208 max_map_per_fmr: c_int,
        212 max_srq: c_int,
        216 max_srq_wr: c_int,
        220 max_srq_sge: c_int,
        224 max_pkeys: u16,
        226 local_ca_ack_delay: u8,
        227 phys_port_cnt: u8,
    }
}

mirror! {
    /// `struct ibv_odp_caps`.
    24 "ibv_odp_caps" struct OdpCaps {
        0 general_caps: u64,
        8 rc_odp_caps: u32,
        12 uc_odp_caps: u32,
        16 ud_odp_caps: u32,
    }
}

mirror! {
    /// `struct ibv_tso_caps`.
    8 "ibv_tso_caps" struct TsoCaps {
        0 max_tso: u32,
        4 supported_qpts: u32,
    }
}

mirror! {
    /// `struct ibv_rss_caps`.
    32 "ibv_rss_caps" struct RssCaps {
        0 supported_qpts: u32,
        4 max_rwq_indirection_tables: u32,
        8 max_rwq_indirection_table_size: u32,
        16 rx_hash_fields_mask: u64,
        24 rx_hash_function: u8,
    }
}

mirror! {
    /// `struct ibv_packet_pacing_caps`.
    12 "ibv_packet_pacing_caps" struct PacketPacingCaps {
        0 qp_rate_limit_min: u32,
        4 qp_rate_limit_max: u32,
        8 supported_qpts: u32,
    }
}

mirror! {
    /// `struct ibv_tm_caps`.
    20 "ibv_tm_caps" struct TmCaps {
        0 max_rndv_hdr_size: u32,
        4 max_num_tags: u32,
        8 flags: u32,
        12 max_ops: u32,
        16 max_sge: u32,
    }
}

mirror! {
    /// `struct ibv_values_ex`; the clock is a `struct timespec`.
    24 "ibv_values_ex" struct ValuesEx {
        0 comp_mask: u32,
        8 raw_clock: [i64; 2],
    }
}

mirror! {
    /// `struct ibv_cq_moderation_caps`.
    4 "ibv_cq_moderation_caps" struct CqModerationCaps {
        0 max_cq_count: u16,
        2 max_cq_period: u16,
    }
}

mirror! {
    /// `struct ibv_pci_atomic_caps`.
    6 "ibv_pci_atomic_caps" struct PciAtomicCaps {
        0 fetch_add: u16,
        2 swap: u16,
        4 compare_swap: u16,
    }
}

mirror! {
    /// `struct ibv_device_attr_ex`.
    400 "ibv_device_attr_ex" struct DeviceAttrEx {
        0 orig_attr: DeviceAttr,
        232 comp_mask: u32,
        240 odp_caps: OdpCaps,
        264 completion_timestamp_mask: u64,
        272 hca_core_clock: u64,
        280 device_cap_flags_ex: u64,
        288 tso_caps: TsoCaps,
        296 rss_caps: RssCaps,
        328 max_wq_type_rq: u32,
        332 packet_pacing_caps: PacketPacingCaps,
        344 raw_packet_caps: u32,
        348 tm_caps: TmCaps,
        368 cq_mod_caps: CqModerationCaps,
        376 max_dm_size: u64,
        384 pci_atomic_caps: PciAtomicCaps,
        392 xrc_odp_caps: u32,
        396 phys_port_cnt_ex: u32,
    }
}

mirror! {
    /// `struct ibv_port_attr`.
    56 "ibv_port_attr" struct PortAttr {
        0 state: c_uint,
        4 max_mtu: c_uint,
        8 active_mtu: c_uint,
        12 gid_tbl_len: c_int,
        16 port_cap_flags: u32,
        20 max_msg_sz: u32,
        24 bad_pkey_cntr: u32,
        28 qkey_viol_cntr: u32,
        32 pkey_tbl_len: u16,
        34 lid: u16,
        36 sm_lid: u16,
        38 lmc: u8,
        39 max_vl_num: u8,
        40 sm_sl: u8,
        41 subnet_timeout: u8,
        42 init_type_reply: u8,
        43 active_width: u8,
        44 active_speed: u8,
        45 phys_state: u8,
        46 link_layer: u8,
        47 flags: u8,
        48 port_cap_flags2: u16,
        52 active_speed_ex: u32,
    }
}
