//! Captures of management datagrams on InfiniBand ports: as packets of the port's link. Root and
//! the agent's own user see all of them. Other users see those of their own files. Adds to
//! [`Mads`].

use abi::capture::{CaptureRecord, path, record_flag};
use subnet::fabric::End;
use subnet::frame::Frame;
use subnet::managed;
use wire::Grh;
use wire::mad::Mad;
use wire::smp::PERMISSIVE_LID;

use super::Mads;
use super::travel::{Datagram, port_of};
use super::way::PortId;
use crate::device::Port;
use crate::world::World;

/// A packet at a port.
pub(super) struct Shown<'a> {
    pub(super) at: PortId,
    /// Whether the port has sent it.
    pub(super) sent: bool,
    pub(super) frame: &'a Frame,
}

/// A datagram as the link of its port carries it.
pub(super) fn packet_of(port: &Port, datagram: &Datagram) -> managed::Datagram {
    let to = &datagram.to;
    let lid = port.lid.map_or(PERMISSIVE_LID, |lid| lid.number | u16::from(to.path_bits) & ((1 << lid.lmc) - 1));
    let sgid = port.gids.entry(to.gid_index.into()).map(|entry| entry.gid).unwrap_or_default();
    let grh = to.has_grh().then_some(Grh {
        traffic_class: to.traffic_class,
        flow_label: to.flow_label,
        hop_limit: to.hop_limit,
        sgid,
        dgid: to.gid,
        payload_len: 0,
        next_header: 0,
    });
    managed::Datagram {
        source_qp: datagram.qpn,
        dest_qp: to.qpn,
        slid: lid,
        dlid: to.lid,
        sl: to.sl,
        pkey: port.pkeys.get(to.pkey_index.into()).unwrap_or(0),
        qkey: to.qkey,
        grh,
        mad: datagram.mad,
    }
}

impl Mads {
    /// Shows a packet that the fabric has handed out for captures.
    pub(super) fn show_seen(&self, world: &World, end: End, sent: bool, frame: &Frame) {
        let at = self.fabric.as_ref().and_then(|fabric| fabric.port_at(end));
        if let Some(at) = at {
            let shown = Shown { at, sent, frame };
            world.captures.watchers().show_root(&shown.record(), frame.body(), "");
        }
    }

    /// Shows a packet to the user whose program sends or gets it.
    pub(super) fn show_to_user(&self, world: &World, uid: u32, shown: &Shown<'_>) {
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
            let shown = Shown { at, sent, frame: &frame };
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

impl Shown<'_> {
    fn record(&self) -> CaptureRecord {
        let lrh = self.frame.lrh;
        let grh = self.frame.grh();
        let Grh { sgid, dgid, traffic_class, flow_label, hop_limit, .. } = grh.unwrap_or_default();
        CaptureRecord {
            path: if self.sent { path::LINK_OUT } else { path::LINK_IN },
            from: sgid,
            to: dgid,
            traffic_class,
            flow_label,
            hop_limit,
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            vl: lrh.vl,
            port: self.at.port,
            device: self.at.device as u32 + 1,
            flags: record_flag::LINK | if grh.is_some() { record_flag::GLOBAL } else { 0 },
            ..CaptureRecord::default()
        }
    }
}
