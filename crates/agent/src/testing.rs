//! What unit tests of several modules need: a program with a queue pair.

use abi::Record;
use abi::command::{legacy, number};
use abi::cq::CreateCq;
use abi::device::GetContext;
use abi::pd::AllocPd;
use abi::qp::{CreateQp, kind};

use crate::context::Peer;
use crate::dispatch::dispatch;
use crate::ids::ContextId;
use crate::world::World;

/// Carries out a command that must succeed. Returns the first number of its answer.
pub(crate) fn call<T: Record>(world: &mut World, id: ContextId, number: u8, body: &T, room: usize) -> u32 {
    let reply = dispatch(world, id, &legacy(number, body, &[], room), Vec::new());
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    reply.bytes.first_chunk().map_or(0, |first| u32::from_le_bytes(*first))
}

/// A program of a user on the first device, with an RC queue pair: its context and handle.
pub(crate) fn program_with_qp(world: &mut World, uid: u32) -> (ContextId, u32) {
    let id = world.open(0, 0, Peer { pid: 1, uid, comm: "test".into() }).expect("open");
    call(world, id, number::GET_CONTEXT, &GetContext { response: 1 }, 48);
    let pd_handle = call(world, id, number::ALLOC_PD, &AllocPd { response: 1 }, 12);
    let cq = CreateCq { cqe: 10, comp_channel: -1, ..CreateCq::default() };
    let cq = call(world, id, number::CREATE_CQ, &cq, 64);
    let qp = CreateQp { pd_handle, send_cq_handle: cq, recv_cq_handle: cq, qp_type: kind::RC, ..CreateQp::default() };
    (id, call(world, id, number::CREATE_QP, &qp, 104))
}
