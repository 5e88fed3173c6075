//! Received datagrams: splits them into packets, checks the packets, and delivers them to their
//! QPs.
//!
//! The data comes from other hosts and is untrusted. A packet with a wrong ICRC, or for a QP that
//! does not exist here, only increments a counter. Principal type: [`Packets`].

use std::sync::Arc;

use abi::reason::Cause;
use shm::Source;
use wire::cnp::{self, Cnp};
use wire::grh::{Grh, Network};
use wire::icrc::Envelope;
use wire::probe::{self, Probe};
use wire::{Headers, Opcode, Qpn, lids};

use crate::board::DevicePort;
use crate::cell::{Packet, Path, Payload};
use crate::engine::Engine;
use crate::expected::note_touched;
use crate::lid::NO_GRH;
use crate::net::batch::ICRC;
use crate::net::datagrams::{Datagrams, SHORTEST};
use crate::net::inbox::Reception;
use crate::network::address;
use crate::qp::{Inner, Qp};
use crate::receive::{Arrival as Outcome, Ingress};

/// The board's value for a number that no engine owns.
const NOBODY: u32 = 0;
/// Stands for the agent; no engine has this number.
const AGENT: u32 = u32::MAX;
/// The agent serves the QPNs up to this one: they are for management.
const MANAGEMENT: u32 = 1;

/// The QP to which a packet is addressed.
fn destination(packet: &[u8]) -> u32 {
    u32::from_be_bytes([0, packet[5], packet[6], packet[7]])
}

/// Whether a packet with this opcode is for a QP, and answers nothing.
fn is_request(opcode: u8) -> bool {
    lids::is_opcode(opcode) || Opcode::from_u8(opcode).is_some_and(|opcode| !opcode.is_response())
}

/// A packet whose ICRC is correct.
enum Found<'a> {
    Packet(Packet, &'a [u8]),
    /// The bytes of a probe.
    Probe(&'a [u8]),
    /// A CNP: a packet of this engine was marked.
    Marked(Cnp),
}

/// Parses datagrams, one packet after the other.
pub(crate) struct Packets<'a> {
    engine: &'a Engine,
    datagrams: &'a Datagrams,
    pub(super) envelope: Envelope,
    pub(super) bytes: &'a [u8],
    pub(super) segment: usize,
    pub(super) at: usize,
    /// The expected identification of the next packet, if its sender numbers its packets.
    pub(super) id: u16,
    /// The identification of the first packet, if its ICRC was correct.
    pub(super) first: Option<u16>,
    /// Packets of other engines.
    misdelivered: u32,
}

impl<'a> Packets<'a> {
    /// The next valid packet. Drops invalid packets, and gives packets of other engines back to the
    /// agent.
    fn next(&mut self) -> Option<Found<'a>> {
        while self.at < self.bytes.len() {
            let rest = &self.bytes[self.at..];
            let bytes = &rest[..self.segment.min(rest.len())];
            if bytes.len() < SHORTEST {
                self.show(bytes);
                self.drop(bytes, Cause::Short, (bytes.len() as u32, 0));
            } else if let Some(owner) = self.engine.other_owner(destination(bytes)) {
                if owner != NOBODY {
                    self.give_back(rest);
                    continue;
                }
                // Not given back: the agent has no owner for it either.
                self.show(bytes);
                if is_request(bytes[0]) {
                    self.drop(bytes, Cause::NoQp, (0, 0));
                }
            } else if let Some(fits) = self.envelope.check(bytes, self.id) {
                if self.at == 0 {
                    self.first = Some(fits);
                }
                self.id = fits.wrapping_add(1);
                self.at += bytes.len();
                if self.engine.is_capturing() {
                    self.engine.capture_from_host(self.datagrams, bytes, fits);
                }
                match self.parse(&bytes[..bytes.len() - ICRC]) {
                    Ok(found) => return Some(found),
                    Err((cause, said)) => self.drop(bytes, cause, said),
                }
                continue;
            } else {
                self.show(bytes);
                self.drop(bytes, Cause::Icrc, (0, 0));
            }
            self.at += bytes.len();
        }
        None
    }

    fn parse(&self, inside: &'a [u8]) -> Result<Found<'a>, (Cause, (u32, u32))> {
        if matches!(inside[0], probe::PROBE | probe::ANSWER) {
            return Ok(Found::Probe(inside));
        }
        if inside[0] == cnp::OPCODE {
            let cnp = inside.try_into().ok().and_then(|bytes| Cnp::parse(bytes).ok());
            return cnp.map(Found::Marked).ok_or((Cause::Headers, (0, 0)));
        }
        let (headers, said) = match lids::parse(inside).map_err(|_| (Cause::Headers, (0, 0)))? {
            Some((headers, said)) => (headers, Some(said)),
            None => (Headers::parse(inside).map_err(|_| (Cause::Headers, (0, 0)))?, None),
        };
        tracing::trace!("from {}: {headers}", address(self.datagrams.from));
        let head = headers.len() + if said.is_some() { lids::LEN } else { 0 };
        let len = inside.len().checked_sub(head + usize::from(headers.pad)).ok_or((Cause::Padding, (0, 0)))?;
        let Datagrams { from, to, traffic_class, hop_limit, slid, .. } = *self.datagrams;
        let is_datagram = headers.opcode.has_deth();
        let device = self.engine.device();
        let by_link = slid != 0;
        let true_lids = said.and_then(|said| Some((said, self.engine.board.port_of_lids(device, &from, &said)?)));
        let lid = if is_datagram && !by_link { self.engine.board.lid_of_sender(device, &from, &to) } else { None };
        let is_global = match true_lids {
            Some((said, _)) => said.is_global,
            None => is_datagram && (by_link || lid.is_none() || hop_limit != NO_GRH),
        };
        let path = match true_lids {
            Some((lids::Header { slid, dlid, sl, .. }, at)) => {
                Path { device: device as u16, port: at.port as u8, slid, dlid, sl, ..Path::default() }
            }
            None => Path { device: device as u16, port: 1, slid: lid.unwrap_or(slid), ..Path::default() },
        };
        let grh = is_global.then(|| {
            let port = DevicePort { device, port: path.port.into() };
            let payload_len = (headers.len() + (inside.len() - head) + ICRC) as u16;
            let grh = Grh { traffic_class, payload_len, hop_limit, sgid: from, dgid: to, ..Grh::default() };
            let mut bytes = [0; wire::grh::LEN];
            Network::before_datagram(grh, self.engine.board.is_infiniband(port)).emit(&mut bytes);
            bytes
        });
        let packet =
            Packet { path, src_qp: headers.deth.src_qp, headers, grh, len: len as u16, payload: Payload::Inline(head) };
        Ok(Found::Packet(packet, &inside[head..head + len]))
    }

    fn give_back(&mut self, rest: &[u8]) {
        let packets = rest.chunks(self.segment);
        let is_misdelivered = |packet: &&[u8]| {
            packet.len() >= SHORTEST
                && self.engine.other_owner(destination(packet)).is_some_and(|owner| owner != NOBODY)
        };
        let misdelivered = packets.take_while(is_misdelivered);
        let run = misdelivered.map(<[u8]>::len).sum::<usize>();
        self.misdelivered += run.div_ceil(self.segment) as u32;
        if let Some(inbox) = self.engine.net.inbox() {
            let (datagrams, bytes) = (self.datagrams, &rest[..run]);
            if !inbox.give_back(datagrams, bytes) {
                tracing::debug!("{run} bytes for another engine were dropped: the way to the agent is full");
                self.engine.drop_datagram(datagrams, bytes, (Cause::NoRoom, 0), (0, 0));
            }
        }
        self.at += run;
        self.id = 0;
    }

    /// Copies an invalid packet to the capture hook.
    #[cold]
    fn show(&self, bytes: &[u8]) {
        if self.engine.is_capturing() {
            self.engine.capture_from_host(self.datagrams, bytes, self.id);
        }
    }

    #[cold]
    fn drop(&self, bytes: &[u8], cause: Cause, said: (u32, u32)) {
        self.engine.drop_datagram(self.datagrams, bytes, (cause, 0), said);
    }
}

/// A QP has taken packets: it answers at once, or when the caller pumps it.
#[inline]
fn answer(qp: &Arc<Qp>, inner: &mut Inner, touched: &mut Vec<Arc<Qp>>, at_once: bool) {
    note_touched(touched, qp, !at_once);
    if at_once {
        qp.pump_or_delay_ack(inner);
    }
}

impl Engine {
    /// Delivers the first `len` bytes of the reception's buffer to their QPs. The QPs send their
    /// answers when the caller pumps them. If the program has `polled`, the QP of the last packet
    /// answers at once. Gives packets of other engines back to the agent, and returns how many
    /// there were.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        reception: &mut Reception<Qp>,
        datagrams: &Datagrams,
        len: usize,
        polled: bool,
    ) -> u32 {
        let (envelope, id) = reception.origins.expect(datagrams);
        let (buffer, touched, recent) = reception.parts();
        let segment = if datagrams.segment == 0 { len.max(1) } else { datagrams.segment };
        let bytes = &buffer[..len];
        let mut packets =
            Packets { engine: self, datagrams, envelope, bytes, segment, at: 0, id, first: None, misdelivered: 0 };
        let mut next = self.deliver_expected(&mut packets, touched, recent, polled);
        while let Some(found) = next.take() {
            match found {
                Found::Probe(inside) => self.take_probe(datagrams, inside, touched),
                Found::Marked(cnp) => {
                    if let Some(qp) = self.qps.find(cnp.dest_qp.value()) {
                        qp.on_cnp(&datagrams.from);
                    }
                }
                Found::Packet(packet, payload) if packet.headers.dest_qp == Qpn::MULTICAST => {
                    let origin = Ingress::Host { from: &datagrams.from, to: &datagrams.to };
                    for qpn in self.groups.members(&datagrams.to) {
                        if let Some(qp) = self.qps.find(qpn) {
                            qp.arrive(&packet, Source::from(payload), origin, false);
                        }
                    }
                }
                Found::Packet(packet, payload)
                    if self.faults.is_on() && self.is_stopped_by_fault(&packet, payload, datagrams) => {}
                Found::Packet(packet, payload) => {
                    next = self.deliver_run(&mut packets, (packet, payload), touched, recent, polled);
                    continue;
                }
            }
            next = packets.next();
        }
        let (first, misdelivered) = (packets.first, packets.misdelivered);
        if let Some(id) = first {
            reception.origins.began(datagrams.from_port, id);
        }
        misdelivered
    }

    /// Delivers the packets at the beginning, if they are expected packets of one QP. Returns the
    /// first other packet.
    fn deliver_expected<'a>(
        &self,
        packets: &mut Packets<'a>,
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
        polled: bool,
    ) -> Option<Found<'a>> {
        let Datagrams { from, to, .. } = packets.datagrams;
        if packets.bytes.len() < SHORTEST || packets.datagrams.are_marked() {
            return packets.next();
        }
        self.find_recent(recent, destination(packets.bytes));
        let Some(qp) = recent else { return packets.next() };
        let mut inner = qp.lock();
        if Qp::is_on_path(&inner, from, to) {
            qp.take_expected_of_host(&mut inner, packets);
        }
        let taken = packets.at > 0;
        let next = packets.next();
        if taken {
            answer(qp, &mut inner, touched, polled && next.is_none());
        }
        next
    }

    /// Makes the QP with this number the recent one.
    #[inline]
    fn find_recent(&self, recent: &mut Option<Arc<Qp>>, qpn: u32) {
        if recent.as_ref().is_none_or(|qp| qp.qpn() != qpn) {
            *recent = self.qps.find(qpn);
        }
    }

    /// Delivers a packet to its QP, and the packets after it as long as they are for the same QP.
    /// Returns the first packet for another QP.
    fn deliver_run<'a>(
        &self,
        packets: &mut Packets<'a>,
        (mut packet, mut payload): (Packet, &'a [u8]),
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
        polled: bool,
    ) -> Option<Found<'a>> {
        let datagrams = packets.datagrams;
        let origin = Ingress::Host { from: &datagrams.from, to: &datagrams.to };
        let dest = packet.headers.dest_qp.value();
        self.find_recent(recent, dest);
        let Some(qp) = recent else {
            self.drop_of_host(datagrams, &packet, Cause::NoQp);
            return packets.next();
        };
        let (mut inner, mut taken) = (qp.lock(), false);
        let next = loop {
            match qp.take(&mut inner, &packet, Source::from(payload), origin) {
                Outcome::Taken => {
                    taken = true;
                    qp.take_expected_of_host(&mut inner, packets);
                }
                Outcome::NotTaken => {}
                Outcome::Gone => self.drop_of_host(datagrams, &packet, Cause::NoQp),
            }
            match packets.next() {
                Some(Found::Packet(next, bytes)) if next.headers.dest_qp.value() == dest && !inner.link.is_ruled() => {
                    (packet, payload) = (next, bytes);
                }
                next => break next,
            }
        };
        if taken {
            if datagrams.are_marked() {
                qp.note_mark(&inner, packet.headers.opcode);
            }
            answer(qp, &mut inner, touched, polled && next.is_none());
        }
        let is_dead = inner.is_dead();
        drop(inner);
        if is_dead {
            // The QP is destroyed, and its number may already belong to another QP.
            *recent = None;
        }
        next
    }

    #[cold]
    fn is_stopped_by_fault(&self, packet: &Packet, payload: &[u8], datagrams: &Datagrams) -> bool {
        let origin = Ingress::Host { from: &datagrams.from, to: &datagrams.to };
        self.meets_fault(packet, Source::from(payload), origin)
    }

    /// The owner of a QPN, if that is not this engine: another engine, the agent, or [`NOBODY`].
    fn other_owner(&self, qpn: u32) -> Option<u32> {
        if qpn == Qpn::MULTICAST.value() {
            return None;
        }
        let owner = self.board.owner(qpn);
        if owner == NOBODY && qpn <= MANAGEMENT {
            return Some(AGENT);
        }
        (owner != self.number()).then_some(owner)
    }

    /// Handles a probe or the answer to one.
    fn take_probe(self: &Arc<Self>, datagrams: &Datagrams, bytes: &[u8], touched: &mut Vec<Arc<Qp>>) {
        let probe = bytes.try_into().ok().and_then(|bytes| Probe::parse(bytes).ok());
        let Some(probe) = probe else { return self.drop_datagram(datagrams, bytes, (Cause::Probe, 0), (0, 0)) };
        if probe.answer {
            let waiting = self.known_peer(&datagrams.from).map(|peer| peer.answered(probe.cookie)).unwrap_or_default();
            for qp in waiting {
                qp.lock().link.blocked = false;
                touched.push(qp);
            }
        } else if let Some(qp) = self.qps.find(probe.dest_qp.value()) {
            qp.on_probe(&probe, datagrams);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_datagrams_without_a_qp_count_as_dropped() {
        // A SEND, a datagram, datagrams that say their LIDs; an acknowledgement, a CNP.
        assert_eq!([0x04, 0x64, 0xd4, 0xd5, 0x11, cnp::OPCODE].map(is_request), [true, true, true, true, false, false]);
    }
}
