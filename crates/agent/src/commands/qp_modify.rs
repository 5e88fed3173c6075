//! MODIFY_QP: checks the transition and the values, and then makes the whole change, or none of it.
//!
//! The table in `protocol::modify` says which attributes a transition accepts. This file checks the
//! values against the device and its ports (IBA 10.3.1, 11.2.5.3). The state word in queue memory
//! is changed by compare-and-swap, because the engine may move a failed QP to an error state at any
//! time. The principal function is [`apply`].

use std::sync::atomic::Ordering;

use abi::ah::{AhAttr, rate_mbps};
use abi::device::mtu_bytes;
use abi::qp::{Dest, ModifyQp, QueryQpAnswer, RATE_LIMIT_MAX, attr};
use abi::queue::qp as word;
use abi::{Errno, Refusal};
use protocol::State;
use protocol::modify::{Attributes, check, counting};

use super::ah::check_vector;
use super::mr::check_meaning;
use super::{Answer, Call, find, migration, stream, xrc};
use crate::device::Device;
use crate::ids::ContextId;
use crate::objects::{Qp, state_of};
use crate::refusal::{Outcome, refuse};
use crate::table::Kind;
use crate::world::World;

/// Bits that a legacy MODIFY_QP may have.
const KNOWN: u32 = (1 << 21) - 1;
const PSN_AND_QPN: u32 = 0x00ff_ffff;
/// An engine moves a QP at most twice (SQE, ERR). The bound prevents that a client that changes the
/// word keeps the agent busy.
const ATTEMPTS: u32 = 8;

/// MODIFY_QP.
pub fn modify(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    apply(world, call.context, &call.body()?, None)?;
    Ok(Answer::default())
}

/// Changes a QP for both forms of MODIFY_QP. Only the extended form has a rate limit.
pub fn apply(world: &mut World, owner: ContextId, wanted: &ModifyQp, rate: Option<u32>) -> Outcome<()> {
    let (server, qp_handle) = xrc::resolve(world, owner, wanted.qp_handle);
    if server != owner {
        let text = "the target QP is served by another process, which alone can modify it";
        return refuse(Errno::EOPNOTSUPP, text);
    }
    let wanted = &ModifyQp { qp_handle, ..*wanted };
    let qp = find(&world.tables.qps, owner, wanted.qp_handle, Kind::Qp)?;
    if qp.frozen {
        return Ok(());
    }
    // It may get another destination, or none.
    world.note_traffic(owner, wanted.qp_handle);
    if let Some(qp) = world.tables.qps.find_mut(owner, wanted.qp_handle) {
        qp.settle_paths();
    }
    let qp = find(&world.tables.qps, owner, wanted.qp_handle, Kind::Qp)?;
    let wanted = &ModifyQp { attr_mask: counting(qp.service, Attributes(wanted.attr_mask)).0, ..*wanted };
    let device = world.device_of(owner);
    for _ in 0..ATTEMPTS {
        let found = qp.block.read(word::STATE);
        let next = transition(qp, state_of(found), wanted, rate.is_some())?;
        values(device, qp, wanted)?;
        stream::check(world, device, qp, next)?;
        check_rate(device, qp, wanted, rate)?;
        let state = qp.block.word(word::STATE);
        if state.compare_exchange(found, next as u32, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            store(world, owner, wanted, rate, next);
            // Its engine may have lost packets to the new destination already.
            world.note_traffic(owner, wanted.qp_handle);
            return Ok(());
        }
        // The engine has moved the QP meanwhile (to an error state, and no further), so the
        // transition is checked again.
    }
    refuse(
        Errno::EINVAL,
        format!("modify_qp of QP {:#x}: its state changes continuously; a thread overwrites its state word", qp.qpn),
    )
}

/// The new state, if the QP may go there with these attributes.
fn transition(qp: &Qp, current: State, wanted: &ModifyQp, extended: bool) -> Outcome<State> {
    let (qpn, mask) = (qp.qpn, wanted.attr_mask);
    if mask & !(if extended { KNOWN | attr::RATE_LIMIT } else { KNOWN }) != 0 {
        return refuse(
            Errno::EINVAL,
            format!("modify_qp of QP {qpn:#x}: attribute mask {mask:#x} has bits without a meaning"),
        );
    }
    for (bit, value, what) in
        [(attr::STATE, wanted.qp_state, "next"), (attr::CUR_STATE, wanted.cur_qp_state, "current")]
    {
        if mask & bit != 0 && u32::from(value) > State::Err as u32 {
            return refuse(
                Errno::EINVAL,
                format!("modify_qp of QP {qpn:#x}: {value} is not a state, it cannot be the {what} one"),
            );
        }
    }
    if mask & attr::CUR_STATE != 0 && state_of(u32::from(wanted.cur_qp_state)) != current {
        let believed = state_of(u32::from(wanted.cur_qp_state));
        return refuse(
            Errno::EINVAL,
            format!("modify_qp of QP {qpn:#x}: it is in {current}, but cur_qp_state says {believed}"),
        );
    }
    let next = if mask & attr::STATE != 0 { state_of(u32::from(wanted.qp_state)) } else { current };
    match check(qp.service, current, next, Attributes(mask)) {
        Ok(()) => Ok(next),
        Err(error) => refuse(Errno::EINVAL, format!("modify_qp of QP {qpn:#x}: {error}")),
    }
}

/// Checks that the device, the port and the IBA allow every given value.
fn values(device: &Device, qp: &Qp, wanted: &ModifyQp) -> Outcome<()> {
    let given = |bit: u32| wanted.attr_mask & bit != 0;
    let qpn = qp.qpn;
    let bad = |text: String| refuse(Errno::EINVAL, format!("modify_qp of QP {qpn:#x}: {text}"));
    let named = |refusal: Refusal| Refusal::new(refusal.errno, format!("modify_qp of QP {qpn:#x}: {}", refusal.reason));
    if given(attr::PORT) {
        device.port(u32::from(wanted.port_num)).map_err(named)?;
    }
    let port_num = if given(attr::PORT) { wanted.port_num } else { qp.attributes.port_num };
    if given(attr::PKEY_INDEX) {
        device.check_pkey_index(port_num, wanted.pkey_index).map_err(named)?;
    }
    if given(attr::ACCESS_FLAGS)
        && let Err((errno, text)) = check_meaning(wanted.qp_access_flags)
    {
        return refuse(errno, format!("modify_qp of QP {qpn:#x}: {text}"));
    }
    // More than the interface carries is allowed, as with Soft-RoCE. Ethernet ports lose such
    // packets, and ports with LIDs send shorter ones (`wire_mtu` in the engine).
    if given(attr::PATH_MTU) && mtu_bytes(wanted.path_mtu).is_none() {
        let asked = wanted.path_mtu;
        return bad(format!("path MTU code {asked} is not 1 (256 bytes) to 5 (4096 bytes)"));
    }
    let limits = &device.limits;
    let bounded: [(u32, &str, u8, u32); 6] = [
        (attr::TIMEOUT, "timeout", wanted.timeout, 31),
        (attr::RETRY_CNT, "retry_cnt", wanted.retry_cnt, 7),
        (attr::RNR_RETRY, "rnr_retry", wanted.rnr_retry, 7),
        (attr::MIN_RNR_TIMER, "min_rnr_timer", wanted.min_rnr_timer, 31),
        (attr::MAX_QP_RD_ATOMIC, "max_rd_atomic", wanted.max_rd_atomic, limits.max_qp_init_rd_atom),
        (attr::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", wanted.max_dest_rd_atomic, limits.max_qp_rd_atom),
    ];
    for (bit, what, value, most) in bounded {
        if given(bit) && u32::from(value) > most {
            return bad(format!("{what} {value} is above {most}"));
        }
    }
    if given(attr::AV) {
        check_path(device, &wanted.dest, &format!("the path of QP {qpn:#x}"))?;
        if wanted.dest.port_num != port_num {
            return bad(format!("its path leaves by port {}, but it is on port {port_num}", wanted.dest.port_num));
        }
    }
    migration::check(device, qp, wanted)
}

/// Checks that the device can enforce a rate.
fn check_rate(device: &Device, qp: &Qp, wanted: &ModifyQp, rate: Option<u32>) -> Outcome<()> {
    match rate.filter(|_| wanted.attr_mask & attr::RATE_LIMIT != 0) {
        Some(1..) if device.is_iwarp() => {
            refuse(Errno::EOPNOTSUPP, format!("modify_qp of QP {:#x}: iWARP devices enforce no rate limits", qp.qpn))
        }
        Some(rate) if rate > RATE_LIMIT_MAX => refuse(
            Errno::EINVAL,
            format!("modify_qp of QP {:#x}: a rate limit of {rate} kbit/s is above {RATE_LIMIT_MAX}", qp.qpn),
        ),
        _ => Ok(()),
    }
}

/// Stores the attributes for QUERY_QP. RESET clears everything except the capacities.
fn store(world: &mut World, owner: ContextId, wanted: &ModifyQp, rate: Option<u32>, next: State) {
    let Some(qp) = world.tables.qps.find_mut(owner, wanted.qp_handle) else { return };
    if next == State::Reset {
        qp.rate_limit = 0;
    } else if let Some(rate) = rate.filter(|_| wanted.attr_mask & attr::RATE_LIMIT != 0) {
        qp.rate_limit = rate;
    }
    let kept = &mut qp.attributes;
    if next == State::Reset {
        *kept = QueryQpAnswer {
            max_send_wr: kept.max_send_wr,
            max_recv_wr: kept.max_recv_wr,
            max_send_sge: kept.max_send_sge,
            max_recv_sge: kept.max_recv_sge,
            max_inline_data: kept.max_inline_data,
            sq_sig_all: kept.sq_sig_all,
            ..QueryQpAnswer::default()
        };
        return;
    }
    let given = |bit: u32| wanted.attr_mask & bit != 0;
    macro_rules! take {
        ($($bit:ident: $to:ident = $value:expr;)+) => { $( if given(attr::$bit) { kept.$to = $value; } )+ };
    }
    take! {
        ACCESS_FLAGS: qp_access_flags = wanted.qp_access_flags;
        PKEY_INDEX: pkey_index = wanted.pkey_index;
        PORT: port_num = wanted.port_num;
        QKEY: qkey = wanted.qkey;
        AV: dest = wanted.dest;
        ALT_PATH: alt_dest = wanted.alt_dest;
        ALT_PATH: alt_pkey_index = wanted.alt_pkey_index;
        ALT_PATH: alt_port_num = wanted.alt_port_num;
        ALT_PATH: alt_timeout = wanted.alt_timeout;
        PATH_MTU: path_mtu = wanted.path_mtu;
        TIMEOUT: timeout = wanted.timeout;
        RETRY_CNT: retry_cnt = wanted.retry_cnt;
        RNR_RETRY: rnr_retry = wanted.rnr_retry;
        RQ_PSN: rq_psn = wanted.rq_psn & PSN_AND_QPN;
        SQ_PSN: sq_psn = wanted.sq_psn & PSN_AND_QPN;
        MAX_QP_RD_ATOMIC: max_rd_atomic = wanted.max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic = wanted.max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer = wanted.min_rnr_timer;
        DEST_QPN: dest_qp_num = wanted.dest_qp_num & PSN_AND_QPN;
    }
}

/// Checks a path of a queue pair: its address vector, and that its static rate is a code.
pub(super) fn check_path(device: &Device, dest: &Dest, of: &str) -> Outcome<()> {
    if rate_mbps(dest.static_rate).is_none() {
        let text = format!("{of} has a static rate of {}, which is no code of `enum ibv_rate`", dest.static_rate);
        return refuse(Errno::EINVAL, text);
    }
    check_vector(device, &vector_of(dest), of)
}

/// Converts the address vector to the layout of address handles.
fn vector_of(dest: &Dest) -> AhAttr {
    AhAttr {
        dgid: dest.dgid,
        flow_label: dest.flow_label,
        sgid_index: dest.sgid_index,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global,
        port_num: dest.port_num,
        ..AhAttr::default()
    }
}
