//! Captures of management datagrams on InfiniBand ports: as packets of the port's link. Root and
//! the agent's own user see all of them. Other users see those of their own files. Adds to
//! [`Mads`].

use subnet::fabric::End;
use subnet::frame::Frame;
use wire::mad::Mad;
use wire::smp::PERMISSIVE_LID;

use super::Mads;
use super::packet::{PortPacket, packet_of};
use super::travel::port_of;
use super::way::{Datagram, PortId};
use crate::world::World;

impl Mads {
    /// Shows a packet that the fabric has handed out for captures.
    pub(super) fn show_seen(&self, world: &World, end: End, sent: bool, frame: &Frame) {
        let at = self.fabric.as_ref().and_then(|fabric| fabric.port_at(end));
        if let Some(at) = at {
            let shown = PortPacket { at, sent, frame };
            world.captures.watchers().show_root(&shown.record(), frame.body(), "");
        }
    }

    /// Shows a packet to the user whose program sends or gets it.
    pub(super) fn show_to_user(&self, world: &World, uid: u32, shown: &PortPacket<'_>) {
        world.captures.watchers().show_user(uid, &shown.record(), shown.frame.body(), "");
    }

    /// Shows a datagram between two ports of this agent without links. Ports of Ethernet are not
    /// shown.
    pub(super) fn show_passed(&self, world: &World, datagram: &Datagram, target: PortId) {
        let watchers = world.captures.watchers();
        let Some(port) = port_of(world, datagram.at).filter(|port| watchers.are_there() && port.is_infiniband()) else {
            return;
        };
        let mut packet = packet_of(port, datagram);
        if packet.dlid == 0 && packet.grh.is_none() {
            (packet.slid, packet.dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
        }
        let Some(frame) = packet.to_frame() else { return };
        let receiver = self.reader(target, datagram.qpn, &datagram.mad);
        for (at, sent, uid) in [(datagram.at, true, datagram.owner), (target, false, receiver)] {
            let shown = PortPacket { at, sent, frame: &frame };
            watchers.show_root(&shown.record(), frame.body(), "");
            self.show_to_user(world, uid, &shown);
        }
    }

    /// The user whose file gets a datagram at a port; 0 if none does.
    pub(super) fn reader(&self, at: PortId, qpn: u32, mad: &Mad) -> u32 {
        let port = self.ports.get(&at);
        let owner = port.and_then(|port| Some(port.registered.get(&port.table.find(qpn, mad)?)?.owner));
        owner.map_or(0, |owner| self.user_of(owner))
    }
}
