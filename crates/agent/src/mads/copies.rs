//! Multicast packets of programs that pass links to other agents. The sender's engine gives them to
//! the agent. The agent sends them into the fabric, whose switches make the copies and count them,
//! and brings those that come out at its ports to the engines with members. Members of the
//! sender's agent get theirs over lanes. Adds to [`Mads`].

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use abi::board;
use abi::wire::{Arrival, arrival_kind};
use subnet::fabric::{Delivery, End};
use subnet::frame::Frame;
use wire::icrc::{self, Envelope};
use wire::lrh::{self, Next};
use wire::{Grh, Headers, Operation, Qpn, Transport, grh};

use super::Mads;
use super::travel::{find_port, port_of};
use super::way::PortId;
use crate::device::Port;
use crate::ids::ContextId;
use crate::objects::groups::is_multicast;
use crate::wire::to_groups::GroupDatagram;
use crate::world::World;

/// The LIDs of groups (IBA 4.1.3).
const MULTICAST_LIDS: std::ops::Range<u16> = 0xc000..0xffff;
/// The UDP source port in the ICRC of a copy.
const SOURCE_PORT: u16 = 0xc000;

impl Mads {
    /// Sends multicast datagrams of programs into the fabric.
    pub(crate) fn send_to_groups(&mut self, world: &mut World, datagrams: impl IntoIterator<Item = GroupDatagram>) {
        for datagram in datagrams {
            let Some((end, frame)) = self.group_frame(world, &datagram) else {
                tracing::debug!(engine = datagram.engine, "a multicast datagram of an engine is not valid");
                continue;
            };
            if let Some(fabric) = &mut self.fabric {
                // What the port drops, it counts.
                let _ = fabric.managed.inject(end, frame);
            }
            self.advance_fabric(world);
        }
        self.find_next();
    }

    /// The packet of a multicast datagram on its first link, and the port that it leaves. `None`:
    /// the engine has written what it may not send.
    fn group_frame(&self, world: &World, datagram: &GroupDatagram) -> Option<(End, Frame)> {
        let GroupDatagram { engine, head, bytes } = datagram;
        let device = world.contexts.get(&ContextId(*engine))?.device;
        let at = PortId { device, port: head.port };
        let (port, end) = (port_of(world, at)?, *self.fabric.as_ref()?.ends.get(&at)?);
        let body = bytes.get(..bytes.len().checked_sub(icrc::LEN)?)?;
        let headers = Headers::parse(body).ok()?;
        let owner = board::owner(headers.deth.src_qp.value());
        let is_own = world.board.view().word(owner).load(Ordering::Acquire) == *engine
            && has_gid(port, &head.from)
            && port.pkeys.entries().contains(&headers.pkey);
        if !is_own || !is_to_group(&headers) || !is_multicast(&head.to) || !MULTICAST_LIDS.contains(&head.lid) {
            return None;
        }
        let grh = Grh {
            traffic_class: head.traffic_class,
            flow_label: 0,
            payload_len: bytes.len() as u16,
            next_header: grh::NEXT_HEADER_IBA,
            hop_limit: head.hop_limit,
            sgid: head.from,
            dgid: head.to,
        };
        let slid = port.lid?.number;
        Some((
            end,
            frame_of(lrh::Header { sl: head.sl & 0xf, dlid: head.lid, slid, ..lrh::Header::default() }, &grh, body)?,
        ))
    }

    /// A packet of a program has come out of the fabric at a device's port. One of this agent's
    /// ports has sent its own over lanes.
    pub(super) fn deliver_copy(&self, world: &World, delivery: &Delivery) {
        let (frame, fabric) = (&delivery.frame, self.fabric.as_ref());
        let (Some(at), Some(grh)) = (fabric.and_then(|fabric| fabric.port_at(delivery.end)), frame.grh()) else {
            return;
        };
        let inside = frame.body().get(grh::LEN..).and_then(|rest| rest.split_last_chunk::<{ icrc::LEN }>());
        let Some((packet, _)) = inside.filter(|_| find_port(world, |port| has_gid(port, &grh.sgid)).is_none()) else {
            return;
        };
        // Another agent may send anything. An engine would give back a packet for another QP, and a
        // connection would take the sender's GID for its peer's.
        if !is_multicast(&grh.dgid) || !Headers::parse(packet).is_ok_and(|headers| is_to_group(&headers)) {
            return;
        }
        let sealed = [packet, &Envelope::new(&grh.sgid, &grh.dgid, SOURCE_PORT).icrc(0, packet)].concat();
        let arrival = Arrival {
            kind: arrival_kind::DATAGRAMS,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            segment: sealed.len() as u16,
            from_port: SOURCE_PORT,
            from: grh.sgid,
            to: grh.dgid,
            lid: frame.lrh.slid,
            ..Arrival::default()
        };
        let members = world.members(&grh.dgid).filter(|(_, port)| *port == (at.device, at.port));
        for engine in members.map(|(engine, _)| engine).collect::<BTreeSet<_>>() {
            world.wire.forwarder().deliver_to(engine.0, &arrival, &sealed);
        }
    }
}

/// A packet with its ICRC. `body` goes from the BTH to the end of the payload.
fn frame_of(lrh: lrh::Header, header: &Grh, body: &[u8]) -> Option<Frame> {
    let packet_len = ((lrh::LEN + grh::LEN + body.len() + icrc::LEN) / 4) as u16;
    let lrh = lrh::Header { next: Next::Grh, packet_len, ..lrh };
    let mut head = [0; lrh::LEN];
    lrh.emit(&mut head);
    let mut global = [0; grh::LEN];
    header.emit(&mut global);
    let icrc = icrc::link::icrc(&[&head[..], &global, body].concat())?;
    Frame::new(lrh, [&global[..], body, &icrc].concat()).ok()
}

/// Whether this is a datagram to the members of a group.
fn is_to_group(headers: &Headers) -> bool {
    headers.opcode.transport == Transport::Ud
        && matches!(headers.opcode.operation, Operation::SendOnly | Operation::SendOnlyImm)
        && headers.dest_qp == Qpn::MULTICAST
}

fn has_gid(port: &Port, gid: &[u8; 16]) -> bool {
    port.gids.iter().any(|(_, entry)| entry.gid == *gid)
}
