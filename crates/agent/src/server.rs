//! The agent's thread: one epoll over nodes, clients, ends of programs, push sockets, addresses and
//! messages of this process.
//!
//! The thread moves bytes and notices when clients end. [`crate::dispatch`] decides what a command
//! means, and [`scheduler`] decides the order of the work. Each piece of work is small and belongs
//! to an account. The thread blocks only when it waits for events. This wait has a timeout only
//! while a record waits for room, while a timer runs, or if the agent ends when it is idle. The
//! principal type is [`Server`].

mod admin_connections;
mod mad_connections;
mod mad_node;
mod messages;
mod parts;
mod passing;
mod scheduler;
#[cfg(test)]
mod tests;
mod to_groups;
mod tunnels;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use abi::envelope::REQUEST_MAX;
use rustix::event::epoll::EventFlags;
use shm::socket::{Listener, Socket};

use crate::account;
use crate::addresses::{AddressWatch, HostAddresses, host_links};
use crate::capture;
use crate::client::{Client, Fate, Node, ReadOutcome, Session};
use crate::closer::Closers;
use crate::cm::{ChannelId, Manager, Outside};
use crate::config::Config;
use crate::dispatch::Reply;
use crate::ids::ContextId;
use crate::inbox::{Inbox, Message, ReplyTo};
use crate::listening::{
    accepted, listen_at, listen_for_calls, mapping_limit, raise_descriptor_limit, require_descriptors,
};
use crate::mads::PortId;
use crate::mirror::Mirror;
use crate::node_views::NodeViews;
use crate::poller::{Poller, Token, watch_for};
use crate::proxy::Proxies;
use crate::rundir::{ADMIN, RunDir, node};
use crate::users;
use crate::wire::thread::WireThread;
use crate::world::World;
use admin_connections::AdminConnection;
use mad_node::MadNode;
use parts::{Idle, Listeners, Local, Registry, Schedule, Surroundings};
use scheduler::{Account, Work};

/// How often the agent offers records again to a client that had no room for them.
const RETRY: Duration = Duration::from_millis(200);

/// Maximum number of messages of one client that are served in one piece of work.
const BUNCH: u32 = 8;

/// Maximum number of connections to one node that are accepted in one piece of work.
const ACCEPTED: u32 = 16;

/// Maximum number of objects that are destroyed in one piece of work.
const PIECE: usize = 256;

/// Everything that the agent's thread owns.
pub(crate) struct Server {
    world: World,
    manager: Manager,
    poller: Poller,
    listeners: Listeners,
    clients: BTreeMap<u32, Client>,
    /// Clients whose replies wait until the kernel passes descriptors again.
    retrying: BTreeSet<u32>,
    admins: BTreeMap<u32, AdminConnection>,
    registry: Registry,
    schedule: Schedule,
    local: Local,
    mads: MadNode,
    watch: Option<AddressWatch>,
    messages: Receiver<Message>,
    proxies: Proxies,
    surroundings: Surroundings,
    inbox: Inbox,
    idle: Idle,
    buffer: Vec<u8>,
    /// Reads datagrams of other hosts.
    _wire: Option<WireThread>,
    /// Must be dropped last: it removes the nodes and releases the lock.
    run_dir: Option<RunDir>,
}

impl Server {
    /// Creates the nodes and starts to watch; clients may connect from now on.
    pub(crate) fn new(
        config: &Config,
        mut world: World,
        run_dir: Option<RunDir>,
        messages: Receiver<Message>,
        inbox: Inbox,
    ) -> io::Result<Self> {
        Socket::check()?;
        let poller = Poller::new()?;
        poller.watch(inbox.wake(), Token::Wake, EventFlags::IN)?;
        let watch = watch_addresses(&world, &poller)?;
        poller.watch(world.relays.as_fd(), Token::Relays, EventFlags::IN)?;
        follow(&mut world);
        world.follow_wire(Instant::now);
        let mut manager = Manager::new(&world, Outside::real()?)?;
        manager.follow_addresses(&world);
        poller.watch(manager.inlet().notifier(), Token::Management, EventFlags::IN)?;
        poller.watch(manager.sockets(), Token::Streams, EventFlags::IN)?;
        let wire = world.wire.start()?;
        let mads = MadNode::new(&world, config, &poller)?;
        let mut server = Self {
            world,
            manager,
            mads,
            poller,
            listeners: Listeners::default(),
            clients: BTreeMap::new(),
            retrying: BTreeSet::new(),
            admins: BTreeMap::new(),
            registry: Registry::default(),
            schedule: Schedule::new(),
            local: Local::default(),
            watch,
            messages,
            proxies: Proxies::new(inbox.clone()),
            surroundings: Surroundings::default(),
            inbox,
            idle: Idle { exit: config.idle_exit, since: Instant::now() },
            buffer: vec![0; REQUEST_MAX + 1],
            _wire: wire,
            run_dir: None,
        };
        if let Some(run_dir) = run_dir {
            if config.topology.is_some() {
                server.surroundings.nodes = NodeViews::new(&run_dir, &server.world.devices)?;
            }
            server.listen(run_dir)?;
        }
        Ok(server)
    }

    /// Creates the devices' mirror first, then their nodes, and the admin node last. So a program
    /// that finds the admin node finds all the others.
    fn listen(&mut self, run_dir: RunDir) -> io::Result<()> {
        let descriptors = raise_descriptor_limit();
        require_descriptors(descriptors)?;
        self.world.users.share(descriptors, mapping_limit());
        self.world.captures.waiting = capture::waiting(self.world.users.descriptors);
        let inbox = self.inbox.clone();
        let room = move |uid| {
            inbox.send(Message::Room(uid));
        };
        self.world.closers = Closers::threads(room, users::waiting(descriptors));
        self.surroundings.mirror = Some(Mirror::new(&run_dir, &self.world.devices)?);
        for device in &self.world.devices {
            let listener = listen_for(&self.poller, &run_dir, device.index)?;
            self.listeners.devices.insert(device.index, listener);
        }
        let manager = listen_at(&run_dir, abi::ucma::NODE)?;
        self.poller.watch(manager.as_fd(), Token::ManagerNode, EventFlags::IN)?;
        self.listeners.manager = Some(manager);
        for (device, name) in self.surroundings.nodes.managers(&self.world.devices) {
            let listener = listen_at(&run_dir, &name)?;
            self.poller.watch(listener.as_fd(), Token::NodesManager(device as u32), EventFlags::IN)?;
            self.listeners.node_managers.insert(device, listener);
        }
        let netlink = listen_at(&run_dir, abi::netlink::NODE)?;
        self.poller.watch(netlink.as_fd(), Token::NetlinkNode, EventFlags::IN)?;
        self.listeners.netlink = Some(netlink);
        let mads = listen_for_calls(&run_dir, abi::umad::NODE)?;
        self.poller.watch(mads.as_fd(), Token::MadNode, EventFlags::IN)?;
        self.listeners.mads = Some(mads);
        let admin = listen_at(&run_dir, ADMIN)?;
        self.poller.watch(admin.as_fd(), Token::AdminNode, EventFlags::IN)?;
        self.listeners.admin = Some(admin);
        match run_dir.watch() {
            Ok(watch) => {
                self.poller.watch(watch.as_fd(), Token::RunDir, EventFlags::IN)?;
                self.surroundings.lost = Some(watch);
            }
            Err(error) => tracing::debug!(%error, "it will not be noticed if the run directory goes"),
        }
        tracing::info!(path = %run_dir.path().display(), devices = self.listeners.devices.len(), "the agent serves");
        self.run_dir = Some(run_dir);
        Ok(())
    }

    /// Handles the removal of the run directory. New programs cannot find this agent any more, so
    /// the agent ends when its current programs have ended.
    fn lose_run_dir(&mut self) {
        let mut events = [0; 4096];
        while self.surroundings.lost.as_ref().is_some_and(|lost| rustix::io::read(lost, &mut events).is_ok()) {}
        if self.run_dir.as_ref().is_some_and(|run_dir| !run_dir.is_there()) && self.surroundings.lost.take().is_some() {
            tracing::warn!("the run directory is gone: the agent ends when its programs have");
            self.idle.exit = Some(Duration::ZERO);
        }
    }

    /// Accepts a bounded number of connections. The costly part of a new client happens with its
    /// first message, on its user's account.
    fn accept(&mut self, node: Node) {
        for _ in 0..ACCEPTED {
            let listener = match node {
                Node::Device(device) => self.listeners.devices.get(&device),
                Node::Manager(None) => self.listeners.manager.as_ref(),
                Node::Manager(Some(node)) => self.listeners.node_managers.get(&node),
            };
            let closers = &mut self.world.closers;
            let Some(socket) = listener.and_then(|listener| accepted(listener, &mut self.listeners.spare, closers))
            else {
                return;
            };
            let id = self.next_connection();
            match Client::new(socket, node, &mut self.world.closers) {
                Ok(client) if self.is_one_too_many(client.uid()) => {
                    tracing::debug!(uid = client.uid(), "a user with too many connections is turned away");
                }
                Ok(client) => match self.poller.watch(client.socket(), Token::Client(id), EventFlags::IN) {
                    Ok(()) => {
                        self.registry.users.entry(client.uid()).or_default().clients += 1;
                        self.clients.insert(id, client);
                    }
                    Err(error) => tracing::warn!(%error, "a client cannot be watched and is sent away"),
                },
                Err(error) => tracing::warn!(%error, "a connection ended before it began"),
            }
        }
    }

    /// Serves messages of one client: one that waits for its reply, or several quiet ones. The
    /// poller is level-triggered, so the client's next message is served after the other clients'
    /// messages.
    fn serve(&mut self, id: u32) {
        let mut turns = BUNCH;
        while turns > 0 && self.serve_one(id) {
            turns -= 1;
        }
    }

    /// Serves one message. Returns true if the client did not wait for the reply, so that more
    /// messages may be there.
    fn serve_one(&mut self, id: u32) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        self.schedule.served = true;
        let mut buffer = std::mem::take(&mut self.buffer);
        let next = client.next(&mut self.world, &mut self.manager, &mut buffer);
        let goes_on = self.do_next(id, next);
        self.buffer = buffer;
        goes_on
    }

    /// Carries out what a client sent. Returns true if more of its messages may be there.
    fn do_next(&mut self, id: u32, next: ReadOutcome<'_>) -> bool {
        match next {
            ReadOutcome::Command { session: Session::Context(context), .. } => drop(self.send_datagrams_of(context)),
            ReadOutcome::Command { session: Session::Channel(channel), .. } => self.send_datagrams_of_process(channel),
            ReadOutcome::Over(_) | ReadOutcome::Passing => {}
        }
        let Some(client) = self.clients.get_mut(&id) else { return false };
        let mut goes_on = false;
        let fate = match next {
            ReadOutcome::Over(fate) => fate,
            ReadOutcome::Passing => client.receive(id, self.inbox.clone()),
            // No command of the connection manager takes descriptors.
            ReadOutcome::Command { session: Session::Channel(channel), sequence, quiet, request, .. } => {
                let reply = self.manager.serve(&mut self.world, channel, request);
                goes_on = quiet;
                if quiet { Fate::Continues } else { client.reply(sequence, reply) }
            }
            ReadOutcome::Command { session: Session::Context(context), sequence, quiet, request, fds } => {
                let to = ReplyTo::Connection { id, sequence };
                self.mads.mads.find_paths(&mut self.world);
                let reply = self.proxies.carry_out(&mut self.world, context, request, fds, to);
                self.world.flush_news();
                // When the client gets the reply to ATTACH_MCAST, its host must already receive for
                // the group.
                self.world.follow_wire(Instant::now);
                goes_on = quiet && reply.is_some();
                match reply {
                    Some(_) if quiet => Fate::Continues,
                    Some(reply) => client.reply(sequence, reply),
                    None => client.wait(quiet),
                }
            }
        };
        self.settle(id, fate);
        self.take_violations();
        goes_on && fate == Fate::Continues
    }

    /// Ends a client, or watches its socket for what it needs next.
    fn settle(&mut self, id: u32, fate: Fate) {
        if fate == Fate::Ends {
            return self.disconnect(id);
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        // If a reply waits for room, the server waits only for room. While a reply is being made,
        // or if no event reports room, the server waits only for the end of the client.
        let interest = match (client.is_busy() || client.is_held_up() || client.must_retry(), client.is_stuck()) {
            (true, _) => EventFlags::empty(),
            (false, true) => EventFlags::OUT,
            (false, false) => EventFlags::IN,
        };
        if client.must_retry() {
            self.retrying.insert(id);
        }
        let (socket, now) = client.watched();
        watch_for(&self.poller, socket, Token::Client(id), now, interest);
        if let Some(death) = client.new_death()
            && let Err(error) = self.poller.watch(death, Token::Death(id), EventFlags::IN)
        {
            tracing::warn!(%error, "a client's death cannot be watched, and the client is sent away");
            return self.disconnect(id);
        }
        if let Some(context) = self.clients.get(&id).and_then(Client::context) {
            self.watch_push(context, Some(id));
        }
    }

    /// If `again`, offers the replies again for which the kernel took no descriptors. Returns
    /// whether some still wait.
    fn retry_sends(&mut self, again: bool) -> bool {
        if again {
            for id in std::mem::take(&mut self.retrying) {
                if let Some(client) = self.clients.get_mut(&id) {
                    let fate = client.flush();
                    self.settle(id, fate);
                }
            }
        }
        !self.retrying.is_empty()
    }

    /// Sends a reply that another thread made.
    fn hand_on(&mut self, to: ReplyTo, reply: Reply) {
        match to {
            ReplyTo::Local(answer) => drop(answer.send(reply)),
            ReplyTo::Connection { id, sequence } => {
                if let Some(client) = self.clients.get_mut(&id) {
                    let fate = client.reply(sequence, reply);
                    self.settle(id, fate);
                }
            }
        }
    }

    /// Ends a connection and everything that belongs to it.
    fn disconnect(&mut self, id: u32) {
        let Some(client) = self.clients.remove(&id) else { return };
        let uid = client.uid();
        self.count_out(uid, |has| &mut has.clients);
        let _ = self.poller.unwatch(client.socket());
        match client.session() {
            Some(Session::Context(context)) => self.close(context),
            Some(Session::Channel(channel)) => self.close_channel(channel),
            None => {}
        }
        self.idle.since = Instant::now();
    }

    /// Ends a context. If it has too many objects for one piece of work, several pieces end it,
    /// before other work of its user.
    fn close(&mut self, context: ContextId) {
        self.send_datagrams_of(context);
        self.proxies.forget(context);
        self.registry.by_engine.remove(&context);
        let account = self.account_of_context(context);
        if !self.world.close_some(context, PIECE) {
            self.schedule.queue.push_first(account, Work::Ending(context));
        }
        // What it has lost last.
        self.take_violations();
    }

    /// Ends an event channel in the same way as [`Server::close`] ends a context.
    fn close_channel(&mut self, channel: ChannelId) {
        self.send_datagrams_of_process(channel);
        let account = Account::User(self.manager.user_of(channel));
        if !self.manager.close_some(&self.world, channel, PIECE) {
            self.schedule.queue.push_first(account, Work::EndingChannel(channel));
        }
    }

    /// Watches the push socket for room, if the last command was ENGINE_HELLO.
    fn watch_push(&mut self, context: ContextId, connection: Option<u32>) {
        if let Some(engine) = self.world.contexts.get_mut(&context).and_then(|context| context.engine.as_mut())
            && !std::mem::replace(&mut engine.watched, true)
        {
            let _ = self.poller.watch(engine.socket(), Token::Push(context.0), EventFlags::OUT | EventFlags::ET);
            self.registry.by_engine.extend(connection.map(|connection| (context, connection)));
        }
    }

    /// Watches a full event socket until it has room.
    fn watch_event_socket(&mut self, channel: ChannelId) {
        let Some(event_socket) = self.manager.event_socket(channel) else { return };
        let (token, interest) = (Token::EventSocket(channel.0), EventFlags::OUT | EventFlags::ONESHOT);
        // A socket that was watched before is still registered.
        if self.poller.watch(event_socket, token, interest).is_err() {
            let _ = self.poller.rewatch(event_socket, token, interest);
        }
    }

    /// Disconnects clients whose engine has left too many pushes unread. They would wait for lanes
    /// of which they do not know.
    fn cut_off(&mut self, broken: &[ContextId]) {
        for context in broken {
            let peer = self.world.contexts.get(context).map(|context| &context.peer);
            account::enter(peer.map(|peer| peer.uid));
            let (pid, comm) = peer.map_or((0, ""), |peer| (peer.pid, &peer.comm));
            tracing::warn!(
                context = context.0,
                pid,
                comm,
                "the program has taken nothing for so long that thousands of messages about lanes wait for it: its device is closed; \
                 is its thread \"softhca\" stopped?"
            );
            match self.registry.by_engine.get(context).copied() {
                Some(id) => self.disconnect(id),
                None => self.close(*context),
            }
            account::enter(None);
        }
    }

    fn follow_addresses(&mut self) {
        if let Some(watch) = &self.watch {
            watch.drain();
        }
        let changed = follow(&mut self.world);
        self.show_changes(changed);
    }

    /// Brings the mirror, the nodes and the parts of the agent up to date with the devices, and sends
    /// the events of a change. A program that gets one reads sysfs at once, so the mirror is first.
    fn show_changes(&mut self, changed: bool) {
        if changed {
            self.show_devices();
        }
        self.world.flush_news();
        self.tell_clients();
        self.manager.follow_addresses(&self.world);
    }

    fn show_devices(&mut self) {
        self.close_nodes();
        let mirror = self.surroundings.mirror.as_mut().map_or(Ok(()), |mirror| mirror.update(&self.world.devices));
        if let Err(error) = mirror.and_then(|()| self.surroundings.nodes.update(&self.world.devices)) {
            tracing::warn!(%error, "the device mirror could not be brought up to date");
        }
        // After the mirror, which describes the device that a program finds by its node.
        self.open_nodes();
    }

    /// Brings the counters of a port up to date in the mirror, before a program opens one.
    fn show_counters(&mut self, device: &str, port: u8) {
        let began = Instant::now();
        let Some(index) = self.world.devices.named(device).map(|device| device.index) else { return };
        let at = PortId { device: index, port };
        let Some(counters) = self.mads.mads.port_counters(&mut self.world, at) else { return };
        let Some(device) = self.world.devices.get(index) else { return };
        let Surroundings { mirror, nodes, .. } = &self.surroundings;
        let shown = mirror.as_ref().map_or(Ok(()), |mirror| mirror.show_counters(device, port, &counters));
        if let Err(error) = shown.and_then(|()| nodes.show_counters(device, port, &counters)) {
            tracing::warn!(%error, "the counters of a port could not be shown");
        }
        self.mads.mads.counted(at, began.elapsed());
    }

    /// Hands the news of the devices to the parts of the agent that work on every device.
    fn tell_clients(&mut self) {
        self.world.tell_clients(&mut [&mut self.manager, &mut self.mads.mads]);
        // The files of a removed device end at once.
        if self.mads.mads.has_lost_files() {
            self.follow_mads();
        }
    }

    /// Closes the nodes of devices that are removed.
    fn close_nodes(&mut self) {
        let Some(run_dir) = &self.run_dir else { return };
        self.listeners.devices.retain(|index, listener| {
            let stays = self.world.devices.get(*index).is_some();
            if !stays {
                // Closing the socket ends the watch in any case.
                let _ = self.poller.unwatch(listener.as_fd());
                run_dir.remove(&node(*index));
            }
            stays
        });
    }

    /// Opens the nodes of devices that have none.
    fn open_nodes(&mut self) {
        let Some(run_dir) = &self.run_dir else { return };
        for device in &self.world.devices {
            let index = device.index;
            if self.listeners.devices.contains_key(&index) {
                continue;
            }
            match listen_for(&self.poller, run_dir, index) {
                Ok(listener) => drop(self.listeners.devices.insert(index, listener)),
                Err(error) => tracing::error!(%error, device = %device.name, "programs do not find the device"),
            }
        }
    }

    /// How long to wait. `None`: no client was connected for so long that the agent ends.
    fn timeout(&self, waits: bool) -> Option<Option<Duration>> {
        let retry = waits.then_some(RETRY);
        let bind = self.world.wire.next_try().map(|at| at.saturating_duration_since(Instant::now()));
        let timers = [self.manager.next_time(), self.mads.mads.next_time(), self.world.faults.next_time()];
        let retry = [retry, bind].into_iter().chain(timers).flatten().min();
        let Some(limit) = self.idle.exit.filter(|_| {
            // Fault rules wait for programs to come, so they keep the agent alive.
            !self.world.faults.is_on()
                && self.clients.is_empty()
                && self.admins.is_empty()
                && self.mads.is_empty()
                && self.local.contexts.is_empty()
                && self.local.channels.is_empty()
        }) else {
            return Some(retry);
        };
        let rest = limit.checked_sub(self.idle.since.elapsed()).filter(|rest| !rest.is_zero())?;
        Some(Some(retry.map_or(rest, |retry| retry.min(rest))))
    }

    fn next_connection(&mut self) -> u32 {
        self.registry.last = self.registry.last.wrapping_add(1);
        self.registry.last
    }
}

/// Opens the node of a device.
fn listen_for(poller: &Poller, run_dir: &RunDir, index: usize) -> io::Result<Listener> {
    let listener = listen_at(run_dir, &node(index))?;
    poller.watch(listener.as_fd(), Token::Node(index as u32), EventFlags::IN)?;
    Ok(listener)
}

/// Watches the machine's addresses, if the agent has them.
fn watch_addresses(world: &World, poller: &Poller) -> io::Result<Option<AddressWatch>> {
    if world.wire.is_external() {
        // An embedded host does not have the machine's addresses.
        return Ok(None);
    }
    match AddressWatch::new() {
        Ok(watch) => {
            poller.watch(watch.as_fd(), Token::Addresses, EventFlags::IN)?;
            Ok(Some(watch))
        }
        Err(error) => {
            tracing::warn!(%error, "the host's addresses cannot be watched; only GID index 0 is sure to be right");
            Ok(None)
        }
    }
}

/// Reads the host's interfaces and addresses. Returns true if ports or GID tables changed.
fn follow(world: &mut World) -> bool {
    let links = host_links().ok();
    let ports = links.as_ref().is_some_and(|links| world.follow_links(links) | world.follow_macs(links));
    let gids = match HostAddresses::read() {
        Ok(addresses) => {
            world.show_addresses_to_new_ports(&addresses.all());
            world.follow_addresses(&addresses.usable)
        }
        Err(error) => {
            tracing::warn!(%error, "the host's addresses cannot be read; GID index 0 continues to work");
            false
        }
    };
    // After the addresses: they decide which interface carries a port.
    links.is_some_and(|links| world.follow_rates(&links)) | ports | gids
}
