//! Whether a packet is for a queue pair: it must come from the connection's peer, and through the
//! QP's port.
//!
//! This file only decides. Packets that are not for the QP are handled in `drops/dropping.rs`
//! and `progress.rs`. Principal method: [`Qp::is_connected`].

use protocol::Service;
use wire::grh::Network;
use wire::{Opcode, Qpn};

use crate::cell::{Packet, Path};
use crate::qp::{Inner, Qp};
use crate::receive::Ingress;

impl Qp {
    /// Whether packets with this opcode are for QPs of this kind.
    #[inline]
    pub(crate) fn is_of_service(&self, opcode: Opcode) -> bool {
        opcode.transport == self.service.transport() && (opcode.is_response() || self.service.receives())
    }

    /// Whether this QP takes packets from this origin.
    pub(crate) fn is_connected(&self, inner: &mut Inner, packet: &Packet, origin: Ingress<'_>) -> bool {
        if self.service == Service::Ud {
            return self.is_addressed(inner, packet, origin);
        }
        match origin {
            Ingress::Lane => {
                !inner.link.on_wire()
                    && inner.attributes.dest_qp_num == packet.src_qp.value()
                    && (packet.path.port == inner.attributes.port_num || self.shares_port(inner, packet.path.port))
            }
            Ingress::Host { from, to } => {
                if !inner.link.on_wire() {
                    return false;
                }
                let by_path = Self::is_on_path(inner, from, to)
                    || &inner.attributes.dest.dgid == from && {
                        // The route was lost while a port was down, and a QP with nothing to send
                        // has not looked for it since.
                        self.find_route(inner);
                        Self::is_on_path(inner, from, to)
                    };
                by_path || (inner.link.migration.has_spare() && self.comes_by_alternate(inner, packet, (from, to)))
            }
        }
    }

    /// Whether a datagram is for this QP's port: the port must have the destination address.
    fn is_addressed(&self, inner: &mut Inner, packet: &Packet, origin: Ingress<'_>) -> bool {
        let (engine, port) = (self.engine(), inner.attributes.port_num);
        let (board, device) = (&engine.board, engine.device());
        if packet.headers.dest_qp == Qpn::MULTICAST {
            return board.is_up(device, port.into());
        }
        let to = match origin {
            Ingress::Lane if packet.path.port == port => return true,
            // Two ports may share an address.
            Ingress::Lane => match packet.grh.as_ref().map(Network::parse) {
                Some(Ok(network)) => network.gids().1,
                _ => return board.have_a_gid_in_common(device, port.into(), packet.path.port.into()),
            },
            Ingress::Host { .. } if !names_port(packet.path, port) => return false,
            Ingress::Host { to, .. } => *to,
        };
        let own = (to, board.gid_epoch(), port);
        if inner.ud.own_gid == Some(own) {
            return true;
        }
        let is_own = board.index_of(device, port.into(), &to).is_some();
        if is_own {
            inner.ud.own_gid = Some(own);
        }
        is_own
    }

    /// Whether packets to another port of this host are also for this connection: the port is the
    /// one of the alternate path, or shares an address with the QP's own port.
    #[cold]
    fn shares_port(&self, inner: &Inner, port: u8) -> bool {
        let engine = self.engine();
        let a = &inner.attributes;
        a.alt_port_num == port || engine.board.have_a_gid_in_common(engine.device(), a.port_num.into(), port.into())
    }
}

/// Whether a datagram of another host may be for a port, by the LID that it says. A LID is that of
/// one port, also if two ports share an address.
fn names_port(path: Path, port: u8) -> bool {
    path.dlid == 0 || path.port == port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_to_the_lid_of_a_port_is_for_no_other_port() {
        let path = |dlid, port| Path { dlid, port, ..Path::default() };
        assert!(names_port(path(4, 2), 2) && !names_port(path(4, 2), 1));
        assert!(names_port(path(0, 1), 2), "it says no LID");
    }
}
