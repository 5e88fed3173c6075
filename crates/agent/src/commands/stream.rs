//! softhca's own commands for QPs of iWARP: STREAM_TAKE and STREAM_END.
//!
//! [`crate::cm`] makes the connections, and [`crate::streams`] keeps them until an engine takes
//! them.

use abi::Errno;
use abi::stream::{StreamEnd, StreamTake, end_flags};
use protocol::State;

use super::{Answer, Call, find};
use crate::device::Device;
use crate::foreign::Foreign;
use crate::ids::ContextId;
use crate::objects::Qp;
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares::room_for_descriptor;
use crate::streams::Leaving;
use crate::table::Kind;
use crate::world::World;

/// Checks that a QP of iWARP goes to RTS only if it has a connection. SQD closes the connection, as
/// in siw, so there is no way back from there.
pub(super) fn check(world: &World, device: &Device, qp: &Qp, next: State) -> Outcome<()> {
    let why = match (qp.state(), next) {
        _ if !device.is_iwarp() => return Ok(()),
        (State::Rtr, State::Rts) if !world.wire.streams().has(qp.qpn) => {
            "a QP of iWARP gets its connection from the connection manager (librdmacm)"
        }
        (State::Sqd, State::Rts) => "SQD has closed the connection of this QP of iWARP",
        _ => return Ok(()),
    };
    refuse(Errno::EINVAL, format!("modify_qp of QP {:#x}: {why}", qp.qpn))
}

/// STREAM_TAKE: the connection of a QP goes to the engine that has the QP. If the agent cannot keep
/// a second descriptor, the engine does not get it: the program could close its own before the agent
/// closes the one of the reply, and so make this close the last one, which can block (SO_LINGER).
pub fn take(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let StreamTake { qp_handle, .. } = call.body()?;
    let qpn = find(&world.tables.qps, call.context, qp_handle, Kind::Qp)?.qpn;
    room_for_descriptor(world, call.context)?;
    let Some((offer, second)) = world.wire.streams().take(qpn).map_err(by_system)? else {
        return refuse(Errno::ENOTCONN, format!("the connection manager has made no connection for QP {qpn:#x}"));
    };
    let context = world.context(call.context)?;
    // The program can set options with which closing the socket takes long.
    let (second, uid) = (Foreign::new(second, context.closer.clone()), context.peer.uid);
    if !world.wire.streams().keep(qpn, uid, second) {
        world.context(call.context)?.take_descriptor();
    }
    let mut answer = call.answer(&offer.agreed);
    answer.fds.push(offer.socket);
    Ok(answer)
}

/// A QP ends, and leaves its connection. A QP that is reset leaves it for its engine to end.
pub(super) fn leave(world: &mut World, owner: ContextId, qpn: u32) {
    let ends = world.contexts.get(&owner).is_some_and(|context| context.ends);
    leave_as(world, owner, qpn, if ends { Leaving::ByProcess } else { Leaving::ByEngine });
}

fn leave_as(world: &mut World, owner: ContextId, qpn: u32, how: Leaving) {
    if let Some(context) = world.contexts.get_mut(&owner)
        && world.wire.streams().leave(qpn, context.peer.uid, how)
    {
        context.give_descriptor();
    }
}

/// STREAM_END: the stream of a QP has ended, or its engine could not take the connection.
pub fn end(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let StreamEnd { qpn, flags } = call.body()?;
    if world.numbers.qpns.owner(qpn) == Some(call.context) {
        if flags & end_flags::NOT_TAKEN != 0 {
            leave_as(world, call.context, qpn, Leaving::NotTaken);
        }
        world.wire.streams().note_end(qpn);
    }
    Ok(Answer::default())
}
