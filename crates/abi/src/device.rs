//! Context, device and port: GET_CONTEXT, QUERY_DEVICE, EX_QUERY_DEVICE, QUERY_PORT, QUERY_GID,
//! QUERY_PKEY.

record! {
    /// GET_CONTEXT (0), request.
    pub struct GetContext[8] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
    }

    /// GET_CONTEXT (0), answer; `ContextOut` follows. The first fd on the reply is the async
    /// eventfd, the second (if any) the region of the context page.
    pub struct GetContextAnswer[8] {
        /// 0: the async eventfd is attached to the reply.
        0 => async_fd: u32,
        /// Completion vectors.
        4 => num_comp_vectors: u32,
    }

    /// QUERY_DEVICE (1), request.
    pub struct QueryDevice[8] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
    }

    /// QUERY_DEVICE (1), answer.
    pub struct QueryDeviceAnswer[176] {
        /// Firmware version: major << 32 | minor << 16 | micro.
        0 => fw_ver: u64,
        /// Node GUID, network byte order.
        8 => node_guid: u64,
        /// System image GUID, network byte order.
        16 => sys_image_guid: u64,
        /// Longest memory region in bytes.
        24 => max_mr_size: u64,
        /// Bit n: pages of 2^n bytes.
        32 => page_size_cap: u64,
        /// Vendor id.
        40 => vendor_id: u32,
        /// Vendor's part id.
        44 => vendor_part_id: u32,
        /// Hardware version.
        48 => hw_ver: u32,
        /// Most QPs.
        52 => max_qp: u32,
        /// Most work requests per queue.
        56 => max_qp_wr: u32,
        /// See `cap`; the low 32 bits.
        60 => device_cap_flags: u32,
        /// Most scatter/gather entries per work request.
        64 => max_sge: u32,
        /// The same for READ.
        68 => max_sge_rd: u32,
        /// Most CQs.
        72 => max_cq: u32,
        /// Most entries per CQ.
        76 => max_cqe: u32,
        /// Most MRs.
        80 => max_mr: u32,
        /// Most PDs.
        84 => max_pd: u32,
        /// Most READs and atomics that a QP takes in as responder.
        88 => max_qp_rd_atom: u32,
        /// The same per end-to-end context (0).
        92 => max_ee_rd_atom: u32,
        /// Responder resources in all.
        96 => max_res_rd_atom: u32,
        /// Most READs and atomics that a QP has outstanding as initiator.
        100 => max_qp_init_rd_atom: u32,
        /// The same per end-to-end context (0).
        104 => max_ee_init_rd_atom: u32,
        /// See `atomic_cap`.
        108 => atomic_cap: u32,
        /// End-to-end contexts (0).
        112 => max_ee: u32,
        /// RD domains (0).
        116 => max_rdd: u32,
        /// Most memory windows.
        120 => max_mw: u32,
        /// Raw IPv6 QPs (0).
        124 => max_raw_ipv6_qp: u32,
        /// Raw ethertype QPs (0).
        128 => max_raw_ethy_qp: u32,
        /// Most multicast groups.
        132 => max_mcast_grp: u32,
        /// Most QPs in one group.
        136 => max_mcast_qp_attach: u32,
        /// Most attachments in all.
        140 => max_total_mcast_qp_attach: u32,
        /// Most AHs.
        144 => max_ah: u32,
        /// Fast memory regions (0).
        148 => max_fmr: u32,
        /// Maps per fast memory region (0).
        152 => max_map_per_fmr: u32,
        /// Most SRQs.
        156 => max_srq: u32,
        /// Most work requests per SRQ.
        160 => max_srq_wr: u32,
        /// Most scatter entries per SRQ work request.
        164 => max_srq_sge: u32,
        /// Entries of the P_Key table.
        168 => max_pkeys: u16,
        /// Acknowledge delay: 4.096 µs * 2^n.
        170 => local_ca_ack_delay: u8,
        /// Number of ports.
        171 => phys_port_cnt: u8,
        /// 0.
        172 => reserved: u32,
    }

    /// QUERY_PORT (2), request.
    pub struct QueryPort[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Port, from 1.
        8 => port_num: u8,
        /// 0.
        9 => reserved: [u8; 7],
    }

    /// QUERY_PORT (2), answer.
    pub struct QueryPortAnswer[40] {
        /// Port capability flags (IBA PortInfo:CapabilityMask).
        0 => port_cap_flags: u32,
        /// Longest message in bytes.
        4 => max_msg_sz: u32,
        /// P_Key violations counted.
        8 => bad_pkey_cntr: u32,
        /// Q_Key violations counted.
        12 => qkey_viol_cntr: u32,
        /// Entries of the GID table.
        16 => gid_tbl_len: u32,
        /// Entries of the P_Key table.
        20 => pkey_tbl_len: u16,
        /// LID (0 on RoCE).
        22 => lid: u16,
        /// LID of the subnet manager (0 on RoCE).
        24 => sm_lid: u16,
        /// See `port_state`.
        26 => state: u8,
        /// Largest MTU: see `mtu`.
        27 => max_mtu: u8,
        /// MTU in use: see `mtu`.
        28 => active_mtu: u8,
        /// LID mask control.
        29 => lmc: u8,
        /// Virtual lanes code.
        30 => max_vl_num: u8,
        /// Service level towards the subnet manager.
        31 => sm_sl: u8,
        /// Subnet timeout code.
        32 => subnet_timeout: u8,
        /// Type of initialisation done by the subnet manager.
        33 => init_type_reply: u8,
        /// Link width: 1 = 1x, 2 = 4x, 4 = 8x, 8 = 12x, 16 = 2x.
        34 => active_width: u8,
        /// Speed per lane: 1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR.
        35 => active_speed: u8,
        /// Physical state: 5 is LinkUp, 3 is Disabled.
        36 => phys_state: u8,
        /// See `link_layer`.
        37 => link_layer: u8,
        /// Bit 0: GRH required.
        38 => flags: u8,
        /// 0.
        39 => reserved: u8,
    }

    /// QUERY_GID (45), request.
    pub struct QueryGid[24] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Index in the port's GID table.
        8 => gid_index: u32,
        /// Port, from 1.
        12 => port_num: u8,
        /// 0.
        13 => reserved: [u8; 3],
        /// 0.
        16 => driver_data: u64,
    }

    /// QUERY_GID (45), answer.
    pub struct QueryGidAnswer[16] {
        /// The GID, network byte order; all zero for an empty entry.
        0 => gid: [u8; 16],
    }

    /// QUERY_PKEY (46), request.
    pub struct QueryPkey[24] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Index in the port's P_Key table.
        8 => pkey_index: u32,
        /// Port, from 1.
        12 => port_num: u8,
        /// 0.
        13 => reserved: [u8; 3],
        /// 0.
        16 => driver_data: u64,
    }

    /// QUERY_PKEY (46), answer.
    pub struct QueryPkeyAnswer[4] {
        /// The P_Key, host byte order.
        0 => pkey: u16,
        /// 0.
        2 => reserved: u16,
    }

    /// EX_QUERY_DEVICE (1, extended), request.
    pub struct ExQueryDevice[8] {
        /// 0.
        0 => comp_mask: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// EX_QUERY_DEVICE (1, extended), answer; cut to the caller's room, at least 184 bytes.
    pub struct ExQueryDeviceAnswer[304] {
        /// As QUERY_DEVICE.
        0 => base: QueryDeviceAnswer,
        /// 0.
        176 => comp_mask: u32,
        /// Bytes of this answer that are valid.
        180 => response_length: u32,
        /// On-demand paging, general capabilities.
        184 => odp_general_caps: u64,
        /// On-demand paging, RC operations.
        192 => odp_rc: u32,
        /// On-demand paging, UC operations.
        196 => odp_uc: u32,
        /// On-demand paging, UD operations.
        200 => odp_ud: u32,
        /// 0.
        204 => reserved: u32,
        /// Valid bits of a completion timestamp.
        208 => timestamp_mask: u64,
        /// Clock of the timestamps, kHz.
        216 => hca_core_clock: u64,
        /// Device capabilities, 64 bits: see `cap`.
        224 => device_cap_flags_ex: u64,
        /// Receive-side scaling: QP types.
        232 => rss_supported_qpts: u32,
        /// Receive-side scaling: indirection tables.
        236 => max_rwq_ind_tables: u32,
        /// Receive-side scaling: entries of a table.
        240 => max_rwq_ind_table_size: u32,
        /// 0.
        244 => reserved1: u32,
        /// Most receive work queues.
        248 => max_wq_type_rq: u32,
        /// Raw packet capabilities.
        252 => raw_packet_caps: u32,
        /// Tag matching: longest rendezvous header.
        256 => tm_max_rndv_hdr_size: u32,
        /// Tag matching: tags.
        260 => tm_max_num_tags: u32,
        /// Tag matching: flags.
        264 => tm_flags: u32,
        /// Tag matching: outstanding operations.
        268 => tm_max_ops: u32,
        /// Tag matching: scatter entries.
        272 => tm_max_sge: u32,
        /// 0.
        276 => reserved2: u32,
        /// CQ moderation: most completions per event.
        280 => max_cq_moderation_count: u16,
        /// CQ moderation: longest period, microseconds.
        282 => max_cq_moderation_period: u16,
        /// 0.
        284 => reserved3: u32,
        /// Device memory in bytes.
        288 => max_dm_size: u64,
        /// On-demand paging, XRC operations.
        296 => odp_xrc: u32,
        /// 0.
        300 => reserved4: u32,
    }
}

/// Least room for the answer of EX_QUERY_DEVICE, in bytes.
pub const EX_QUERY_DEVICE_ANSWER_MIN: usize = 184;

constants! {
    /// On-demand paging: general capabilities.
    pub mod odp: u64 {
        /// There is on-demand paging.
        SUPPORT = 1,
        /// A region may be all memory.
        IMPLICIT = 2,
    }

    /// On-demand paging: operations of a service.
    pub mod odp_service: u32 {
        /// SEND.
        SEND = 1,
        /// Receive requests of a queue pair.
        RECV = 2,
        /// RDMA WRITE.
        WRITE = 4,
        /// RDMA READ.
        READ = 8,
        /// Atomics.
        ATOMIC = 16,
        /// Receive requests of an SRQ.
        SRQ_RECV = 32,
        /// FLUSH.
        FLUSH = 64,
        /// ATOMIC WRITE.
        ATOMIC_WRITE = 128,
    }

    /// Device capability bits (`device_cap_flags`, `device_cap_flags_ex`).
    pub mod cap: u64 {
        /// Work queues can be resized.
        RESIZE_MAX_WR = 1 << 0,
        /// P_Key violations are counted.
        BAD_PKEY_CNTR = 1 << 1,
        /// Q_Key violations are counted.
        BAD_QKEY_CNTR = 1 << 2,
        /// Raw multicast.
        RAW_MULTI = 1 << 3,
        /// Automatic path migration.
        AUTO_PATH_MIG = 1 << 4,
        /// The physical port of a QP may change.
        CHANGE_PHY_PORT = 1 << 5,
        /// The port of an AH must be the QP's.
        UD_AV_PORT_ENFORCE = 1 << 6,
        /// MODIFY_QP looks at the current state given.
        CURR_QP_STATE_MOD = 1 << 7,
        /// Ports can be shut down.
        SHUTDOWN_PORT = 1 << 8,
        /// Type of initialisation can be chosen.
        INIT_TYPE = 1 << 9,
        /// PORT_ACTIVE events.
        PORT_ACTIVE_EVENT = 1 << 10,
        /// System image GUID.
        SYS_IMAGE_GUID = 1 << 11,
        /// RC QPs send RNR NAKs.
        RC_RNR_NAK_GEN = 1 << 12,
        /// SRQs can be resized.
        SRQ_RESIZE = 1 << 13,
        /// Notification after n completions.
        N_NOTIFY_CQ = 1 << 14,
        /// Memory windows.
        MEM_WINDOW = 1 << 17,
        /// IP checksum on UD.
        UD_IP_CSUM = 1 << 18,
        /// XRC.
        XRC = 1 << 20,
        /// Memory management extensions.
        MEM_MGT_EXTENSIONS = 1 << 21,
        /// Memory windows type 2A.
        MW_TYPE_2A = 1 << 23,
        /// Memory windows type 2B.
        MW_TYPE_2B = 1 << 24,
        /// IP checksum on RC.
        RC_IP_CSUM = 1 << 25,
        /// IP checksum on raw packets.
        RAW_IP_CSUM = 1 << 26,
        /// Flow steering.
        MANAGED_FLOW_STEERING = 1 << 29,
        /// The frame check sequence can be scattered.
        RAW_SCATTER_FCS = 1 << 34,
        /// FLUSH, global visibility.
        FLUSH_GLOBAL = 1 << 38,
        /// FLUSH, persistence.
        FLUSH_PERSISTENT = 1 << 39,
        /// ATOMIC WRITE.
        ATOMIC_WRITE = 1 << 40,
    }

    /// `QueryDeviceAnswer::atomic_cap`.
    pub mod atomic_cap: u32 {
        /// No atomics.
        NONE = 0,
        /// Atomic with respect to other operations through this HCA.
        HCA = 1,
        /// Atomic with respect to the processors as well.
        GLOBAL = 2,
    }

    /// `QueryPortAnswer::state`.
    pub mod port_state: u8 {
        /// No state change.
        NOP = 0,
        /// Down.
        DOWN = 1,
        /// Being initialised.
        INIT = 2,
        /// Armed.
        ARMED = 3,
        /// Active.
        ACTIVE = 4,
        /// Active, link error recovery.
        ACTIVE_DEFER = 5,
    }

    /// MTU codes.
    pub mod mtu: u8 {
        /// 256 bytes.
        MTU_256 = 1,
        /// 512 bytes.
        MTU_512 = 2,
        /// 1024 bytes.
        MTU_1024 = 3,
        /// 2048 bytes.
        MTU_2048 = 4,
        /// 4096 bytes.
        MTU_4096 = 5,
    }

    /// `QueryPortAnswer::link_layer`.
    pub mod link_layer: u8 {
        /// Not reported.
        UNSPECIFIED = 0,
        /// InfiniBand.
        INFINIBAND = 1,
        /// Ethernet (RoCE).
        ETHERNET = 2,
    }
}

/// "SHC": as the first half of a MAC address these bytes are marked locally administered, so no
/// vendor owns them.
pub const VENDOR_ID: u32 = 0x0053_4843;

/// Bytes of an MTU code, `None` when it is not one.
#[must_use]
pub fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// The data rate of a link in units of 100 Mb/s, by the codes of its width and of its speed per
/// lane; `None` for an unknown code.
#[must_use]
pub fn link_speed(width: u8, speed: u8) -> Option<u64> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let lane = match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => return None,
    };
    Some(lanes * lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_as_fast_as_its_lanes_together() {
        for (width, speed, hundreds) in [
            (1, 1, 25),
            (1, 2, 50),
            (2, 32, 1000),
            (4, 16, 1120),
            (4, 64, 4000),
            (8, 4, 1200),
            (8, 8, 1200),
            (16, 128, 2000),
        ] {
            assert_eq!(link_speed(width, speed), Some(hundreds), "width {width}, speed {speed}");
        }
        for (width, speed) in [(0, 32), (3, 32), (2, 0), (2, 5), (255, 255)] {
            assert_eq!(link_speed(width, speed), None, "width {width}, speed {speed}");
        }
    }

    #[test]
    fn mtu_codes_are_powers_of_two() {
        assert_eq!(mtu_bytes(mtu::MTU_256), Some(256));
        assert_eq!(mtu_bytes(mtu::MTU_4096), Some(4096));
        assert_eq!(mtu_bytes(0), None);
        assert_eq!(mtu_bytes(6), None);
    }
}
