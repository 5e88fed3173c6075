//! Address handles: CREATE_AH, DESTROY_AH, and the rules for address vectors, which MODIFY_QP also
//! uses. The principal type is [`Ah`].

use std::net::Ipv6Addr;

use abi::Errno;
use abi::ah::{AhAttr, CreateAh, CreateAhAnswer, DestroyAh, SL_MAX, can_meet};
use abi::lid;

use super::pd::{self, no_handle};
use super::{Answer, Call, find};
use crate::device::Device;
use crate::ids::ContextId;
use crate::objects::Ah;
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// CREATE_AH.
pub fn create(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: CreateAh = call.body()?;
    find(&world.tables.pds, call.context, body.pd_handle, Kind::Pd)?;
    let device = world.device_of(call.context);
    if device.is_iwarp() {
        return refuse(Errno::EOPNOTSUPP, format!("{} is an iWARP device: it has no address handles", device.name));
    }
    check_vector(device, &body.attr, "an address handle")?;
    shares::room_for(world, call.context, Kind::Ah)?;
    let ah = Ah { pd: body.pd_handle, attr: body.attr };
    let handle = world.tables.ahs.insert(call.context, ah).ok_or_else(|| no_handle(Kind::Ah))?;
    pd::hold(world, call.context, body.pd_handle)?;
    world.device_of_mut(call.context).count_up(Kind::Ah);
    Ok(call.answer(&CreateAhAnswer { ah_handle: handle }))
}

/// DESTROY_AH.
pub fn destroy(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DestroyAh { ah_handle } = call.body()?;
    find(&world.tables.ahs, call.context, ah_handle, Kind::Ah)?;
    remove(world, call.context, ah_handle);
    Ok(Answer::default())
}

/// Destroys some AHs of a context that ends.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.ahs.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(ah) = world.tables.ahs.remove(owner, handle) {
        pd::let_go(world, owner, ah.pd);
        world.device_of_mut(owner).count_down(Kind::Ah);
    }
}

/// Checks that an address vector is usable. It needs a port, and a GRH with a valid source GID. On
/// InfiniBand a LID is sufficient, and with a GRH the LID is ignored. Only 20 bits of a flow label
/// count, and only as many path bits as the port's LMC has. The others are ignored, as by hardware
/// (UCX sets all of a flow label; ibacm gives the low bits of its LID as path bits). A static rate
/// that is no code of `enum ibv_rate` means 0, as for mlx5's library; GASNet leaves it
/// uninitialised.
pub fn check_vector(device: &Device, attr: &AhAttr, of: &str) -> Outcome<()> {
    let number = u32::from(attr.port_num);
    let port = device.port(number)?;
    if attr.sl > SL_MAX {
        return refuse(Errno::EINVAL, format!("{of} has the service level {}; the highest one is {SL_MAX}", attr.sl));
    }
    if attr.is_global == 0 && port.is_infiniband() {
        return check_lid(device, attr, of);
    }
    if attr.is_global == 0 {
        return refuse(
            Errno::EINVAL,
            format!(
                "{of} on {} port {number} has no GRH, which an Ethernet (RoCE) port needs: choose a GID index, for \
                 example by adding `-g 0` to the program's command line; for a program that cannot, \
                 `softhca agent --link-layer infiniband`",
                device.name
            ),
        );
    }
    let index = u32::from(attr.sgid_index);
    let Some(source) = port.gids.entry(index) else {
        let valid: Vec<String> = port.gids.iter().map(|(index, _)| index.to_string()).collect();
        return refuse(
            Errno::EINVAL,
            format!(
                "{of} names source GID index {index} of {} port {number}, which is empty; valid are {}",
                device.name,
                valid.join(", ")
            ),
        );
    };
    // The path of iWARP is a TCP connection, and not these addresses.
    if !port.is_infiniband() && !device.is_iwarp() && !can_meet(&source.gid, &attr.dgid) {
        let [from, to] = [source.gid, attr.dgid].map(Ipv6Addr::from);
        let text = format!(
            "{of} leads from {from} (GID index {index} of {} port {number}) to {to}, and only one of them is an IPv4 \
             address: choose GID indexes of one kind on both sides",
            device.name
        );
        return refuse(Errno::EINVAL, text);
    }
    Ok(())
}

/// Checks that a LID can belong to a port. Groups are addressed by GID, so they need a GRH (IBA
/// 10.2.2.2).
fn check_lid(device: &Device, attr: &AhAttr, of: &str) -> Outcome<()> {
    let (name, number, lid) = (&device.name, attr.port_num, attr.dlid);
    if lid::is_unicast(lid) {
        return Ok(());
    }
    let why = if lid >= lid::MULTICAST_MIN { "that is a group's, and groups need a GRH" } else { "that is no port's" };
    refuse(Errno::EINVAL, format!("{of} on {name} port {number} has no GRH, and LID {lid} as its destination: {why}"))
}
