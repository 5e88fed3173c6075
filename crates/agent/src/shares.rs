//! What one user may have of an agent that serves many, so that nobody can take it all.
//!
//! A user's share of each kind of object is a quarter of what the device has at most; contexts and descriptors are shared
//! in the same way. Everything is counted when it is asked for, from the tables themselves. An agent that serves its own
//! user only knows no shares, but for lanes into the processes of others.

use abi::Errno;

use crate::context::{Context, ContextId};
use crate::lanes::STRIPES;
use crate::limits::Limits;
use crate::refusal::{Outcome, refuse};
use crate::table::Kind;
use crate::world::World;

/// One user has at most one part in so many.
const PARTS: u32 = 4;
/// Descriptors that the agent keeps for a context with an engine and a few lanes.
const CONTEXT_DESCRIPTORS: u64 = 32;
/// Address space of the agent for the queues of one user.
const QUEUE_BYTES: u64 = 8 << 40;
/// The most contexts of one user, however many descriptors there are.
const CONTEXTS_MAX: u32 = 4096;

/// The contexts that one user may have where a process may have `descriptors` of them.
pub fn contexts(descriptors: Option<u64>) -> u32 {
    let possible = descriptors.unwrap_or(u64::MAX) / u64::from(PARTS) / CONTEXT_DESCRIPTORS;
    u32::try_from(possible).unwrap_or(u32::MAX).clamp(4, CONTEXTS_MAX)
}

/// The channels and regions with memfd that one user may have where a process may have `descriptors`. `alone`: the agent serves no
/// other user.
pub fn descriptors(descriptors: Option<u64>, alone: bool) -> u64 {
    descriptors.unwrap_or(u64::MAX) / if alone { 2 } else { u64::from(PARTS) * 2 }
}

/// The limits that hold for a context: its device's, or its user's share of them where users are kept apart.
pub fn limits(world: &World, owner: ContextId) -> Limits {
    let all = world.device_of(owner).limits;
    if user(world, owner).is_none() {
        return all;
    }
    Limits {
        max_qp: part(all.max_qp),
        max_cq: part(all.max_cq),
        max_mr: part(all.max_mr),
        max_mw: part(all.max_mw),
        max_dm_size: all.max_dm_size / u64::from(PARTS),
        max_pd: part(all.max_pd),
        max_ah: part(all.max_ah),
        max_srq: part(all.max_srq),
        max_mcast_grp: part(all.max_mcast_grp),
        max_mcast_qp_attach: part(all.max_mcast_qp_attach),
        ..all
    }
}

/// One part of what there is.
pub fn part(most: u32) -> u32 {
    (most / PARTS).max(1)
}

/// Whether a context may have one more object of a kind: the device has one, and its user's share is not used up.
pub fn room_for(world: &World, owner: ContextId, kind: Kind) -> Outcome<()> {
    let device = world.device_of(owner);
    device.room_for(kind)?;
    let Some(uid) = user(world, owner) else { return Ok(()) };
    let share = part(device.most(kind));
    let used: usize = of(world, uid).map(|context| world.objects_of(context, kind)).sum();
    if used < share as usize {
        return room_for_queues(world, uid, kind);
    }
    refuse(
        Errno::ENOMEM,
        format!("user {uid} has its share of {kind}s of {}: {share}, one part in {PARTS}", device.name),
    )
}

/// Whether the queue memory of a user may grow: each region is a descriptor, a mapping and address space of the agent.
fn room_for_queues(world: &World, uid: u32, kind: Kind) -> Outcome<()> {
    if !matches!(kind, Kind::Cq | Kind::Qp | Kind::Srq) {
        return Ok(());
    }
    let all = world.contexts.values().filter(|context| context.peer.uid == uid);
    let (regions, bytes) = all.fold((0_u64, 0_u64), |(regions, bytes), context| {
        (regions + context.memory.regions() as u64, bytes.saturating_add(context.memory.bytes()))
    });
    if regions < world.user_descriptors && bytes < QUEUE_BYTES {
        return Ok(());
    }
    refuse(Errno::ENOMEM, format!("user {uid} has its share of queue memory: {regions} regions, {bytes} bytes"))
}

/// Whether a context may have so many more bytes of device memory.
pub fn room_for_memory(world: &World, owner: ContextId, length: u64) -> Outcome<()> {
    let Some(uid) = user(world, owner) else { return Ok(()) };
    let share = world.device_of(owner).limits.max_dm_size / u64::from(PARTS);
    let held = of(world, uid).flat_map(|context| world.dms.of(context)).map(|(_, dm)| dm.piece.length);
    let used: u64 = held.sum();
    if used.saturating_add(length) <= share {
        return Ok(());
    }
    refuse(Errno::ENOMEM, format!("user {uid} has its share of device memory: {used} of {share} bytes are in use"))
}

/// Whether a user may open one more context.
pub fn room_for_context(world: &World, uid: u32) -> Outcome<()> {
    let share = world.user_contexts;
    if !world.system || of(world, uid).count() < share as usize {
        return Ok(());
    }
    refuse(Errno::EMFILE, format!("user {uid} has its share of open devices: {share}"))
}

/// Whether a context may have the agent keep one more descriptor for it. Even a user whom the agent serves alone has only a part of
/// them: the agent needs descriptors for contexts and lanes, too.
pub fn room_for_descriptor(world: &World, owner: ContextId) -> Outcome<()> {
    let share = world.user_descriptors;
    let apart = user(world, owner);
    let counts = |context: &&Context| apart.is_none_or(|uid| context.peer.uid == uid);
    let used: u64 = world.contexts.values().filter(counts).map(Context::descriptors).sum();
    if used < share {
        return Ok(());
    }
    let whose =
        apart.map_or_else(|| "this agent's programs have their".to_owned(), |uid| format!("user {uid} has its"));
    refuse(Errno::EMFILE, format!("{whose} share of {share} channels and regions with memfd"))
}

/// Whether the lane that an engine has just opened to another one is one too many. Each costs the other descriptors, so that all engines of one
/// user together have no more of them into another user's engine than a pair of engines may have.
pub fn room_for_lane(world: &World, from: ContextId, to: ContextId) -> Outcome<()> {
    let uid = |id: ContextId| world.contexts.get(&id).map(|context| context.peer.uid);
    let ours = uid(from);
    if ours == uid(to) || world.lanes.neighbours(to).filter(|engine| uid(*engine) == ours).count() <= STRIPES as usize {
        return Ok(());
    }
    refuse(Errno::EMFILE, format!("engine {} of another user has {STRIPES} lanes to our user's engines already", to.0))
}

/// Whether a user may have one more of what is counted by `has`, of which there are `most`.
pub fn room_among(world: &World, owner: ContextId, what: &str, most: u32, has: impl Fn(u32) -> usize) -> Outcome<()> {
    match user(world, owner) {
        Some(uid) if has(uid) >= part(most) as usize => {
            refuse(Errno::ENOMEM, format!("user {uid} has its share of {what}: {}, one part in {PARTS}", part(most)))
        }
        _ => Ok(()),
    }
}

/// The contexts of a user.
pub fn of(world: &World, uid: u32) -> impl Iterator<Item = ContextId> + '_ {
    world.contexts.values().filter(move |context| context.peer.uid == uid).map(|context| context.id)
}

/// The user of a context, if shares are kept.
fn user(world: &World, context: ContextId) -> Option<u32> {
    world.contexts.get(&context).filter(|_| world.system).map(|context| context.peer.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::Peer;

    fn world(system: bool) -> World {
        World::new(&Config { system, ..Config::default() }, "a test").expect("a world")
    }

    fn open(world: &mut World, uid: u32) -> Outcome<ContextId> {
        world.open(0, 0, Peer { pid: 0, uid, comm: String::new() })
    }

    #[test]
    fn a_user_has_a_share_of_contexts_and_another_user_its_own() {
        let mut world = world(true);
        world.user_contexts = 3;
        let first = open(&mut world, 1).expect("one");
        for _ in 0..2 {
            open(&mut world, 1).expect("two, three");
        }
        assert_eq!(open(&mut world, 1).expect_err("four").errno, Errno::EMFILE);
        open(&mut world, 2).expect("another user");
        world.close(first);
        open(&mut world, 1).expect("there is room again");
    }

    #[test]
    fn an_agent_for_one_user_knows_no_shares() {
        let mut world = world(false);
        world.user_contexts = 1;
        let all: Vec<_> = (0..10).map(|_| open(&mut world, 1).expect("open")).collect();
        assert!(room_among(&world, all[0], "groups", 1, |_| 100).is_ok());
    }

    #[test]
    fn shares_follow_what_there_is() {
        assert_eq!(
            (contexts(Some(64)), contexts(Some(1024)), contexts(Some(1 << 20)), contexts(None)),
            (4, 8, 4096, 4096)
        );
        assert_eq!((part(1), part(65_536)), (1, 16_384));
    }
}
