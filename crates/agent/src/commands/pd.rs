//! Protection domains: ALLOC_PD, DEALLOC_PD. The principal type is [`Pd`].

use abi::pd::{AllocPd, AllocPdAnswer, DeallocPd};
use abi::queue::{PdOut, REV};
use abi::{Errno, Refusal};

use super::{Answer, Call, find, find_mut, unused};
use crate::ids::ContextId;
use crate::objects::Pd;
use crate::refusal::Outcome;
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// ALLOC_PD.
pub fn alloc(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let AllocPd { .. } = call.body()?;
    shares::room_for(world, call.context, Kind::Pd)?;
    let number = world.numbers.next_label();
    let handle = world
        .tables
        .pds
        .insert(call.context, Pd { number, users: 0, twin: None })
        .ok_or_else(|| no_handle(Kind::Pd))?;
    world.device_of_mut(call.context).count_up(Kind::Pd);
    Ok(call.answer_with(&AllocPdAnswer { pd_handle: handle }, &PdOut { rev: REV, number }, None))
}

/// DEALLOC_PD.
pub fn dealloc(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DeallocPd { pd_handle } = call.body()?;
    let pd = find(&world.tables.pds, call.context, pd_handle, Kind::Pd)?;
    unused(pd.users, &format!("PD {}", pd.number), "MRs, MWs, AHs, SRQs or QPs")?;
    remove(world, call.context, pd_handle);
    Ok(Answer::default())
}

/// Frees some PDs of a context that ends, after the objects on them.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.pds.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

/// Counts one more object on a PD that was found before.
pub fn hold(world: &mut World, owner: ContextId, handle: u32) -> Outcome<()> {
    find_mut(&mut world.tables.pds, owner, handle, Kind::Pd)?.users += 1;
    Ok(())
}

/// Counts one object less on a PD.
pub fn let_go(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(pd) = world.tables.pds.find_mut(owner, handle) {
        pd.users -= 1;
    }
}

/// The refusal if a table has no free handle.
pub fn no_handle(kind: Kind) -> Refusal {
    Refusal::new(Errno::ENOMEM, format!("every handle of a {kind} is in use, or the agent has no memory for one more"))
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(pd) = world.tables.pds.remove(owner, handle) {
        world.device_of_mut(owner).count_down(Kind::Pd);
        if let Some((other, handle)) = pd.twin {
            let_go(world, other, handle);
        }
    }
}
