//! softhca's own commands for direct access to a peer's memory: DIRECT_ASK and DIRECT_GRANT.
//!
//! The agent only forwards the messages between two engines of one user, and keeps nothing. The
//! engines decide about the access. If an engine does not read its push socket, its message is
//! lost. That is no error, because direct access is optional.

use abi::Errno;
use abi::private::{DirectAsk, DirectGrant, LaneOut, Push, push};

use super::{Answer, Call};
use crate::foreign::{Foreign, PassedFd};
use crate::ids::ContextId;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// DIRECT_ASK: asks another engine for access to its program's memory.
pub fn ask(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DirectAsk { engine, qpn, dest, key } = call.body()?;
    is_engine(world, call.context)?;
    let told = LaneOut { engine: call.context.0, lane: qpn, side: dest, lane_index: key, ..LaneOut::default() };
    let told = Push { kind: push::DIRECT_ASK, reserved: 0, lane: told };
    pass_on(world, call.context, ContextId(engine), told, Vec::new());
    Ok(Answer::default())
}

/// DIRECT_GRANT: grants the access for which a DIRECT_ASK has asked.
pub fn grant(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    let fds = std::mem::take(&mut call.fds);
    let DirectGrant { engine, qpn, line, number } = call.body()?;
    is_engine(world, call.context)?;
    if fds.len() != 2 {
        return refuse(Errno::EINVAL, "DIRECT_GRANT comes with two descriptors: the grant table and the file");
    }
    let fds: Vec<Foreign> = fds.into_iter().map(PassedFd::into_foreign).collect();
    let told = LaneOut { engine: call.context.0, lane: qpn, side: line, lane_index: number, ..LaneOut::default() };
    pass_on(world, call.context, ContextId(engine), Push { kind: push::DIRECT, reserved: 0, lane: told }, fds);
    Ok(Answer::default())
}

fn is_engine(world: &mut World, id: ContextId) -> Outcome<()> {
    if world.context(id)?.engine.is_none() {
        return refuse(
            Errno::EINVAL,
            format!("context {} has said no ENGINE_HELLO, so it has no memory to work on", id.0),
        );
    }
    Ok(())
}

/// The uid that the kernel reports for all users whom the agent's user namespace does not know. It
/// can be any of them.
const NOBODY: u32 = 65_534;

/// Sends a push to an engine of the same user.
fn pass_on(world: &mut World, from: ContextId, to: ContextId, told: Push, fds: Vec<Foreign>) {
    let uid = |id: ContextId| world.contexts.get(&id).map(|context| context.peer.uid).filter(|uid| *uid != NOBODY);
    if uid(from).is_none() || uid(from) != uid(to) {
        return;
    }
    if let Some(link) = world.contexts.get_mut(&to).and_then(|context| context.engine.as_mut()) {
        link.offer(told, fds);
    }
}
