//! Multicast groups: ATTACH_MCAST, DETACH_MCAST, and the engines with members (MCAST_RESOLVE).
//!
//! This file handles only the membership. The engines send to the members. The principal type is
//! [`crate::objects::groups::Groups`].

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use abi::Errno;
use abi::mcast::AttachMcast;
use abi::private::{MCAST_ENGINES_MAX, McastResolve, McastResolveAnswer, mcast_flags};
use protocol::Service;
use wire::cm::Gid;
use wire::grh::{is_beyond_subnet, multicast_scope};

use super::{Answer, Call, find, find_mut};
use crate::ids::ContextId;
use crate::objects::groups::{At, is_multicast};
use crate::objects::paths::TreeQuestion;
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// ATTACH_MCAST. Attaching twice succeeds and changes nothing.
pub fn attach(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let AttachMcast { gid, qp_handle, .. } = call.body()?;
    let owner = call.context;
    let qp = find(&world.tables.qps, owner, qp_handle, Kind::Qp)?;
    if qp.service != Service::Ud {
        return refuse(Errno::EINVAL, format!("QP {:#x} is {}; only a UD QP joins a group", qp.qpn, qp.service));
    }
    let name = Ipv6Addr::from(gid);
    if !is_multicast(&gid) {
        return refuse(Errno::EINVAL, format!("{name} is not a multicast GID, QP {:#x} cannot join it", qp.qpn));
    }
    let limits = &world.device_of(owner).limits;
    let present = world.tables.groups.len_of(&gid);
    if present == 0 && world.tables.groups.len() >= limits.max_mcast_grp as usize {
        return refuse(Errno::ENOMEM, format!("there are {} groups, no more are possible", limits.max_mcast_grp));
    }
    if qp.groups.contains(&gid) {
        return Ok(Answer::default());
    }
    let groups = |uid| world.tables.groups.groups_of(uid);
    shares::room_among(world, owner, "multicast groups", limits.max_mcast_grp, groups)?;
    let members = |uid| world.tables.groups.members_of(uid, &gid);
    shares::room_among(world, owner, "members of a group", limits.max_mcast_qp_attach, members)?;
    if present >= limits.max_mcast_qp_attach as usize {
        return refuse(Errno::ENOMEM, format!("group {name} has {present} members, no more are possible"));
    }
    find_mut(&mut world.tables.qps, owner, qp_handle, Kind::Qp)?.groups.insert(gid);
    let uid = world.context(owner)?.peer.uid;
    world.tables.groups.join(gid, (owner, qp_handle), uid);
    changed(world, &gid);
    Ok(Answer::default())
}

/// DETACH_MCAST.
pub fn detach(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let AttachMcast { gid, qp_handle, .. } = call.body()?;
    let qp = find_mut(&mut world.tables.qps, call.context, qp_handle, Kind::Qp)?;
    if !qp.groups.remove(&gid) {
        let name = Ipv6Addr::from(gid);
        return refuse(Errno::EINVAL, format!("QP {:#x} is not a member of {name}", qp.qpn));
    }
    leave(world, &gid, (call.context, qp_handle));
    Ok(Answer::default())
}

/// Removes a member from a group; also used when its QP is destroyed.
pub fn leave(world: &mut World, gid: &Gid, member: (ContextId, u32)) {
    let uid = world.contexts.get(&member.0).map_or(u32::MAX, |context| context.peer.uid);
    if world.tables.groups.leave(gid, member, uid) {
        changed(world, gid);
    }
}

/// Tells all interested parts that the members of a group have changed.
fn changed(world: &mut World, gid: &Gid) {
    let engines = world.tables.groups.engines(gid);
    world.wire.set_members(*gid, engines.into_iter().map(|engine| engine.0).collect());
    world.board.bump_mcast();
}

impl World {
    /// The members of a group: each one's context and port.
    pub(crate) fn members(&self, gid: &Gid) -> impl Iterator<Item = (ContextId, At)> {
        self.tables.groups.members(gid).map(|(context, qp)| {
            let device = self.contexts.get(&context).map_or(usize::MAX, |context| context.device);
            let port = self.tables.qps.find(context, qp).map_or(0, |qp| qp.attributes.port_num);
            (context, (device, port))
        })
    }
}

/// MCAST_RESOLVE.
pub fn resolve(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let McastResolve { gid, max, first, port, hop_limit, lid, sl, pkey_index, .. } = call.body()?;
    if max as usize > MCAST_ENGINES_MAX {
        return refuse(Errno::EINVAL, format!("an answer has room for {MCAST_ENGINES_MAX} engines, not for {max}"));
    }
    if !is_multicast(&gid) {
        return refuse(Errno::EINVAL, format!("{} is not a multicast GID", Ipv6Addr::from(gid)));
    }
    let from = (world.context(call.context)?.device, port);
    let members: Vec<_> = world.members(&gid).collect();
    let is_routed = multicast_scope(&gid).is_some_and(is_beyond_subnet);
    let route = if is_routed && hop_limit > 1 { (gid, hop_limit) } else { ([0; 16], 0) };
    let pkey = world.pkey_at(from, pkey_index);
    let Some(reach) = world.tables.paths.tree(&TreeQuestion { from, mlid: lid, sl, pkey, route }) else {
        return refuse(Errno::EAGAIN, "the ports that the group reaches are being found; ask again");
    };
    let leaves = reach.leaves() && world.wire.is_on();
    let flags = [(leaves, mcast_flags::LEAVES), (reach.is_cut_by_partitions(), mcast_flags::DROPPED)];
    let flags = flags.into_iter().filter(|(holds, _)| *holds).fold(0, |all, (_, flag)| all | flag);
    let reached = members.into_iter().filter(|(_, port)| reach.has(*port));
    let engines: BTreeSet<_> = reached.map(|(context, _)| context).collect();
    let mut answer = McastResolveAnswer {
        epoch: world.board.mcast_epoch(),
        count: engines.len() as u32,
        flags,
        ..bytemuck::Zeroable::zeroed()
    };
    for (slot, engine) in answer.engines.iter_mut().take(max as usize).zip(engines.into_iter().skip(first as usize)) {
        *slot = engine.0;
    }
    Ok(call.answer(&answer))
}
