//! Memory windows: ALLOC_MW, DEALLOC_MW. The principal type is [`Mw`].
//!
//! The agent gives out the key and counts windows. Binding is a work request, so only the engine
//! knows what a window is bound to.

use abi::layout::Record;
use abi::mr::{AllocMw, AllocMwAnswer, DeallocMw, mw_type};
use abi::queue::MwIn;
use abi::{Errno, Refusal};

use super::pd::{self, no_handle};
use super::{Answer, Call, find};
use crate::ids::ContextId;
use crate::objects::Mw;
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// ALLOC_MW.
pub fn alloc(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: AllocMw = call.body()?;
    let pd = find(&world.tables.pds, call.context, body.pd_handle, Kind::Pd)?;
    if !matches!(body.mw_type, mw_type::TYPE_1 | mw_type::TYPE_2) {
        return refuse(
            Errno::EINVAL,
            format!("a window of type {} on PD {}: there are types 1 and 2", body.mw_type, pd.number),
        );
    }
    shares::room_for(world, call.context, Kind::Mw)?;
    let key =
        world.numbers.keys.take(call.context).ok_or_else(|| Refusal::new(Errno::ENOMEM, "every rkey is in use"))?;
    let mw = Mw { pd: body.pd_handle, kind: body.mw_type, key };
    let Some(handle) = world.tables.mws.insert(call.context, mw) else {
        world.numbers.keys.give_back(key);
        return Err(no_handle(Kind::Mw));
    };
    pd::hold(world, call.context, body.pd_handle)?;
    world.device_of_mut(call.context).count_up(Kind::Mw);
    Ok(call.answer(&AllocMwAnswer { mw_handle: handle, rkey: key }))
}

/// DEALLOC_MW. The tail, if there is one, contains the latest key. So a key that peers may remember
/// is not reused soon.
pub fn dealloc(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let (DeallocMw { mw_handle }, tail) = call.body_and_tail()?;
    let mw = find(&world.tables.mws, call.context, mw_handle, Kind::Mw)?;
    let said = MwIn::read_zero_extended(tail);
    let last = if said.key >> 8 == mw.key >> 8 { said.key } else { mw.key };
    remove(world, call.context, mw_handle, Some(last));
    Ok(Answer::default())
}

/// Deallocates some windows of a context that ends.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.mws.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle, None));
    handles.len()
}

fn remove(world: &mut World, owner: ContextId, handle: u32, last: Option<u32>) {
    if let Some(mw) = world.tables.mws.remove(owner, handle) {
        world.numbers.keys.retire(mw.key, last.unwrap_or(mw.key));
        pd::let_go(world, owner, mw.pd);
        world.device_of_mut(owner).count_down(Kind::Mw);
    }
}
