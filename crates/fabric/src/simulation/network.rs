//! The network of a simulation: packets become events, and each packet's fate is decided when it is
//! sent. Principal types: [`EnginePlug`], [`Packets`].

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use agent::port_change::PortChange;
use agent::wire::ReceivedBurst;
use engine::{Network, Outlet};
use rustix::fs::fstat;
use softhca::Gid;

use super::core::{Core, Event, State};
use super::trace::{Fate, Seen};
use crate::head::{Head, source_port};

/// Packets that arrive together.
pub(super) struct Packets {
    head: Head,
    segment: usize,
    bytes: Vec<u8>,
}

impl Packets {
    fn one(head: Head, bytes: Vec<u8>) -> Self {
        Self { head, segment: bytes.len(), bytes }
    }

    pub(super) fn incoming(&self) -> ReceivedBurst<'_> {
        self.head.coming(self.segment, &self.bytes)
    }
}

impl Core {
    /// Whether packets that arrive now reach the host.
    pub(super) fn arrives(&self, to: usize, packets: &Packets) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let from = state.places.get(&packets.head.from).copied();
        let is_cut = state.cut.contains(&to) || from.is_some_and(|from| state.cut.contains(&from));
        if is_cut || state.is_cut(&packets.head) {
            for packet in packets.bytes.chunks(packets.segment) {
                state.count_harm(to, packet);
            }
            return false;
        }
        state.trace.add(now, &Seen::Came { to, segment: packets.segment, bytes: &packets.bytes });
        true
    }

    fn carry(&self, from: usize, head: &Head, segment: usize, bytes: &[u8]) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.inject(now, from, head, segment, bytes) {
            return;
        }
        let targets: Vec<usize> = if head.to.is_multicast() {
            let mut all: Vec<usize> = state.places.values().copied().filter(|host| *host != from).collect();
            all.sort_unstable();
            all.dedup();
            all
        } else {
            state.places.get(&head.to).copied().into_iter().collect()
        };
        for to in targets {
            state.send(now, (from, to), head, segment, bytes);
        }
    }
}

impl Core {
    /// Lets happen what is due in the subnet. Packets that have come out become events. Returns
    /// what has changed at hosts' ports, and whether anything has come out.
    pub(super) fn advance_links(&self) -> (Vec<(usize, PortChange)>, bool) {
        let now = self.now();
        let state = &mut *self.state.lock();
        let Some(links) = &mut state.links else { return (Vec::new(), false) };
        let tells = links.advance(now);
        let (arrived, changes) = (std::mem::take(&mut links.arrived), std::mem::take(&mut links.changes));
        for (to, head, bytes) in arrived {
            state.push(now, Event::Packets { to, packets: Packets::one(head, bytes) });
        }
        (changes, tells)
    }
}

impl State {
    /// Sends a burst into the subnet. Returns false if the host is not on it.
    fn inject(&mut self, now: u64, from: usize, head: &Head, segment: usize, bytes: &[u8]) -> bool {
        let Some(links) = self.links.as_mut().filter(|links| links.end(from).is_some()) else { return false };
        links.advance(now);
        let to = self.places.get(&head.to).copied();
        let mut lost = Vec::new();
        for (id, packet) in (0..).zip(bytes.chunks(segment)) {
            let (sent, dlid) = links.send(from, to, head, id, packet);
            let seen = Seen::Injected { from, dlid, sl: head.service_level, sent, bytes: packet };
            self.trace.add(now, &seen);
            if !sent {
                lost.push(packet);
            }
        }
        if let Some(to) = to {
            lost.into_iter().for_each(|packet| self.count_harm(to, packet));
        }
        true
    }

    /// Decides the fate of each packet of a burst. Unharmed packets usually stay together.
    fn send(&mut self, now: u64, way: (usize, usize), head: &Head, segment: usize, bytes: &[u8]) {
        let scatters = self.dice.happens(self.conditions.scattering);
        let mut together: Vec<u8> = Vec::new();
        for packet in bytes.chunks(segment) {
            let mut fate = self.fate();
            if self.cut.contains(&way.0) || self.cut.contains(&way.1) || self.is_cut(head) {
                fate = Fate::Lost;
            }
            self.trace.add(now, &Seen::Sent { from: way.0, to: way.1, fate, bytes: packet });
            if fate != Fate::Good {
                self.count_harm(way.1, packet);
            }
            let mut packet = packet.to_vec();
            if fate == Fate::Damaged {
                let bit = self.dice.below(packet.len() as u64 * 8) as usize;
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            match fate {
                Fate::Lost => {}
                Fate::Late => self.late(now, way, head, packet),
                Fate::Good | Fate::Damaged | Fate::Twice => {
                    if fate == Fate::Twice {
                        self.late(now, way, head, packet.clone());
                    }
                    together.extend_from_slice(&packet);
                    if !scatters {
                        continue;
                    }
                }
            }
            self.in_order(now, way, head, segment, std::mem::take(&mut together));
        }
        self.in_order(now, way, head, segment, together);
    }

    /// Whether one of the two addresses is cut off.
    fn is_cut(&self, head: &Head) -> bool {
        self.cut_paths.contains(&head.from) || self.cut_paths.contains(&head.to)
    }

    fn fate(&mut self) -> Fate {
        let conditions = &self.conditions;
        for (part, fate) in [
            (conditions.loss, Fate::Lost),
            (conditions.duplication, Fate::Twice),
            (conditions.reordering, Fate::Late),
            (conditions.corruption, Fate::Damaged),
        ] {
            if self.dice.happens(part) {
                return fate;
            }
        }
        Fate::Good
    }

    /// Counts the harm for the packet's destination QP.
    fn count_harm(&mut self, to: usize, packet: &[u8]) {
        if let Some(&[a, b, c]) = packet.get(5..8) {
            *self.harmed.entry((to, u32::from_be_bytes([0, a, b, c]))).or_default() += 1;
        }
    }

    pub(super) fn delay(&mut self) -> u64 {
        let (least, most) = self.conditions.delay;
        let (least, most) = (least.as_nanos() as u64, most.as_nanos() as u64);
        least + self.dice.below(most.saturating_sub(least) + 1)
    }

    fn in_order(&mut self, now: u64, way: (usize, usize), head: &Head, segment: usize, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = now + self.delay();
        let last = self.last.entry(way).or_default();
        // Equal times keep the order, too: of two events at one time the one that was queued first
        // comes first.
        *last = at.max(*last);
        let at = *last;
        self.push(at, Event::Packets { to: way.1, packets: Packets { head: *head, segment, bytes } });
    }

    fn late(&mut self, now: u64, way: (usize, usize), head: &Head, bytes: Vec<u8>) {
        let extra_delay = self.conditions.extra_delay.as_nanos() as u64;
        let at = now + self.delay() + self.dice.below(extra_delay + 1);
        self.push(at, Event::Packets { to: way.1, packets: Packets::one(*head, bytes) });
    }
}

/// The connection of an engine to the network.
pub(super) struct EnginePlug {
    core: Arc<Core>,
    host: usize,
    gids: Vec<Gid>,
}

impl EnginePlug {
    pub(super) fn new(core: &Arc<Core>, host: usize, gids: &[Gid]) -> Self {
        Self { core: Arc::clone(core), host, gids: gids.to_vec() }
    }
}

impl Network for EnginePlug {
    fn open(&self, source: [u8; 16], _ifindex: u32, hint: u16) -> io::Result<Arc<dyn Outlet>> {
        if !self.gids.contains(&Gid(source)) {
            return Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
        }
        let mut state = self.core.state.lock();
        let port = source_port(hint, state.ports);
        state.ports = state.ports.wrapping_add(1);
        drop(state);
        Ok(Arc::new(SimulatedOutlet { core: Arc::clone(&self.core), host: self.host, source: Gid(source), port }))
    }

    fn reset(&self, socket: BorrowedFd<'_>) {
        if let Ok(stat) = fstat(socket) {
            self.core.state.lock().resets.push(stat.st_ino);
        }
    }
}

/// An outlet of a host.
struct SimulatedOutlet {
    core: Arc<Core>,
    host: usize,
    source: Gid,
    port: u16,
}

impl Outlet for SimulatedOutlet {
    fn port(&self) -> u16 {
        self.port
    }

    fn send(&self, out: &udp::Outgoing<'_>) -> io::Result<()> {
        if let Some((head, segment)) = Head::leaving(self.source, self.port, out) {
            self.core.carry(self.host, &head, segment, out.bytes);
        }
        Ok(())
    }
}
