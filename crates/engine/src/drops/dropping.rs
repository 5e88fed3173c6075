//! Drops packets: records each in the counters, the capture and the log. Adds to [`Engine`] and
//! [`Qp`].

use std::sync::Arc;

use abi::private::violation;
use abi::reason::{Cause, DropRecord, ReasonKind};
use protocol::{Service, State};
use wire::Qpn;
use wire::grh::Network;

use crate::cell::{Notice, Packet};
use crate::engine::Engine;
use crate::net::datagrams::Datagrams;
use crate::qp::{Inner, Qp, Route};
use crate::reason::{Note, note};
use crate::receive::{Arrival, Ingress};

impl Engine {
    /// The drops of this engine so far, by cause and QP, each with its last packet.
    #[must_use]
    pub fn drops(&self) -> Vec<DropRecord> {
        self.drops.table.lock().clone()
    }

    /// Counts a dropped packet. Returns whether it was reported.
    #[cold]
    pub(crate) fn drop_packet(&self, cause: Cause, dropped: DropRecord) -> bool {
        tracing::debug!(
            "QP {:#x} from QP {:#x}: a packet was dropped ({})",
            dropped.dest_qp,
            dropped.src_qp,
            cause.word()
        );
        if self.is_capturing() {
            self.capture_drop(cause, &dropped);
        }
        let told = self.drops.count(cause, &dropped);
        if let Some(record) = &told {
            note(
                Note { qpn: record.qpn, ..self.reasons.note(ReasonKind::Dropped) },
                format_args!("{}", record.sentence()),
            );
        }
        told.is_some()
    }

    /// Counts a packet of a lane that no QP of this engine accepts. Responses are not counted: an
    /// acknowledgement to a QP that is gone is no loss.
    #[cold]
    pub(crate) fn drop_of_lane(&self, cause: Cause, packet: &Packet, (got, expected): (u32, u32)) {
        if !packet.headers.opcode.is_response() {
            self.drop_packet(cause, DropRecord { got, expected, ..told(packet) });
        }
    }

    /// Counts a packet of another host.
    #[cold]
    pub(crate) fn drop_of_host(&self, datagrams: &Datagrams, packet: &Packet, cause: Cause) {
        if !packet.headers.opcode.is_response() {
            self.drop_packet(cause, DropRecord { address: datagrams.from, ..told(packet) });
        }
    }

    /// Counts a packet of another host that was not parsed. Reads only the bytes that are there.
    pub(crate) fn drop_datagram(
        &self,
        datagrams: &Datagrams,
        bytes: &[u8],
        (cause, qpn): (Cause, u32),
        said: (u32, u32),
    ) {
        let three = |at: usize| match bytes.get(at..at + 3) {
            Some(bytes) => u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]),
            None => 0,
        };
        let (got, expected) = said;
        let dropped = DropRecord {
            qpn,
            got,
            expected,
            address: datagrams.from,
            dest_qp: three(5),
            psn: three(9),
            opcode: bytes.first().copied().unwrap_or_default().into(),
            ..DropRecord::default()
        };
        self.drop_packet(cause, dropped);
    }
}

/// The fields that a packet itself contains.
fn told(packet: &Packet) -> DropRecord {
    DropRecord {
        src_qp: packet.src_qp.value(),
        dest_qp: packet.headers.dest_qp.value(),
        psn: packet.headers.psn.value(),
        opcode: packet.headers.opcode.as_u8().into(),
        ..DropRecord::default()
    }
}

impl Qp {
    /// Counts a packet that this QP has dropped, with the known details. Returns whether it was
    /// reported.
    #[cold]
    pub(crate) fn drop_packet(
        &self,
        inner: &Inner,
        cause: Cause,
        packet: &Packet,
        (got, expected): (u32, u32),
    ) -> bool {
        let address = match packet.grh.as_ref().map(Network::parse) {
            Some(Ok(network)) => network.gids().0,
            _ if inner.link.on_wire() => inner.attributes.dest.dgid,
            _ => [0; 16],
        };
        // Packets of a connection do not name their source QP.
        let src_qp = match packet.src_qp.value() {
            0 => inner.attributes.dest_qp_num,
            src_qp => src_qp,
        };
        let dropped = DropRecord { qpn: self.qpn(), got, expected, address, src_qp, ..told(packet) };
        self.engine().drop_packet(cause, dropped)
    }

    /// Drops the answers, because there is no path for them. Returns whether there were any.
    #[cold]
    pub(crate) fn lose_answers(&self, inner: &mut Inner) -> bool {
        let mut lost = false;
        while let Some(answer) = inner.responder.poll_answer(u32::MAX) {
            lost = true;
            let (mtu, len) = (inner.mtu_bits(), answer.source.len());
            if self.service != Service::XrcTgt {
                inner.traffic.lost(inner.view.as_ref(), answer.count, len, answer.opcode.headers_len(), mtu);
            }
        }
        if lost {
            self.tell_peer_of_loss(inner);
        }
        lost
    }

    /// Notifies the peer that its requests get no answer; on a lane it would otherwise wait for
    /// ever. If this QP has no route yet, the notice uses any lane to the peer's engine.
    #[cold]
    pub(crate) fn tell_peer_of_loss(&self, inner: &Inner) {
        let (engine, peer) = (self.engine(), inner.attributes.dest_qp_num);
        let lane = match &inner.link.route {
            _ if inner.link.on_wire() => None,
            Route::Lane(lane) => Some(Arc::clone(lane)).filter(|lane| !lane.is_dead()),
            _ => engine.lanes.any_to(engine.board.owner(peer)),
        };
        if let Some(lane) = lane {
            let (from, to) = (Qpn::new(self.qpn()), Qpn::new(peer));
            engine.send_notice(&lane, Notice { from, to, psn: inner.responder.expected_psn() });
        }
    }

    /// Refuses a packet that this QP does not accept, and counts it with the cause.
    #[cold]
    pub(crate) fn refuse(&self, inner: &Inner, packet: &Packet, origin: Ingress<'_>) -> Arrival {
        let is_of_another_partition = inner.state.serves() && !self.is_in_partition(inner, packet);
        if is_of_another_partition {
            self.count_violation(inner, packet, violation::PKEY, packet.headers.pkey.into());
        }
        if packet.headers.opcode.is_response() {
            // A response that no request waits for.
            return Arrival::NotTaken;
        }
        let mut dropped = DropRecord { qpn: self.qpn(), ..told(packet) };
        if let Ingress::Host { from, .. } = origin {
            dropped.address = *from;
        }
        let cause = if !self.is_of_service(packet.headers.opcode) {
            Cause::Service
        } else if inner.state == State::Err {
            Cause::InError
        } else if !inner.state.serves() {
            dropped.got = inner.state as u32;
            Cause::State
        } else if is_of_another_partition {
            (dropped.got, dropped.expected) = (packet.headers.pkey.into(), inner.responder.pkey().into());
            Cause::PKey
        } else if !self.engine().board.is_up(self.engine().device(), inner.attributes.port_num.into()) {
            Cause::PortDown
        } else if self.service == Service::Ud
            || (matches!(origin, Ingress::Lane)
                && !inner.link.on_wire()
                && packet.src_qp.value() == inner.attributes.dest_qp_num)
        {
            dropped.expected = inner.attributes.port_num.into();
            Cause::Port
        } else if matches!(origin, Ingress::Lane) && !inner.link.on_wire() {
            (dropped.got, dropped.expected) = (packet.src_qp.value(), inner.attributes.dest_qp_num);
            Cause::SourceQp
        } else {
            Cause::SourceAddress
        };
        self.engine().drop_packet(cause, dropped);
        Arrival::NotTaken
    }
}
