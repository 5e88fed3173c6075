//! The share of one user in an agent that serves many users, so that nobody can take everything.
//!
//! A user's share of each kind of object is a quarter of the device's limit. Contexts and
//! descriptors are shared in the same way. Besides the count of each kind, there is a limit on the
//! agent's memory that all objects of a user take. The [`crate::users::User`] keeps the counts that
//! every new object needs, and updates them when objects are created and destroyed. An agent that
//! serves only its own user has no shares, except for lanes into processes of other users.
//!
//! One user can make the agent hold at most:
//!
//! * [`crate::users::USER_BYTES`] for objects
//! * for each connection, of which there are three times the contexts of
//!   [`crate::users::contexts`]: an unread answer (64 KiB), its descriptors and some hundred bytes
//! * for each engine: the bounded backlog of pushes of [`crate::engine_link`]
//! * the ids, events and memberships of the connection manager, which `cm.rs` bounds for each user
//! * three captures, with one capture ring for each of its engines
//! * the reasons of 16 contexts

use abi::Errno;

use crate::context::Context;
use crate::ids::ContextId;
use crate::lanes::LANES_PER_PAIR;
use crate::limits::Limits;
use crate::refusal::{Outcome, refuse};
use crate::table::Kind;
use crate::users::{PARTS, part, weight};
use crate::world::World;

/// The agent's address space for the queues of one user.
const QUEUE_BYTES: u64 = 512 << 30;

/// The agent's address space for memory of clients without an engine. Of 128 TiB, queue memory has
/// as much.
const MAPPED_BYTES: u64 = 32 << 40;
/// Lanes of other users' engines into one process.
const FOREIGN_LANES: usize = 256;
/// The limits of a context: its device's, or its user's share of them if users are kept apart.
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

/// Checks that a context may have one more object of a kind: neither the device's limit nor the
/// user's share is reached.
pub fn room_for(world: &World, owner: ContextId, kind: Kind) -> Outcome<()> {
    let device = world.device_of(owner);
    device.room_for(kind)?;
    let Some(uid) = user(world, owner) else { return Ok(()) };
    let share = part(device.most(kind));
    let (used, bytes) = world.users.all.get(&uid).map_or((0, 0), |user| (user.count(device.index, kind), user.bytes));
    if used >= share {
        return refuse(
            Errno::ENOMEM,
            format!("user {uid} has its share of {kind}s of {}: {share}, one part in {PARTS}", device.name),
        );
    }
    if bytes + weight(kind) > world.users.bytes {
        let most = world.users.bytes;
        return refuse(
            Errno::ENOMEM,
            format!("user {uid} has its share of the agent's memory: {bytes} of {most} bytes"),
        );
    }
    match kind {
        Kind::Cq | Kind::Qp | Kind::Srq => room_for_queues(world, owner),
        _ => Ok(()),
    }
}

/// Checks that the queue memory of a context's user may grow. Each region costs the agent a
/// descriptor, a mapping and address space.
pub fn room_for_queues(world: &World, owner: ContextId) -> Outcome<()> {
    let Some(uid) = user(world, owner) else { return Ok(()) };
    let all = of(world, uid).filter_map(|context| world.contexts.get(&context));
    let (regions, bytes) = all.fold((0_u64, 0_u64), |(regions, bytes), context| {
        (regions + context.memory.regions() as u64, bytes.saturating_add(context.memory.bytes()))
    });
    if regions < world.users.regions && bytes < QUEUE_BYTES {
        return Ok(());
    }
    refuse(Errno::ENOMEM, format!("user {uid} has its share of queue memory: {regions} regions, {bytes} bytes"))
}

/// Checks that a context may have `length` more bytes of device memory.
pub fn room_for_memory(world: &World, owner: ContextId, length: u64) -> Outcome<()> {
    let Some(uid) = user(world, owner) else { return Ok(()) };
    let device = world.device_of(owner);
    let share = device.limits.max_dm_size / u64::from(PARTS);
    let used = world.users.all.get(&uid).and_then(|user| user.memory.get(device.index)).copied().unwrap_or(0);
    if used.saturating_add(length) <= share {
        return Ok(());
    }
    refuse(Errno::ENOMEM, format!("user {uid} has its share of device memory: {used} of {share} bytes are in use"))
}

/// Checks that a user may open one more context.
pub fn room_for_context(world: &World, uid: u32) -> Outcome<()> {
    let share = world.users.contexts;
    if !world.users.apart || world.users.all.get(&uid).map_or(0, |user| user.contexts.len()) < share as usize {
        return Ok(());
    }
    refuse(Errno::EMFILE, format!("user {uid} has its share of open devices: {share}"))
}

/// Checks that the agent may keep one more descriptor for a context. Even a single user gets only a
/// part of them, because the agent needs descriptors for contexts and lanes too.
pub fn room_for_descriptor(world: &World, owner: ContextId) -> Outcome<()> {
    let share = world.users.descriptors;
    let apart = user(world, owner);
    let used: u64 = match apart {
        Some(uid) => of(world, uid).filter_map(|id| world.contexts.get(&id)).map(Context::descriptors).sum(),
        None => world.contexts.values().map(Context::descriptors).sum(),
    };
    if used < share {
        return Ok(());
    }
    let whose =
        apart.map_or_else(|| "this agent's programs have their".to_owned(), |uid| format!("user {uid} has its"));
    refuse(
        Errno::EMFILE,
        format!("{whose} share of {share} descriptors (channels, regions with memfd, connections of iWARP)"),
    )
}

/// Checks that `length` more bytes of a client's memory may be mapped.
pub fn room_for_mapping(world: &World, owner: ContextId, length: u64) -> Outcome<()> {
    let uid = world.contexts.get(&owner).map_or(u32::MAX, |context| context.peer.uid);
    let most = if world.users.apart { MAPPED_BYTES / u64::from(PARTS) } else { MAPPED_BYTES };
    let regions = world.users.mapped.regions(uid);
    let has_regions = !world.users.apart || regions < world.users.regions;
    if has_regions && world.users.mapped.total(length) <= MAPPED_BYTES && world.users.mapped.of(uid, length) <= most {
        return Ok(());
    }
    let used = world.users.mapped.of(uid, 0);
    let text = format!(
        "{length} bytes of memory are too much to map: user {uid} has {used} of {most} bytes, in {regions} regions"
    );
    refuse(Errno::ENOMEM, text)
}

/// Checks whether an engine may open one more lane to another engine. Each lane costs the agent one
/// descriptor, and the process at the other end one descriptor. So other users could exhaust the
/// descriptors of that process. Therefore all engines of one user together may have as many lanes
/// into another user's process as a pair of engines may have. If few lanes are left, they may have
/// no more than the number that is left.
pub fn room_for_lane(world: &World, from: ContextId, to: ContextId) -> Outcome<()> {
    let peer = |id: ContextId| world.contexts.get(&id).map(|context| &context.peer);
    let (Some(ours), Some(theirs)) = (peer(from), peer(to)) else { return Ok(()) };
    let (opened, users) = (world.lanes.opened_by(ours.uid), &world.users);
    if users.apart && opened.all >= users.lanes {
        return refuse(Errno::EMFILE, format!("user {} has its share of lanes: {}", ours.uid, users.lanes));
    }
    if users.apart && opened.proxy >= users.proxy_lanes && has_proxy(world, from, to) {
        let text = format!(
            "user {} has its share of lanes to engines that the agent runs: {}; programs with an engine of their own \
             have more",
            ours.uid, users.proxy_lanes
        );
        return refuse(Errno::EMFILE, text);
    }
    if ours.uid == theirs.uid {
        return Ok(());
    }
    let is_theirs = |other: &Context| match theirs.pid {
        0 => other.id == to,
        pid => (other.peer.pid, other.peer.uid) == (pid, theirs.uid),
    };
    let engines = world.contexts.values().filter(|context| context.engine.is_some() && is_theirs(context));
    let neighbours = engines.flat_map(|engine| world.lanes.neighbours(engine.id)).filter_map(peer);
    let foreign: Vec<u32> = neighbours.map(|peer| peer.uid).filter(|uid| *uid != theirs.uid).collect();
    let of_ours = foreign.iter().filter(|uid| **uid == ours.uid).count();
    if of_ours < LANES_PER_PAIR as usize && of_ours < FOREIGN_LANES.saturating_sub(foreign.len()) {
        return Ok(());
    }
    let text = format!(
        "the process of engine {} has {of_ours} lanes to our user's engines already; {LANES_PER_PAIR} are possible, and \
         {FOREIGN_LANES} to those of all other users together",
        to.0
    );
    refuse(Errno::EMFILE, text)
}

/// Whether the agent runs one of two engines as a proxy engine.
pub fn has_proxy(world: &World, from: ContextId, to: ContextId) -> bool {
    [from, to].iter().any(|id| world.contexts.get(id).is_some_and(|context| context.has_proxy))
}

/// Checks that the agent may run a proxy engine for the program of a context.
pub fn room_for_proxy(world: &World, owner: ContextId) -> Outcome<()> {
    let Some(uid) = user(world, owner) else { return Ok(()) };
    let most = world.users.proxies;
    if world.users.running(uid) < most as usize {
        return Ok(());
    }
    let text = format!(
        "the agent runs {most} engines for programs of user {uid} that have none, which is that user's share: close \
         some of these devices, or run an engine in the program"
    );
    refuse(Errno::ENOMEM, text)
}

/// Checks that a user may have one more of the things that `has` counts, of which `most` are
/// allowed.
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
    world.users.all.get(&uid).into_iter().flat_map(|user| user.contexts.iter().copied())
}

/// The user of a context, if the agent keeps shares.
fn user(world: &World, context: ContextId) -> Option<u32> {
    world.contexts.get(&context).filter(|_| world.users.apart).map(|context| context.peer.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::ids::Peer;
    use crate::users::{USER_BYTES, contexts, lanes, proxy_lanes, regions};

    fn world(system: bool) -> World {
        World::new(&Config { system, ..Config::default() }, "a test").expect("a world")
    }

    fn open(world: &mut World, uid: u32) -> Outcome<ContextId> {
        world.open(0, 0, Peer { pid: 0, uid, comm: String::new() })
    }

    #[test]
    fn a_user_has_a_share_of_contexts_and_another_user_its_own() {
        let mut world = world(true);
        world.users.contexts = 3;
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
        world.users.contexts = 1;
        let all: Vec<_> = (0..10).map(|_| open(&mut world, 1).expect("open")).collect();
        assert!(room_among(&world, all[0], "groups", 1, |_| 100).is_ok());
    }

    #[test]
    fn the_bytes_of_a_users_objects_have_an_end() {
        let mut world = world(true);
        world.users.bytes = 10 * weight(Kind::Mw);
        let (first, second, other) = (
            open(&mut world, 1).expect("one"),
            open(&mut world, 1).expect("two"),
            open(&mut world, 2).expect("another"),
        );
        for context in [first, second] {
            for _ in 0..5 {
                room_for(&world, context, Kind::Mw).expect("room");
                world.device_of_mut(context).count_up(Kind::Mw);
            }
        }
        let refusal = room_for(&world, first, Kind::Pd).expect_err("full");
        assert!(refusal.errno == Errno::ENOMEM && refusal.reason.contains("memory"), "{refusal}");
        room_for(&world, other, Kind::Mw).expect("another user's is its own");
        world.device_of_mut(second).count_down(Kind::Mw);
        room_for(&world, first, Kind::Mw).expect("there is room again");
    }

    #[test]
    fn all_that_a_device_has_by_default_fits_into_a_users_bytes() {
        let world = world(true);
        let device = &world.devices[0];
        let kinds = [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Qp, Kind::Srq, Kind::Ah, Kind::Mw];
        let all: u64 = kinds.iter().map(|kind| u64::from(part(device.most(*kind))) * weight(*kind)).sum();
        assert!(all <= USER_BYTES, "{all}");
    }

    #[test]
    fn shares_follow_what_there_is() {
        assert_eq!(
            [Some(64), Some(1024), Some(1 << 20), None].map(|descriptors| contexts(descriptors, u64::MAX)),
            [4, 8, 4096, 4096]
        );
        assert_eq!([65_530, 100, 1 << 20].map(|mappings| contexts(None, mappings)), [1170, 4, 4096]);
        assert_eq!((lanes(Some(1024), 65_530), lanes(None, 65_530), proxy_lanes(65_530)), (128, 16_382, 511));
        assert_eq!((part(1), part(65_536)), (1, 16_384));
        assert_eq!((regions(65_530), regions(0)), (4095, 64));
    }
}
