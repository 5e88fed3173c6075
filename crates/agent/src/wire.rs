//! The wire: the way of packets from other hosts to the engines.
//!
//! ```text
//! UDP port 4791 of each address ── wire thread ── Forwarder ══ wire lane ══ engine
//!                                      │                          │
//!                                  lease page ─────────── an engine that polls reads the sockets
//!                                                         and returns misdelivered packets
//! ```
//!
//! A [`Forwarder`] finds the engine of each datagram. If packets come from elsewhere (an embedded
//! fabric), there is only the forwarder. For UDP the agent also has receiving sockets
//! ([`receivers`]) and a thread that reads them ([`thread`]). The engines send for themselves. The
//! principal types are [`Forwarder`] and [`Wire`], the state of all this in the world.

pub(crate) mod delayed_acks;
pub mod forwarder;
mod intake;
mod lease;
pub(crate) mod link;
pub(crate) mod receivers;
#[cfg(test)]
mod tests;
pub(crate) mod thread;
pub(crate) mod to_groups;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use abi::wire::WireSocket;
use engine::capture::CaptureHook;
use shm::region::Region;

use crate::config;
use crate::devices::Devices;
use crate::engine_link::EngineLink;
use crate::gids::{GidEntry, gid_of, ip_of};
use crate::management::Inlet;
use crate::objects::groups::Groups;
use crate::streams::Streams;
pub use forwarder::{Drops, Forwarder, ReceivedBurst};
use intake::{Intake, scope};
use link::{EngineEnd, WireLaneEnd};
use receivers::{ReceiveAddress, Receivers};
use thread::WireThread;

/// The state of the wire in the world.
#[derive(Debug)]
pub struct Wire {
    mode: config::WireMode,
    /// Users are kept apart: no engine gets the sockets, and no engine can make the wire thread
    /// wait.
    apart: bool,
    forwarder: Arc<Forwarder>,
    /// Only with UDP.
    intake: Option<Arc<Intake>>,
    receivers: Receivers,
    /// Addresses or groups have changed since the sockets were brought up to date.
    stale: bool,
    /// The connections of iWARP that wait for engines.
    streams: Arc<Streams>,
}

/// The answer to WIRE_OPEN.
pub(crate) struct WireOpenReply {
    /// The lane's memory, the notifier of the wire thread, and the lease page if the engine may
    /// take the lease.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether the engine may take the lease.
    pub(crate) shared: bool,
}

impl Wire {
    /// The wire of an agent before its first address. `board` says which engine owns which QPN.
    pub(crate) fn new(
        config: &config::Config,
        board: Arc<Region>,
        capture_hook: &Arc<CaptureHook>,
    ) -> io::Result<Self> {
        let intake = match config.wire {
            config::WireMode::Udp => Some(Arc::new(Intake::new(!config.system)?)),
            config::WireMode::External | config::WireMode::Off => None,
        };
        Ok(Self {
            mode: config.wire,
            apart: config.system,
            forwarder: Arc::new(Forwarder::new(board, capture_hook)?),
            intake,
            receivers: Receivers::default(),
            stale: true,
            streams: Arc::default(),
        })
    }

    /// The connections of iWARP that wait for engines.
    pub(crate) fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    /// The forwarder, which brings datagrams to the engines.
    pub fn forwarder(&self) -> &Arc<Forwarder> {
        &self.forwarder
    }

    /// The queue of datagrams for QP 1.
    pub(crate) fn inlet(&self) -> &Arc<Inlet> {
        self.forwarder.inlet()
    }

    /// Starts the thread that reads the sockets, if the mode needs one.
    pub(crate) fn start(&self) -> io::Result<Option<WireThread>> {
        let start = |intake: &Arc<Intake>| WireThread::start(Arc::clone(intake), Arc::clone(&self.forwarder));
        self.intake.as_ref().map(start).transpose()
    }

    /// Whether the holder of the forwarder brings the packets.
    pub(crate) fn is_external(&self) -> bool {
        self.mode == config::WireMode::External
    }

    /// Whether there is a wire.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != config::WireMode::Off
    }

    /// Makes the sockets report traffic class and hop limit, because there is a datagram QP now.
    pub(crate) fn tell_hops(&self) -> io::Result<()> {
        self.intake.as_ref().map_or(Ok(()), |intake| intake.tell_hops())
    }

    /// Gives an engine of the user `uid` its wire lane.
    pub(crate) fn open(&self, number: u32, engine: &EngineLink, uid: u32) -> io::Result<WireOpenReply> {
        let own = uid == rustix::process::getuid().as_raw();
        let shared = self.intake.is_some() && own && !self.apart;
        let (link, EngineEnd { memory, notifier }) = WireLaneEnd::new(
            engine.wake_word().as_fd(),
            engine.waker(self.apart || !own)?,
            shared,
            self.intake.is_some(),
        )?;
        let mut fds = vec![memory, notifier];
        if let Some(intake) = &self.intake {
            if shared {
                fds.push(intake.page_descriptor()?);
            }
            intake.hear(number, link.notifier())?;
        }
        self.forwarder.add(number, link);
        Ok(WireOpenReply { fds, shared })
    }

    /// Removes an engine that has ended. The board's readers may still find its number, which from
    /// now on must stand for an ended engine only.
    pub(crate) fn close(&self, number: u32) {
        if let Some(link) = self.forwarder.remove(number)
            && let Some(intake) = &self.intake
        {
            intake.forget(link.notifier());
        }
    }

    /// The number of receiving sockets, and the sockets from number `first` on with their
    /// descriptors.
    pub(crate) fn sockets(&self, first: u32, max: u32) -> io::Result<(usize, Vec<(WireSocket, OwnedFd)>)> {
        match &self.intake {
            Some(intake) => intake.sockets(first as usize, max as usize),
            None => Ok((0, Vec::new())),
        }
    }

    /// Sets which engines have members in a group.
    pub(crate) fn set_members(&mut self, group: [u8; 16], engines: Vec<u32>) {
        self.forwarder.set_members(group, engines);
        self.stale = true;
    }

    /// Notes that addresses or groups have changed.
    pub(crate) fn touch(&mut self) {
        self.stale = true;
    }

    /// Whether [`Wire::follow`] has something to do.
    pub(crate) fn is_due(&self, now: impl Fn() -> Instant) -> bool {
        self.stale || self.next_try().is_some_and(|at| at <= now())
    }

    /// When sockets that could not be opened are tried again.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.receivers.next_try()
    }

    /// Brings the sockets up to date with the addresses and groups. Returns true if a socket was
    /// opened or closed.
    pub(crate) fn follow(&mut self, devices: &Devices, groups: &Groups, now: Instant) -> bool {
        self.stale = false;
        let mut addresses = BTreeMap::new();
        let ports = || devices.iter().flat_map(|device| &device.ports).filter(|port| port.has_packets());
        for (_, entry) in ports().flat_map(|port| port.gids.iter()) {
            addresses.entry(place(entry)).or_insert(entry.ifindex);
        }
        let Some(intake) = &self.intake else {
            let own = |(_, entry): (usize, GidEntry)| (self.code(entry) != 0).then_some(entry.gid);
            let entries = ports().flat_map(|port| port.gids.iter());
            self.forwarder.set_own(entries.filter_map(own).collect());
            return false;
        };
        let addresses: BTreeMap<ReceiveAddress, u32> =
            addresses.into_iter().filter_map(|(place, ifindex)| Some((place?, ifindex))).collect();
        // Twice: groups are joined where an address has the wire, which is known only after the
        // addresses were handled.
        let mut changed = false;
        for _ in 0..2 {
            let mut wanted = addresses.clone();
            wanted.extend(self.joins(&addresses, groups));
            changed |= self.receivers.follow(&wanted, now, intake);
        }
        let own = addresses.keys().filter(|place| self.receivers.find(**place).is_ok()).map(|place| gid_of(place.ip()));
        self.forwarder.set_own(own.collect());
        changed
    }

    /// The groups with members, on each interface that has the wire on an address of the group's
    /// family.
    fn joins(&self, addresses: &BTreeMap<ReceiveAddress, u32>, groups: &Groups) -> BTreeMap<ReceiveAddress, u32> {
        let wired = addresses.iter().filter(|(place, _)| self.receivers.find(**place).is_ok());
        let interfaces: BTreeSet<(bool, u32)> =
            wired.map(|(place, ifindex)| (place.ip().is_ipv6(), *ifindex)).collect();
        let mut joins = BTreeMap::new();
        for (gid, _) in groups.iter() {
            let ip = ip_of(&gid);
            for (_, ifindex) in interfaces.iter().filter(|(v6, _)| *v6 == ip.is_ipv6()) {
                joins.insert(ReceiveAddress::Group { ip, ifindex: *ifindex }, *ifindex);
            }
        }
        joins
    }

    /// The board's word for a GID: 0 if nothing is received there, or else the MTU code of its
    /// interface.
    pub(crate) fn code(&self, entry: GidEntry) -> u32 {
        let on = match self.mode {
            config::WireMode::Udp => place(entry).is_some_and(|place| self.receivers.find(place).is_ok()),
            config::WireMode::External => true,
            config::WireMode::Off => false,
        };
        match (on, entry.mtu) {
            (false, _) => 0,
            // An address without an interface, or one of an external wire: no interface limits its
            // packets.
            (true, 0) if self.mode == config::WireMode::External => u32::from(abi::device::mtu::MTU_4096),
            (true, code) => u32::from(code),
        }
    }

    /// Why a GID receives nothing from other hosts, or `None` if it receives.
    pub(crate) fn why_not(&self, entry: GidEntry) -> Option<String> {
        if self.code(entry) != 0 {
            return None;
        }
        if self.mode == config::WireMode::Off {
            return Some("the wire is switched off in the agent's configuration".into());
        }
        let Some(place) = place(entry) else {
            return Some("no address of the host: it reaches the programs of this agent only".into());
        };
        Some(match self.receivers.find(place) {
            Ok(()) => "the packets of its interface are too small for any MTU of RDMA".into(),
            Err(Some(why)) => why.to_owned(),
            Err(None) => "the agent has not opened its socket yet".into(),
        })
    }

    /// The engine that currently reads the sockets.
    pub(crate) fn reader(&self) -> Option<u32> {
        let intake = self.intake.as_ref()?;
        let word = intake.page().word(abi::wire::lease::LEASE).load(std::sync::atomic::Ordering::Relaxed);
        (word & abi::wire::GRANTED != 0).then_some(word & !abi::wire::GRANTED)
    }

    /// The mode, as the configuration spells it.
    pub(crate) fn name(&self) -> &'static str {
        match self.mode {
            config::WireMode::Udp => "udp",
            config::WireMode::External => "external",
            config::WireMode::Off => "off",
        }
    }
}

/// Where a GID receives. `None` if it is not an address of the host.
fn place(entry: GidEntry) -> Option<ReceiveAddress> {
    let ip = entry.ip();
    entry.is_address.then(|| ReceiveAddress::Address { ip, scope: scope(ip, entry.ifindex) })
}
