//! The agent's thread: one epoll over nodes, clients, deaths, pushes, addresses and the process's own messages.
//!
//! It moves bytes and notices ends; what a command means is [`crate::dispatch`]'s. Nothing here blocks but the one wait, and
//! that wait has no timeout unless something waits for a client's room, or the agent is to end when idle. The principal
//! type is [`Server`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use abi::envelope::REQUEST_MAX;
use rustix::event::epoll::{self, EventFlags};
use shm::socket::{Listener, Socket};

use crate::addresses::{AddressWatch, host_addresses, host_links};
use crate::admin::{self, Verdict};
use crate::agent::Inbox;
use crate::capture;
use crate::client::{Client, Fate, Next, Node, Session};
use crate::cm::{ChannelId, Manager, Outside};
use crate::config::Config;
use crate::context::ContextId;
use crate::dispatch::{Reply, dispatch};
use crate::doors::{accepted, listen_at, ourselves, raise_descriptor_limit, spare_descriptor};
use crate::local::Message;
use crate::mirror::Mirror;
use crate::poller::{Poller, Token};
use crate::rundir::{ADMIN, RunDir, node};
use crate::shares;
use crate::slow::{Paths, ReplyTo};
use crate::wire::thread::WireThread;
use crate::world::World;

/// How often records that a client has no room for are offered again.
const RETRY: Duration = Duration::from_millis(200);

/// Most messages of one client that are taken in one turn.
const BUNCH: u32 = 8;

/// How long to look for more commands after one.
const LINGER: Duration = Duration::from_micros(200);

/// Everything that the thread owns.
pub(crate) struct Server {
    world: World,
    manager: Manager,
    poller: Poller,
    nodes: Vec<Listener>,
    manager_node: Option<Listener>,
    admin: Option<Listener>,
    clients: BTreeMap<u32, Client>,
    /// Those of them whose replies wait for a time at which the kernel takes descriptors again.
    starving: BTreeSet<u32>,
    /// When they were offered again last.
    fed: Instant,
    /// With the user of each.
    admins: BTreeMap<u32, (u32, Socket)>,
    /// Contexts of this process, which have no socket.
    locals: BTreeSet<ContextId>,
    /// Event channels of this process.
    local_channels: BTreeSet<ChannelId>,
    last_connection: u32,
    /// A command has been carried out since the last wait.
    served: bool,
    /// Kept for the time when no descriptor is left.
    spare: Option<OwnedFd>,
    watch: Option<AddressWatch>,
    messages: Receiver<Message>,
    paths: Paths,
    inbox: Inbox,
    idle_exit: Option<Duration>,
    idle_since: Instant,
    buffer: Vec<u8>,
    mirror: Option<Mirror>,
    /// Reads what comes from other hosts.
    _wire: Option<WireThread>,
    /// Tells when the run directory goes.
    lost: Option<OwnedFd>,
    /// Last to go: it removes the nodes and frees the lock.
    run_dir: Option<RunDir>,
}

impl Server {
    /// Makes the nodes and begins to watch; clients may connect from now on.
    pub(crate) fn new(
        config: &Config,
        mut world: World,
        run_dir: Option<RunDir>,
        messages: Receiver<Message>,
        inbox: Inbox,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.watch(inbox.wake(), Token::Wake, EventFlags::IN)?;
        let watch = match AddressWatch::new() {
            // The addresses of an embedded host are nothing of the machine's.
            _ if world.wire.is_external() => None,
            Ok(watch) => {
                poller.watch(watch.as_fd(), Token::Addresses, EventFlags::IN)?;
                Some(watch)
            }
            Err(error) => {
                tracing::warn!(%error, "the host's addresses cannot be watched; only GID index 0 is sure to be right");
                None
            }
        };
        poller.watch(world.relays.as_fd(), Token::Relays, EventFlags::IN)?;
        follow(&mut world);
        world.follow_wire(Instant::now);
        let mut manager = Manager::new(&world, Outside::real()?)?;
        manager.follow_addresses(&world);
        poller.watch(manager.inlet().bell(), Token::Management, EventFlags::IN)?;
        let wire = world.wire.start()?;
        let mut server = Self {
            world,
            manager,
            poller,
            nodes: Vec::new(),
            manager_node: None,
            admin: None,
            clients: BTreeMap::new(),
            starving: BTreeSet::new(),
            fed: Instant::now(),
            admins: BTreeMap::new(),
            locals: BTreeSet::new(),
            local_channels: BTreeSet::new(),
            last_connection: 0,
            served: false,
            spare: spare_descriptor(),
            watch,
            messages,
            paths: Paths::new(inbox.clone()),
            inbox,
            idle_exit: config.idle_exit,
            idle_since: Instant::now(),
            buffer: vec![0; REQUEST_MAX + 1],
            mirror: None,
            _wire: wire,
            lost: None,
            run_dir: None,
        };
        if let Some(run_dir) = run_dir {
            server.listen(run_dir)?;
        }
        Ok(server)
    }

    /// The devices' mirror first, then their nodes, the admin node last: whoever finds it finds everything.
    fn listen(&mut self, run_dir: RunDir) -> io::Result<()> {
        let descriptors = raise_descriptor_limit();
        self.world.user_contexts = shares::contexts(descriptors);
        self.world.user_descriptors = shares::descriptors(descriptors, !self.world.system);
        self.mirror = Some(Mirror::new(&run_dir, &self.world.devices)?);
        for index in 0..self.world.devices.len() {
            let listener = listen_at(&run_dir, &node(index))?;
            self.poller.watch(listener.as_fd(), Token::Node(index as u32), EventFlags::IN)?;
            self.nodes.push(listener);
        }
        let manager = listen_at(&run_dir, abi::ucma::NODE)?;
        self.poller.watch(manager.as_fd(), Token::ManagerNode, EventFlags::IN)?;
        self.manager_node = Some(manager);
        let admin = listen_at(&run_dir, ADMIN)?;
        self.poller.watch(admin.as_fd(), Token::AdminNode, EventFlags::IN)?;
        self.admin = Some(admin);
        match run_dir.watch() {
            Ok(watch) => {
                self.poller.watch(watch.as_fd(), Token::RunDir, EventFlags::IN)?;
                self.lost = Some(watch);
            }
            Err(error) => tracing::debug!(%error, "it will not be noticed if the run directory goes"),
        }
        tracing::info!(path = %run_dir.path().display(), devices = self.nodes.len(), "the agent serves");
        self.run_dir = Some(run_dir);
        Ok(())
    }

    /// Serves until it is told to stop or nobody needs it any more.
    pub(crate) fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        loop {
            let again = self.fed.elapsed() >= RETRY;
            let mut backlog = self.world.flush(again);
            self.cut_off(&backlog.broken);
            backlog.waits |= self.feed(again);
            if self.world.end_faults() {
                self.show_changes(true);
            }
            if self.world.faults.is_on() {
                self.manager.follow_removals(&self.world);
            }
            self.world.follow_wire(Instant::now);
            for channel in self.manager.take_full() {
                self.watch_bell(channel);
            }
            let timeout = self.timeout(backlog.waits);
            events.clear();
            if std::mem::take(&mut self.served) {
                self.linger(&mut events);
            }
            if events.is_empty()
                && let Err(error) = self.poller.wait(&mut events, timeout.unwrap_or(Some(Duration::ZERO)))
            {
                tracing::error!(%error, "the agent cannot wait for its clients any more");
                break;
            }
            // Whoever has come at the last moment is let in.
            if timeout.is_none() && events.is_empty() {
                tracing::info!("no client for the configured time: the agent ends");
                break;
            }
            if !events.iter().all(|event| self.handle(Token::from(event.data))) {
                break;
            }
            if self.manager.next_time().is_some_and(|wait| wait.is_zero()) {
                self.manager.on_time(&self.world);
            }
        }
        self.world.shut_down();
    }

    /// Looks for the next command for a moment before it sleeps: they come in bunches, from clients that wait for each answer, and
    /// to be woken takes longer than to carry one out. Whoever else wants the processor has it between two looks.
    fn linger(&self, events: &mut Vec<epoll::Event>) {
        let end = Instant::now() + LINGER;
        while events.is_empty() && Instant::now() < end {
            rustix::thread::sched_yield();
            // What is wrong with the wait, the next one says.
            let _ = self.poller.wait(events, Some(Duration::ZERO));
        }
    }

    /// One event. False: the agent shall end.
    fn handle(&mut self, token: Token) -> bool {
        match token {
            Token::Wake => return self.take_messages(),
            Token::Node(device) => self.accept(Node::Device(device as usize)),
            Token::ManagerNode => self.accept(Node::Manager),
            Token::AdminNode => self.accept_admin(),
            Token::Client(id) => self.serve(id),
            Token::Death(id) => self.disconnect(id),
            // An engine has made room: the flush before the next wait uses it.
            Token::Push(_) => {}
            Token::Admin(id) => return self.serve_admin(id),
            Token::Addresses => self.follow_addresses(),
            Token::Relays => self.world.relays.hand_on(),
            Token::Management => self.manager.on_datagrams(&self.world),
            Token::Bell(channel) => self.manager.on_room(&self.world, ChannelId(channel)),
            Token::RunDir => self.lose_run_dir(),
        }
        true
    }

    /// Somebody has removed the run directory: no program finds this agent any more, and those that have found it are the last ones.
    fn lose_run_dir(&mut self) {
        let mut events = [0; 4096];
        while self.lost.as_ref().is_some_and(|lost| rustix::io::read(lost, &mut events).is_ok()) {}
        if self.run_dir.as_ref().is_some_and(|run_dir| !run_dir.is_there()) && self.lost.take().is_some() {
            tracing::warn!("the run directory is gone: the agent ends when its programs have");
            self.idle_exit = Some(Duration::ZERO);
        }
    }

    /// What this process's other threads want.
    fn take_messages(&mut self) -> bool {
        self.inbox.drain();
        while let Ok(message) = self.messages.try_recv() {
            match message {
                Message::Open { device, profile, answer } => {
                    let opened = self.world.open(device, profile, ourselves());
                    self.locals.extend(opened.as_ref().ok());
                    let _ = answer.send(opened);
                }
                Message::Call { context, inner, request, fds, answer } => {
                    let to = ReplyTo::Local(answer.clone());
                    let reply = match inner {
                        true => Some(dispatch(&mut self.world, context, &request, fds)),
                        false => self.paths.carry_out(&mut self.world, context, &request, fds, to),
                    };
                    self.watch_push(context);
                    self.world.follow_wire(Instant::now);
                    if let Some(reply) = reply {
                        let _ = answer.send(reply);
                    }
                }
                Message::OpenChannel { answer } => {
                    let opened = self.manager.open(ourselves(), true);
                    self.local_channels.extend(opened.as_ref().ok().map(|(channel, _)| *channel));
                    let _ = answer.send(opened);
                }
                Message::CallChannel { channel, request, fds, answer } => {
                    let _ = answer.send(self.manager.dispatch(&mut self.world, channel, &request, fds));
                }
                Message::CloseChannel(channel) => {
                    if self.local_channels.remove(&channel) {
                        self.manager.close(&self.world, channel);
                        self.idle_since = Instant::now();
                    }
                }
                Message::Admin(socket) => self.take_admin(socket),
                Message::Network(network) => self.manager.set_network(network),
                Message::Port { device, port, up } => {
                    let changed = self.world.set_port(device, port, up);
                    self.show_changes(changed);
                }
                Message::Fault { question, answer } => {
                    let (value, changed) = crate::faults::answer(&mut self.world, admin::Asker::Root, &question);
                    self.show_changes(changed);
                    let _ = answer.send(value);
                }
                Message::Reply { to, reply } => self.hand_on(to, reply),
                Message::Close(context) => {
                    if self.locals.remove(&context) {
                        self.close(context);
                        self.idle_since = Instant::now();
                    }
                }
                Message::Stop => return false,
            }
        }
        true
    }

    fn accept(&mut self, node: Node) {
        let listener = match node {
            Node::Device(device) => self.nodes.get(device),
            Node::Manager => self.manager_node.as_ref(),
        };
        let Some(socket) = listener.and_then(|listener| accepted(listener, &mut self.spare)) else { return };
        let id = self.next_connection();
        match Client::new(socket, node) {
            Ok(client) if self.is_one_too_many(client.uid()) => {
                tracing::debug!(uid = client.uid(), "a user with too many connections is turned away");
            }
            Ok(client) => {
                let watched = self.poller.watch(client.socket(), Token::Client(id), EventFlags::IN);
                let watched = watched.and_then(|()| match client.death() {
                    Some(death) => self.poller.watch(death, Token::Death(id), EventFlags::IN),
                    None => Ok(()),
                });
                match watched {
                    Ok(()) => drop(self.clients.insert(id, client)),
                    Err(error) => tracing::warn!(%error, "a client cannot be watched and is sent away"),
                }
            }
            Err(error) => tracing::warn!(%error, "a connection ended before it began"),
        }
    }

    /// One message of one client, and what follows a quiet one; the wait is level-triggered, so its next one has its turn after
    /// everybody else's.
    fn serve(&mut self, id: u32) {
        let mut turns = BUNCH;
        while turns > 0 && self.serve_one(id) {
            turns -= 1;
        }
    }

    /// One message. True: the client did not wait for its reply, so that more may be there.
    fn serve_one(&mut self, id: u32) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        self.served = true;
        let mut goes_on = false;
        let fate = match client.next(&mut self.world, &mut self.manager, &mut self.buffer) {
            Next::Over(fate) => fate,
            Next::Command { session: Session::Channel(channel), sequence, quiet, request, fds } => {
                let reply = self.manager.dispatch(&mut self.world, channel, request, fds);
                goes_on = quiet;
                if quiet { Fate::Goes } else { client.reply(sequence, reply) }
            }
            Next::Command { session: Session::Context(context), sequence, quiet, request, fds } => {
                let to = ReplyTo::Connection { id, sequence };
                let reply = self.paths.carry_out(&mut self.world, context, request, fds, to);
                // Whoever is told that it has joined a group has joined it.
                self.world.follow_wire(Instant::now);
                goes_on = quiet && reply.is_some();
                match reply {
                    Some(_) if quiet => Fate::Goes,
                    Some(reply) => client.reply(sequence, reply),
                    None => client.wait(quiet),
                }
            }
        };
        self.settle(id, fate);
        goes_on && fate == Fate::Goes
    }

    /// After a client has been dealt with: ends it, or waits for what it needs next.
    fn settle(&mut self, id: u32, fate: Fate) {
        if fate == Fate::Ends {
            return self.disconnect(id);
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        // While a reply waits for room, room is all that matters; while one is being made, or no room is told of, nothing but the end.
        let interest = match (client.is_busy() || client.starves(), client.is_stuck()) {
            (true, _) => EventFlags::empty(),
            (false, true) => EventFlags::OUT,
            (false, false) => EventFlags::IN,
        };
        if client.starves() {
            self.starving.insert(id);
        }
        if client.interest != interest {
            client.interest = interest;
            let _ = self.poller.rewatch(client.socket(), Token::Client(id), interest);
        }
        if let Some(context) = client.context() {
            self.watch_push(context);
        }
    }

    /// Offers replies whose descriptors there was no room for, if it is time for that. Whether some wait.
    fn feed(&mut self, again: bool) -> bool {
        if again {
            self.fed = Instant::now();
            for id in std::mem::take(&mut self.starving) {
                if let Some(client) = self.clients.get_mut(&id) {
                    let fate = client.flush();
                    self.settle(id, fate);
                }
            }
        }
        !self.starving.is_empty()
    }

    /// A reply that was made elsewhere.
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

    /// Ends a connection and everything that it had.
    fn disconnect(&mut self, id: u32) {
        let Some(client) = self.clients.remove(&id) else { return };
        match client.session() {
            Some(Session::Context(context)) => self.close(context),
            Some(Session::Channel(channel)) => self.manager.close(&self.world, channel),
            None => {}
        }
        self.idle_since = Instant::now();
    }

    fn close(&mut self, context: ContextId) {
        self.paths.forget(context);
        self.world.close(context);
    }

    /// After a command that may have been ENGINE_HELLO: the push socket is watched for room.
    fn watch_push(&mut self, context: ContextId) {
        if let Some(engine) = self.world.contexts.get_mut(&context).and_then(|context| context.engine.as_mut())
            && !std::mem::replace(&mut engine.watched, true)
        {
            let _ = self.poller.watch(engine.socket(), Token::Push(context.0), EventFlags::OUT | EventFlags::ET);
        }
    }

    /// A bell had no room: it is waited for.
    fn watch_bell(&mut self, channel: ChannelId) {
        let Some(bell) = self.manager.bell(channel) else { return };
        let (token, interest) = (Token::Bell(channel.0), EventFlags::OUT | EventFlags::ONESHOT);
        // What has been watched before is so still.
        if self.poller.watch(bell, token, interest).is_err() {
            let _ = self.poller.rewatch(bell, token, interest);
        }
    }

    /// Ends clients whose engine has left too much untaken: they would wait for lanes that they do not know.
    fn cut_off(&mut self, broken: &[ContextId]) {
        for context in broken {
            let peer = self.world.contexts.get(context).map(|context| &context.peer);
            let (pid, comm) = peer.map_or((0, ""), |peer| (peer.pid, &peer.comm));
            tracing::warn!(
                context = context.0,
                pid,
                comm,
                "the program has taken nothing for so long that thousands of messages about lanes wait for it: its device is closed; \
                 is its thread \"softhca\" stopped?"
            );
            let connection = self.clients.iter().find(|(_, client)| client.context() == Some(*context));
            match connection.map(|(id, _)| *id) {
                Some(id) => self.disconnect(id),
                None => self.close(*context),
            }
        }
    }

    fn accept_admin(&mut self) {
        let Some(socket) = self.admin.as_ref().and_then(|admin| accepted(admin, &mut self.spare)) else { return };
        let uid = socket.peer_credentials().map_or(u32::MAX, |peer| peer.uid);
        if self.is_one_too_many(uid) {
            tracing::debug!(uid, "a user with too many connections is turned away");
            return;
        }
        self.take_admin(socket);
    }

    fn take_admin(&mut self, socket: Socket) {
        let uid = socket.peer_credentials().map_or(u32::MAX, |peer| peer.uid);
        let id = self.next_connection();
        if socket.set_nonblocking(true).is_ok()
            && self.poller.watch(socket.as_fd(), Token::Admin(id), EventFlags::IN).is_ok()
        {
            self.admins.insert(id, (uid, socket));
        }
    }

    fn serve_admin(&mut self, id: u32) -> bool {
        let Some((_, socket)) = self.admins.get(&id) else { return true };
        match admin::serve(&mut self.world, &self.manager, (id, socket), &mut self.buffer) {
            Verdict::Goes => true,
            Verdict::Changed => {
                self.show_changes(true);
                true
            }
            Verdict::Ends => {
                self.admins.remove(&id);
                capture::end(&mut self.world, id);
                // `softhca run` keeps its connection while its program runs: somebody was here until now.
                self.idle_since = Instant::now();
                true
            }
            Verdict::Stop => false,
        }
    }

    /// Whether a user has as many connections as it may. `softhca run` has one for each program, which has one for each
    /// context; who connects and then says nothing has no context.
    fn is_one_too_many(&self, uid: u32) -> bool {
        let share = self.world.user_contexts as usize;
        let programs = self.admins.values().filter(|(other, _)| *other == uid).count();
        let clients = self.clients.values().filter(|client| client.uid() == uid).count();
        self.world.system && (programs >= share || clients >= 2 * share)
    }

    fn follow_addresses(&mut self) {
        if let Some(watch) = &self.watch {
            watch.drain();
        }
        let changed = follow(&mut self.world);
        self.show_changes(changed);
    }

    /// Takes the devices as they are now into what is made of them.
    fn show_changes(&mut self, changed: bool) {
        self.manager.follow_addresses(&self.world);
        if changed
            && let Some(mirror) = &self.mirror
            && let Err(error) = mirror.update(&self.world.devices)
        {
            tracing::warn!(%error, "the device mirror could not be brought up to date");
        }
    }

    /// How long to wait. None: nobody was here for so long that the agent ends.
    fn timeout(&self, waits: bool) -> Option<Option<Duration>> {
        let retry = waits.then_some(RETRY);
        let bind = self.world.wire.next_try().map(|at| at.saturating_duration_since(Instant::now()));
        let retry = [retry, bind, self.manager.next_time(), self.world.faults.next_time()].into_iter().flatten().min();
        let Some(limit) = self.idle_exit.filter(|_| {
            // Rules that somebody has added are there for the programs to come.
            !self.world.faults.is_on()
                && self.clients.is_empty()
                && self.admins.is_empty()
                && self.locals.is_empty()
                && self.local_channels.is_empty()
        }) else {
            return Some(retry);
        };
        let rest = limit.checked_sub(self.idle_since.elapsed()).filter(|rest| !rest.is_zero())?;
        Some(Some(retry.map_or(rest, |retry| retry.min(rest))))
    }

    fn next_connection(&mut self) -> u32 {
        self.last_connection = self.last_connection.wrapping_add(1);
        self.last_connection
    }
}

/// Asks the host for its interfaces and addresses; true when ports or GID tables changed.
fn follow(world: &mut World) -> bool {
    let ports = host_links().is_ok_and(|links| world.follow_links(&links));
    match host_addresses() {
        Ok(addresses) => world.follow_addresses(&addresses) | ports,
        Err(error) => {
            tracing::warn!(%error, "the host's addresses cannot be read; GID index 0 goes on to work");
            ports
        }
    }
}
