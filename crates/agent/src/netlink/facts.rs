//! The attributes of devices, ports and the whole system for NETLINK_RDMA. This file only reads.

use abi::netlink::{Writer, attribute};

use crate::addresses::interface_name;
use crate::context::HwCounters;
use crate::device::{Device, FIRMWARE};
use crate::mirror::counters::named;
use crate::table::Kind;
use crate::world::World;

/// RDMA_NODE_IB_CA, which is also the type of RoCE devices, and RDMA_NODE_RNIC.
const NODE_CA: u8 = 1;
const NODE_RNIC: u8 = 4;

/// The attributes that name a device: the beginning of every answer.
pub(super) fn handle(to: &mut Writer, device: &Device) {
    to.word(attribute::DEV_INDEX, device.index as u32);
    to.text(attribute::DEV_NAME, &device.name);
}

/// The attributes of a device.
pub(super) fn device(to: &mut Writer, device: &Device) {
    let [major, minor, micro] = FIRMWARE;
    let infiniband = device.ports.iter().all(|port| port.is_infiniband());
    handle(to, device);
    to.word(attribute::PORT_INDEX, device.ports.len() as u32);
    to.long(attribute::CAP_FLAGS, device.capabilities());
    to.text(attribute::FW_VERSION, &format!("{major}.{minor}.{micro}"));
    to.long(attribute::NODE_GUID, device.node_guid.0);
    to.long(attribute::SYS_IMAGE_GUID, device.system_guid.0);
    to.byte(attribute::DEV_NODE_TYPE, if device.is_iwarp() { NODE_RNIC } else { NODE_CA });
    to.byte(attribute::DEV_DIM, 0);
    let protocol = match infiniband {
        _ if device.is_iwarp() => "iw",
        true => "ib",
        false => "roce",
    };
    to.text(attribute::DEV_PROTOCOL, protocol);
}

/// The attributes of an existing port.
pub(super) fn port(to: &mut Writer, device: &Device, number: u32) {
    let (Ok(port), Ok(facts)) = (device.port(number), device.port_attributes(number)) else { return };
    handle(to, device);
    to.word(attribute::PORT_INDEX, number);
    if port.is_infiniband() {
        let prefix =
            port.gids.entry(0).map_or(0, |entry| u64::from_be_bytes(*entry.gid.first_chunk().unwrap_or(&[0; 8])));
        to.long(attribute::CAP_FLAGS, facts.port_cap_flags.into());
        to.long(attribute::SUBNET_PREFIX, prefix);
        to.word(attribute::LID, facts.lid.into());
        to.word(attribute::SM_LID, facts.sm_lid.into());
        to.byte(attribute::LMC, facts.lmc);
    }
    to.byte(attribute::PORT_STATE, facts.state);
    to.byte(attribute::PORT_PHYS_STATE, facts.phys_state);
    if let Some((index, name)) = port.carrier().and_then(|index| Some((index, interface_name(index)?))) {
        to.word(attribute::NDEV_INDEX, index);
        to.text(attribute::NDEV_NAME, &name);
    }
}

/// The counters of a port.
pub(super) fn statistics(to: &mut Writer, device: &Device, number: u32, counters: HwCounters) {
    handle(to, device);
    to.word(attribute::PORT_INDEX, number);
    let table = to.nest(attribute::STAT_HWCOUNTERS);
    for (name, value) in named(counters) {
        let entry = to.nest(attribute::STAT_HWCOUNTER_ENTRY);
        to.text(attribute::STAT_HWCOUNTER_ENTRY_NAME, &name);
        to.long(attribute::STAT_HWCOUNTER_ENTRY_VALUE, value);
        to.end(entry);
    }
    to.end(table);
}

/// The attributes of the whole system: devices are in every network namespace that reaches their
/// agent, and registered memory survives a fork.
pub(super) fn system(to: &mut Writer) {
    to.byte(attribute::NETNS_MODE, 1);
    to.byte(attribute::COPY_ON_FORK, 1);
}

/// How many objects of each kind a device has.
pub(super) fn summary(to: &mut Writer, world: &World, device: &Device, ids: u64) {
    let contexts = world.contexts.values().filter(|context| context.device == device.index).count() as u64;
    let used = |kind| u64::from(device.used(kind));
    handle(to, device);
    let table = to.nest(attribute::RES_SUMMARY);
    for (name, count) in [
        ("pd", used(Kind::Pd)),
        ("cq", used(Kind::Cq)),
        ("qp", used(Kind::Qp)),
        ("cm_id", ids),
        ("mr", used(Kind::Mr)),
        ("ctx", contexts),
        ("srq", used(Kind::Srq)),
    ] {
        let entry = to.nest(attribute::RES_SUMMARY_ENTRY);
        to.text(attribute::RES_SUMMARY_ENTRY_NAME, name);
        to.long(attribute::RES_SUMMARY_ENTRY_CURR, count);
        to.end(entry);
    }
    to.end(table);
}
