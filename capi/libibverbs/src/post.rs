//! Posting work requests: from lists of C structs to the engine's queues. Requests before a refused
//! one stay posted.

use crate::address::AhObject;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Qp, RecvWr, SendWr};
use crate::lists::{blame, each_recv, elements};
use crate::qp::QpObject;
use crate::window;
use abi::post::opcode;
use engine::{Bind, SendWr as EngineSend};
use std::ffi::c_int;

/// `post_send` of the context's operations.
///
/// # Safety
/// `qp` is live, `wr` is a list of valid work requests, `bad` valid.
pub(crate) unsafe extern "C" fn send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    entry::quick_code("ibv_post_send", || {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        let datagram = object.inner.is_datagram();
        let queue = object.inner.queue()?;
        let mut batch = queue.send_batch().map_err(|errno| blame(bad, wr, errno.into()))?;
        let mut outcome = Ok(());
        let mut next = wr;
        while !next.is_null() {
            // SAFETY: the caller's list.
            let request = unsafe { &*next };
            let posted = if request.opcode == opcode::BIND_MW {
                // SAFETY: the caller's list.
                unsafe { bind(request, datagram) }.and_then(|(translated, bind)| {
                    batch.push(&EngineSend { bind: Some(&bind), ..translated })?;
                    // SAFETY: with this opcode this member is the valid one.
                    window::rename(unsafe { request.tail.bind_mw }.mw, bind.rkey);
                    Ok(())
                })
            } else {
                let mut copies = Vec::new();
                // SAFETY: the caller's list.
                let translated = unsafe { translate(request, datagram, &mut copies) };
                translated.and_then(|request| Ok(batch.push(&request)?))
            };
            if let Err(refusal) = posted {
                outcome = Err(blame(bad, next, refusal));
                break;
            }
            next = request.next;
        }
        batch.finish();
        outcome
    })
}

/// `post_recv` of the context's operations.
///
/// # Safety
/// `qp` is live, `wr` is a list of valid work requests, `bad` valid.
pub(crate) unsafe extern "C" fn recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    entry::quick_code("ibv_post_recv", || {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        let queue = object.inner.queue()?;
        // SAFETY: the caller's promise.
        unsafe { each_recv(wr, bad, |request| Ok(queue.post_recv(request)?)) }
    })
}

/// # Safety
/// The request is valid: its list of elements, and the union members that its opcode selects.
unsafe fn translate<'a>(
    request: &'a SendWr,
    datagram: bool,
    copies: &'a mut Vec<abi::post::Sge>,
) -> Outcome<EngineSend<'a>> {
    // SAFETY: the caller's promise.
    let sges = unsafe { elements(request.sg_list, request.num_sge, copies) }?;
    let mut translated = EngineSend {
        wr_id: request.wr_id,
        opcode: request.opcode,
        send_flags: request.send_flags,
        imm: request.imm_data,
        xrc_srq: request.remote_srqn,
        sges,
        ..EngineSend::default()
    };
    if datagram {
        // SAFETY: on a UD QP this member is the valid one; all bytes of the union belong to the
        // program.
        let target = unsafe { request.wr.ud };
        // SAFETY: the AH of a UD request is NULL or live.
        let ah = unsafe { AhObject::of(target.ah) }?;
        translated.ud = Some((&*ah.inner, target.remote_qpn, target.remote_qkey));
        return Ok(translated);
    }
    match request.opcode {
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM | opcode::RDMA_READ | opcode::ATOMIC_WRITE => {
            // SAFETY: with these opcodes this member is the valid one.
            let target = unsafe { request.wr.rdma };
            translated.remote_addr = target.remote_addr;
            translated.rkey = target.rkey;
        }
        opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD => {
            // SAFETY: with these opcodes this member is the valid one.
            let target = unsafe { request.wr.atomic };
            translated.remote_addr = target.remote_addr;
            translated.rkey = target.rkey;
            translated.compare_add = target.compare_add;
            translated.swap = target.swap;
        }
        _ => {}
    }
    Ok(translated)
}

/// # Safety
/// The request is a valid BIND_MW.
unsafe fn bind(request: &SendWr, datagram: bool) -> Outcome<(EngineSend<'static>, Bind)> {
    let translated = EngineSend {
        wr_id: request.wr_id,
        opcode: request.opcode,
        send_flags: request.send_flags,
        ..EngineSend::default()
    };
    if datagram {
        return Err(refuse!(EINVAL, "IBV_WR_BIND_MW on a UD QP"));
    }
    // SAFETY: with this opcode this member is the valid one.
    let target = unsafe { request.tail.bind_mw };
    // SAFETY: the caller's promise.
    Ok((translated, unsafe { window::posted(target.mw, target.rkey, &target.bind_info) }?))
}
