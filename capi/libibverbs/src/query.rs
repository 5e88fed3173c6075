//! Queries about a device: its limits, its ports, and their GID and P_Key tables.

use crate::context::{self, OpenContext};
use crate::devices::TRANSPORT_IWARP;
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{
    Context, CqModerationCaps, DeviceAttr, DeviceAttrEx, Gid, GidEntry, OdpCaps, PacketPacingCaps, PortAttr, ValuesEx,
};
use crate::object::{get, set};
use abi::device::{QueryDeviceAnswer, QueryPortAnswer, link_speed};
use abi::qp::{RATE_LIMIT_MAX, RATE_LIMIT_MIN, kind};
use bytemuck::Zeroable;
use engine::Engine;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The size of [`PortAttr`] for a program that calls the exported `ibv_query_port`: the struct's
/// size before it grew.
const PORT_ATTR_COMPAT: usize = 48;

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

/// `supported_qpts` of packet pacing: every type that sends.
const PACED: u32 = 1 << kind::RC | 1 << kind::UC | 1 << kind::UD | 1 << kind::XRC_INI;

/// `ibv_query_device`.
///
/// # Safety
/// `context` is open, `attr` valid.
pub(crate) unsafe extern "C" fn query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    entry::code("ibv_query_device", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let answer = unsafe { context::ask(context, |engine| engine.query_device()) }?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { attr.write(device_attr(&answer)) };
        Ok(())
    })
}

/// `query_device_ex` of the extended context: fills the part of the struct that the program knows.
///
/// # Safety
/// `context` is open, `attr` has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    _input: *const c_void,
    attr: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    entry::code("ibv_query_device_ex", || {
        entry::not_null(attr)?;
        if size < size_of::<DeviceAttr>() {
            return Err(refuse!(EINVAL, "ibv_query_device_ex: room for {size} bytes"));
        }
        // SAFETY: the caller's promise.
        let answer = unsafe { context::ask(context, |engine| engine.query_device_ex()) }?;
        let is_rnic = get!(get!(context, device), transport_type) == TRANSPORT_IWARP;
        let packet_pacing_caps = match is_rnic {
            true => PacketPacingCaps::zeroed(),
            false => PacketPacingCaps {
                qp_rate_limit_min: RATE_LIMIT_MIN,
                qp_rate_limit_max: RATE_LIMIT_MAX,
                supported_qpts: PACED,
            },
        };
        let filled = DeviceAttrEx {
            orig_attr: device_attr(&answer.base),
            completion_timestamp_mask: answer.timestamp_mask,
            hca_core_clock: answer.hca_core_clock,
            device_cap_flags_ex: answer.device_cap_flags_ex,
            odp_caps: OdpCaps {
                general_caps: answer.odp_general_caps,
                rc_odp_caps: answer.odp_rc,
                uc_odp_caps: answer.odp_uc,
                ud_odp_caps: answer.odp_ud,
            },
            xrc_odp_caps: answer.odp_xrc,
            cq_mod_caps: CqModerationCaps {
                max_cq_count: answer.max_cq_moderation_count,
                max_cq_period: answer.max_cq_moderation_period,
            },
            max_dm_size: answer.max_dm_size,
            packet_pacing_caps,
            phys_port_cnt_ex: u32::from(answer.base.phys_port_cnt),
            ..DeviceAttrEx::zeroed()
        };
        // SAFETY: the caller's promise about `size`.
        unsafe { fill_sized(attr, &filled, size) };
        Ok(())
    })
}

/// `query_rt_values` of the extended context: the device's clock. As in other libraries, ticks are
/// in the nanoseconds field.
///
/// # Safety
/// `context` is open, `values` valid.
pub(crate) unsafe extern "C" fn query_rt_values(context: *mut Context, values: *mut ValuesEx) -> c_int {
    /// `IBV_VALUES_MASK_RAW_CLOCK`.
    const RAW_CLOCK: u32 = 1;
    entry::code("ibv_query_rt_values_ex", || {
        entry::not_null(values)?;
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        engine.check_process()?;
        let known = get!(values, comp_mask) & RAW_CLOCK;
        if known != 0 {
            set!(values, raw_clock, [0, engine.raw_clock().cast_signed()]);
        }
        set!(values, comp_mask, known);
        Ok(())
    })
}

/// `query_port` of the extended context.
///
/// # Safety
/// `context` is open, `attr` has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_port(context: *mut Context, port: u8, attr: *mut PortAttr, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_query_port", || unsafe { fill_port(context, port, attr, size) })
}

/// The exported `ibv_query_port`. Programs call it if their struct is the older, shorter one.
///
/// # Safety
/// `context` is open, `attr` has room for [`PORT_ATTR_COMPAT`] bytes.
pub(crate) unsafe extern "C" fn query_port_compat(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_query_port", || unsafe { fill_port(context, port, attr, PORT_ATTR_COMPAT) })
}

/// `ibv_query_port_speed`: the speed of the link in units of 100 Mb/s.
///
/// # Safety
/// `context` is open, `speed` valid.
pub(crate) unsafe extern "C" fn query_port_speed(context: *mut Context, port: u32, speed: *mut u64) -> c_int {
    entry::code("ibv_query_port_speed", || {
        entry::not_null(speed)?;
        let port = u8::try_from(port).map_err(|_| refuse!(EINVAL, "ibv_query_port_speed: port {port}"))?;
        // SAFETY: the caller's promise.
        let answer = unsafe { context::ask(context, |engine| engine.query_port(port)) }?;
        let found = link_speed(answer.active_width, answer.active_speed);
        let found = found
            .ok_or_else(|| refuse!(EOPNOTSUPP, "ibv_query_port_speed: the link of port {port} has no known speed"))?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { speed.write(found) };
        Ok(())
    })
}

/// `ibv_query_gid`: all zeros for an empty entry.
///
/// # Safety
/// `context` is open, `gid` valid.
pub(crate) unsafe extern "C" fn query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int {
    entry::or_minus_one("ibv_query_gid", || {
        entry::not_null(gid)?;
        let index = u32::try_from(index).map_err(|_| refuse!(EINVAL, "table index {index}"))?;
        // SAFETY: the caller's promise.
        let found = unsafe { OpenContext::of(context) }?.engine.query_gid(port, index)?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { gid.write(Gid(found)) };
        Ok(0)
    })
}

/// `_ibv_query_gid_ex`: ENODATA for an empty entry.
///
/// # Safety
/// `context` is open, `entry` has room for `entry_size` bytes.
pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    entry::code("ibv_query_gid_ex", || {
        entry::not_null(entry)?;
        check_gid_request(flags, entry_size)?;
        // SAFETY: the caller's promise.
        let found = gid_entry(&unsafe { OpenContext::of(context) }?.engine, port, index)?;
        // SAFETY: the caller's promise about `entry_size`.
        unsafe { fill_sized(entry, &found, entry_size) };
        Ok(())
    })
}

/// `_ibv_query_gid_table`: every nonempty entry of every port; EINVAL if there are more than
/// `room`.
///
/// # Safety
/// `context` is open, `entries` has room for `room` times `entry_size` bytes.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    room: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    entry::or_negative("ibv_query_gid_table", || {
        check_gid_request(flags, entry_size)?;
        // SAFETY: the caller's promise.
        let table = gid_table(&unsafe { OpenContext::of(context) }?.engine)?;
        if table.len() > room {
            return Err(refuse!(EINVAL, "ibv_query_gid_table: {} entries do not fit room for {room}", table.len()));
        }
        if !table.is_empty() {
            entry::not_null(entries)?;
        }
        for (index, found) in table.iter().enumerate() {
            let place = entries.wrapping_byte_add(index * entry_size);
            // SAFETY: `index` is below `room`.
            unsafe { fill_sized(place, found, entry_size) };
        }
        Ok(table.len().cast_signed())
    })
}

/// `ibv_query_gid_type`: 1 for RoCEv2, else 0, also for an empty entry.
///
/// # Safety
/// `context` is open, `kind` valid.
pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut Context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    entry::or_minus_one("ibv_query_gid_type", || {
        entry::not_null(kind)?;
        // SAFETY: the caller's promise.
        let found = match gid_entry(&unsafe { OpenContext::of(context) }?.engine, u32::from(port), index) {
            Ok(found) => u32::from(found.gid_type == ROCE_V2),
            Err(Refusal(libc::ENODATA)) => 0,
            Err(refusal) => return Err(refusal),
        };
        // SAFETY: not NULL, and the caller's to write.
        unsafe { kind.write(found) };
        Ok(0)
    })
}

/// `ibv_query_pkey`: the P_Key in network order.
///
/// # Safety
/// `context` is open, `pkey` valid.
pub(crate) unsafe extern "C" fn query_pkey(context: *mut Context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    entry::or_minus_one("ibv_query_pkey", || {
        entry::not_null(pkey)?;
        let index = u32::try_from(index).map_err(|_| refuse!(EINVAL, "table index {index}"))?;
        // SAFETY: the caller's promise.
        let found = unsafe { OpenContext::of(context) }?.engine.query_pkey(port, index)?;
        // SAFETY: not NULL, and the caller's to write.
        unsafe { pkey.write(found.to_be()) };
        Ok(0)
    })
}

/// `ibv_get_pkey_index`: the index of a P_Key (in network order) in the port's table.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn pkey_index(context: *mut Context, port: u8, pkey: u16) -> c_int {
    entry::or_minus_one("ibv_get_pkey_index", || {
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        let length = engine.query_port(port)?.pkey_tbl_len;
        for index in 0..length {
            if engine.query_pkey(port, u32::from(index))?.to_be() == pkey {
                return Ok(c_int::from(index));
            }
        }
        Err(refuse!(ENOENT, "P_Key {:#06x} is not in the table of port {port}", u16::from_be(pkey)))
    })
}

/// # Safety
/// `context` is open, `attr` has room for `size` bytes.
unsafe fn fill_port(context: *mut Context, port: u8, attr: *mut PortAttr, size: usize) -> Outcome<()> {
    entry::not_null(attr)?;
    // SAFETY: the caller's promise.
    let answer = unsafe { OpenContext::of(context) }?.engine.query_port(port)?;
    // SAFETY: the caller's promise.
    unsafe { fill_sized(attr, &port_attr(&answer), size) };
    Ok(())
}

/// Writes the first `size` bytes of `value`, and zeros for fields that the program knows and this
/// library does not.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn fill_sized<T: Copy>(to: *mut T, value: &T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: both sides have at least `known` bytes.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), known) };
    // SAFETY: the caller's promise.
    unsafe { to.cast::<u8>().add(known).write_bytes(0, size - known) };
}

fn check_gid_request(flags: u32, entry_size: usize) -> Outcome<()> {
    if flags != 0 || entry_size == 0 {
        return Err(refuse!(EINVAL, "GID query with flags {flags:#x} and entries of {entry_size} bytes"));
    }
    Ok(())
}

fn gid_entry(engine: &Engine, port: u32, index: u32) -> Outcome<GidEntry> {
    let found = engine.gid_entry(port, index)?;
    Ok(GidEntry {
        gid: Gid(found.gid),
        gid_index: found.gid_index,
        port_num: found.port,
        gid_type: found.gid_type,
        ndev_ifindex: found.ifindex,
    })
}

fn gid_table(engine: &Engine) -> Outcome<Vec<GidEntry>> {
    let mut table = Vec::new();
    for port in 1..=engine.query_device()?.phys_port_cnt {
        for index in 0..engine.query_port(port)?.gid_tbl_len {
            // The board shows cheaply which entries are empty.
            if engine.query_gid(port, index)? == [0; 16] {
                continue;
            }
            match gid_entry(engine, u32::from(port), index) {
                Ok(found) => table.push(found),
                Err(Refusal(libc::ENODATA)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }
    Ok(table)
}

fn port_attr(answer: &QueryPortAnswer) -> PortAttr {
    PortAttr {
        state: u32::from(answer.state),
        max_mtu: u32::from(answer.max_mtu),
        active_mtu: u32::from(answer.active_mtu),
        gid_tbl_len: answer.gid_tbl_len.cast_signed(),
        port_cap_flags: answer.port_cap_flags,
        max_msg_sz: answer.max_msg_sz,
        bad_pkey_cntr: answer.bad_pkey_cntr,
        qkey_viol_cntr: answer.qkey_viol_cntr,
        pkey_tbl_len: answer.pkey_tbl_len,
        lid: answer.lid,
        sm_lid: answer.sm_lid,
        lmc: answer.lmc,
        max_vl_num: answer.max_vl_num,
        sm_sl: answer.sm_sl,
        subnet_timeout: answer.subnet_timeout,
        init_type_reply: answer.init_type_reply,
        active_width: answer.active_width,
        active_speed: answer.active_speed,
        phys_state: answer.phys_state,
        link_layer: answer.link_layer,
        flags: answer.flags,
        port_cap_flags2: 0,
        active_speed_ex: u32::from(answer.active_speed),
    }
}

/// The firmware version as text with a final zero.
fn firmware(version: u64) -> [c_char; 64] {
    let text = format!("{}.{}.{}", version >> 32, version >> 16 & 0xffff, version & 0xffff);
    let mut array = [0; 64];
    for (to, from) in array.iter_mut().zip(text.bytes()).take(63) {
        *to = from.cast_signed();
    }
    array
}

fn device_attr(answer: &QueryDeviceAnswer) -> DeviceAttr {
    DeviceAttr {
        fw_ver: firmware(answer.fw_ver),
        node_guid: answer.node_guid,
        sys_image_guid: answer.sys_image_guid,
        max_mr_size: answer.max_mr_size,
        page_size_cap: answer.page_size_cap,
        vendor_id: answer.vendor_id,
        vendor_part_id: answer.vendor_part_id,
        hw_ver: answer.hw_ver,
        max_qp: answer.max_qp.cast_signed(),
        max_qp_wr: answer.max_qp_wr.cast_signed(),
        device_cap_flags: answer.device_cap_flags,
        max_sge: answer.max_sge.cast_signed(),
        max_sge_rd: answer.max_sge_rd.cast_signed(),
        max_cq: answer.max_cq.cast_signed(),
        max_cqe: answer.max_cqe.cast_signed(),
        max_mr: answer.max_mr.cast_signed(),
        max_pd: answer.max_pd.cast_signed(),
        max_qp_rd_atom: answer.max_qp_rd_atom.cast_signed(),
        max_ee_rd_atom: answer.max_ee_rd_atom.cast_signed(),
        max_res_rd_atom: answer.max_res_rd_atom.cast_signed(),
        max_qp_init_rd_atom: answer.max_qp_init_rd_atom.cast_signed(),
        max_ee_init_rd_atom: answer.max_ee_init_rd_atom.cast_signed(),
        atomic_cap: answer.atomic_cap,
        max_ee: answer.max_ee.cast_signed(),
        max_rdd: answer.max_rdd.cast_signed(),
        max_mw: answer.max_mw.cast_signed(),
        max_raw_ipv6_qp: answer.max_raw_ipv6_qp.cast_signed(),
        max_raw_ethy_qp: answer.max_raw_ethy_qp.cast_signed(),
        max_mcast_grp: answer.max_mcast_grp.cast_signed(),
        max_mcast_qp_attach: answer.max_mcast_qp_attach.cast_signed(),
        max_total_mcast_qp_attach: answer.max_total_mcast_qp_attach.cast_signed(),
        max_ah: answer.max_ah.cast_signed(),
        max_fmr: answer.max_fmr.cast_signed(),
        max_map_per_fmr: answer.max_map_per_fmr.cast_signed(),
        max_srq: answer.max_srq.cast_signed(),
        max_srq_wr: answer.max_srq_wr.cast_signed(),
        max_srq_sge: answer.max_srq_sge.cast_signed(),
        max_pkeys: answer.max_pkeys,
        local_ca_ack_delay: answer.local_ca_ack_delay,
        phys_port_cnt: answer.phys_port_cnt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firmware_version_is_three_numbers() {
        let text: String = firmware(1 << 32 | 2 << 16 | 3)
            .iter()
            .take_while(|c| **c != 0)
            .map(|c| char::from(c.cast_unsigned()))
            .collect();
        assert_eq!(text, "1.2.3");
    }

    #[test]
    fn sized_structs_are_filled_to_the_programs_size() {
        let value = [7u8; 8];
        let mut longer = [9u8; 10];
        // SAFETY: ten bytes are there.
        unsafe { fill_sized(longer.as_mut_ptr().cast::<[u8; 8]>(), &value, 10) };
        assert_eq!(longer, [7, 7, 7, 7, 7, 7, 7, 7, 0, 0]);
        let mut shorter = [9u8; 8];
        // SAFETY: three bytes are there.
        unsafe { fill_sized(shorter.as_mut_ptr().cast::<[u8; 8]>(), &value, 3) };
        assert_eq!(shorter, [7, 7, 7, 9, 9, 9, 9, 9]);
    }
}
