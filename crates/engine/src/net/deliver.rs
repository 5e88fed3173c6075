//! Datagrams that came in: taken apart into packets, checked, and brought to their QPs.
//!
//! Everything here is a stranger's claim. A packet whose ICRC does not fit, or that is not for a QP here, changes nothing but a
//! counter. Principal type: [`Datagrams`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::wire::{Arrival, arrival_kind};
use wire::grh::Network;
use wire::icrc::Envelope;
use wire::probe::{self, Probe};
use wire::{Headers, Qpn};

use crate::cell::{Packet, Path, Payload};
use crate::engine::Engine;
use crate::net::batch::ICRC;
use crate::net::inbox::Reception;
use crate::network::address;
use crate::qp::Qp;
use crate::receive::{Arrival as Outcome, Origin};

/// A BTH and an ICRC: less is no packet.
const SHORTEST: usize = 12 + ICRC;
/// Bytes of a UDP header.
const UDP: usize = 8;

/// Datagrams of one source that arrived together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagrams {
    pub(crate) from: [u8; 16],
    pub(crate) from_port: u16,
    pub(crate) to: [u8; 16],
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Bytes of each but the last.
    pub(crate) segment: usize,
}

impl From<&Arrival> for Datagrams {
    fn from(arrival: &Arrival) -> Self {
        Self {
            from: arrival.from,
            from_port: arrival.from_port,
            to: arrival.to,
            traffic_class: arrival.traffic_class,
            hop_limit: arrival.hop_limit,
            segment: usize::from(arrival.segment),
        }
    }
}

impl Datagrams {
    /// As it lies on a wire lane, with `len` bytes.
    pub(crate) fn arrival(&self, len: usize) -> Arrival {
        Arrival {
            kind: arrival_kind::DATAGRAMS,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            segment: self.segment.min(len) as u16,
            from_port: self.from_port,
            len: len as u32,
            from: self.from,
            to: self.to,
            ..Arrival::default()
        }
    }
}

/// The QP that a packet says it is for.
fn destination(packet: &[u8]) -> u32 {
    u32::from_be_bytes([0, packet[5], packet[6], packet[7]])
}

impl Engine {
    /// Brings the first `len` bytes of the reception's buffer to their QPs; the caller pumps those that were touched. Gives back
    /// to the agent what is another engine's, and says how many packets that were.
    pub(crate) fn deliver(self: &Arc<Self>, reception: &mut Reception, datagrams: &Datagrams, len: usize) -> u32 {
        let (buffer, touched, recent) = reception.parts();
        let segment = if datagrams.segment == 0 { len.max(1) } else { datagrams.segment };
        let envelope = Envelope::new(&datagrams.from, &datagrams.to, datagrams.from_port);
        let (mut at, mut id, mut strays) = (0, 0, 0);
        while at < len {
            let end = (at + segment).min(len);
            let bytes = &buffer[at..end];
            if bytes.len() < SHORTEST {
                self.drop_packet(datagrams, "it is shorter than any");
            } else if !self.is_ours(destination(bytes)) {
                let run = self.stray_run(&buffer[at..len], segment);
                strays += run.div_ceil(segment) as u32;
                if let Some(inbox) = self.net.inbox() {
                    inbox.give_back(datagrams, &buffer[at..at + run]);
                }
                at += run;
                id = 0;
                continue;
            } else if let Some(fits) = envelope.check(bytes, id) {
                id = fits.wrapping_add(1);
                self.deliver_packet(datagrams, bytes, touched, recent);
            } else {
                self.drop_packet(datagrams, "its ICRC does not fit");
            }
            at = end;
        }
        strays
    }

    fn is_ours(&self, qpn: u32) -> bool {
        qpn == Qpn::MULTICAST.value() || self.board.owner(qpn) == self.number()
    }

    /// How many bytes at the beginning are packets of other engines.
    fn stray_run(&self, bytes: &[u8], segment: usize) -> usize {
        let packets = bytes.chunks(segment);
        packets
            .take_while(|packet| packet.len() >= SHORTEST && !self.is_ours(destination(packet)))
            .map(<[u8]>::len)
            .sum()
    }

    fn drop_packet(&self, datagrams: &Datagrams, why: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::debug!("a packet from {} was dropped: {why}", address(datagrams.from));
    }

    /// A packet whose ICRC fits.
    fn deliver_packet(
        self: &Arc<Self>,
        datagrams: &Datagrams,
        bytes: &[u8],
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
    ) {
        let inside = &bytes[..bytes.len() - ICRC];
        if matches!(inside[0], probe::PROBE | probe::ANSWER) {
            return self.take_probe(datagrams, inside, touched);
        }
        let Ok(headers) = Headers::parse(inside) else {
            return self.drop_packet(datagrams, "its headers are not of a kind that is known");
        };
        tracing::trace!("from {}: {headers}", address(datagrams.from));
        let head = headers.len();
        let Some(len) = inside.len().checked_sub(head + usize::from(headers.pad)) else {
            return self.drop_packet(datagrams, "it is shorter than its padding");
        };
        if headers.pkey & 0x7fff != 0x7fff {
            // Not of the one partition that there is.
            return self.drop_packet(datagrams, "it is of another partition");
        }
        let is_datagram = headers.opcode.has_deth();
        let grh = is_datagram.then(|| {
            let (class, hops) = (datagrams.traffic_class, datagrams.hop_limit);
            let behind = (UDP + bytes.len()) as u16;
            let mut grh = [0; wire::grh::LEN];
            Network::between(datagrams.from, datagrams.to, class, 0, hops, behind).emit(&mut grh);
            grh
        });
        let packet = Packet {
            path: Path { device: self.device() as u8, port: 1, ..Path::default() },
            src_qp: headers.deth.src_qp,
            headers,
            grh,
            len: len as u16,
            payload: Payload::Inline(head),
        };
        let payload = inside[head..].as_ptr();
        let origin = Origin::Host { from: &datagrams.from, to: &datagrams.to };
        if headers.dest_qp == Qpn::MULTICAST {
            for qpn in self.groups.members(&datagrams.to) {
                if let Some(qp) = self.qps.find(qpn) {
                    qp.arrive(&packet, payload, origin, false);
                }
            }
            return;
        }
        let dest = headers.dest_qp.value();
        if recent.as_ref().is_none_or(|qp| qp.qpn() != dest) {
            *recent = self.qps.find(dest);
        }
        match recent {
            Some(qp) if qp.arrive(&packet, payload, origin, true) == Outcome::Taken => {
                if touched.last().is_none_or(|last| !Arc::ptr_eq(last, qp)) {
                    touched.push(Arc::clone(qp));
                }
            }
            _ => {
                *recent = None;
                self.drop_packet(datagrams, "no QP here takes it");
            }
        }
    }

    /// A question, or an answer, about what has been taken.
    fn take_probe(self: &Arc<Self>, datagrams: &Datagrams, bytes: &[u8], touched: &mut Vec<Arc<Qp>>) {
        let probe = bytes.try_into().ok().and_then(|bytes| Probe::parse(bytes).ok());
        let Some(probe) = probe else { return self.drop_packet(datagrams, "it is not a probe") };
        if probe.answer {
            let waiting = self.known_peer(&datagrams.from).map(|peer| peer.answered(probe.cookie)).unwrap_or_default();
            for qp in waiting {
                qp.lock().blocked = false;
                touched.push(qp);
            }
        } else if let Some(qp) = self.qps.find(probe.dest_qp.value()) {
            qp.answer_probe(&probe, &datagrams.from, &datagrams.to);
        }
    }
}
