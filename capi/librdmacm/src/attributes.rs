//! The attributes with which an id's QP changes its state, and the changes. If an id has no QP of
//! its own, the program makes these changes with `rdma_init_qp_attr(3)`.

use crate::cma::{CmId, DEPTH_MAX};
use crate::devices;
use crate::entry::{self, Outcome, refuse};
use crate::id::{self, IdObject};
use crate::layout::{Qp, QpAttr};
use crate::object::get;
use crate::verbs::{self, done};
use abi::qp::attr;
use bytemuck::Zeroable;
use cm::{QpAttributes, QpState};
use std::ffi::c_int;

/// `rdma_init_qp_attr`: the attributes for the state in `attr`, and the mask of the valid ones.
///
/// # Safety
/// `id` is live, `attr` and `mask` are valid.
pub(crate) unsafe extern "C" fn init_qp_attr(id: *mut CmId, attr: *mut QpAttr, mask: *mut c_int) -> c_int {
    entry::or_minus_one("rdma_init_qp_attr", || {
        entry::not_null(attr)?;
        entry::not_null(mask)?;
        // SAFETY: the caller's promise.
        let object = unsafe { id::live(id) }?;
        let mut asked = asked(object, QpState(get!(attr, qp_state)))?;
        if asked.qp_state == QpState::RTS.0 && object.device()?.is_iwarp && !object.state().has_asked {
            // `rdma_accept` moves the QP, so the program's own call changes nothing. Linux's
            // rdma_cm gives this mask, too.
            asked.qp_attr_mask = attr::PORT;
        }
        // SAFETY: both are not NULL, and the caller's to write.
        unsafe {
            attr.write(translate(&asked));
            mask.write(asked.qp_attr_mask.cast_signed());
        }
        Ok(0)
    })
}

/// Takes a new QP to INIT, or a datagram QP to RTS.
///
/// # Safety
/// `qp` is live, and of the id's device.
pub(crate) unsafe fn begin(object: &IdObject, qp: *mut Qp) -> Outcome<()> {
    let init = known(object, QpState::INIT)?;
    // SAFETY: the caller's promise.
    unsafe { modify(qp, &mut translate(&init), init.qp_attr_mask) }?;
    if !object.is_datagram() {
        return Ok(());
    }
    let mut next = QpAttr { qp_state: QpState::RTR.0, ..QpAttr::zeroed() };
    // SAFETY: the caller's promise.
    unsafe { modify(qp, &mut next, attr::STATE) }?;
    next.qp_state = QpState::RTS.0;
    // SAFETY: the caller's promise.
    unsafe { modify(qp, &mut next, attr::STATE | attr::SQ_PSN) }
}

/// Takes the id's QP, if it has one, from INIT to RTS. The numbers of READs and atomics are the
/// given ones, or the agreed ones for 0xff.
pub(crate) fn connect(object: &IdObject, responder_resources: u8, initiator_depth: u8) -> Outcome<()> {
    let qp = get!(object.c(), qp);
    if qp.is_null() {
        return connect_external(object);
    }
    let (init, receive, send) =
        (known(object, QpState::INIT)?, known(object, QpState::RTR)?, known(object, QpState::RTS)?);
    let mut attributes = translate(&receive);
    if responder_resources != DEPTH_MAX {
        attributes.max_dest_rd_atomic = responder_resources;
    }
    // The QP was made without a peer, and so without access rights.
    attributes.qp_access_flags = init.qp_access_flags;
    attributes.pkey_index = init.pkey_index;
    // SAFETY: the id's own QP.
    unsafe { modify(qp, &mut attributes, receive.qp_attr_mask | attr::ACCESS_FLAGS | attr::PKEY_INDEX) }?;
    attributes = translate(&send);
    if initiator_depth != DEPTH_MAX {
        attributes.max_rd_atomic = initiator_depth;
    }
    // SAFETY: the id's own QP.
    unsafe { modify(qp, &mut attributes, send.qp_attr_mask) }
}

/// On iWARP, takes the QP that the program has made itself to RTS, from any state before.
fn connect_external(object: &IdObject) -> Outcome<()> {
    let named = object.state().external;
    let Some((qp, state)) = external(named) else { return Ok(()) };
    for next in [QpState::INIT, QpState::RTR, QpState::RTS] {
        if state < next.0 {
            let attributes = known(object, next)?;
            // SAFETY: as in `external`.
            unsafe { modify(qp, &mut translate(&attributes), attributes.qp_attr_mask) }?;
        }
    }
    Ok(())
}

/// The QP that `rdma_conn_param.qp_num` has named to `rdma_accept` or `rdma_connect` of an id on an
/// iWARP device, and its state. The QPs of other devices are the program's own affair.
fn external(named: Option<u32>) -> Option<(*mut Qp, u32)> {
    // SAFETY: the program keeps the QP while it accepts a connection with it or ends the connection.
    unsafe { verbs::find_qp(named?) }.filter(|(qp, _)| devices::is_iwarp(get!(get!(*qp, context), device)))
}

/// Refuses a QP that the program has made itself and that has or had a connection.
pub(crate) fn check_external(named: Option<u32>) -> Outcome<()> {
    match external(named) {
        Some((qp, state)) if state > QpState::RTR.0 => {
            let number = get!(qp, qp_num);
            Err(refuse!(
                EINVAL,
                "QP {number:#x} has a connection, or had one: take it to IBV_QPS_RESET for the next one"
            ))
        }
        _ => Ok(()),
    }
}

/// `IBV_QPS_ERR`.
const ERR: u32 = 6;

/// On iWARP, takes the QP that the program has made itself to the error state, because the id ends
/// its connection.
pub(crate) fn fail_external(object: &IdObject) {
    let named = object.state().external.take();
    if let Some((qp, _)) = external(named) {
        // If the QP cannot be modified, it is gone.
        // SAFETY: as in `external`.
        let _ = unsafe { modify(qp, &mut QpAttr { qp_state: ERR, ..QpAttr::zeroed() }, attr::STATE) };
    }
}

/// Takes the id's QP, if it has one, to the error state, so that posted requests end.
pub(crate) fn fail(object: &IdObject) -> Outcome<()> {
    let qp = get!(object.c(), qp);
    if qp.is_null() {
        return Ok(());
    }
    // SAFETY: the id's own QP.
    unsafe { modify(qp, &mut QpAttr { qp_state: ERR, ..QpAttr::zeroed() }, attr::STATE) }
}

/// The attributes for a state: those that came with an event, or else the agent's answer.
fn known(object: &IdObject, state: QpState) -> Outcome<QpAttributes> {
    let index = [QpState::INIT, QpState::RTR, QpState::RTS].iter().position(|known| *known == state);
    let kept = index.and_then(|index| object.state().attributes[index].clone());
    kept.map_or_else(|| asked(object, state), |attributes| Ok(*attributes))
}

fn asked(object: &IdObject, state: QpState) -> Outcome<QpAttributes> {
    Ok(object.channel()?.qp_attributes(object.inner.handle, state)?)
}

fn translate(from: &QpAttributes) -> QpAttr {
    let mut to = QpAttr::zeroed();
    // SAFETY: the record is `struct ib_uverbs_qp_attr`, and `to` is a local variable.
    unsafe { verbs::ibv_copy_qp_attr_from_kern(&raw mut to, std::ptr::from_ref(from).cast()) };
    to
}

/// # Safety
/// `qp` is live.
unsafe fn modify(qp: *mut Qp, attributes: &mut QpAttr, mask: u32) -> Outcome<()> {
    // SAFETY: the caller's promise.
    done(unsafe { verbs::ibv_modify_qp(qp, attributes, mask.cast_signed()) })
}
