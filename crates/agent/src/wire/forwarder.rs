//! Forwards datagrams of other hosts to the engines that own the destination QPs.
//!
//! Datagrams arrive in batches from one source, as the kernel merges them. The forwarder splits a
//! batch where the owner of the destination changes. Each part becomes one record on its engine's
//! wire lane, so an engine gets its datagrams in the order of arrival. The forwarder never waits
//! for an engine. If an engine has no room, its [`WireLaneEnd`] keeps datagrams up to a bound.
//! Beyond it they are lost, as on any network, and counted. The forwarder parses only the
//! destination QP; the engines check the ICRC. The principal type is [`Forwarder`].

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::board;
use abi::capture::{CaptureRecord, path};
use abi::wire::{Arrival, arrival_kind};
use engine::capture::CaptureHook;
use parking_lot::{Mutex, RwLock};
use shm::region::Region;
use wire::cm::Gid;
use wire::icrc::Envelope;

use super::link::{Delivery, FromEngine, WireLaneEnd};
use super::to_groups::ToGroups;
use crate::management::Inlet;
use crate::objects::groups::is_multicast;

/// The shortest valid datagram: a BTH and an ICRC.
const DATAGRAM_MIN: usize = 16;
/// Maximum number of bytes of datagrams in one record.
const RUN_MAX: usize = 64 * 1024;
/// The destination QP of multicast datagrams.
const MULTICAST: u32 = 0x00ff_ffff;

/// Datagrams that arrived together from one source at one destination.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedBurst<'a> {
    /// Source address as a GID.
    pub from: [u8; 16],
    /// Source port.
    pub from_port: u16,
    /// Destination address as a GID; the group, if they were sent to a group.
    pub to: [u8; 16],
    /// Their traffic class (IPv4: TOS).
    pub traffic_class: u8,
    /// Their hop limit (IPv4: TTL).
    pub hop_limit: u8,
    /// Length of each datagram except the last, which has the remaining bytes. If it is 0, or not
    /// less than the length of `bytes`, there is only one datagram.
    pub segment: usize,
    /// The datagrams one after the other, each from the BTH to the ICRC.
    pub bytes: &'a [u8],
}

/// How many datagrams were not forwarded, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// The destination QP has no owner, or its owner does not receive from other hosts.
    pub no_engine: u64,
    /// The engine had no room left.
    pub ring_full: u64,
    /// Their source address is an address of this agent.
    pub own_source: u64,
    /// They are no valid transport packets.
    pub malformed: u64,
    /// They are for QP 0 or QP 1, but are no management datagrams.
    pub management: u64,
}

/// Forwards datagrams of other hosts to the engines of one agent. Any thread may call it.
#[derive(Debug)]
pub struct Forwarder {
    /// The owners of QPNs. The forwarder reads the board as every client does.
    board: Arc<Region>,
    engines: RwLock<Engines>,
    /// Datagrams for the agent itself.
    inlet: Arc<Inlet>,
    /// Multicast datagrams of engines, for the links of the subnet.
    to_groups: ToGroups,
    drops: Counters,
    /// Captures datagrams that are lost here, because no engine captures them.
    capture_hook: Arc<CaptureHook>,
}

#[derive(Debug, Default)]
struct Engines {
    links: HashMap<u32, WireLaneEnd>,
    /// Engines with members, by group.
    groups: HashMap<Gid, Vec<u32>>,
    /// This agent's own addresses that have the wire, in order.
    own: Vec<Gid>,
}

#[derive(Debug, Default)]
struct Counters {
    no_engine: AtomicU64,
    ring_full: AtomicU64,
    own_source: AtomicU64,
    malformed: AtomicU64,
    management: AtomicU64,
    /// The latest datagram of each kind.
    last: Mutex<BTreeMap<Loss, Example>>,
}

/// Why a datagram was not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    NoEngine,
    RingFull,
    OwnSource,
    Malformed,
    Management,
}

impl Loss {
    /// The words that a capture shows with it.
    fn words(self) -> &'static str {
        match self {
            Self::NoEngine => "dropped: no program here has its QP",
            Self::RingFull => "dropped: its program had no room left",
            Self::OwnSource => "dropped: it comes from outside and claims an address of this agent",
            Self::Malformed => "dropped: it cannot be a packet",
            Self::Management => "dropped: it is for QP 0 or QP 1, and no management datagram",
        }
    }

    /// The counter's name.
    fn name(self) -> &'static str {
        match self {
            Self::NoEngine => "no_engine",
            Self::RingFull => "ring_full",
            Self::OwnSource => "own_source",
            Self::Malformed => "malformed",
            Self::Management => "management",
        }
    }
}

/// A datagram that was not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Example {
    from: Gid,
    to: Gid,
    bytes: usize,
    qpn: u32,
}

/// The destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    Engine(u32),
    /// Every engine with members of the destination group.
    Members,
    /// QP 0 or QP 1, which belong to the agent.
    Management,
    Nobody,
}

impl Forwarder {
    /// Creates a forwarder without engines. `board` says which engine owns which QPN.
    pub(crate) fn new(board: Arc<Region>, capture_hook: &Arc<CaptureHook>) -> io::Result<Self> {
        Ok(Self {
            board,
            engines: RwLock::default(),
            inlet: Arc::new(Inlet::new(Arc::clone(capture_hook))?),
            to_groups: ToGroups::new()?,
            drops: Counters::default(),
            capture_hook: Arc::clone(capture_hook),
        })
    }

    /// The queue of datagrams for QP 1.
    pub(crate) fn inlet(&self) -> &Arc<Inlet> {
        &self.inlet
    }

    /// Forwards a batch.
    pub fn take(&self, incoming: &ReceivedBurst<'_>) {
        self.forward(&self.engines.read(), incoming);
    }

    /// How many datagrams were lost here so far.
    pub fn drops(&self) -> Drops {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.drops;
        Drops {
            no_engine: read(&counters.no_engine),
            ring_full: read(&counters.ring_full),
            own_source: read(&counters.own_source),
            malformed: read(&counters.malformed),
            management: read(&counters.management),
        }
    }

    /// The latest lost datagram of each kind: the counter's name, and a description.
    pub(crate) fn last_drops(&self) -> Vec<(&'static str, String)> {
        let address = |gid: Gid| std::net::Ipv6Addr::from(gid).to_canonical();
        let told = |(loss, example): (&Loss, &Example)| {
            let Example { from, to, bytes, qpn } = *example;
            let (from, to) = (address(from), address(to));
            (loss.name(), format!("{bytes} bytes from {from} to {to}, for QP {qpn:#x}"))
        };
        self.drops.last.lock().iter().map(told).collect()
    }

    /// Counts datagrams that are not forwarded, and remembers the latest.
    #[cold]
    fn lose(&self, loss: Loss, datagrams: usize, (from, to): (Gid, Gid), bytes: &[u8]) {
        let drops = &self.drops;
        let counter = match loss {
            Loss::NoEngine => &drops.no_engine,
            Loss::RingFull => &drops.ring_full,
            Loss::OwnSource => &drops.own_source,
            Loss::Malformed => &drops.malformed,
            Loss::Management => &drops.management,
        };
        counter.fetch_add(datagrams as u64, Ordering::Relaxed);
        let qpn = bytes.get(5..8).map_or(0, |qpn| u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]));
        drops.last.lock().insert(loss, Example { from, to, bytes: bytes.len(), qpn });
    }

    /// Shows datagrams that are not forwarded to captures.
    #[cold]
    fn show(&self, loss: Loss, arrival: &Arrival, bytes: &[u8]) {
        if !self.capture_hook.is_on() {
            return;
        }
        let Arrival { from, to, from_port, traffic_class, hop_limit, segment, .. } = *arrival;
        let envelope = Envelope::new(&from, &to, from_port);
        for datagram in bytes.chunks(usize::from(segment).max(1)) {
            let id = envelope.check(datagram, 0).unwrap_or(0);
            let path = path::WIRE_IN;
            let about =
                CaptureRecord { path, from, to, from_port, id, traffic_class, hop_limit, ..CaptureRecord::default() };
            self.capture_hook.packet(&about, datagram, loss.words());
        }
    }

    /// Adds an engine.
    pub(crate) fn add(&self, engine: u32, link: WireLaneEnd) {
        self.engines.write().links.insert(engine, link);
    }

    /// Removes an engine.
    pub(crate) fn remove(&self, engine: u32) -> Option<WireLaneEnd> {
        // With the lock, because the wire thread adds to the queue while it reads the engines.
        let mut engines = self.engines.write();
        self.to_groups.forget(engine);
        engines.links.remove(&engine)
    }

    /// Whether an engine has its wire lane.
    pub(crate) fn knows(&self, engine: u32) -> bool {
        self.engines.read().links.contains_key(&engine)
    }

    /// Whether an engine may read the agent's sockets.
    pub(crate) fn shares(&self, engine: u32) -> bool {
        self.engines.read().links.get(&engine).is_some_and(WireLaneEnd::is_shared)
    }

    /// Whether an engine may take the lease now. It may if it has received all older datagrams that
    /// were read for it.
    pub(crate) fn may_begin(&self, engine: u32) -> bool {
        self.engines.read().links.get(&engine).is_some_and(|link| link.is_shared() && !link.is_behind())
    }

    /// An engine may have made room for its waiting datagrams.
    pub(crate) fn go_on(&self, engine: u32) {
        if let Some(link) = self.engines.read().links.get(&engine) {
            link.go_on(engine);
        }
    }

    /// Sets which engines have members in a group.
    pub(crate) fn set_members(&self, group: Gid, members: Vec<u32>) {
        let mut engines = self.engines.write();
        if members.is_empty() {
            engines.groups.remove(&group);
        } else {
            engines.groups.insert(group, members);
        }
    }

    /// Sets the agent's own addresses.
    pub(crate) fn set_own(&self, mut own: Vec<Gid>) {
        own.sort_unstable();
        self.engines.write().own = own;
    }

    /// Forwards the packets that an engine has read for others or sends to groups. Returns true if
    /// there may be more.
    pub(crate) fn take_records(&self, engine: u32, buffer: &mut [u8]) -> bool {
        let engines = self.engines.read();
        let Some(link) = engines.links.get(&engine) else { return false };
        link.take_records(engine, buffer, |record| match record {
            FromEngine::Misdelivered(incoming) => self.forward(&engines, &incoming),
            FromEngine::ToGroup(head, bytes) => self.to_groups.push(engine, &head, bytes),
        })
    }

    /// Brings one datagram of a group to an engine. Without room there, it is lost.
    pub(crate) fn deliver_to(&self, engine: u32, arrival: &Arrival, datagram: &[u8]) {
        self.hand_on(&self.engines.read(), Some(Destination::Engine(engine)), arrival, datagram);
    }

    /// The multicast datagrams for the links of the subnet.
    pub(crate) fn to_groups(&self) -> &ToGroups {
        &self.to_groups
    }

    fn forward(&self, engines: &Engines, incoming: &ReceivedBurst<'_>) {
        let bytes = incoming.bytes;
        let segment = if incoming.segment == 0 { bytes.len() } else { incoming.segment.min(bytes.len()) };
        let arrival = Arrival {
            kind: arrival_kind::DATAGRAMS,
            traffic_class: incoming.traffic_class,
            hop_limit: incoming.hop_limit,
            segment: u16::try_from(segment).unwrap_or(0),
            from_port: incoming.from_port,
            from: incoming.from,
            to: incoming.to,
            ..Arrival::default()
        };
        let Some(Ok(_)) = (segment > 0).then(|| u16::try_from(segment)) else {
            return self.lose(Loss::Malformed, 1, (incoming.from, incoming.to), bytes);
        };
        if engines.own.binary_search(&incoming.from).is_ok() {
            self.show(Loss::OwnSource, &arrival, bytes);
            return self.lose(Loss::OwnSource, bytes.len().div_ceil(segment), (incoming.from, incoming.to), bytes);
        }
        let to_group = is_multicast(&incoming.to);
        let (mut start, mut end, mut owner) = (0, 0, None);
        for datagram in bytes.chunks(segment) {
            let next = self.destination(datagram, to_group);
            let goes_on = owner.is_none_or(|owner| Some(owner) == next) && end + datagram.len() - start <= RUN_MAX;
            if !goes_on || next.is_none() {
                self.hand_on(engines, owner, &arrival, &bytes[start..end]);
                start = end;
            }
            end += datagram.len();
            owner = next;
            if next.is_none() {
                self.show(Loss::Malformed, &arrival, datagram);
                self.lose(Loss::Malformed, 1, (incoming.from, incoming.to), datagram);
                start = end;
            }
        }
        self.hand_on(engines, owner, &arrival, &bytes[start..end]);
    }

    /// The destination of a datagram. `None`: it is no valid datagram.
    fn destination(&self, datagram: &[u8], to_group: bool) -> Option<Destination> {
        if datagram.len() < DATAGRAM_MIN {
            return None;
        }
        let qpn = u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]]);
        match qpn {
            MULTICAST if to_group => Some(Destination::Members),
            MULTICAST => None,
            _ if to_group => None,
            0 | 1 => Some(Destination::Management),
            // Acquire, as every reader of the board.
            _ => match self.board.word(board::owner(qpn)).load(Ordering::Acquire) {
                0 => Some(Destination::Nobody),
                engine => Some(Destination::Engine(engine)),
            },
        }
    }

    /// Forwards datagrams that have one destination.
    fn hand_on(&self, engines: &Engines, to: Option<Destination>, arrival: &Arrival, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let datagrams = bytes.len().div_ceil(usize::from(arrival.segment));
        let lose = |loss, count| {
            self.show(loss, arrival, bytes);
            self.lose(loss, count, (arrival.from, arrival.to), bytes);
        };
        let deliver = |engine: u32| {
            let delivery = match engines.links.get(&engine) {
                Some(link) => link.deliver(engine, arrival, bytes),
                None => Delivery::Lost,
            };
            match delivery {
                Delivery::Done => {}
                Delivery::Full => lose(Loss::RingFull, datagrams),
                Delivery::Lost => lose(Loss::NoEngine, datagrams),
            }
        };
        match to {
            Some(Destination::Engine(engine)) => deliver(engine),
            Some(Destination::Members) => match engines.groups.get(&arrival.to) {
                Some(members) => members.iter().copied().for_each(deliver),
                None => lose(Loss::NoEngine, datagrams),
            },
            Some(Destination::Management) => {
                let segment = usize::from(arrival.segment);
                let useless = self.inlet.take(arrival.from, arrival.from_port, arrival.to, segment, bytes);
                if useless > 0 {
                    self.lose(Loss::Management, useless as usize, (arrival.from, arrival.to), bytes);
                }
            }
            Some(Destination::Nobody) => lose(Loss::NoEngine, datagrams),
            None => {}
        }
    }
}
