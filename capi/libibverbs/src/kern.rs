//! Copies attribute structs between the kernel's layout and the program's. Libraries use them that
//! get such structs from a kernel interface of their own (`librdmacm` from the CM). The kernel's
//! layout of an address vector and of a QP's attributes is in uverbs ABI v6, and that of a path
//! record is in `rdma/ib_user_sa.h`. The principal type is [`KernQpAttr`].

use crate::entry;
use crate::layout::{AhAttr, Gid, GlobalRoute, QpAttr, QpCap, SaPathRec};

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_grh: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}
const _: () = assert!(size_of::<KernAhAttr>() == 32);

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernAhAttr,
    alt_ah_attr: KernAhAttr,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}
const _: () = {
    assert!(size_of::<KernQpAttr>() == 144);
    assert!(std::mem::offset_of!(KernQpAttr, max_send_wr) == 104);
    assert!(std::mem::offset_of!(KernQpAttr, pkey_index) == 124);
};

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}
const _: () = assert!(size_of::<KernPathRec>() == 64);

/// `ibv_copy_ah_attr_from_kern`.
///
/// # Safety
/// Both pointers are valid for their structs.
pub(crate) unsafe extern "C" fn copy_ah_attr_from_kern(to: *mut AhAttr, from: *const KernAhAttr) {
    entry::value("ibv_copy_ah_attr_from_kern", || {
        // SAFETY: the caller's promise.
        let attr = ah_attr(unsafe { &*from });
        // SAFETY: the caller's promise.
        unsafe { to.write(attr) };
    });
}

/// `ibv_copy_qp_attr_from_kern`.
///
/// # Safety
/// Both pointers are valid for their structs.
pub(crate) unsafe extern "C" fn copy_qp_attr_from_kern(to: *mut QpAttr, from: *const KernQpAttr) {
    entry::value("ibv_copy_qp_attr_from_kern", || {
        // SAFETY: the caller's promise.
        let from = unsafe { &*from };
        let attr = QpAttr {
            qp_state: from.qp_state,
            cur_qp_state: from.cur_qp_state,
            path_mtu: from.path_mtu,
            path_mig_state: from.path_mig_state,
            qkey: from.qkey,
            rq_psn: from.rq_psn,
            sq_psn: from.sq_psn,
            dest_qp_num: from.dest_qp_num,
            qp_access_flags: from.qp_access_flags,
            cap: QpCap {
                max_send_wr: from.max_send_wr,
                max_recv_wr: from.max_recv_wr,
                max_send_sge: from.max_send_sge,
                max_recv_sge: from.max_recv_sge,
                max_inline_data: from.max_inline_data,
            },
            ah_attr: ah_attr(&from.ah_attr),
            alt_ah_attr: ah_attr(&from.alt_ah_attr),
            pkey_index: from.pkey_index,
            alt_pkey_index: from.alt_pkey_index,
            en_sqd_async_notify: from.en_sqd_async_notify,
            sq_draining: from.sq_draining,
            max_rd_atomic: from.max_rd_atomic,
            max_dest_rd_atomic: from.max_dest_rd_atomic,
            min_rnr_timer: from.min_rnr_timer,
            port_num: from.port_num,
            timeout: from.timeout,
            retry_cnt: from.retry_cnt,
            rnr_retry: from.rnr_retry,
            alt_port_num: from.alt_port_num,
            alt_timeout: from.alt_timeout,
            rate_limit: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { to.write(attr) };
    });
}

/// `ibv_copy_path_rec_from_kern`.
///
/// # Safety
/// Both pointers are valid for their structs.
pub(crate) unsafe extern "C" fn copy_path_rec_from_kern(to: *mut SaPathRec, from: *const KernPathRec) {
    entry::value("ibv_copy_path_rec_from_kern", || {
        // SAFETY: the caller's promise.
        let from = unsafe { &*from };
        let record = SaPathRec {
            dgid: Gid(from.dgid),
            sgid: Gid(from.sgid),
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic.cast_signed(),
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible.cast_signed(),
            numb_path: from.numb_path,
            pkey: from.pkey,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu.to_le_bytes()[0],
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        // SAFETY: the caller's promise.
        unsafe { to.write(record) };
    });
}

/// `ibv_copy_path_rec_to_kern`.
///
/// # Safety
/// Both pointers are valid for their structs.
pub(crate) unsafe extern "C" fn copy_path_rec_to_kern(to: *mut KernPathRec, from: *const SaPathRec) {
    entry::value("ibv_copy_path_rec_to_kern", || {
        // SAFETY: the caller's promise.
        let from = unsafe { &*from };
        let record = KernPathRec {
            dgid: from.dgid.0,
            sgid: from.sgid.0,
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic.cast_unsigned(),
            flow_label: from.flow_label,
            reversible: from.reversible.cast_unsigned(),
            mtu: u32::from(from.mtu),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        // SAFETY: the caller's promise.
        unsafe { to.write(record) };
    });
}

fn ah_attr(from: &KernAhAttr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: Gid(from.dgid),
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}
