//! Sharing between contexts: IMPORT_CONTEXT, IMPORT_PD, IMPORT_MR, IMPORT_DM.
//!
//! A process with the descriptor of another context's page may use that context's PDs, MRs and
//! device memory. An imported object is an object of the importing context that refers to the other
//! context's object. It is destroyed like any other object. An MR can be imported where its memory
//! is reachable: in the process that registered it and, if it is on device memory, everywhere. An
//! MR on other memory is refused. Otherwise its first request would fail: no process here accesses
//! another's memory, and it would not learn in time that the region or its process is gone.

use std::os::fd::AsFd;
use std::sync::Arc;

use abi::Errno;
use abi::dm::{Import, ImportContext, ImportContextAnswer, ImportMr, ImportMrAnswer, ImportPdAnswer};
use abi::queue::mr_flags;

use super::pd::{self, no_handle};
use super::{Answer, Call, dm, find};
use crate::context::Context;
use crate::ids::ContextId;
use crate::objects::{MemoryKind, Mr, Pd};
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// IMPORT_CONTEXT.
pub fn context(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    let fds = std::mem::take(&mut call.fds);
    let ImportContext { flags, reserved } = call.body()?;
    let [fd] = fds.as_slice() else {
        return refuse(Errno::EINVAL, format!("IMPORT_CONTEXT came with {} descriptors instead of one", fds.len()));
    };
    if flags != 0 || reserved != 0 {
        return refuse(Errno::EINVAL, "IMPORT_CONTEXT has no flags");
    }
    let wanted = fd.inode()?;
    let this = world.context(call.context)?;
    let device = this.device;
    if this.imported.is_some() {
        return refuse(Errno::EEXIST, "the context has imported another one already");
    }
    let others = world.contexts.values().filter(|other| other.device == device && other.id != call.context);
    let is_it = |other: &Context| other.events.as_ref().is_some_and(|events| events.inode() == wanted);
    let other = others.into_iter().find(|other| is_it(other)).map(|other| other.id);
    let Some(other) = other else {
        return refuse(Errno::EINVAL, "the descriptor is that of no open context of this device");
    };
    world.context(call.context)?.imported = Some(other);
    Ok(call.answer(&ImportContextAnswer { context: other.0, reserved: 0 }))
}

/// The context whose objects this context may use.
fn source(world: &mut World, call: &Call<'_>) -> Outcome<ContextId> {
    match world.context(call.context)?.imported {
        Some(other) => Ok(other),
        None => refuse(Errno::EINVAL, "the context has imported no other one"),
    }
}

/// IMPORT_PD.
pub fn domain(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let Import { handle, .. } = call.body()?;
    let other = source(world, call)?;
    let number = find(&world.tables.pds, other, handle, Kind::Pd)?.number;
    shares::room_for(world, call.context, Kind::Pd)?;
    let twin = Pd { number, users: 0, twin: Some((other, handle)) };
    let pd_handle = world.tables.pds.insert(call.context, twin).ok_or_else(|| no_handle(Kind::Pd))?;
    world.device_of_mut(call.context).count_up(Kind::Pd);
    pd::hold(world, other, handle)?;
    Ok(call.answer(&ImportPdAnswer { pd_handle, reserved: 0 }))
}

/// IMPORT_MR.
pub fn region(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let ImportMr { pd_handle, handle } = call.body()?;
    let owner = call.context;
    let twin = find(&world.tables.pds, owner, pd_handle, Kind::Pd)?.twin;
    let other = source(world, call)?;
    let near = world.context(owner)?.peer.pid == world.contexts.get(&other).map_or(0, |context| context.peer.pid);
    let mr = find(&world.tables.mrs, other, handle, Kind::Mr)?;
    if twin != Some((other, mr.pd)) {
        return refuse(Errno::EINVAL, format!("MR {:#x} is not on the PD that this one was imported from", mr.key));
    }
    let (flags, piece) = match &mr.memory_kind {
        MemoryKind::Program if near => (0, None),
        MemoryKind::Program => {
            let why = format!("MR {:#x} is the memory of another process, which this one cannot reach", mr.key);
            return refuse(Errno::EOPNOTSUPP, why);
        }
        MemoryKind::Null => (mr_flags::NOTHING, None),
        MemoryKind::Device(piece, _) => (mr_flags::DEVICE, Some(Arc::clone(piece))),
    };
    let answer = ImportMrAnswer {
        mr_handle: 0,
        key: mr.key,
        start: mr.start,
        length: mr.length,
        hca_va: mr.hca_va,
        access_flags: mr.access,
        flags,
        dm_length: piece.as_ref().map_or(0, |piece| piece.length),
    };
    let fd = piece.as_ref().map(|piece| world.system.duplicate(piece.memfd.as_fd())).transpose().map_err(by_system)?;
    let memory_kind = match (flags, piece) {
        (_, Some(piece)) => MemoryKind::Device(piece, None),
        (mr_flags::NOTHING, _) => MemoryKind::Null,
        _ => MemoryKind::Program,
    };
    let shadow = Mr {
        pd: pd_handle,
        start: mr.start,
        length: mr.length,
        hca_va: mr.hca_va,
        access: mr.access,
        key: mr.key,
        memory: None,
        memory_kind,
        twins: 0,
        twin: Some((other, handle)),
    };
    let is_held = shadow.holds_pd();
    shares::room_for(world, owner, Kind::Mr)?;
    let mr_handle = world.tables.mrs.insert(owner, shadow).ok_or_else(|| no_handle(Kind::Mr))?;
    world.device_of_mut(owner).count_up(Kind::Mr);
    if is_held {
        pd::hold(world, owner, pd_handle)?;
    }
    if let Some(mr) = world.tables.mrs.find_mut(other, handle) {
        mr.twins += 1;
    }
    Ok(Answer { fds: fd.into_iter().collect(), ..call.answer(&ImportMrAnswer { mr_handle, ..answer }) })
}

/// IMPORT_DM.
pub fn memory(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let Import { handle, .. } = call.body()?;
    let other = source(world, call)?;
    let piece = Arc::clone(&find(&world.tables.dms, other, handle, Kind::Dm)?.piece);
    dm::hold(world, call, piece)
}
