//! Completion channels and queues: CREATE_COMP_CHANNEL, CHANNEL_DESTROY, CREATE_CQ, RESIZE_CQ,
//! DESTROY_CQ.
//!
//! The agent allocates a CQ's memory and checks its size. The engine is responsible for completions
//! and their events. The principal types are [`CompletionChannel`] and [`Cq`].

use std::os::fd::{AsFd, OwnedFd};

use abi::Errno;
use abi::cq::{
    CreateCompChannel, CreateCompChannelAnswer, CreateCq, CreateCqAnswer, DestroyCq, DestroyCqAnswer, ResizeCq,
    ResizeCqAnswer,
};
use abi::private::ChannelDestroy;
use abi::queue::{CONTROL_LEN, CQE_LEN, CqOut, REV, cq as word};

use super::pd::no_handle;
use super::{Answer, Call, find, find_mut, resize, unused};
use crate::foreign::Foreign;
use crate::ids::ContextId;
use crate::objects::{CompletionChannel, Cq};
use crate::queue_memory::Allocation;
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// The parameters of both forms of CREATE_CQ.
pub struct CqInitAttr {
    /// The client's name for it.
    pub user_handle: u64,
    /// Minimum number of entries.
    pub cqe: u32,
    /// Completion vector.
    pub vector: u32,
    /// Channel handle or -1.
    pub channel: i32,
}

/// CREATE_COMP_CHANNEL.
pub fn create_channel(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let CreateCompChannel { .. } = call.body()?;
    shares::room_for(world, call.context, Kind::Channel)?;
    shares::room_for_descriptor(world, call.context)?;
    let eventfd = world.system.event_file().map_err(by_system)?;
    let theirs = world.system.duplicate(eventfd.as_fd()).map_err(by_system)?;
    let context = world.context(call.context)?;
    context.take_descriptor();
    // The client may have attached so many waiters to the eventfd that its last close takes long.
    let channel = CompletionChannel { eventfd: Foreign::new(eventfd, context.closer.clone()), users: 0 };
    let Some(handle) = world.tables.channels.insert(call.context, channel) else {
        world.context(call.context)?.give_descriptor();
        return Err(no_handle(Kind::Channel));
    };
    world.device_of_mut(call.context).count_up(Kind::Channel);
    let mut answer = call.answer(&CreateCompChannelAnswer { fd: handle.cast_signed() });
    answer.fds.push(theirs);
    Ok(answer)
}

/// CHANNEL_DESTROY.
pub fn destroy_channel(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let ChannelDestroy { handle, .. } = call.body()?;
    let channel = find(&world.tables.channels, call.context, handle, Kind::Channel)?;
    unused(channel.users, &format!("completion channel {handle:#x}"), "CQs")?;
    remove_channel(world, call.context, handle);
    Ok(Answer::default())
}

/// CREATE_CQ.
pub fn create(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: CreateCq = call.body()?;
    let wanted = CqInitAttr {
        user_handle: body.user_handle,
        cqe: body.cqe,
        vector: body.comp_vector,
        channel: body.comp_channel,
    };
    let (handle, out, fd) = make(world, call.context, &wanted)?;
    Ok(call.answer_with(&CreateCqAnswer { cq_handle: handle, cqe: out.cqe_count }, &out, fd))
}

/// Creates a CQ. Returns its handle, its tail, and the descriptor of its region if the region is
/// new to the client.
pub fn make(world: &mut World, owner: ContextId, wanted: &CqInitAttr) -> Outcome<(u32, CqOut, Option<OwnedFd>)> {
    let device = world.device_of(owner);
    let entries = entries_for(wanted.cqe, device.limits.max_cqe)?;
    if wanted.vector >= device.completion_vectors {
        let vectors = device.completion_vectors;
        return refuse(Errno::EINVAL, format!("completion vector {} is not among the {vectors}", wanted.vector));
    }
    let channel = match wanted.channel {
        -1 => None,
        handle => {
            let handle = handle.cast_unsigned();
            find(&world.tables.channels, owner, handle, Kind::Channel)?;
            Some(handle)
        }
    };
    shares::room_for(world, owner, Kind::Cq)?;
    let number = world.numbers.next_label();
    let Allocation { block, mapping, fd } =
        world.context(owner)?.memory.allocate(bytes_for(entries)).map_err(by_system)?;
    let cq = Cq {
        number,
        user_handle: wanted.user_handle,
        entries,
        channel,
        vector: wanted.vector,
        block: block.clone(),
        former: Vec::new(),
        users: 0,
    };
    let Some(handle) = world.tables.cqs.insert(owner, cq) else {
        world.context(owner)?.memory.release(&block);
        return Err(no_handle(Kind::Cq));
    };
    if let Some(channel) = channel {
        find_mut(&mut world.tables.channels, owner, channel, Kind::Channel)?.users += 1;
    }
    world.device_of_mut(owner).count_up(Kind::Cq);
    let out = CqOut { rev: REV, number, mapping, cqe_count: entries, cqe_size: CQE_LEN as u32, reserved: [0; 2] };
    Ok((handle, out, fd))
}

/// RESIZE_CQ. The client moves the entries.
pub fn resize(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ResizeCq = call.body()?;
    let owner = call.context;
    let cq = find(&world.tables.cqs, owner, body.cq_handle, Kind::Cq)?;
    let (number, old) = (cq.number, cq.block.clone());
    resize::check_former(&cq.former, "CQ", number)?;
    let waiting = old.read(word::PRODUCER).wrapping_sub(old.read(word::CONSUMER));
    let entries = entries_for(body.cqe, world.device_of(owner).limits.max_cqe)?;
    if entries < waiting {
        return refuse(
            Errno::EINVAL,
            format!("CQ {number} holds {waiting} completions, more than the {entries} entries that are asked for"),
        );
    }
    let Allocation { block, mapping, fd } = resize::allocate(world, owner, &old, bytes_for(entries))?;
    let cq = find_mut(&mut world.tables.cqs, owner, body.cq_handle, Kind::Cq)?;
    cq.former.push((std::mem::replace(&mut cq.block, block), cq.entries));
    cq.entries = entries;
    let out = CqOut { rev: REV, number, mapping, cqe_count: entries, cqe_size: CQE_LEN as u32, reserved: [0; 2] };
    Ok(call.answer_with(&ResizeCqAnswer { cqe: entries, reserved: 0 }, &out, fd))
}

/// DESTROY_CQ.
pub fn destroy(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DestroyCq { cq_handle, .. } = call.body()?;
    let cq = find(&world.tables.cqs, call.context, cq_handle, Kind::Cq)?;
    unused(cq.users, &format!("CQ {}", cq.number), "queues of QPs")?;
    let answer = DestroyCqAnswer {
        comp_events_reported: cq.block.read(word::COMP_EVENTS_REPORTED),
        async_events_reported: cq.block.read(word::ASYNC_EVENTS_REPORTED),
    };
    remove(world, call.context, cq_handle);
    Ok(call.answer(&answer))
}

/// Destroys some CQs of a context that ends.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.cqs.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

/// Destroys some channels of a context that ends, whose CQs are gone.
pub fn destroy_some_channels(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.channels.first_of(owner, most);
    handles.iter().for_each(|handle| remove_channel(world, owner, *handle));
    handles.len()
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    let Some(cq) = world.tables.cqs.remove(owner, handle) else { return };
    if let Some(channel) = cq.channel.and_then(|channel| world.tables.channels.find_mut(owner, channel)) {
        channel.users -= 1;
    }
    if let Ok(context) = world.context(owner) {
        resize::give_back(&mut context.memory, &cq.block, &cq.former);
    }
    world.device_of_mut(owner).count_down(Kind::Cq);
}

fn remove_channel(world: &mut World, owner: ContextId, handle: u32) {
    if world.tables.channels.remove(owner, handle).is_some() {
        if let Ok(context) = world.context(owner) {
            context.give_descriptor();
        }
        world.device_of_mut(owner).count_down(Kind::Channel);
    }
}

fn entries_for(cqe: u32, most: u32) -> Outcome<u32> {
    if cqe == 0 || cqe > most {
        return refuse(Errno::EINVAL, format!("a CQ of {cqe} entries cannot be made; 1 to {most} are possible"));
    }
    Ok(cqe.next_power_of_two())
}

fn bytes_for(entries: u32) -> usize {
    CONTROL_LEN + entries as usize * CQE_LEN
}
