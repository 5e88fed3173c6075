//! Follows a packet through the linear forwarding tables, and finds the MTU and the rate of its
//! path. [`super::paths`] decides with which paths a request is answered. The functions are
//! [`walk`], [`egresses`] and [`link_mbps`].

use crate::inventory::{Inventory, Port, PortId};
use wire::rate_code;

/// A packet that visits more switches is in a loop.
const MOST_HOPS: usize = 64;

/// What a way carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathLimits {
    /// The smallest MTU: a code.
    pub(super) mtu: u8,
    mbps: u32,
}

impl PathLimits {
    /// The code of the smallest rate.
    pub(super) fn rate(&self) -> u8 {
        match self.mbps {
            u32::MAX => 3,
            mbps => rate_code(mbps),
        }
    }

    /// What a port alone carries.
    pub(super) fn of(port: &Port) -> PathLimits {
        let mbps = link_mbps(port);
        PathLimits { mtu: port.info.link.mtu_cap.max(1), mbps: if mbps == 0 { u32::MAX } else { mbps } }
    }

    fn cross(&mut self, port: &Port) {
        let link = port.info.link;
        let mtu = if link.neighbor_mtu == 0 { link.mtu_cap } else { link.neighbor_mtu };
        if mtu != 0 {
            self.mtu = self.mtu.min(mtu);
        }
        if let mbps @ 1.. = link_mbps(port) {
            self.mbps = self.mbps.min(mbps);
        }
    }
}

/// The data rate of a port's link in Mbit/s; 0 if it is not known.
pub(super) fn link_mbps(port: &Port) -> u32 {
    let link = port.info.link;
    let lanes = match link.width_active {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane = match (link.extended_active, link.speed_active) {
        (1, _) => 14_000,
        (2, _) => 25_000,
        (4, _) => 50_000,
        (8, _) => 100_000,
        (_, 1) => 2_500,
        (_, 2) => 5_000,
        (_, 4) => 10_000,
        _ => 0,
    };
    lanes * lane
}

/// Follows a packet from an end port to another one, which has the LID `dlid`.
pub(super) fn walk(inventory: &Inventory, from: PortId, to: PortId, dlid: u16) -> Option<PathLimits> {
    follow(inventory, from, to, dlid, |_| {})
}

/// The ports that a packet leaves by on its way.
pub(super) fn egresses(inventory: &Inventory, from: PortId, to: PortId, dlid: u16) -> Vec<PortId> {
    let mut ports = Vec::new();
    follow(inventory, from, to, dlid, |port| ports.push(port)).map_or(Vec::new(), |_| ports)
}

fn follow(
    inventory: &Inventory,
    from: PortId,
    to: PortId,
    dlid: u16,
    mut each: impl FnMut(PortId),
) -> Option<PathLimits> {
    let mut way = PathLimits::of(inventory.port(from)?);
    if from == to {
        return Some(way);
    }
    way.mtu = way.mtu.min(PathLimits::of(inventory.port(to)?).mtu);
    let mut node = inventory.nodes.get(&from.node)?;
    let PortId { node: mut guid, port: mut egress } = from;
    for _ in 0..=MOST_HOPS {
        if let Some(switch) = &node.switch {
            egress = *switch.linear.get(usize::from(dlid))?;
        }
        let port = node.ports.get(&egress).filter(|_| egress != 0 || node.switch.is_none())?;
        way.cross(port);
        each(PortId { node: guid, port: egress });
        let peer = port.peer?;
        guid = peer.node;
        node = inventory.nodes.get(&peer.node)?;
        if node.switch.is_none() {
            return (peer == to).then_some(way);
        }
        if peer.node == to.node {
            return Some(way);
        }
    }
    None
}
