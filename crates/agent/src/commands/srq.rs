//! Shared receive queues: CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ, DESTROY_SRQ. CREATE_XSRQ is in
//! [`super::xrc`]. The principal type is [`Srq`].

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use abi::layout::Record;
use abi::queue::{CONTROL_LEN, Mapping, REV, SrqOut, recv_stride, srq as word};
use abi::srq::{CreateSrq, CreateSrqAnswer, DestroySrq, DestroySrqAnswer, ModifySrq, QuerySrq, QuerySrqAnswer, attr};
use abi::{Errno, Refusal};

use super::pd::{self, no_handle};
use super::{Answer, Call, find, find_mut, resize, unused, xrc};
use crate::ids::ContextId;
use crate::limits::Limits;
use crate::objects::{Srq, Xrc};
use crate::queue_memory::Allocation;
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// The parameters of both forms of the command.
#[derive(Debug, Clone, Copy)]
pub struct SrqInitAttr {
    /// The client's name for it.
    pub user_handle: u64,
    /// PD handle.
    pub pd: u32,
    /// Work requests.
    pub max_wr: u32,
    /// Scatter entries.
    pub max_sge: u32,
    /// The limit to arm.
    pub limit: u32,
    /// For an XRC SRQ: its domain and CQ, which have been found.
    pub xrc: Option<Xrc>,
}

/// CREATE_SRQ.
pub fn create(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: CreateSrq = call.body()?;
    let wanted = SrqInitAttr {
        user_handle: body.user_handle,
        pd: body.pd_handle,
        max_wr: body.max_wr,
        max_sge: body.max_sge,
        limit: body.srq_limit,
        xrc: None,
    };
    let (answer, out, fd) = make(world, call.context, wanted)?;
    Ok(call.answer_with(&answer, &out, fd))
}

/// Checks the size and the limit of a new SRQ.
fn check_size(limits: &Limits, wanted: &SrqInitAttr) -> Outcome<()> {
    within("max_wr", wanted.max_wr, limits.max_srq_wr)?;
    within("max_sge", wanted.max_sge, limits.max_srq_sge)?;
    if wanted.limit > wanted.max_wr {
        return refuse(
            Errno::EINVAL,
            format!("the limit {} of an SRQ is above its {} work requests", wanted.limit, wanted.max_wr),
        );
    }
    Ok(())
}

/// Creates an SRQ. Returns its answer, its tail, and the descriptor of its region if the region is
/// new to the client.
pub fn make(
    world: &mut World,
    owner: ContextId,
    wanted: SrqInitAttr,
) -> Outcome<(CreateSrqAnswer, SrqOut, Option<OwnedFd>)> {
    find(&world.tables.pds, owner, wanted.pd, Kind::Pd)?;
    // As adapters do: an SRQ whose requests only count WRITEs with immediate data needs no room.
    let wanted = SrqInitAttr { max_sge: wanted.max_sge.max(1), ..wanted };
    check_size(&world.device_of(owner).limits, &wanted)?;
    shares::room_for(world, owner, Kind::Srq)?;
    let max_wr = wanted.max_wr.next_power_of_two();
    let stride = recv_stride(wanted.max_sge);
    let key = world
        .numbers
        .srq_numbers
        .take(owner)
        .ok_or_else(|| Refusal::new(Errno::ENOMEM, "every SRQ number is in use"))?;
    let Allocation { block, mapping, fd } =
        match world.context(owner)?.memory.allocate(CONTROL_LEN + max_wr as usize * stride) {
            Ok(allocation) => allocation,
            Err(error) => {
                world.numbers.srq_numbers.give_back(key);
                return Err(by_system(error));
            }
        };
    block.word(word::LIMIT).store(wanted.limit, Ordering::Release);
    let number = key >> 8;
    let srq = Srq {
        number,
        user_handle: wanted.user_handle,
        pd: wanted.pd,
        max_wr,
        max_sge: wanted.max_sge,
        block: block.clone(),
        former: Vec::new(),
        users: 0,
        xrc: wanted.xrc,
        key,
    };
    let Some(handle) = world.tables.srqs.insert(owner, srq) else {
        world.numbers.srq_numbers.give_back(key);
        world.context(owner)?.memory.release(&block);
        return Err(no_handle(Kind::Srq));
    };
    pd::hold(world, owner, wanted.pd)?;
    hold_domain(world, owner, wanted.xrc, 1);
    if let Some(xrc) = wanted.xrc {
        world.tables.domains.enter_srq(xrc.domain, number, owner);
    }
    world.device_of_mut(owner).count_up(Kind::Srq);
    let srqn = if wanted.xrc.is_some() { number } else { 0 };
    let answer = CreateSrqAnswer { srq_handle: handle, max_wr, max_sge: wanted.max_sge, srqn };
    let out = place(number, mapping, max_wr, stride);
    Ok((answer, out, fd))
}

/// Counts one XRC SRQ more or less, in its domain and on its CQ.
fn hold_domain(world: &mut World, owner: ContextId, xrc: Option<Xrc>, by: i32) {
    let Some(xrc) = xrc else { return };
    xrc::hold(world, owner, xrc.xrcd, by);
    if let Some(cq) = world.tables.cqs.find_mut(owner, xrc.cq) {
        cq.users = cq.users.saturating_add_signed(by);
    }
}

/// MODIFY_SRQ: arms the limit, changes the size, or does both, as a whole or not at all. The client
/// moves the work requests. Its old memory is not reused until the SRQ is destroyed.
pub fn modify(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: ModifySrq = call.body()?;
    let owner = call.context;
    let srq = find(&world.tables.srqs, owner, body.srq_handle, Kind::Srq)?;
    let (number, old) = (srq.number, srq.block.clone());
    let (resizes, arms) = (body.attr_mask & attr::MAX_WR != 0, body.attr_mask & attr::LIMIT != 0);
    if body.attr_mask == 0 || body.attr_mask & !(attr::MAX_WR | attr::LIMIT) != 0 {
        let mask = body.attr_mask;
        return refuse(Errno::EINVAL, format!("SRQ {number}: attribute mask {mask:#x} names nothing to modify"));
    }
    let max_wr = if resizes { body.max_wr } else { srq.max_wr };
    if resizes {
        within("max_wr", max_wr, world.device_of(owner).limits.max_srq_wr)?;
        let waiting = old.read(word::OUTSTANDING);
        if max_wr < waiting {
            let text = format!("SRQ {number} cannot shrink to {max_wr} work requests while {waiting} wait");
            return refuse(Errno::EINVAL, text);
        }
    }
    let limit = if arms { body.srq_limit } else { old.read(word::LIMIT) };
    if limit > max_wr {
        return refuse(Errno::EINVAL, format!("SRQ {number}: limit {limit} is above its {max_wr} work requests"));
    }
    let answer = if resizes { move_to(world, call, body.srq_handle, max_wr)? } else { Answer::default() };
    let srq = find(&world.tables.srqs, owner, body.srq_handle, Kind::Srq)?;
    srq.block.word(word::LIMIT).store(limit, Ordering::Release);
    Ok(answer)
}

/// Gives an SRQ a new place with room for `max_wr` work requests.
fn move_to(world: &mut World, call: &Call<'_>, handle: u32, max_wr: u32) -> Outcome<Answer> {
    let owner = call.context;
    let srq = find(&world.tables.srqs, owner, handle, Kind::Srq)?;
    let (number, stride, old) = (srq.number, recv_stride(srq.max_sge), srq.block.clone());
    resize::check_former(&srq.former, "SRQ", number)?;
    let max_wr = max_wr.next_power_of_two();
    let len = CONTROL_LEN + max_wr as usize * stride;
    let Allocation { block, mapping, fd } = resize::allocate(world, owner, &old, len)?;
    let srq = find_mut(&mut world.tables.srqs, owner, handle, Kind::Srq)?;
    srq.former.push((std::mem::replace(&mut srq.block, block), srq.max_wr));
    srq.max_wr = max_wr;
    let out = place(number, mapping, max_wr, stride);
    Ok(Answer { bytes: call.command.reply(&[], out.bytes()), fds: fd.into_iter().collect() })
}

fn place(number: u32, mapping: Mapping, max_wr: u32, stride: usize) -> SrqOut {
    SrqOut { rev: REV, number, mapping, offset: CONTROL_LEN as u32, count: max_wr, stride: stride as u32, reserved: 0 }
}

/// QUERY_SRQ.
pub fn query(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let QuerySrq { srq_handle, .. } = call.body()?;
    let srq = find(&world.tables.srqs, call.context, srq_handle, Kind::Srq)?;
    let srq_limit = srq.block.read(word::LIMIT);
    Ok(call.answer(&QuerySrqAnswer { max_wr: srq.max_wr, max_sge: srq.max_sge, srq_limit, reserved: 0 }))
}

/// DESTROY_SRQ.
pub fn destroy(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DestroySrq { srq_handle, .. } = call.body()?;
    let srq = find(&world.tables.srqs, call.context, srq_handle, Kind::Srq)?;
    unused(srq.users, &format!("SRQ {}", srq.number), "QPs")?;
    let answer = DestroySrqAnswer { events_reported: srq.block.read(word::EVENTS_REPORTED) };
    remove(world, call.context, srq_handle);
    Ok(call.answer(&answer))
}

/// Destroys some SRQs of a context that ends.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.srqs.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    let Some(srq) = world.tables.srqs.remove(owner, handle) else { return };
    world.numbers.srq_numbers.give_back(srq.key);
    pd::let_go(world, owner, srq.pd);
    hold_domain(world, owner, srq.xrc, -1);
    if let Some(xrc) = srq.xrc {
        world.tables.domains.leave_srq(xrc.domain, srq.number);
    }
    if let Ok(context) = world.context(owner) {
        resize::give_back(&mut context.memory, &srq.block, &srq.former);
    }
    world.device_of_mut(owner).count_down(Kind::Srq);
}

fn within(what: &str, value: u32, most: u32) -> Outcome<()> {
    if value == 0 || value > most {
        return refuse(Errno::EINVAL, format!("an SRQ with {what} {value} cannot be made; 1 to {most} are possible"));
    }
    Ok(())
}
