//! Sends delayed ACKs that were outstanding in a process when it ended.
//!
//! The program has seen the messages, so their sender must learn that they arrived. The words in
//! queue memory that describe these ACKs are the client's claim. A false claim can only cause a
//! false acknowledgement to the client's own peer.

use std::io;
use std::net::SocketAddr;

use abi::qp::migration;
use abi::queue::{OWED, qp as word};
use protocol::{Service, State};
use udp::Outgoing;
use wire::icrc::{self, Envelope};
use wire::{Aeth, Headers, Opcode, Operation, Psn, Qpn, Syndrome, Transport};

use super::intake::scope;
use crate::gids::ip_of;
use crate::ids::ContextId;
use crate::lids;
use crate::objects::Qp;
use crate::world::World;

/// The UDP source port: one of RoCEv2's range.
const SOURCE_PORT: u16 = 0xc000;
/// The syndrome's value for "no end-to-end credits".
const NO_CREDITS: u8 = 31;

/// Sends the delayed ACKs of the connections of a context that ends.
pub(crate) fn send(world: &World, id: ContextId) {
    if !world.wire.is_on() || world.wire.is_external() {
        return;
    }
    for (_, qp) in world.tables.qps.of(id).filter(|(_, qp)| qp.service == Service::Rc) {
        // Acquire (in `read`): the engine wrote the PSN before the word that makes it valid.
        let owed = qp.block.read(word::OWED);
        if owed & OWED == 0 || !matches!(qp.state(), State::Rtr | State::Rts | State::Sqd) {
            continue;
        }
        let psn = Psn::new(qp.block.read(word::RQ_PSN)) - 1;
        if let Err(error) = acknowledge(world, id, qp, psn, owed & 0xff_ffff) {
            tracing::debug!(qpn = qp.qpn, %error, "the last acknowledgement of a process that has ended could not be sent");
        }
    }
}

fn acknowledge(world: &World, id: ContextId, qp: &Qp, psn: Psn, msn: u32) -> io::Result<()> {
    let attributes = qp.attributes_now();
    let port = world.device_of(id).port(u32::from(attributes.port_num)).map_err(|_| io::ErrorKind::NotFound)?;
    let dest = lids::directed(&world.devices, world.device_of(id).index, &attributes.dest);
    let source = port.gids.entry(u32::from(dest.sgid_index)).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let (from, to) = (ip_of(&source.gid), ip_of(&dest.dgid));
    let socket = udp::Socket::sender(from, scope(from, source.ifindex), SOURCE_PORT)?;
    let headers = Headers {
        opcode: Opcode::new(Transport::Rc, Operation::Acknowledge),
        dest_qp: Qpn::new(attributes.dest_qp_num),
        psn,
        pkey: port.pkeys.get(u32::from(attributes.pkey_index)).unwrap_or(0),
        migrated: attributes.path_mig_state == migration::MIGRATED,
        aeth: Aeth { syndrome: Syndrome::Ack(NO_CREDITS), msn },
        ..Headers::default()
    };
    let mut packet = [0; wire::MAX_LEN + icrc::LEN];
    let len = headers.emit(&mut packet).map_err(|_| io::ErrorKind::InvalidData)?;
    let envelope = Envelope::new(&source.gid, &dest.dgid, socket.port());
    let icrc = envelope.icrc(0, &packet[..len]);
    packet[len..len + icrc::LEN].copy_from_slice(&icrc);
    let mut to = SocketAddr::new(to, udp::PORT);
    if let SocketAddr::V6(v6) = &mut to {
        v6.set_scope_id(scope((*v6.ip()).into(), source.ifindex));
    }
    socket.send(&Outgoing {
        to,
        traffic_class: port.service_levels.dscp.traffic_class(dest.sl, dest.traffic_class),
        service_level: dest.sl,
        priority: port.service_levels.priority.get(dest.sl),
        hop_limit: dest.hop_limit,
        segment: 0,
        interface: 0,
        connected: false,
        bytes: &packet[..len + icrc::LEN],
    })
}
