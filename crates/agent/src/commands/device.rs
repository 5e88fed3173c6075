//! The context itself and queries about its device: GET_CONTEXT, QUERY_DEVICE, QUERY_PORT,
//! QUERY_GID, QUERY_PKEY, GID_ENTRY. [`crate::device`] makes the answers.

use std::sync::Arc;

use abi::device::{
    GetContext, GetContextAnswer, QueryDevice, QueryGid, QueryGidAnswer, QueryPkey, QueryPkeyAnswer, QueryPort,
};
use abi::private::GidEntry;
use abi::queue::{CONTEXT_LEN, ContextOut, REV};

use super::{Answer, Call};
use crate::context::AsyncFile;
use crate::refusal::{Outcome, by_system};
use crate::shares;
use crate::world::World;

/// GET_CONTEXT: opens the async event file and the page for its records.
pub fn get_context(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let GetContext { .. } = call.body()?;
    let device = world.device_of(call.context);
    let (index, vectors) = (device.index as u32, device.completion_vectors);
    let pending = world.pending.of(call.context);
    let system = Arc::clone(&world.system);
    let context = world.context(call.context)?;
    let closer = context.closer.clone();
    let page = context.memory.allocate_apart(CONTEXT_LEN).map_err(by_system)?;
    let file = AsyncFile::new(&*system, page.block.clone(), closer);
    let file = file.and_then(|file| Ok((system.duplicate(file.descriptor())?, file)));
    let (eventfd, mut file) = match file {
        Ok(made) => made,
        Err(error) => {
            context.memory.release(&page.block);
            return Err(by_system(error));
        }
    };
    file.note_at(pending);
    context.events = Some(file);
    let answer = GetContextAnswer { async_fd: 0, num_comp_vectors: vectors };
    let out = ContextOut { rev: REV, device: index, page: page.mapping };
    Ok(call.answer_with(&answer, &out, [eventfd].into_iter().chain(page.fd)))
}

/// QUERY_DEVICE.
pub fn query_device(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let QueryDevice { .. } = call.body()?;
    let limits = shares::limits(world, call.context);
    Ok(call.answer(&world.device_of(call.context).attributes_within(&limits)))
}

/// QUERY_PORT.
pub fn query_port(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let QueryPort { port_num, .. } = call.body()?;
    Ok(call.answer(&world.port_attributes(call.context, u32::from(port_num))?))
}

/// QUERY_GID.
pub fn query_gid(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let QueryGid { gid_index, port_num, .. } = call.body()?;
    let gid = world.device_of(call.context).gid(u32::from(port_num), gid_index)?;
    Ok(call.answer(&QueryGidAnswer { gid }))
}

/// QUERY_PKEY.
pub fn query_pkey(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let QueryPkey { pkey_index, port_num, .. } = call.body()?;
    let pkey = world.device_of(call.context).pkey(u32::from(port_num), pkey_index)?;
    Ok(call.answer(&QueryPkeyAnswer { pkey, reserved: 0 }))
}

/// GID_ENTRY.
pub fn gid_entry(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let GidEntry { port, index } = call.body()?;
    Ok(call.answer(&world.device_of(call.context).gid_entry(port, index)?))
}
