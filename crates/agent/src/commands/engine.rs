//! softhca's own commands for engines: ENGINE_HELLO and LANE_OPEN.
//!
//! [`crate::lanes`] makes the lanes and the pushes. This file checks which client may ask for what.
//! Principal function: [`open_lane`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::Errno;
use abi::board::BOARD_LEN;
use abi::private::{EngineHello, EngineHelloAnswer, LaneOpen, LaneOut, Push, hello as flag, lane_flags, push};
use shm::wake_word::WAKE_WORD_LEN;

use super::{Answer, Call};
use crate::engine_link::EngineLink;
use crate::foreign::{Foreign, PassedFd};
use crate::ids::ContextId;
use crate::lanes::{LANES_PER_PAIR, LaneEnd, WAKES_PEER};
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::world::World;

/// ENGINE_HELLO: the client has an engine of its own.
pub fn hello(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    let fds = std::mem::take(&mut call.fds);
    let body: EngineHello = call.body()?;
    if body.flags & !(flag::FAULTS | flag::TOML) != 0 {
        return refuse(Errno::EINVAL, format!("ENGINE_HELLO: flags {:#x} are not known", body.flags));
    }
    let device = world.device_of(call.context).index as u32;
    let pending = world.pending.of(call.context);
    let system = Arc::clone(&world.system);
    let board = system.duplicate(world.board.descriptor()).map_err(by_system)?;
    let context = world.context(call.context)?;
    if context.engine.is_some() {
        return refuse(Errno::EEXIST, format!("context {} has an engine already", call.context.0));
    }
    let (wake_word, kick) = two(fds)?;
    let (mut link, theirs) = EngineLink::new(&*system, wake_word, kick).map_err(by_system)?;
    link.note_at(pending);
    context.engine = Some(link);
    {
        let World { contexts, devices, captures, .. } = &mut *world;
        if let Some(context) = contexts.get_mut(&call.context) {
            captures.greet(context, &devices[context.device].name);
        }
    }
    if body.flags & flag::FAULTS != 0
        && let Err(why) = world.bring_faults(call.context, body.flags & flag::TOML != 0)
    {
        world.context(call.context)?.engine = None;
        return refuse(Errno::EINVAL, format!("{}: {why}", abi::fault::VARIABLE));
    }
    world.show_faults_to(&[call.context]);
    let answer = EngineHelloAnswer {
        engine: call.context.0,
        device,
        board_len: BOARD_LEN as u64,
        comp_mask: 0,
        response_length: call.command.response_length::<EngineHelloAnswer>(),
    };
    let mut answer = call.answer(&answer);
    answer.fds.extend([board, theirs]);
    Ok(answer)
}

/// LANE_OPEN: returns a lane to another engine, a new or an existing one. A push sends the other
/// end of a new lane to that engine.
pub fn open_lane(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let LaneOpen { engine, lane_index } = call.body()?;
    let (me, peer) = (call.context, ContextId(engine));
    if lane_index >= LANES_PER_PAIR {
        return refuse(
            Errno::EINVAL,
            format!("lane index {lane_index} is out of range: two engines have at most {LANES_PER_PAIR} lanes"),
        );
    }
    if world.context(me)?.engine.is_none() {
        return refuse(Errno::EINVAL, format!("context {} has said no ENGINE_HELLO, so it has no lanes", me.0));
    }
    if world.contexts.get(&peer).is_none_or(|context| context.engine.is_none() || context.ends) {
        return refuse(Errno::ESRCH, format!("there is no engine {engine}: its process has ended or did not exist"));
    }
    let opener = world.context(me)?.peer.uid;
    let proxy = shares::has_proxy(world, me, peer);
    if world.lanes.find((me, peer), lane_index).is_none() {
        // Before the lane's memory is made, so that a refusal costs the agent no descriptor.
        shares::room_for_lane(world, me, peer)?;
    }
    let (lane, new) = world.lanes.open((me, peer), lane_index, opener, proxy).map_err(by_system)?;
    let LaneOpenReply { out, fds, pushed } = match ends(world, lane, (me, peer), new) {
        Ok(opened) => opened,
        Err(refusal) => {
            if new {
                world.lanes.close(lane);
            }
            return Err(refusal);
        }
    };
    if let Some(theirs) = pushed
        && let Some(link) = world.context(peer)?.engine.as_mut()
    {
        link.push(Push { kind: push::LANE, reserved: 0, lane: theirs.out }, theirs.fds);
        world.show_faults_to(&[me, peer]);
    }
    Ok(Answer { fds, ..call.answer(&out) })
}

/// What LANE_OPEN answers, and what the other engine is told.
struct LaneOpenReply {
    out: LaneOut,
    fds: Vec<OwnedFd>,
    /// The other end, if the lane is new.
    pushed: Option<LaneEnd>,
}

/// Describes the end of a lane for the engine `me`, and the end of its peer if the lane is new.
fn ends(world: &mut World, lane: u32, (me, peer): (ContextId, ContextId), new: bool) -> Outcome<LaneOpenReply> {
    let side = world.lanes.side(lane, me);
    let LaneEnd { out, fds } = describe(world, lane, side, me, peer)?;
    let pushed = new.then(|| describe(world, lane, 1 - side, peer, me)).transpose()?;
    let fds: io::Result<_> = fds.iter().map(|fd| world.system.duplicate(fd.as_fd())).collect();
    Ok(LaneOpenReply { out, fds: fds.map_err(by_system)?, pushed })
}

/// Describes one end of a lane for the engine `to`.
fn describe(world: &mut World, lane: u32, side: usize, to: ContextId, other: ContextId) -> Outcome<LaneEnd> {
    let link = |id: ContextId| world.contexts.get(&id).and_then(|context| context.engine.as_ref());
    let (Some(mine), Some(theirs)) = (link(to), link(other)) else {
        return refuse(Errno::ESRCH, format!("engine {} is gone", other.0));
    };
    let mut end = world.lanes.describe(lane, side, mine, theirs).map_err(by_system)?;
    let uid = |id: ContextId| world.contexts.get(&id).map(|context| context.peer.uid);
    if let (Some(ours), Some(others)) = (uid(to), uid(other))
        && ours != others
    {
        // The agent keeps the descriptor that wakes another user's engine.
        let notifier = world.relays.notifier(&*world.system, other, theirs, ours).map_err(by_system)?;
        end.fds[WAKES_PEER] = Arc::new(Foreign::ours(notifier));
        end.out.flags |= lane_flags::APART;
    }
    if let Some(context) = world.contexts.get(&other) {
        end.out.pid = context.peer.pid;
        end.out.device = context.device as u32;
    }
    Ok(end)
}

/// The wake word's memory and the eventfd that wakes the engine. Descriptors of another kind could
/// make peers wait or fault, and are refused.
fn two(fds: Vec<PassedFd>) -> Outcome<(Foreign, Foreign)> {
    let Ok([wake_word, kick]) = <[PassedFd; 2]>::try_from(fds) else {
        return refuse(Errno::EINVAL, "ENGINE_HELLO comes with two descriptors: the wake word's memory and an eventfd");
    };
    wake_word.memory_of(WAKE_WORD_LEN as u64, "ENGINE_HELLO: the wake word's memory")?;
    kick.eventfd("ENGINE_HELLO: what shall wake the engine")?;
    Ok((wake_word.into_foreign(), kick.into_foreign()))
}
