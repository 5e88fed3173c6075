//! Device memory: ALLOC_DM, FREE_DM, and MRs on it. The principal type is [`Dm`].
//!
//! A piece of device memory is a memfd that the agent creates. All processes that may use it map
//! it. `max_dm_size` limits the device memory of all programs together.

use std::os::fd::AsFd;
use std::sync::Arc;

use abi::Errno;
use abi::dm::{AllocDm, DmOut, FreeDm};

use super::pd::no_handle;
use super::{Answer, Call, find, find_mut, unused};
use crate::ids::ContextId;
use crate::objects::{Dm, Piece};
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// The largest alignment that can be requested is a page.
const LOG_PAGE: u32 = 12;

/// ALLOC_DM.
pub fn alloc(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let AllocDm { length, log_align_req, reserved } = call.body()?;
    if length == 0 || reserved != 0 || log_align_req > LOG_PAGE {
        return refuse(
            Errno::EINVAL,
            format!("{length} bytes of device memory, aligned to 2^{log_align_req}, cannot be allocated"),
        );
    }
    let owner = call.context;
    let device = world.device_of(owner);
    let left = device.limits.max_dm_size.saturating_sub(device.dm_used);
    if length > left {
        let all = device.limits.max_dm_size;
        return refuse(Errno::ENOMEM, format!("{length} bytes of device memory: {left} of {all} are left"));
    }
    shares::room_for_memory(world, owner, length)?;
    shares::room_for(world, owner, Kind::Dm)?;
    let (_, memfd) = world.system.memory("softhca-dm", length.next_multiple_of(4096) as usize).map_err(by_system)?;
    let piece = Arc::new(Piece { memfd, length });
    let taken = piece.taken();
    let answer = hold(world, call, piece)?;
    world.device_of_mut(owner).take_memory(taken);
    Ok(answer)
}

/// Gives a context a handle on a piece.
pub fn hold(world: &mut World, call: &Call<'_>, piece: Arc<Piece>) -> Outcome<Answer> {
    let owner = call.context;
    shares::room_for(world, owner, Kind::Dm)?;
    shares::room_for_descriptor(world, owner)?;
    let fd = world.system.duplicate(piece.memfd.as_fd()).map_err(by_system)?;
    world.context(owner)?.take_descriptor();
    let length = piece.length;
    let Some(dm_handle) = world.tables.dms.insert(owner, Dm { piece, users: 0 }) else {
        world.context(owner)?.give_descriptor();
        return Err(no_handle(Kind::Dm));
    };
    world.device_of_mut(owner).count_up(Kind::Dm);
    let core = DmOut { dm_handle, reserved: 0, length };
    Ok(Answer { fds: vec![fd], ..call.answer(&core) })
}

/// FREE_DM.
pub fn free(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let FreeDm { dm_handle, .. } = call.body()?;
    let dm = find(&world.tables.dms, call.context, dm_handle, Kind::Dm)?;
    unused(dm.users, "the device memory", "MRs")?;
    remove(world, call.context, dm_handle);
    Ok(Answer::default())
}

/// Frees some device memory of a context that ends, after its MRs.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.dms.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

/// Checks the range of an MR in device memory. Returns the memory.
pub fn range(world: &World, owner: ContextId, handle: u32, start: u64, length: u64) -> Outcome<Arc<Piece>> {
    let piece = &find(&world.tables.dms, owner, handle, Kind::Dm)?.piece;
    if start.checked_add(length).is_none_or(|end| end > piece.length) {
        let all = piece.length;
        return refuse(Errno::EINVAL, format!("{length} bytes from {start} on leave the device memory of {all} bytes"));
    }
    Ok(Arc::clone(piece))
}

/// Counts one more MR on device memory that was found before.
pub fn count(world: &mut World, owner: ContextId, handle: u32) -> Outcome<()> {
    find_mut(&mut world.tables.dms, owner, handle, Kind::Dm)?.users += 1;
    Ok(())
}

/// Counts one MR less.
pub fn discount(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(dm) = world.tables.dms.find_mut(owner, handle) {
        dm.users -= 1;
    }
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(dm) = world.tables.dms.remove(owner, handle) {
        if let Ok(context) = world.context(owner) {
            context.give_descriptor();
        }
        world.device_of_mut(owner).count_down(Kind::Dm);
        let_go(world, owner, dm.piece);
    }
}

/// Releases a piece; with the last reference the piece is freed.
pub fn let_go(world: &mut World, owner: ContextId, piece: Arc<Piece>) {
    if let Some(piece) = Arc::into_inner(piece) {
        world.device_of_mut(owner).give_memory(piece.taken());
    }
}
