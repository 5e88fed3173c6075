//! Everything that an agent knows: devices, contexts, objects, lanes and the board.
//!
//! A [`World`] is a value. It reads no clock and starts no thread. What commands need from the
//! operating system, they take from its [`Host`]. The wire's sockets are the only ones that it
//! opens, when its owner calls `follow_wire`. Commands change it through [`crate::dispatch`]. The
//! file `lifecycle.rs` begins and ends contexts. The owner of a world (the server, or a test) tells
//! it of clients and addresses. After each change it calls [`World::flush`], which sends clients
//! the pushes and events that the change has caused.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use abi::Errno;
use abi::device::QueryPortAnswer;
use abi::event::{AsyncRecord, kind};
use abi::private::{Push, push};

use crate::addresses::{chosen, interface_name};
use crate::board::Board;
use crate::capture::Captures;
use crate::closer::Closers;
use crate::config::Config;
use crate::context::{Context, HwCounters};
use crate::device::{Device, Port};
use crate::devices::Devices;
use crate::faults::Faults;
use crate::gids::{HostAddress, by_rank};
use crate::host::{Host, System};
use crate::ids::ContextId;
use crate::lanes::Lanes;
use crate::lids;
use crate::numbers::Numbers;
use crate::objects::tables::Tables;
use crate::pending::PendingContexts;
use crate::reasons::EndedReasons;
use crate::refusal::{Outcome, refuse};
use crate::relays::Relays;
use crate::users::{Tally, Users};
use crate::wire::Wire;

/// The prefix length of addresses that exist on no interface, as in a process with several hosts:
/// 255.255.255.0.
const EXTERNAL_PREFIX: u8 = 24;

/// The state of an agent.
pub struct World {
    /// What commands need from the operating system.
    pub system: Arc<dyn Host>,
    /// The devices, by index.
    pub devices: Devices,
    /// The contexts that are open.
    pub contexts: BTreeMap<ContextId, Context>,
    /// The objects.
    pub tables: Tables,
    /// The numbers of objects.
    pub numbers: Numbers,
    /// Lanes between engines.
    pub lanes: Lanes,
    /// State that clients read without a command.
    pub board: Board,
    /// The host's addresses when they were last read.
    pub host: Vec<HostAddress>,
    /// The only addresses that become GIDs. If it is empty, all of the host's addresses do.
    pub addresses: Vec<IpAddr>,
    /// Faults on demand.
    pub faults: Arc<Faults>,
    /// Why operations failed in contexts that have ended.
    pub(crate) ended: EndedReasons,
    /// Receives from other hosts.
    pub wire: Wire,
    /// Captures that want copies of packets.
    pub(crate) captures: Captures,
    /// What each user holds and may hold.
    pub users: Users,
    /// Contexts with waiting records or pushes.
    pub pending: PendingContexts,
    /// Relays that wake engines of other users.
    pub relays: Relays,
    /// Close the descriptors that clients pass. Without a server, the thread that drops a
    /// descriptor closes it.
    pub closers: Closers,
    /// Contexts whose device a fault rule removed, and whose lanes have not all ended.
    pub(crate) removed: Vec<ContextId>,
    /// Some records wait for clients that do not notify the agent of room.
    pub(crate) offers_again: bool,
    /// The number of the newest context.
    pub(crate) last_context: u32,
}

/// Records and pushes that clients have not taken.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Some records wait for clients that do not notify the agent of room. The agent must offer
    /// them again.
    pub waits: bool,
    /// Contexts whose engine has left too many pushes unread.
    pub broken: Vec<ContextId>,
    /// There are more contexts to look at than fit into one call.
    pub more: bool,
}

/// Maximum number of contexts that one call looks at.
const LOOKED_AT: usize = 64;

impl World {
    /// Creates the world of an agent that serves `place`, without clients. Numbers are given out in
    /// order.
    pub fn new(config: &Config, place: &str) -> io::Result<Self> {
        Self::on(Arc::new(System::default()), config, place)
    }

    /// Like [`World::new`], on another host.
    pub fn on(system: Arc<dyn Host>, config: &Config, place: &str) -> io::Result<Self> {
        let mut devices = Devices::configured(config, place);
        lids::assign(&mut devices);
        let board = Board::new(&*system, &devices)?;
        let captures = Captures::new(Arc::clone(&system));
        Ok(Self {
            wire: Wire::new(config, board.view(), captures.watchers().root())?,
            captures,
            board,
            devices,
            contexts: BTreeMap::new(),
            tables: Tables::default(),
            numbers: Numbers::new(|| system.chance()),
            lanes: Lanes::new(Arc::clone(&system)),
            system,
            host: Vec::new(),
            addresses: config.addresses.clone(),
            faults: Arc::default(),
            ended: EndedReasons::default(),
            relays: Relays::new()?,
            closers: Closers::default(),
            users: Users::new(config.system).with_mads(&config.mad_users).with_shared_memory(config.shared_memory),
            pending: PendingContexts::default(),
            removed: Vec::new(),
            offers_again: false,
            last_context: 0,
        })
    }

    /// The answer to QUERY_PORT for the device of a context.
    pub fn port_attributes(&self, id: ContextId, number: u32) -> Outcome<QueryPortAnswer> {
        let device = self.device_of(id);
        let answer = device.port_attributes(number)?;
        let [qkey_viol_cntr, bad_pkey_cntr] = self.violations(device.index, number).map(u32::from);
        Ok(QueryPortAnswer { qkey_viol_cntr, bad_pkey_cntr, ..answer })
    }

    /// What all programs have counted at a port, by the numbers of [`abi::queue::hw_counter`].
    /// `None` without such a port, or if its packets are not those of RoCE or InfiniBand.
    pub(crate) fn hw_counters(&self, device: usize, number: u32) -> Option<HwCounters> {
        let port = self.devices.get(device)?.port(number).ok().filter(|port| port.has_packets())?;
        let contexts = self.contexts.values().filter(|context| context.device == device);
        let counted = contexts.filter_map(|context| context.events.as_ref()).map(|file| file.hw_counters(number));
        let add = |sum: HwCounters, more: HwCounters| std::array::from_fn(|at| sum[at] + more[at]);
        Some(counted.fold(port.counted.hardware, add))
    }

    /// The context of a client, or EINVAL if it has ended.
    pub fn context(&mut self, id: ContextId) -> Outcome<&mut Context> {
        match self.contexts.get_mut(&id) {
            Some(context) => Ok(context),
            None => refuse(Errno::EINVAL, format!("context {} has ended", id.0)),
        }
    }

    /// The device that a context has open.
    pub fn device_of(&self, id: ContextId) -> &Device {
        &self.devices[self.contexts.get(&id).map_or(0, |context| context.device)]
    }

    /// The context and the handle of the queue pair with this number.
    pub(crate) fn qp_with_number(&self, number: u32) -> Option<(ContextId, u32)> {
        let owner = self.numbers.qpns.owner(number)?;
        let (handle, _) = self.tables.qps.of(owner).find(|(_, qp)| qp.qpn == number)?;
        Some((owner, handle))
    }

    /// The device of a context, to count the context's objects at the device and at the user.
    pub fn device_of_mut(&mut self, id: ContextId) -> Tally<'_> {
        let (index, uid) = self.contexts.get(&id).map_or((0, None), |found| (found.device, Some(found.peer.uid)));
        let user = uid.and_then(|uid| self.users.all.get_mut(&uid));
        Tally::new(self.devices.uncounted(index), user)
    }

    /// Chooses GID index 0 of the ports that have appeared since the last call; see
    /// [`crate::gids`]. `host` may contain addresses that are not usable yet.
    pub fn show_addresses_to_new_ports(&mut self, host: &[HostAddress]) {
        // Addresses that are configured keep their indices, and other addresses are not used.
        if !self.addresses.is_empty() {
            return;
        }
        let first = |port: &Port| port.gids.entry(0).map(|entry| entry.gid);
        let mut taken: Vec<[u8; 16]> = self.devices.iter().flat_map(|device| &device.ports).filter_map(first).collect();
        for port in self.devices.iter_mut().flat_map(|device| &mut device.ports) {
            port.appear(&carried_by_port(host, port), &taken);
            taken.extend(first(port));
        }
    }

    /// Updates the GID tables from the host's addresses. If a table changed, the device's contexts
    /// get GID_CHANGE; that of an iWARP device is no address. If a LID changed, they get
    /// LID_CHANGE, and SM_CHANGE if it is also that of the subnet manager. Returns true if anything
    /// changed.
    pub fn follow_addresses(&mut self, host: &[HostAddress]) -> bool {
        self.host = host.to_vec();
        let loopback = host.iter().find(|address| address.is_loopback()).map_or(0, |address| address.ifindex);
        let named = self.named(host);
        let host = named.as_deref().unwrap_or(host);
        let mut events = Vec::new();
        for device in &mut self.devices {
            for (number, port) in (1..).zip(&mut device.ports) {
                let carried = carried_by_port(host, port);
                // If the user named addresses or interfaces, loopback is accepted. Otherwise it is
                // used only on hosts that have no other address.
                let (carried, alone) = if named.is_some() { (carried, true) } else { by_rank(&carried) };
                if port.follow(&carried, alone || port.interfaces.is_some(), loopback) {
                    events.push((
                        device.index,
                        AsyncRecord { element: number, event_type: kind::GID_CHANGE, reserved: 0 },
                    ));
                }
            }
        }
        events.extend(lids::assign(&mut self.devices));
        for device in self.devices.iter().filter(|device| events.iter().any(|(index, _)| *index == device.index)) {
            let wire = &self.wire;
            self.board.show_ports(device, |entry| wire.code(entry));
            self.wire.touch();
        }
        for (device, record) in &events {
            let is_of_gids = record.event_type == kind::GID_CHANGE;
            if !(is_of_gids && self.devices.get(*device).is_some_and(Device::is_iwarp)) {
                self.raise(*device, *record);
            }
        }
        !events.is_empty()
    }

    /// Opens and closes receiving sockets as addresses and groups require, and shows the result on
    /// the board. Calls `now` only if the time matters.
    pub(crate) fn follow_wire(&mut self, now: impl Fn() -> Instant) {
        if self.wire.is_due(&now) && self.wire.follow(&self.devices, &self.tables.groups, now()) {
            for device in &self.devices {
                self.board.show_ports(device, |entry| self.wire.code(entry));
            }
            self.board.bump_wire();
        }
    }

    /// The configured addresses that the host has, or `None` if no address is configured.
    fn named(&self, host: &[HostAddress]) -> Option<Vec<HostAddress>> {
        if self.addresses.is_empty() {
            return None;
        }
        if self.wire.is_external() {
            let anywhere = |ip: &IpAddr| HostAddress { ip: *ip, ifindex: 0, mtu: u32::MAX, prefix: EXTERNAL_PREFIX };
            return Some(self.addresses.iter().map(anywhere).collect());
        }
        Some(chosen(host, &self.addresses).0)
    }

    /// Gives an unaffiliated event to every context of a device.
    pub fn raise(&mut self, device: usize, record: AsyncRecord) {
        self.devices.note(device, record);
        for context in self.contexts.values_mut().filter(|context| context.device == device) {
            if let Some(events) = &mut context.events {
                events.push(record);
            }
        }
    }

    /// Sends waiting records and pushes to clients that have room now, and so wakes them. If
    /// `again`, also sends what found no room before, and what the kernel refused for lack of
    /// descriptors. Returns what still waits.
    pub fn flush(&mut self, again: bool) -> Backlog {
        let mut backlog = Backlog::default();
        if again {
            self.pending.begin_round();
            self.offers_again = false;
        }
        for _ in 0..LOOKED_AT {
            let Some((id, again)) = self.pending.next_due() else { break };
            if self.flush_context(id, again) {
                backlog.broken.push(id);
            }
        }
        backlog.waits = self.offers_again;
        backlog.more = self.pending.has_more();
        backlog
    }

    /// Sends what the current piece of work has caused. The server calls this before it answers, so
    /// a client that has its answer finds what it caused at the others. It belongs to the work of
    /// the client.
    pub(crate) fn flush_news(&mut self) {
        for id in self.pending.take_news() {
            if self.flush_context(id, false) {
                // The next flush returns it.
                self.pending.note(id);
            }
        }
    }

    /// Sends what waits for one context. Returns whether its engine is broken.
    fn flush_context(&mut self, id: ContextId, again: bool) -> bool {
        let Some(context) = self.contexts.get_mut(&id) else { return false };
        let (mut waits, mut broken) = (false, false);
        if let Some(events) = &mut context.events {
            waits = !events.flush();
            self.offers_again |= waits;
        }
        if let Some(engine) = &mut context.engine {
            engine.flush();
            if again {
                engine.retry_sends();
            }
            self.offers_again |= engine.must_retry();
            broken = engine.is_broken() && !context.ends;
            // The push socket becomes writable when it has room.
            waits |= engine.waits();
        }
        if waits {
            self.pending.wait(id);
        }
        broken
    }

    /// Handles room in the push socket of a context's engine.
    pub fn flush_engine(&mut self, id: ContextId) {
        if let Some(engine) = self.contexts.get_mut(&id).and_then(|context| context.engine.as_mut()) {
            engine.flush();
            if engine.is_broken() {
                self.pending.note(id);
            }
        }
    }

    /// Tells every engine that the agent ends.
    pub fn shut_down(&mut self) {
        for engine in self.contexts.values_mut().filter_map(|context| context.engine.as_mut()) {
            engine.push(Push { kind: push::SHUTDOWN, ..Push::default() }, Vec::new());
            engine.flush();
        }
    }
}

/// The addresses of the interfaces of a port.
fn carried_by_port(host: &[HostAddress], port: &Port) -> Vec<HostAddress> {
    let Some(names) = &port.interfaces else { return host.to_vec() };
    let is_carried = |address: &&HostAddress| interface_name(address.ifindex).is_some_and(|name| names.contains(&name));
    host.iter().filter(is_carried).copied().collect()
}
