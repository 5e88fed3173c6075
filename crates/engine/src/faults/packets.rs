//! Applies faults to packets: to outgoing and incoming ones, and to requests that need a receive
//! request.
//!
//! A lane has no ICRC, so a damaged packet is lost there, as at the end of a wire. Adds to [`Qp`]
//! and [`Engine`].

use std::sync::Arc;

use abi::fault::{Direction, Facts, Fate, Verdict};
use abi::reason::{Cause, DropRecord};
use protocol::Outcome;
use shm::{Sink, Source};
use wire::grh::Network;
use wire::{Headers, Syndrome};

use super::delayed_packets::{DelayedPacket, To};
use crate::access::{self, HeldRegion, Refusal};
use crate::capture::Ends;
use crate::cell::{Origin, OutgoingRun, Packet, RunHeaders};
use crate::engine::Engine;
use crate::put::{Exit, Far, Sent};
use crate::qp::{Flow, Inner, Qp};
use crate::receive;

/// How long a late packet waits for the next one, in nanoseconds.
const LATE: u64 = 1_000_000;

fn facts(direction: Direction, device: u32, qpn: u32, far: &Far, headers: &Headers, len: u32) -> Facts {
    let syndrome = if headers.opcode.has_aeth() {
        match headers.aeth.syndrome {
            Syndrome::Ack(_) => 0,
            Syndrome::RnrNak(_) => 0x20,
            _ => 0x60,
        }
    } else {
        0
    };
    Facts {
        direction,
        device,
        port: far.port,
        peer: far.gid,
        qpn,
        peer_qpn: headers.dest_qp.value(),
        opcode: headers.opcode.as_u8(),
        syndrome,
        len: headers.len() as u32 + len,
        management: false,
        links: far.links,
    }
}

impl Qp {
    /// Puts a run of one packet of a connection on its path, as the rules require.
    #[cold]
    pub(crate) fn put_with_faults(
        &self,
        exit: &mut Exit<'_>,
        far: &Far,
        run: &OutgoingRun<'_>,
        region: &mut HeldRegion<'_>,
    ) -> Sent {
        debug_assert_eq!(run.count, 1, "a rule sees each packet");
        let (headers, len) = (&run.headers.full(0), run.len);
        let engine = self.engine();
        if len > far.room {
            return match self.gather(&run.from, len, region) {
                Ok(_) => {
                    self.lose_long(far, headers, len);
                    Sent::Lost
                }
                Err(refusal) => Sent::Refused(refusal),
            };
        }
        let facts = facts(Direction::Out, engine.device(), self.qpn(), far, headers, len);
        let verdict = engine.faults.decide(engine, &facts, headers);
        let damage = match verdict.fate {
            Fate::Damaged(bit) => Some(bit),
            _ => None,
        };
        let is_lane = matches!(exit, Exit::Lane(..));
        if verdict.fate == Fate::Lost || (is_lane && damage.is_some()) {
            return match self.gather(&run.from, len, region) {
                Ok(bytes) => {
                    self.show_lost_by(exit, far, headers, &bytes);
                    if verdict.on_link { Sent::Lost } else { Sent::Yes }
                }
                Err(refusal) => Sent::Refused(refusal),
            };
        }
        let late = verdict.fate == Fate::Late;
        let waits =
            verdict.until.is_some_and(|until| until > engine.now().0 || engine.faults.delayed.has_line(self.qpn()));
        if late || waits {
            return match self.gather(&run.from, len, region) {
                Ok(bytes) => self.delay(exit, headers, bytes, &verdict),
                Err(refusal) => Sent::Refused(refusal),
            };
        }
        let sent = self.put_unruled(exit, run, region);
        if !matches!(sent, Sent::Yes) {
            return sent;
        }
        if let (Some(bit), Exit::Wire(_, batch, _)) = (damage, &mut *exit) {
            batch.damage_last(bit);
        }
        // If there is no room for the second copy, it is lost.
        let _ = match verdict.fate {
            Fate::Twice => self.put_unruled(exit, run, region),
            Fate::Ghost => {
                let headers = ghost(headers);
                self.put_unruled(exit, &self.run(RunHeaders::Full(&headers), 1, len, run.from), region)
            }
            _ => Sent::Yes,
        };
        engine.follow_with_delayed_packets(self.qpn());
        sent
    }

    /// Counts a packet that is longer than the MTU of a link on its path.
    fn lose_long(&self, far: &Far, headers: &Headers, len: u32) {
        let dropped = DropRecord {
            qpn: self.qpn(),
            got: len,
            expected: far.room,
            address: far.gid,
            src_qp: self.qpn(),
            dest_qp: headers.dest_qp.value(),
            psn: headers.psn.value(),
            opcode: headers.opcode.as_u8().into(),
            ..DropRecord::default()
        };
        self.engine().drop_packet(Cause::LinkMtu, dropped);
    }

    /// Keeps a packet of a connection until later, and its copy or its ghost, if there is one.
    fn delay(&self, exit: &Exit<'_>, headers: &Headers, bytes: Box<[u8]>, verdict: &Verdict) -> Sent {
        let engine = self.engine();
        let damage = if let Fate::Damaged(bit) = verdict.fate { Some(bit) } else { None };
        let late = verdict.fate == Fate::Late;
        let at = verdict.until.unwrap_or(0).max(if late { engine.now().0 + LATE } else { 0 });
        let keep = |headers: &Headers| {
            let to = match exit {
                Exit::Lane(lane, _, path, _) => {
                    To::Lane { lane: Arc::clone(lane), path: *path, headers: *headers, grh: None }
                }
                Exit::Wire(flow, ..) => To::Host { flow: Arc::clone(flow), headers: *headers, damage },
            };
            let packet = DelayedPacket { qp: self.weak(), qpn: self.qpn(), to, bytes: bytes.clone(), late };
            engine.keep_delayed_packet(at, packet);
        };
        keep(headers);
        match verdict.fate {
            Fate::Twice => keep(headers),
            Fate::Ghost => keep(&ghost(headers)),
            _ => {}
        }
        Sent::Yes
    }

    /// Applies the rules to an outgoing datagram. Returns what has become of it; `None` if it goes
    /// on unchanged. `to` is its destination.
    #[cold]
    pub(crate) fn datagram_with_faults(
        &self,
        far: &Far,
        headers: &Headers,
        len: u32,
        from: &Origin<'_>,
        to: Towards<'_>,
    ) -> Option<Sent> {
        let engine = self.engine();
        let facts = facts(Direction::Out, engine.device(), self.qpn(), far, headers, len);
        let verdict = engine.faults.decide(engine, &facts, headers);
        let damage = match verdict.fate {
            Fate::Damaged(bit) => Some(bit),
            _ => None,
        };
        let waits =
            verdict.until.is_some_and(|until| until > engine.now().0 || engine.faults.delayed.has_line(self.qpn()));
        let is_lane = matches!(to, Towards::Lane(..));
        let goes = verdict.fate == Fate::Good || verdict.fate == Fate::Ghost;
        if goes && !waits {
            engine.follow_with_delayed_packets(self.qpn());
            return None;
        }
        let bytes = match self.gather(from, len, &mut HeldRegion::new(engine)) {
            Ok(bytes) => bytes,
            Err(refusal) => return Some(Sent::Refused(refusal)),
        };
        if verdict.fate == Fate::Lost || (is_lane && damage.is_some()) {
            let (lane, source) = match to {
                Towards::Lane(lane, _, grh) => (Some(&**lane), grh.map_or([0; 16], |grh| source_of(&grh))),
                Towards::Host(flow) => (None, flow.source),
            };
            self.show_lost(Ends::between(self.qpn(), source, far.gid), lane, headers, &bytes);
            return Some(if verdict.on_link { Sent::Lost } else { Sent::Yes });
        }
        let late = verdict.fate == Fate::Late;
        let at = verdict.until.unwrap_or(engine.now().0).max(if late { engine.now().0 + LATE } else { 0 });
        for _ in 0..if verdict.fate == Fate::Twice { 2 } else { 1 } {
            let to = match to {
                Towards::Lane(lane, path, grh) => To::Lane { lane: Arc::clone(lane), path, headers: *headers, grh },
                Towards::Host(flow) => To::Host { flow: Arc::clone(flow), headers: *headers, damage },
            };
            engine.keep_delayed_packet(
                at,
                DelayedPacket { qp: self.weak(), qpn: self.qpn(), to, bytes: bytes.clone(), late },
            );
        }
        Some(Sent::Yes)
    }

    /// Whether a rule makes a request see no receive request. If so, the responder answers with an
    /// RNR NAK.
    #[cold]
    pub(crate) fn withholds_receive(&self, inner: &mut Inner, packet: &Packet) -> bool {
        if !self.service.is_reliable() {
            return false;
        }
        let engine = self.engine();
        let far =
            Far { gid: inner.attributes.dest.dgid, port: inner.attributes.port_num.into(), room: u32::MAX, links: 0 };
        let mut facts = facts(Direction::In, engine.device(), self.qpn(), &far, &packet.headers, packet.len.into());
        facts.peer_qpn = inner.attributes.dest_qp_num;
        let withheld = engine.faults.withholds_receive(engine, &facts, &packet.headers);
        if withheld {
            inner.responder.finish(Outcome::Rnr);
        }
        withheld
    }

    fn show_lost_by(&self, exit: &Exit<'_>, far: &Far, headers: &Headers, bytes: &[u8]) {
        match exit {
            Exit::Lane(lane, sender, ..) => {
                let ends = sender.ends.unwrap_or(Ends::between(self.qpn(), [0; 16], far.gid));
                self.show_lost(ends, Some(lane), headers, bytes);
            }
            Exit::Wire(flow, ..) => {
                self.show_lost(Ends::between(self.qpn(), flow.source, far.gid), None, headers, bytes);
            }
        }
    }

    /// The payload of a packet, copied now.
    fn gather(&self, from: &Origin<'_>, len: u32, region: &mut HeldRegion<'_>) -> Result<Box<[u8]>, Refusal> {
        let mut bytes = vec![0; len as usize].into_boxed_slice();
        self.fill(region, *from, 0, &mut Sink::from(&mut bytes[..]))?;
        Ok(bytes)
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy)]
pub(crate) enum Towards<'a> {
    Lane(&'a Arc<crate::qp::Lane>, crate::cell::Path, Option<[u8; 40]>),
    Host(&'a Arc<Flow>),
}

/// The source address in a GRH.
fn source_of(grh: &[u8; 40]) -> [u8; 16] {
    Network::parse(grh).map_or([0; 16], |network| network.gids().0)
}

/// A repeated acknowledgement of an earlier PSN.
fn ghost(headers: &Headers) -> Headers {
    Headers { psn: headers.psn - 1, ..*headers }
}

impl Engine {
    /// Applies the rules to an incoming packet; returns true if the packet goes no further now.
    #[cold]
    pub(crate) fn meets_fault(&self, packet: &Packet, payload: Source<'_>, origin: receive::Ingress<'_>) -> bool {
        let Some(qp) = self.qps.find(packet.headers.dest_qp.value()) else { return false };
        let (gid, port, peer) = {
            let inner = qp.lock();
            if !inner.link.is_ruled() {
                return false;
            }
            let gid = match origin {
                receive::Ingress::Host { from, .. } => *from,
                receive::Ingress::Lane => inner.attributes.dest.dgid,
            };
            (gid, u32::from(inner.attributes.port_num), inner.attributes.dest_qp_num)
        };
        let far = Far { gid, port, room: u32::MAX, links: 0 };
        let len = u32::from(packet.len);
        let mut facts = facts(Direction::In, self.device(), qp.qpn(), &far, &packet.headers, len);
        facts.peer_qpn = if packet.src_qp.value() == 0 { peer } else { packet.src_qp.value() };
        let verdict = self.faults.decide(self, &facts, &packet.headers);
        let late = verdict.fate == Fate::Late;
        match verdict.fate {
            Fate::Lost | Fate::Damaged(_) => return true,
            Fate::Twice if verdict.until.is_none() => {
                qp.arrive(packet, payload, origin, true);
            }
            _ => {}
        }
        let waits = verdict.until.is_some_and(|until| until > self.now().0 || self.faults.delayed.has_line(qp.qpn()));
        if !(late || waits) {
            self.follow_with_delayed_packets(qp.qpn());
            return false;
        }
        // A packet that cannot be kept is not delayed.
        let Ok(bytes) = access::copied(payload) else { return false };
        let addresses = match origin {
            receive::Ingress::Host { from, to } => Some((*from, *to)),
            receive::Ingress::Lane => None,
        };
        let at = verdict.until.unwrap_or(0).max(if late { self.now().0 + LATE } else { 0 });
        for _ in 0..if verdict.fate == Fate::Twice { 2 } else { 1 } {
            let to = To::Here { packet: *packet, addresses };
            self.keep_delayed_packet(
                at,
                DelayedPacket { qp: Arc::downgrade(&qp), qpn: qp.qpn(), to, bytes: bytes.clone(), late },
            );
        }
        true
    }
}
