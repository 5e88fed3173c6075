//! The extended forms: EX_QUERY_DEVICE, EX_CREATE_CQ, EX_CREATE_QP, EX_MODIFY_QP, EX_MODIFY_CQ.
//!
//! Each has the parameters of its legacy form, and a few more. A parameter that softhca does not
//! support is refused with EOPNOTSUPP, never ignored.

use abi::Errno;
use abi::cq::{ExCreateCq, ExCreateCqAnswer, ExModifyCq};
use abi::device::{ExQueryDevice, ExQueryDeviceAnswer, odp, odp_service};
use abi::qp::{ExCreateQp, ExCreateQpAnswer, ExModifyQp, ExModifyQpAnswer, create_flags};

use super::{Answer, Call, cq, find, qp, qp_modify};
use crate::device::Device;
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// The clock of completion timestamps in kHz: they are nanoseconds, and all bits count.
const CLOCK_KHZ: u64 = 1_000_000;
/// `ExModifyCq::attr_mask`: moderation.
pub const MODERATION: u32 = 1;

/// Every access goes through page tables that the program may change at any time, so all operations
/// support on-demand paging.
const ODP_DATAGRAM: u32 = odp_service::SEND | odp_service::RECV | odp_service::SRQ_RECV;
const ODP_RELIABLE: u32 = ODP_DATAGRAM
    | odp_service::WRITE
    | odp_service::READ
    | odp_service::ATOMIC
    | odp_service::FLUSH
    | odp_service::ATOMIC_WRITE;

/// EX_QUERY_DEVICE.
pub fn query_device(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ExQueryDevice = call.body()?;
    if body.comp_mask != 0 || body.reserved != 0 {
        return refuse(Errno::EINVAL, format!("EX_QUERY_DEVICE: comp_mask {:#x} is not known", body.comp_mask));
    }
    let limits = shares::limits(world, call.context);
    let device = world.device_of(call.context);
    let [odp_rc, odp_uc, odp_ud, odp_xrc] = on_demand_paging(device);
    Ok(call.answer(&ExQueryDeviceAnswer {
        base: device.attributes_within(&limits),
        response_length: call.command.response_length::<ExQueryDeviceAnswer>(),
        timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: device.capabilities(),
        max_cq_moderation_count: u16::MAX,
        max_cq_moderation_period: u16::MAX,
        max_dm_size: limits.max_dm_size,
        odp_general_caps: odp::SUPPORT | odp::IMPLICIT,
        odp_rc,
        odp_uc,
        odp_ud,
        odp_xrc,
        ..ExQueryDeviceAnswer::default()
    }))
}

/// The operations of RC, UC, UD and XRC that support on-demand paging.
fn on_demand_paging(device: &Device) -> [u32; 4] {
    if device.is_iwarp() {
        // Reliable connections only, without the operations of newer InfiniBand.
        [ODP_RELIABLE & !(odp_service::FLUSH | odp_service::ATOMIC_WRITE), 0, 0, 0]
    } else {
        [ODP_RELIABLE, ODP_DATAGRAM | odp_service::WRITE, ODP_DATAGRAM, ODP_RELIABLE]
    }
}

/// EX_CREATE_CQ.
pub fn create_cq(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ExCreateCq = call.body()?;
    if body.comp_mask != 0 || body.flags != 0 || body.reserved != 0 {
        return refuse(
            Errno::EOPNOTSUPP,
            format!("EX_CREATE_CQ: comp_mask {:#x} or flags {:#x} are not supported", body.comp_mask, body.flags),
        );
    }
    let wanted = cq::CqInitAttr {
        user_handle: body.user_handle,
        cqe: body.cqe,
        vector: body.comp_vector,
        channel: body.comp_channel,
    };
    let (handle, out, fd) = cq::make(world, call.context, &wanted)?;
    let answer = ExCreateCqAnswer {
        cq_handle: handle,
        cqe: out.cqe_count,
        comp_mask: 0,
        response_length: call.command.response_length::<ExCreateCqAnswer>(),
    };
    Ok(call.answer_with(&answer, &out, fd))
}

/// EX_CREATE_QP.
pub fn create_qp(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ExCreateQp = call.body()?;
    let unknown = body.create_flags & !create_flags::BLOCK_MULTICAST_LOOPBACK;
    if body.comp_mask != 0 || unknown != 0 {
        return refuse(
            Errno::EOPNOTSUPP,
            format!("EX_CREATE_QP: comp_mask {:#x} or create flags {unknown:#x} are not supported", body.comp_mask),
        );
    }
    let wanted = qp::QpInitAttr {
        user_handle: body.user_handle,
        pd: body.pd_handle,
        send_cq: body.send_cq_handle,
        recv_cq: body.recv_cq_handle,
        srq: (body.is_srq != 0).then_some(body.srq_handle),
        max_send_wr: body.max_send_wr,
        max_recv_wr: body.max_recv_wr,
        max_send_sge: body.max_send_sge,
        max_recv_sge: body.max_recv_sge,
        max_inline_data: body.max_inline_data,
        sq_sig_all: body.sq_sig_all,
        qp_type: body.qp_type,
    };
    let (base, out, fd) = qp::make(world, call.context, &wanted)?;
    let answer =
        ExCreateQpAnswer { base, comp_mask: 0, response_length: call.command.response_length::<ExCreateQpAnswer>() };
    Ok(call.answer_with(&answer, &out, fd))
}

/// EX_MODIFY_QP.
pub fn modify_qp(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ExModifyQp = call.body()?;
    qp_modify::apply(world, call.context, &body.base, Some(body.rate_limit))?;
    let response_length = call.command.response_length::<ExModifyQpAnswer>();
    Ok(call.answer(&ExModifyQpAnswer { comp_mask: 0, response_length }))
}

/// EX_MODIFY_CQ: the engine implements moderation, and every value is valid.
pub fn modify_cq(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ExModifyCq = call.body()?;
    let cq = find(&world.tables.cqs, call.context, body.cq_handle, Kind::Cq)?;
    if body.attr_mask != MODERATION {
        let (number, mask) = (cq.number, body.attr_mask);
        return refuse(Errno::EOPNOTSUPP, format!("CQ {number}: of a CQ only the moderation changes, not {mask:#x}"));
    }
    Ok(Answer::default())
}
