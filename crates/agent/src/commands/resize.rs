//! What CQs and SRQs have in common when they are resized: a resize gives a queue a new place in
//! queue memory, and the client moves the entries. The old places are not used for anything else
//! until the queue is destroyed, because the client may still read there. RESIZE_UNDO takes a
//! resize back.

use std::sync::atomic::Ordering;

use abi::Errno;
use abi::private::ResizeUndo;
use abi::queue::CONTROL_LEN;

use super::{Answer, Call, find_mut};
use crate::ids::ContextId;
use crate::objects::Former;
use crate::queue_memory::{Allocation, Block, QueueMemory};
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// How many former places a queue keeps: each resize adds one.
const FORMER_MAX: usize = 1024;

/// Refuses to resize a queue once more if it keeps too many former places.
pub(super) fn check_former(former: &Former, what: &str, number: u32) -> Outcome<()> {
    if former.len() < FORMER_MAX {
        return Ok(());
    }
    refuse(
        Errno::ENOMEM,
        format!("{what} {number} was resized {FORMER_MAX} times, and keeps the memory of each size; make a new one"),
    )
}

/// Allocates a queue's new place of `len` bytes, with the control words of the old one.
pub(super) fn allocate(world: &mut World, owner: ContextId, old: &Block, len: usize) -> Outcome<Allocation> {
    shares::room_for_queues(world, owner)?;
    let memory = &mut world.context(owner)?.memory;
    let new = memory.allocate(len).map_err(by_system)?;
    for at in (0..CONTROL_LEN).step_by(4) {
        new.block.word(at).store(old.read(at), Ordering::Release);
    }
    memory.leave(old);
    Ok(new)
}

/// Gives back all places of a queue that is destroyed.
pub(super) fn give_back(memory: &mut QueueMemory, block: &Block, former: &Former) {
    memory.release(block);
    former.iter().for_each(|(block, _)| memory.reclaim(block));
}

/// RESIZE_UNDO: a CQ or an SRQ is in its last former place again.
pub fn undo(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let ResizeUndo { handle, is_srq } = call.body()?;
    let owner = call.context;
    let (former, block, size) = match is_srq {
        0 => {
            let cq = find_mut(&mut world.tables.cqs, owner, handle, Kind::Cq)?;
            (cq.former.pop(), &mut cq.block, &mut cq.entries)
        }
        1 => {
            let srq = find_mut(&mut world.tables.srqs, owner, handle, Kind::Srq)?;
            (srq.former.pop(), &mut srq.block, &mut srq.max_wr)
        }
        kind => return refuse(Errno::EINVAL, format!("RESIZE_UNDO: {kind} is not a kind of queue")),
    };
    let Some((old, old_size)) = former else {
        return refuse(Errno::EINVAL, format!("the queue with handle {handle} was not resized"));
    };
    *size = old_size;
    let new = std::mem::replace(block, old.clone());
    let memory = &mut world.context(owner)?.memory;
    memory.come_back(&old);
    memory.release(&new);
    Ok(Answer::default())
}
