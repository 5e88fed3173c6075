//! softhca's own commands for the wire: WIRE_OPEN and WIRE_SOCKETS.
//!
//! [`crate::wire`] receives and forwards datagrams. This file checks which client may ask for what.

use abi::Errno;
use abi::wire::{SOCKETS_MAX, WireOpen, WireOut, WireSockets, WireSocketsAnswer, open_flags};
use shm::LANE_LEN;

use super::{Answer, Call};
use crate::refusal::{Outcome, by_system, refuse};
use crate::world::World;

/// WIRE_OPEN: creates the lane that brings datagrams of other hosts to the engine.
pub fn open(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let WireOpen { flags, .. } = call.body()?;
    let me = call.context;
    if flags != 0 {
        return refuse(Errno::EINVAL, format!("WIRE_OPEN: flags {flags:#x} are not known"));
    }
    if !world.wire.is_on() {
        return refuse(Errno::EOPNOTSUPP, "this agent has no wire: its programs reach each other, and no other host");
    }
    let Some(context) = world.contexts.get(&me) else {
        return refuse(Errno::EINVAL, format!("context {} has ended", me.0));
    };
    let Some(engine) = &context.engine else {
        return refuse(Errno::EINVAL, format!("context {} has said no ENGINE_HELLO, so it has no wire", me.0));
    };
    if world.wire.forwarder().knows(me.0) {
        return refuse(Errno::EEXIST, format!("engine {} has its wire lane already", me.0));
    }
    let opened = world.wire.open(me.0, engine, context.peer.uid).map_err(by_system)?;
    let flags = if opened.shared { open_flags::SHARED } else { 0 };
    let mut answer = call.answer(&WireOut { flags, reserved: 0, lane_len: LANE_LEN as u64 });
    answer.fds = opened.fds;
    Ok(answer)
}

/// WIRE_SOCKETS: the descriptors of the receiving sockets.
pub fn sockets(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let WireSockets { first, max } = call.body()?;
    if !world.wire.forwarder().shares(call.context.0) {
        let text = format!("engine {} may not have the sockets: its WIRE_OPEN was not answered SHARED", call.context.0);
        return refuse(Errno::EPERM, text);
    }
    if max as usize > SOCKETS_MAX {
        return refuse(Errno::EINVAL, format!("an answer has room for {SOCKETS_MAX} sockets, not for {max}"));
    }
    let (total, some) = world.wire.sockets(first, max).map_err(by_system)?;
    let mut answer = WireSocketsAnswer {
        epoch: world.board.wire_epoch(),
        count: some.len() as u32,
        total: total as u32,
        ..WireSocketsAnswer::default()
    };
    let mut fds = Vec::with_capacity(some.len());
    for (slot, (entry, fd)) in answer.entries.iter_mut().zip(some) {
        *slot = entry;
        fds.push(fd);
    }
    let mut answer = call.answer(&answer);
    answer.fds = fds;
    Ok(answer)
}
