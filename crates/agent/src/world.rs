//! Everything an agent knows: devices, contexts, objects, lanes and the board.
//!
//! A [`World`] is a value: it reads no clock and starts no thread, and the only sockets that it opens are those of the wire,
//! when it is told to look after them. Commands change it through
//! [`crate::dispatch`], the opening and the end of contexts through the methods here. Whoever owns it (the server, or a
//! test) tells it about clients and addresses, and afterwards lets it [`World::flush`].

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
use crate::context::{Context, ContextId, Peer};
use crate::device::Device;
use crate::faults::Faults;
use crate::gids::{HostAddress, by_rank};
use crate::headroom;
use crate::lanes::{Lanes, lane_gone};
use crate::lids;
use crate::mapped::Mapped;
use crate::numbers::{Chance, KeySpace, QpnSpace};
use crate::objects::ah::Ah;
use crate::objects::cq::{Channel, Cq};
use crate::objects::dm::Dm;
use crate::objects::mcast::Groups;
use crate::objects::mr::Mr;
use crate::objects::mw::Mw;
use crate::objects::pd::Pd;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::objects::xrc::{Domains, Opened, Xrcd};
use crate::owing::Owed;
use crate::reasons::{Ended, Told};
use crate::refusal::{Outcome, refuse};
use crate::relays::Relays;
use crate::shares::{self, Tally, User};
use crate::table::{Kind, Table};
use crate::wire::Wire;

/// The subnet of addresses that exist nowhere, as in one process with several hosts: 255.255.255.0.
const EXTERNAL_PREFIX: u8 = 24;

/// The state of an agent.
pub struct World {
    /// The devices, by index.
    pub devices: Vec<Device>,
    /// The contexts that are open.
    pub contexts: BTreeMap<ContextId, Context>,
    /// Protection domains.
    pub pds: Table<Pd>,
    /// Memory regions.
    pub mrs: Table<Mr>,
    /// Memory windows.
    pub mws: Table<Mw>,
    /// Device memory.
    pub dms: Table<Dm>,
    /// Completion channels.
    pub channels: Table<Channel>,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Address handles.
    pub ahs: Table<Ah>,
    /// Handles of XRC domains.
    pub xrcds: Table<Xrcd>,
    /// Further handles of XRC target queue pairs.
    pub opened: Table<Opened>,
    /// XRC domains.
    pub domains: Domains,
    /// Multicast groups.
    pub groups: Groups,
    /// QP numbers.
    pub qpns: QpnSpace,
    /// lkeys and rkeys.
    pub keys: KeySpace,
    /// SRQ numbers: a key without its generation.
    pub srq_numbers: KeySpace,
    /// Numbers for people to tell PDs and CQs apart.
    pub labels: u32,
    /// Lanes between engines.
    pub lanes: Lanes,
    /// What clients read without asking.
    pub board: Board,
    /// The host's addresses, as they were last read.
    pub host: Vec<HostAddress>,
    /// The only addresses that become GIDs; all of the host's if there are none.
    pub addresses: Vec<IpAddr>,
    /// Faults on demand.
    pub faults: Arc<Faults>,
    /// Why something failed in contexts that have ended.
    pub(crate) ended: Ended,
    /// What comes from other hosts.
    pub wire: Wire,
    /// Who wants copies of packets.
    pub(crate) captures: Captures,
    /// Whether many users are served and kept apart.
    pub system: bool,
    /// What each user has.
    pub users: BTreeMap<u32, User>,
    /// Contexts with records or pushes that wait.
    pub owing: Owed,
    /// Ways to wake engines of other users.
    pub relays: Relays,
    /// What closes the descriptors that clients pass: the thread that drops them, unless a server says otherwise.
    pub closers: Closers,
    /// How much memory of clients the agent may have mapped.
    pub mapped: Mapped,
    /// How many contexts one user may have, where users are kept apart.
    pub user_contexts: u32,
    /// How many channels and regions with memfd one user may have; all programs together where users are not kept apart.
    pub user_descriptors: u64,
    /// How many bytes of the agent's memory the objects of one user may take, where users are kept apart.
    pub user_bytes: u64,
    /// How many regions of one user the agent may have mapped, where users are kept apart.
    pub user_regions: u64,
    last_context: u32,
}

/// What clients have not taken.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Records wait whose client gives no notice when it has room: they must be offered again.
    pub waits: bool,
    /// Contexts whose engine has left too much untaken.
    pub broken: Vec<ContextId>,
}

impl World {
    /// The world of an agent that serves `place`, before any client.
    pub fn new(config: &Config, place: &str) -> io::Result<Self> {
        let mut devices: Vec<Device> =
            config.devices.iter().enumerate().map(|(index, device)| Device::new(index, device, place)).collect();
        lids::assign(&mut devices);
        let board = Board::new(&devices)?;
        let captures = Captures::default();
        Ok(Self {
            wire: Wire::new(config, board.view(), captures.watchers().root())?,
            captures,
            board,
            devices,
            contexts: BTreeMap::new(),
            pds: Table::new(Kind::Pd),
            mrs: Table::new(Kind::Mr),
            mws: Table::new(Kind::Mw),
            dms: Table::new(Kind::Dm),
            channels: Table::new(Kind::Channel),
            cqs: Table::new(Kind::Cq),
            qps: Table::new(Kind::Qp),
            srqs: Table::new(Kind::Srq),
            ahs: Table::new(Kind::Ah),
            xrcds: Table::new(Kind::Xrcd),
            opened: Table::new(Kind::Opened),
            domains: Domains::default(),
            groups: Groups::default(),
            qpns: QpnSpace::default(),
            keys: KeySpace::default(),
            srq_numbers: KeySpace::default(),
            labels: 0,
            lanes: Lanes::default(),
            host: Vec::new(),
            addresses: config.addresses.clone(),
            faults: Arc::default(),
            ended: Ended::default(),
            system: config.system,
            relays: Relays::new()?,
            closers: Closers::default(),
            mapped: Mapped::default(),
            user_contexts: shares::contexts(None),
            user_descriptors: shares::descriptors(None, true),
            user_regions: shares::regions(u64::MAX),
            user_bytes: shares::USER_BYTES,
            users: BTreeMap::new(),
            owing: Owed::default(),
            last_context: 0,
        })
    }

    /// Opens `device` for a client.
    pub fn open(&mut self, device: usize, profile: u16, peer: Peer) -> Outcome<ContextId> {
        if device >= self.devices.len() {
            return refuse(Errno::ENODEV, format!("there is no device {device}"));
        }
        headroom::check()?;
        shares::room_for_context(self, peer.uid)?;
        let Some(next) = self.last_context.checked_add(1) else {
            return refuse(Errno::ENOMEM, "every context number was used; start the agent anew");
        };
        self.last_context = next;
        let id = ContextId(next);
        let closer = self.closers.of(peer.uid);
        self.users.entry(peer.uid).or_default().contexts.insert(id);
        self.contexts.insert(id, Context::new(id, device, profile, peer, closer));
        Ok(id)
    }

    /// Gives out numbers in an order that only `chance` knows. Called before the first client.
    pub fn scatter(&mut self, mut chance: impl FnMut() -> Chance) {
        self.qpns = QpnSpace::new(Some(chance()));
        self.keys = KeySpace::new(Some(chance()));
        self.srq_numbers = KeySpace::new(Some(chance()));
    }

    /// Ends a context whose client has closed or died.
    pub fn close(&mut self, id: ContextId) {
        while !self.close_some(id, usize::MAX) {}
    }

    /// The same in pieces of `most` objects; true when the context is gone. Dependants go before what they depend on.
    pub fn close_some(&mut self, id: ContextId, most: usize) -> bool {
        use crate::objects::{ah, cq, dm, mr, mw, pd, qp, srq, xrc};
        let steps: [fn(&mut Self, ContextId, usize) -> usize; 11] = [
            ah::destroy_some,
            xrc::let_go_of_some,
            qp::destroy_some,
            srq::destroy_some,
            xrc::close_some,
            cq::destroy_some,
            cq::destroy_some_channels,
            mw::destroy_some,
            mr::destroy_some,
            dm::destroy_some,
            pd::destroy_some,
        ];
        let Some(context) = self.contexts.get_mut(&id) else { return true };
        if !std::mem::replace(&mut context.ends, true) {
            crate::wire::last_words::say(self, id);
        }
        let mut left = most;
        for step in steps {
            loop {
                if left == 0 {
                    return false;
                }
                match step(self, id, left) {
                    0 => break,
                    done => left = left.saturating_sub(done),
                }
            }
        }
        self.keep_counts(id);
        self.keep_reasons(id);
        let lanes = self.lanes.forget(id);
        let neighbours: Vec<ContextId> = lanes.iter().map(|(_, other)| *other).collect();
        for (lane, other) in lanes {
            if let Some(engine) = self.contexts.get_mut(&other).and_then(|context| context.engine.as_mut()) {
                engine.push(lane_gone(lane, id), Vec::new());
            }
        }
        self.forget_faults(id, &neighbours);
        // Before its QPNs can be another's: the board goes on to name it.
        self.wire.close(id.0);
        self.relays.forget(id);
        self.captures.forget(id);
        self.qpns.forget(id);
        self.keys.forget(id);
        self.srq_numbers.forget(id);
        if let Some(context) = self.contexts.remove(&id) {
            shares::forget(self, context.peer.uid, id);
        }
        true
    }

    /// A context ends; why something in it failed can be asked for a while.
    fn keep_reasons(&mut self, id: ContextId) {
        if let Some(context) = self.contexts.get(&id)
            && let Some(ended) = Told::of(context, &self.devices[context.device].name)
        {
            self.ended.keep(ended);
        }
    }

    /// A context ends; what it has counted at its device's ports stays.
    fn keep_counts(&mut self, id: ContextId) {
        let Some(Context { device, events: Some(events), .. }) = self.contexts.get(&id) else { return };
        for (port, number) in self.devices[*device].ports.iter_mut().zip(1..) {
            add(&mut port.violations, events.violations(number));
        }
    }

    /// The answer to QUERY_PORT for the device of a context, with what all programs have counted at the port.
    pub fn port_attributes(&self, id: ContextId, number: u32) -> Outcome<QueryPortAnswer> {
        let device = self.device_of(id);
        let mut answer = device.port_attributes(number)?;
        let mut counts = [answer.qkey_viol_cntr, answer.bad_pkey_cntr];
        let others = self.contexts.values().filter(|context| context.device == device.index);
        others.filter_map(|context| context.events.as_ref()).for_each(|file| add(&mut counts, file.violations(number)));
        [answer.qkey_viol_cntr, answer.bad_pkey_cntr] = counts;
        Ok(answer)
    }

    /// The context of a client; EINVAL when it has ended.
    pub fn context(&mut self, id: ContextId) -> Outcome<&mut Context> {
        match self.contexts.get_mut(&id) {
            Some(context) => Ok(context),
            None => refuse(Errno::EINVAL, format!("context {} has ended", id.0)),
        }
    }

    /// How many objects of a kind a context has.
    pub fn objects_of(&self, id: ContextId, kind: Kind) -> usize {
        match kind {
            Kind::Pd => self.pds.count_of(id),
            Kind::Mr => self.mrs.count_of(id),
            Kind::Mw => self.mws.count_of(id),
            Kind::Dm => self.dms.count_of(id),
            Kind::Cq => self.cqs.count_of(id),
            Kind::Qp => self.qps.count_of(id),
            Kind::Srq => self.srqs.count_of(id),
            Kind::Ah => self.ahs.count_of(id),
            Kind::Channel => self.channels.count_of(id),
            Kind::Xrcd => self.xrcds.count_of(id),
            Kind::Opened => self.opened.count_of(id),
        }
    }

    /// The handles of those of a kind that are shown.
    pub fn handles_of(&self, id: ContextId, kind: Kind) -> Vec<u32> {
        match kind {
            Kind::Pd => self.pds.handles(id),
            Kind::Mr => self.mrs.handles(id),
            Kind::Mw => self.mws.handles(id),
            Kind::Dm => self.dms.handles(id),
            Kind::Cq => self.cqs.handles(id),
            Kind::Qp => self.qps.handles(id),
            Kind::Srq => self.srqs.handles(id),
            Kind::Ah => self.ahs.handles(id),
            Kind::Channel => self.channels.handles(id),
            Kind::Xrcd => self.xrcds.handles(id),
            Kind::Opened => self.opened.handles(id),
        }
    }

    /// The device that a context has open.
    pub fn device_of(&self, id: ContextId) -> &Device {
        &self.devices[self.contexts.get(&id).map_or(0, |context| context.device)]
    }

    /// The same, to count its objects there and at its user.
    pub fn device_of_mut(&mut self, id: ContextId) -> Tally<'_> {
        let (index, uid) = self.contexts.get(&id).map_or((0, None), |found| (found.device, Some(found.peer.uid)));
        let user = uid.and_then(|uid| self.users.get_mut(&uid));
        Tally::new(&mut self.devices[index], user)
    }

    /// A number by which people tell objects apart.
    pub fn next_label(&mut self) -> u32 {
        self.labels = self.labels.wrapping_add(1).max(1);
        self.labels
    }

    /// Takes the host's addresses into the GID tables. Contexts of a device whose table changed get GID_CHANGE, those of one whose LID
    /// is another now LID_CHANGE. True when some table changed.
    pub fn follow_addresses(&mut self, host: &[HostAddress]) -> bool {
        self.host = host.to_vec();
        let loopback = host.iter().find(|address| address.is_loopback()).map_or(0, |address| address.ifindex);
        let named = self.named(host);
        let host = named.as_deref().unwrap_or(host);
        let mut events = Vec::new();
        for device in &mut self.devices {
            for (number, port) in (1..).zip(&mut device.ports) {
                let carried: Vec<HostAddress> = match &port.interfaces {
                    None => host.to_vec(),
                    Some(names) => host.iter().copied().filter(|address| carried_by(address, names)).collect(),
                };
                // Whoever names addresses or interfaces has chosen; else loopback is for hosts that have nothing else.
                let (carried, alone) = if named.is_some() { (carried, true) } else { by_rank(&carried) };
                if port.follow(&carried, alone || port.interfaces.is_some(), loopback) {
                    events.push((
                        device.index,
                        AsyncRecord { element: number, event_type: kind::GID_CHANGE, reserved: 0 },
                    ));
                }
            }
        }
        for (device, element) in lids::assign(&mut self.devices) {
            events.push((device, AsyncRecord { element, event_type: kind::LID_CHANGE, reserved: 0 }));
        }
        for device in self.devices.iter().filter(|device| events.iter().any(|(index, _)| *index == device.index)) {
            let wire = &self.wire;
            self.board.show_ports(device, |index, entry| wire.code(index, entry));
            self.wire.touch();
        }
        for (device, record) in &events {
            self.raise(*device, *record);
        }
        !events.is_empty()
    }

    /// Opens and closes receiving sockets as addresses and groups demand, and shows on the board what came of it. Asks for the
    /// time only if it matters.
    pub(crate) fn follow_wire(&mut self, now: impl Fn() -> Instant) {
        if self.wire.is_due(&now) && self.wire.follow(&self.devices, &self.groups, now()) {
            for device in &self.devices {
                self.board.show_ports(device, |index, entry| self.wire.code(index, entry));
            }
            self.board.bump_wire();
        }
    }

    /// The addresses that this agent was told to have, as far as they are there; nothing if it was told none.
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
        for context in self.contexts.values_mut().filter(|context| context.device == device) {
            if let Some(events) = &mut context.events {
                events.push(record);
            }
        }
    }

    /// Hands on what waits for clients that had no room, where `again` is true, also what the kernel took no descriptors for; and says for
    /// whom something waits still.
    pub fn flush(&mut self, again: bool) -> Backlog {
        let mut backlog = Backlog::default();
        let mut owing = self.owing.take();
        owing.retain(|id| {
            let Some(context) = self.contexts.get_mut(id) else { return false };
            let mut waits = false;
            if let Some(events) = &mut context.events {
                waits = if again { !events.flush() } else { events.waits() };
                backlog.waits |= waits;
            }
            if let Some(engine) = &mut context.engine {
                if again {
                    engine.flush();
                    engine.feed();
                }
                backlog.waits |= engine.starves();
                if engine.is_broken() && !context.ends {
                    backlog.broken.push(*id);
                }
                // Its socket says when there is room.
                waits |= engine.waits();
            }
            waits
        });
        if !owing.is_empty() {
            self.owing.put_back(owing);
        }
        backlog
    }

    /// The engine of a context has made room for pushes.
    pub fn flush_engine(&mut self, id: ContextId) {
        if let Some(engine) = self.contexts.get_mut(&id).and_then(|context| context.engine.as_mut()) {
            engine.flush();
            if engine.is_broken() {
                self.owing.put_back([id]);
            }
        }
    }

    /// Tells every engine that the agent ends.
    pub fn shut_down(&mut self) {
        for engine in self.contexts.values_mut().filter_map(|context| context.engine.as_mut()) {
            engine.push(Push { kind: push::SHUTDOWN, ..Push::default() }, Vec::new());
        }
    }
}

fn carried_by(address: &HostAddress, names: &[String]) -> bool {
    interface_name(address.ifindex).is_some_and(|name| names.contains(&name))
}

fn add(counts: &mut [u32; 2], more: [u32; 2]) {
    counts.iter_mut().zip(more).for_each(|(count, more)| *count = count.wrapping_add(more));
}
