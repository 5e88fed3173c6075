//! Memory regions: REG_MR, REREG_MR, DEREG_MR. The principal type is [`Mr`].
//!
//! The agent checks access flags and ranges, and gives out keys. The engine, in the process that
//! owns the memory, finds out whether the memory is there. Only a client with a proxy engine hands
//! its memory over, as a memfd.

use std::sync::Arc;

use abi::layout::Record;
use abi::mr::{DeregMr, RegMr, RegMrAnswer, ReregMr, ReregMrAnswer, access, rereg};
use abi::queue::{MrIn, mr_flags};
use abi::{Errno, Refusal};

use super::dm;
use super::pd::{self, no_handle};
use super::{Answer, Call, find, find_mut, unused};
use crate::foreign::PassedFd;
use crate::ids::ContextId;
use crate::mapped::Mapped;
use crate::objects::{MemoryKind, Mr, Shared};
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// The access flags that have an effect here. The upper flags are optional by definition and may be
/// ignored.
const KNOWN: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::MW_BIND
    | access::ZERO_BASED
    | access::ON_DEMAND
    | access::HUGETLB
    | access::FLUSH_GLOBAL;
const OPTIONAL: u32 = 0x3ff0_0000;

/// Determines what a region consists of. Checks that its range and its access rights are valid for
/// that.
fn memory_kind(world: &World, owner: ContextId, body: &RegMr, said: &MrIn) -> Outcome<MemoryKind> {
    if said.flags & mr_flags::DEVICE == 0 {
        check_range(body.start, body.length, body.hca_va, body.access_flags)?;
    }
    let nothing = said.flags & mr_flags::NOTHING != 0;
    if nothing && (body.start, body.hca_va, body.length, body.access_flags) != (0, 0, u64::MAX, access::LOCAL_WRITE) {
        return refuse(Errno::EINVAL, "a region of nothing has every address, and local rights alone");
    }
    let everything =
        (body.start, body.hca_va, body.length) == (0, 0, u64::MAX) && body.access_flags & access::ON_DEMAND != 0;
    let device = world.device_of(owner);
    if !nothing && !everything && body.length > device.limits.max_mr_size {
        let most = device.limits.max_mr_size;
        return refuse(Errno::EINVAL, format!("an MR of {} bytes is longer than max_mr_size, {most}", body.length));
    }
    match () {
        () if nothing => Ok(MemoryKind::Null),
        () if said.flags & mr_flags::DEVICE != 0 => {
            if (body.access_flags & access::ZERO_BASED, body.hca_va) != (access::ZERO_BASED, 0) {
                return refuse(Errno::EINVAL, "an MR of device memory is zero-based");
            }
            let piece = dm::range(world, owner, said.dm_handle, body.start, body.length)?;
            Ok(MemoryKind::Device(piece, Some(said.dm_handle)))
        }
        () => Ok(MemoryKind::Program),
    }
}

/// REG_MR.
pub fn register(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    let fds = std::mem::take(&mut call.fds);
    let (body, tail) = call.body_and_tail::<RegMr>()?;
    let pd = find(&world.tables.pds, call.context, body.pd_handle, Kind::Pd)?;
    check_access(body.access_flags).map_err(|text| about(&format!("an MR on PD {}", pd.number), &text))?;
    let said = MrIn::read_zero_extended(tail);
    let memory_kind = memory_kind(world, call.context, &body, &said)?;
    let memory = handed_over(&said, fds, body.length)?;
    shares::room_for(world, call.context, Kind::Mr)?;
    if memory.is_some() {
        shares::room_for_descriptor(world, call.context)?;
        shares::room_for_mapping(world, call.context, body.length)?;
    }
    let key =
        world.numbers.keys.take(call.context).ok_or_else(|| Refusal::new(Errno::ENOMEM, "every lkey is in use"))?;
    if memory.is_some() {
        world.context(call.context)?.take_descriptor();
    }
    let mr = Mr {
        pd: body.pd_handle,
        start: body.start,
        length: body.length,
        hca_va: body.hca_va,
        access: body.access_flags,
        key,
        memory,
        memory_kind,
        twins: 0,
        twin: None,
    };
    let (handed_over, is_held) = (mr.memory.is_some(), mr.holds_pd());
    let Some(handle) = world.tables.mrs.insert(call.context, mr) else {
        world.numbers.keys.give_back(key);
        if handed_over {
            world.context(call.context)?.give_descriptor();
        }
        return Err(no_handle(Kind::Mr));
    };
    if is_held {
        pd::hold(world, call.context, body.pd_handle)?;
    }
    if said.flags & mr_flags::DEVICE != 0 {
        dm::count(world, call.context, said.dm_handle)?;
    }
    if handed_over {
        mapped(world, call.context, |mapped, uid| mapped.add(uid, body.length));
    }
    world.device_of_mut(call.context).count_up(Kind::Mr);
    Ok(call.answer(&RegMrAnswer { mr_handle: handle, lkey: key, rkey: key }))
}

/// REREG_MR. The old keys become invalid if the translation changes. A failure changes nothing.
pub fn reregister(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ReregMr = call.body()?;
    let owner = call.context;
    let mr = find(&world.tables.mrs, owner, body.mr_handle, Kind::Mr)?;
    let name = format!("MR {:#x}", mr.key);
    if body.flags == 0 || body.flags & !(rereg::TRANSLATION | rereg::PD | rereg::ACCESS) != 0 {
        return refuse(Errno::EINVAL, format!("{name}: flags {:#x} say nothing that can be changed", body.flags));
    }
    if mr.twin.is_some() || !matches!(mr.memory_kind, MemoryKind::Program) {
        return refuse(Errno::EINVAL, format!("{name} is not registered program memory and cannot be changed"));
    }
    unused(mr.twins, &name, "contexts that have imported it")?;
    let (translates, moves, rights) =
        (body.flags & rereg::TRANSLATION != 0, body.flags & rereg::PD != 0, body.flags & rereg::ACCESS != 0);
    let old_pd = mr.pd;
    let old_key = mr.key;
    let new_access = if rights { body.access_flags } else { mr.access };
    check_access(new_access).map_err(|text| about(&name, &text))?;
    if moves {
        find(&world.tables.pds, owner, body.pd_handle, Kind::Pd)?;
    }
    if translates {
        check_range(body.start, body.length, body.hca_va, new_access)?;
    }
    let key = if translates {
        world.numbers.keys.take(owner).ok_or_else(|| Refusal::new(Errno::ENOMEM, "every lkey is in use"))?
    } else {
        old_key
    };
    if moves {
        pd::hold(world, owner, body.pd_handle)?;
        pd::let_go(world, owner, old_pd);
    }
    let mr = find_mut(&mut world.tables.mrs, owner, body.mr_handle, Kind::Mr)?;
    mr.access = new_access;
    mr.key = key;
    if moves {
        mr.pd = body.pd_handle;
    }
    if translates {
        let length = mr.length;
        (mr.start, mr.length, mr.hca_va) = (body.start, body.length, body.hca_va);
        let kept = mr.memory.take();
        world.numbers.keys.give_back(old_key);
        if kept.is_some() {
            give_memory_back(world, owner, length);
        }
    }
    Ok(call.answer(&ReregMrAnswer { lkey: key, rkey: key }))
}

/// DEREG_MR.
pub fn deregister(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DeregMr { mr_handle } = call.body()?;
    let mr = find(&world.tables.mrs, call.context, mr_handle, Kind::Mr)?;
    unused(mr.twins, &format!("MR {:#x}", mr.key), "contexts that have imported it")?;
    remove(world, call.context, mr_handle);
    Ok(Answer::default())
}

/// Deregisters some MRs of a context that ends.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.mrs.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(mr) = world.tables.mrs.remove(owner, handle) {
        match mr.twin {
            // The key belongs to the original, unless the original is gone.
            Some((other, handle)) => match world.tables.mrs.find_mut(other, handle) {
                Some(original) => original.twins -= 1,
                None => world.numbers.keys.give_back_last(mr.key),
            },
            None if mr.twins > 0 => world.numbers.keys.share(mr.key, mr.twins),
            None => world.numbers.keys.give_back(mr.key),
        }
        if mr.holds_pd() {
            pd::let_go(world, owner, mr.pd);
        }
        if mr.memory.is_some() {
            give_memory_back(world, owner, mr.length);
        }
        if let MemoryKind::Device(piece, held_by) = mr.memory_kind {
            if let Some(handle) = held_by {
                dm::discount(world, owner, handle);
            }
            dm::let_go(world, owner, piece);
        }
        world.device_of_mut(owner).count_down(Kind::Mr);
    }
}

/// Releases memory that a client handed over.
fn give_memory_back(world: &mut World, owner: ContextId, length: u64) {
    mapped(world, owner, |mapped, uid| mapped.remove(uid, length));
    if let Ok(context) = world.context(owner) {
        context.give_descriptor();
    }
}

/// Changes the count of mapped memory for the user of a context.
fn mapped(world: &mut World, owner: ContextId, change: impl FnOnce(&mut Mapped, u32)) {
    if let Some(context) = world.contexts.get(&owner) {
        change(&mut world.users.mapped, context.peer.uid);
    }
}

/// Checks that the access flags of an MR are valid together.
fn check_access(flags: u32) -> Result<(), (Errno, String)> {
    check_meaning(flags)?;
    if flags & access::FLUSH_PERSISTENT != 0 {
        return Err((
            Errno::EOPNOTSUPP,
            format!("access flags {flags:#x} ask for FLUSH to persistence, which the device does not promise"),
        ));
    }
    if flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && flags & access::LOCAL_WRITE == 0 {
        return Err((
            Errno::EINVAL,
            format!("access flags {flags:#x} let the peer write but not the owner; add IBV_ACCESS_LOCAL_WRITE"),
        ));
    }
    Ok(())
}

/// Checks that every bit has a meaning, for an MR or for a QP. FLUSH_PERSISTENT has a meaning: a QP
/// may have it, although MRs are refused with it.
pub fn check_meaning(flags: u32) -> Result<(), (Errno, String)> {
    if flags & !(KNOWN | access::FLUSH_PERSISTENT | OPTIONAL) != 0 {
        return Err((Errno::EINVAL, format!("access flags {flags:#x} have bits without a meaning")));
    }
    Ok(())
}

fn about(what: &str, (errno, text): &(Errno, String)) -> Refusal {
    Refusal::new(*errno, format!("{what}: {text}"))
}

fn check_range(start: u64, length: u64, hca_va: u64, flags: u32) -> Outcome<()> {
    if start.checked_add(length).is_none() || hca_va.checked_add(length).is_none() {
        return refuse(Errno::EINVAL, format!("an MR at {start:#x} of {length} bytes goes beyond the last address"));
    }
    if flags & access::ZERO_BASED == 0 && (start ^ hca_va) & 0xfff != 0 {
        return refuse(
            Errno::EINVAL,
            format!("the start {start:#x} and the address in work requests {hca_va:#x} differ modulo 4096"),
        );
    }
    Ok(())
}

/// The memfd, if the private tail announces one.
fn handed_over(said: &MrIn, mut fds: Vec<PassedFd>, length: u64) -> Outcome<Option<Shared>> {
    let wanted = usize::from(said.flags & mr_flags::MEMFD != 0);
    if fds.len() != wanted {
        return refuse(
            Errno::EINVAL,
            format!("REG_MR came with {} descriptors, its tail speaks of {wanted}", fds.len()),
        );
    }
    let Some(memfd) = fds.pop() else { return Ok(None) };
    let offset = said.offset;
    if !offset.is_multiple_of(4096) {
        return refuse(Errno::EINVAL, format!("offset {offset} in the memfd is not a multiple of 4096"));
    }
    let size = memfd.size()?;
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return refuse(Errno::EINVAL, format!("the memfd has {size} bytes, too few for {length} from {offset} on"));
    }
    Ok(Some(Shared { memfd: Arc::new(memfd.into_foreign()), offset }))
}
