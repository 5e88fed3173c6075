//! The connection manager: what the kernel's `ib_cm`, `rdma_cm` and `rdma_ucm` are to programs that
//! connect by IP address.
//!
//! ```text
//! node rdma_cm ── commands ── Manager ── protocol::cm ── datagrams ── QP 1 of other hosts
//! event socket ◀── events ────┘   │          └────────── those to itself, at once
//!                        ports, addresses, routes
//! ```
//!
//! A client's connection to the node is an event [`channel`]. The *event socket* is the socket that
//! notifies the client of events. The [`id`]s and the [`ports`] live here. Each command is carried
//! out by the file of its subject, in O(1). An answer that needs no waiting (the address of this
//! host) is queued as an event before the command's reply.
//!
//! Data from a client or a peer is a claim. Every table is bounded. If there is no memory to grow,
//! a command is refused or a datagram is lost ([`crate::headroom`]). The principal type is
//! [`Manager`].

mod administration;
mod attributes;
mod before_listen;
mod binding;
mod channel;
mod connecting;
#[cfg(test)]
mod delay_tests;
mod delayed_datagrams;
mod dispatch;
mod events;
mod faults;
mod groups;
mod id;
mod ids;
mod incoming;
mod locals;
mod news;
mod nodes;
mod other_classes;
mod outside;
mod ports;
mod query;
mod questions;
mod removal;
mod resolving;
mod routes;
mod search;
mod sending;
pub(crate) mod show;
mod shown;
mod slab;
mod subnet;
mod tcp;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abi::Errno;
use abi::ucma::connection::{EventAnswer, UdParam, event};
use engine::Network;
use protocol::Time;
use protocol::cm::{Cm, Config as CoreConfig, Origin};

use crate::management::{Inlet, Outlets, ReceivedMad};
pub(crate) use channel::ChannelId;
use channel::{Event, EventChannel};
use id::Id;
use locals::Locals;
pub(crate) use outside::Outside;
use ports::Ports;
use routes::Routes;
use slab::Slab;

use crate::headroom;
use crate::ids::Peer;
use crate::outward;
use crate::refusal::{Outcome, by_system, refuse};
use crate::world::World;

/// Maximum number of ids of all clients together, and of one user if users are kept apart.
const IDS_MAX: usize = 1 << 17;
const USER_IDS_MAX: usize = IDS_MAX / 8;
/// Maximum number of undecided requests of one user, if users are kept apart. It is a part of the
/// requests that the protocol holds.
const USER_UNDECIDED_MAX: usize = 1024;
/// The QP number of every multicast group.
const GROUP_QPN: u32 = 0xff_ffff;
/// Maximum number of memberships of all ids, and of one id.
const MEMBERS_MAX: usize = 1 << 14;
const ID_MEMBERS_MAX: usize = 64;
/// Maximum number of datagrams between ids of this agent that are delivered at once. The others
/// wait for the next piece of work.
const BATCH: usize = 64;
/// Maximum number of datagrams of other hosts that are delivered at once.
const ARRIVALS: usize = 64;
/// Maximum number of timers that are handled at once.
const DUE: usize = 64;
/// Maximum number of waiting events and memberships of one user, if users are kept apart.
const USER_EVENTS_MAX: usize = 1 << 16;
const USER_MEMBERS_MAX: usize = MEMBERS_MAX / 8;

/// The connection manager of one agent.
pub(crate) struct Manager {
    core: Cm,
    channels: BTreeMap<ChannelId, ChannelIds>,
    last_channel: u32,
    tokens: BTreeMap<u32, ChannelId>,
    /// What each user holds.
    users: BTreeMap<u32, Share>,
    ids: Slab<Id>,
    members: Slab<id::Membership>,
    connections: BTreeMap<protocol::cm::Id, u32>,
    ports: Ports,
    first_free_port: u16,
    locals: Locals,
    lookups: Lookups,
    /// Requests to services that have no listener yet.
    before_listen: before_listen::BeforeListen,
    /// Datagrams that fault rules delay.
    delayed: delayed_datagrams::DelayedDatagrams,
    notices: Notices,
    mail: Mail,
    /// Datagrams between ids of this agent.
    inner: VecDeque<LoopbackMad>,
    outside: Outside,
    /// Users are kept apart.
    apart: bool,
    counts: Counts,
}

/// How routes and neighbours are found.
struct Lookups {
    routes: Option<Routes>,
    /// Requests to subnet administration.
    questions: questions::Questions,
    /// Searches for neighbours, ordered by when to look again.
    searches: BTreeSet<(Time, u32)>,
    pending: BTreeMap<u32, search::Search>,
}

/// Channels that have something for their clients.
#[derive(Default)]
struct Notices {
    /// Their clients must be notified.
    to_notify: Vec<ChannelId>,
    /// Their event sockets are full.
    full: Vec<ChannelId>,
}

/// Where datagrams come in and go out, and the connections of iWARP, which has none.
struct Mail {
    inlet: Arc<Inlet>,
    outlets: Outlets,
    /// Those for the switches of a topology.
    fabric: outward::Queue,
    tcp: tcp::Tcp,
}

/// A datagram from this agent to itself.
#[derive(Debug, Clone, Copy)]
struct LoopbackMad {
    origin: Origin,
    mad: protocol::cm::Mad,
    /// The user who sent it, or 0 if no user did.
    owner: u32,
    /// The PSN with which captures show it.
    psn: u32,
}

/// What a user holds: ids, undecided requests among these ids, channels, and memberships.
#[derive(Debug, Clone, Default)]
struct Share {
    ids: usize,
    undecided: usize,
    channels: usize,
    members: usize,
    /// Events that wait in the user's channels.
    events: Arc<AtomicUsize>,
}

/// A channel with its ids.
struct ChannelIds {
    channel: EventChannel,
    ids: BTreeSet<u32>,
    /// Its client has gone.
    ends: bool,
}

/// Counters for `softhca show`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) not_sent: u64,
    pub(crate) dropped: u64,
}

impl Manager {
    /// Creates the manager of the agent that has `world`. Time and randomness come from `outside`.
    pub(crate) fn new(world: &World, mut outside: Outside) -> io::Result<Self> {
        let core = Cm::new(CoreConfig { secret: outside.long(), ..CoreConfig::default() });
        let ((first, last), first_free_port) = match outside.is_simulated() {
            // A simulation uses Linux's defaults, so that this machine's settings have no effect.
            true => (ports::EPHEMERAL, ports::FIRST_FREE_PORT),
            false => (ports::ephemeral_range(), ports::first_free_port()),
        };
        let rover = first.saturating_add((outside.word() % (u32::from(last - first) + 1)) as u16);
        // Without the wire, or if the wire is external, the manager does not ask the host.
        let off = !world.wire.is_on() || world.wire.is_external();
        let routes =
            || Routes::new().inspect_err(|error| tracing::warn!(%error, "the host's routes cannot be asked for")).ok();
        Ok(Self {
            core,
            channels: BTreeMap::new(),
            last_channel: 0,
            tokens: BTreeMap::new(),
            users: BTreeMap::new(),
            ids: Slab::new(IDS_MAX),
            members: Slab::new(MEMBERS_MAX),
            connections: BTreeMap::new(),
            ports: Ports::new(first..=last, rover),
            first_free_port,
            locals: Locals::default(),
            lookups: Lookups {
                routes: if off { None } else { routes() },
                questions: questions::Questions::default(),
                searches: BTreeSet::new(),
                pending: BTreeMap::new(),
            },
            before_listen: before_listen::BeforeListen::default(),
            delayed: delayed_datagrams::DelayedDatagrams::default(),
            notices: Notices::default(),
            mail: Mail {
                inlet: Arc::clone(world.wire.inlet()),
                outlets: Outlets::new(off, world.captures.watchers().clone()),
                fabric: outward::Queue::default(),
                tcp: tcp::Tcp::new(world.wire.streams())?,
            },
            inner: VecDeque::new(),
            outside,
            apart: world.users.apart,
            counts: Counts::default(),
        })
    }

    /// Opens a channel. Returns its name and the client's end of its event socket. If
    /// `told`, this socket brings whole events.
    pub(crate) fn open(&mut self, peer: Peer, told: bool) -> Outcome<(ChannelId, OwnedFd)> {
        headroom::check()?;
        let Some(next) = self.last_channel.checked_add(1) else {
            return refuse(Errno::ENOMEM, "every channel number was used; restart the agent");
        };
        let mut token = self.outside.word();
        while token == 0 || self.tokens.contains_key(&token) {
            token = self.outside.word();
        }
        let share = self.users.entry(peer.uid).or_default();
        let (channel, event_socket) =
            EventChannel::new(peer, token, told, Arc::clone(&share.events)).map_err(by_system)?;
        share.channels += 1;
        self.last_channel = next;
        let id = ChannelId(next);
        self.tokens.insert(token, id);
        self.channels.insert(id, ChannelIds { channel, ids: BTreeSet::new(), ends: false });
        Ok((id, event_socket))
    }

    /// Ends a channel whose client has closed or died, with all its ids.
    pub(crate) fn close(&mut self, world: &World, channel: ChannelId) {
        while !self.close_some(world, channel, usize::MAX) {}
    }

    /// Like [`Manager::close`], in pieces of `most` ids. Returns true when the channel is gone.
    pub(crate) fn close_some(&mut self, world: &World, channel: ChannelId, most: usize) -> bool {
        let Some(owner) = self.channels.get_mut(&channel) else { return true };
        if !std::mem::replace(&mut owner.ends, true) {
            self.tokens.remove(&owner.channel.token);
            // The waiting requests are ids of this channel, so the loop below ends them too.
            owner.channel.take_out(|_, _| true, drop);
        }
        let ids: Vec<u32> = owner.ids.iter().copied().take(most).collect();
        for id in ids {
            self.end(id);
            self.take_all(world);
        }
        let done = self.channels.get(&channel).is_none_or(|owner| owner.ids.is_empty());
        if done && let Some(owner) = self.channels.remove(&channel) {
            let uid = owner.channel.peer.uid;
            if let Some(share) = self.users.get_mut(&uid) {
                share.channels = share.channels.saturating_sub(1);
                if share.channels == 0 {
                    self.users.remove(&uid);
                }
            }
        }
        self.settle(world);
        done
    }

    /// The user of a channel.
    pub(crate) fn user_of(&self, channel: ChannelId) -> u32 {
        self.channels.get(&channel).map_or(u32::MAX, |owner| owner.channel.peer.uid)
    }

    /// The process of a channel and its user.
    pub(crate) fn process_of(&self, channel: ChannelId) -> Option<(u32, u32)> {
        self.channels.get(&channel).map(|owner| (owner.channel.peer.pid, owner.channel.peer.uid))
    }

    /// Whether a user's channels may hold more events.
    fn has_room_for_events(&self, uid: u32) -> bool {
        let waiting = |share: &Share| share.events.load(Ordering::Relaxed);
        !self.apart || self.users.get(&uid).map_or(0, waiting) < USER_EVENTS_MAX
    }

    /// Removes a membership.
    fn remove_member(&mut self, channel: ChannelId, member: u32) {
        let uid = self.user_of(channel);
        let removed = self.members.remove(member);
        if let Some(member) = &removed {
            self.leave_in_subnet(member);
        }
        if removed.is_some()
            && let Some(share) = self.users.get_mut(&uid)
        {
            share.members = share.members.saturating_sub(1);
        }
    }

    /// The inlet becomes readable when datagrams arrive.
    pub(crate) fn inlet(&self) -> &Arc<Inlet> {
        &self.mail.inlet
    }

    /// Sends through this network from now on.
    pub(crate) fn set_network(&mut self, network: Arc<dyn Network>) {
        self.mail.outlets.set_network(network);
    }

    /// Handles datagrams that have arrived.
    pub(crate) fn on_datagrams(&mut self, world: &World, arrivals: VecDeque<ReceivedMad>) {
        if !headroom::is_there() {
            self.counts.received += arrivals.len() as u64;
            self.counts.dropped += arrivals.len() as u64;
            return;
        }
        for arrived in arrivals {
            let origin = Origin {
                source: arrived.from,
                destination: arrived.to,
                pkey: arrived.pkey(),
                hop_limit: 64,
                router: arrived.router.0,
                sl: arrived.router.1,
                ..Origin::default()
            };
            self.counts.received += 1;
            let watched = self.watch(&origin, &arrived.mad);
            if world.faults.is_on() && self.meets_fault_coming(world, &origin, &arrived) {
                continue;
            }
            self.deliver(&origin, &arrived.mad);
            self.take_outputs(world);
            self.show_arrived(watched, &origin, &arrived);
        }
        self.settle(world);
    }

    /// Handles the timers that have expired.
    pub(crate) fn on_time(&mut self, world: &World) {
        let now = self.now();
        if self.core.next_time().is_some_and(|at| at <= now) {
            self.core.on_time_some(now, if headroom::is_there() { DUE } else { 1 });
        }
        self.search_on(world, now);
        self.reject_early(now);
        self.expire_sockets(now);
        self.settle(world);
    }

    /// The time until the next timer expires.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        self.due().map(|due| Duration::from_nanos(due.0.saturating_sub(self.now().0)))
    }

    /// When the next timer expires.
    pub(crate) fn due(&self) -> Option<Time> {
        if !self.inner.is_empty() {
            return Some(Time(0));
        }
        let search = self.lookups.searches.first().map(|(at, _)| *at);
        self.core
            .next_time()
            .into_iter()
            .chain(search)
            .chain(self.before_listen.next_time())
            .chain(self.delayed.next_time())
            .chain(self.mail.tcp.next_time())
            .min()
    }

    /// Handles a change of addresses or GIDs.
    pub(crate) fn follow_addresses(&mut self, world: &World) {
        self.locals = Locals::new(&world.host, &world.addresses, world.wire.is_external(), &world.devices);
        self.locals.elsewhere.clone_from(&world.tables.paths.elsewhere);
        self.mail.outlets.forget();
        let gone: Vec<u32> = self
            .ids
            .iter()
            .filter(|(_, id)| id.attachment.is_some_and(|at| self.locals.with_gid(&at.gid).is_none()))
            .map(|(name, _)| name)
            .collect();
        for name in gone {
            let Some(id) = self.ids.get_mut(name) else { continue };
            id.attachment = None;
            let address = id.local.map_or_else(String::new, |local| local.to_string());
            self.tell(name, event::ADDR_CHANGE, 0, UdParam::default(), format!("{address} is gone from this host"));
        }
        self.settle(world);
    }

    fn now(&self) -> Time {
        self.outside.now()
    }

    /// Adds an id to a channel. Returns `None` if the limit of the channel's user or of the agent
    /// is reached, or if there is no memory.
    fn add(&mut self, id: Id) -> Option<u32> {
        let owner = self.channels.get_mut(&id.channel)?;
        if owner.ends {
            return None;
        }
        let share = self.users.entry(owner.channel.peer.uid).or_default();
        let undecided = usize::from(!id.known);
        if self.apart && (share.ids >= USER_IDS_MAX || share.undecided + undecided > USER_UNDECIDED_MAX) {
            return None;
        }
        let name = self.ids.insert(id)?;
        owner.ids.insert(name);
        share.ids += 1;
        share.undecided += undecided;
        Some(name)
    }

    /// Ends an id in any state. Returns how many of its events were given out, and how many bytes
    /// the client must read from the event socket.
    fn end(&mut self, name: u32) -> (u32, u32) {
        let Some(id) = self.ids.remove(name) else { return (0, 0) };
        if let Some(service) = id.service {
            self.ports.release(service, name);
        }
        if let Some(connection) = id.connection {
            self.connections.remove(&connection);
            let now = self.now();
            if let Err(error) = self.core.destroy(now, connection) {
                tracing::debug!(%error, "an id's connection was gone before it");
            }
        }
        for member in &id.members {
            self.remove_member(id.channel, *member);
        }
        self.close_end(name);
        self.lookups.pending.remove(&name);
        let Some(owner) = self.channels.get_mut(&id.channel) else { return (id.events.reported, 0) };
        owner.ids.remove(&name);
        let uid = owner.channel.peer.uid;
        // The backlog bounds the number of requests.
        let mut requests = Vec::new();
        let notified = match id.events.queued {
            0 => 0,
            _ => owner.channel.take_out(|of, _| of == name, |event| requests.extend(event.request)).1,
        };
        if let Some(share) = self.users.get_mut(&uid) {
            share.ids -= 1;
            share.undecided -= usize::from(!id.known);
        }
        for request in requests {
            self.end(request);
        }
        (id.events.reported, notified)
    }

    /// Queues an event about an id. If the program does not know the id yet, there is no event:
    /// ACCEPT will fail.
    fn tell(&mut self, name: u32, kind: u32, status: i32, param: UdParam, sentence: String) {
        let Some(id) = self.ids.get(name) else { return };
        if !id.known {
            return;
        }
        let answer = EventAnswer {
            uid: id.uid,
            id: name,
            event: kind,
            status: status.cast_unsigned(),
            param,
            ..EventAnswer::default()
        };
        self.queue(name, Event { answer, id: name, member: None, request: None, sentence });
    }

    /// Queues an event that belongs to an id.
    fn queue(&mut self, name: u32, event: Event) {
        let Some(id) = self.ids.get_mut(name) else { return };
        let Some(owner) = self.channels.get_mut(&id.channel) else { return };
        if !event.sentence.is_empty() {
            tracing::debug!(id = name, event = event.answer.event, reason = %event.sentence, "an event");
        }
        let kind = event.answer.event;
        if !owner.channel.push(event) {
            tracing::warn!(id = name, event = kind, "an event is lost: there is no memory");
            return;
        }
        id.events.queued += 1;
        if self.notices.to_notify.last() != Some(&id.channel) {
            self.notices.to_notify.push(id.channel);
        }
    }

    /// Sends the datagrams and announces the events that an arrival or a timer has caused.
    fn settle(&mut self, world: &World) {
        self.take_outputs(world);
        self.announce_all(world);
    }

    /// Announces to the clients the events that wait for it.
    fn announce_all(&mut self, world: &World) {
        while let Some(channel) = self.notices.to_notify.pop() {
            self.announce(world, channel);
        }
    }
}
