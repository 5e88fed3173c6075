//! The order of the agent's work: the account that has used the least of the agent's thread is
//! served next.
//!
//! Events become [`Work`] in the queue of an [`Account`]: a user's account, or an account for work
//! that belongs to no user. A piece of work is short. Longer work puts its rest into the queue
//! again. Between pieces the thread asks for new events, so that new clients are seen. If an event
//! is already in the queue and occurs again, it is no longer watched until it is served. So asking
//! for events costs the same for any number of waiting connections. Adds to [`Server`].

use std::time::{Duration, Instant};

use rustix::event::epoll::Event;

use super::Server;
use super::admin_connections::AdminNode;
use crate::account;
use crate::client::Node;
use crate::cm::ChannelId;
use crate::ids::ContextId;
use crate::inbox::Message;
use crate::poller::Token;
use crate::world::Backlog;

/// How long the thread looks for further commands after a command.
const LINGER: Duration = Duration::from_micros(200);
/// After this time the thread asks for new events, even if there is other work.
const SLICE: Duration = Duration::from_micros(250);
/// Maximum number of events that are taken at once.
const EVENTS: usize = 256;
/// How far ahead of the others an account starts when it gets work, in nanoseconds: a long piece of
/// work.
pub(super) const CREDIT: u64 = 1_000_000;
/// The cost of fetching and accounting a piece of work, in nanoseconds.
const OVERHEAD: u64 = 500;

/// The account that pays for a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Account {
    /// The host's addresses, and the run directory.
    Host,
    /// Datagrams of other hosts' connection managers, and of links to other agents.
    Network,
    /// Expired timers of the connection manager.
    Timers,
    /// New connections.
    Newcomers,
    /// Wake-ups between users.
    Relays,
    /// The requests of a user.
    User(u32),
}

/// A piece of work.
pub(super) enum Work {
    /// An event has occurred.
    Event(Token),
    /// Another thread of this process has sent a message.
    Message(Message),
    /// A context ends.
    Ending(ContextId),
    /// An event channel ends.
    EndingChannel(ChannelId),
    /// The lanes of a context end, because a rule removed its device.
    EndingLanes(ContextId),
    /// A timer of the connection manager has expired.
    Timers,
}

impl Server {
    /// Serves until the agent is told to stop, or until it ends because it is idle.
    pub(crate) fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while self.turn(&mut events) {}
        self.close_tunnels();
        self.world.shut_down();
    }

    /// Serves one piece of work, and handles what must happen before it. Returns false if the agent
    /// must end.
    pub(super) fn turn(&mut self, events: &mut Vec<Event>) -> bool {
        let backlog = self.follow();
        if self.schedule.queue.is_empty() && !backlog.more {
            // Makes the queue forget the used time.
            self.schedule.queue.next();
            let timeout = self.timeout(backlog.waits);
            events.clear();
            if std::mem::take(&mut self.schedule.served) {
                self.linger(events);
            }
            if events.is_empty()
                && let Err(error) = self.poller.wait(events, timeout.unwrap_or(Some(Duration::ZERO)))
            {
                tracing::error!(%error, "the agent cannot wait for its clients any more");
                return false;
            }
            // A client that arrived at the last moment is still served.
            if timeout.is_none() && events.is_empty() {
                tracing::info!("no client for the configured time: the agent ends");
                return false;
            }
            self.collect(events);
        } else if self.schedule.polled.elapsed() >= SLICE {
            events.clear();
            // If the wait fails, the next one reports it.
            let _ = self.poller.wait(events, Some(Duration::ZERO));
            self.collect(events);
        }
        let Some((account, work)) = self.schedule.queue.next() else { return true };
        let began = Instant::now();
        account::enter(if let Account::User(uid) = account { Some(uid) } else { None });
        self.world.pending.begin_work();
        let goes_on = self.carry_out(work);
        account::enter(None);
        let used = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.schedule.queue.charge(account, used.saturating_add(OVERHEAD));
        goes_on
    }

    /// Does what earlier pieces of work have left to do. Returns what is still left.
    pub(super) fn follow(&mut self) -> Backlog {
        let again = self.schedule.retried.elapsed() >= super::RETRY;
        if again {
            self.schedule.retried = Instant::now();
        }
        let mut backlog = self.world.flush(again);
        self.cut_off(&backlog.broken);
        backlog.waits |= self.retry_sends(again);
        backlog.waits |= self.world.closers.are_late(again);
        if self.world.end_faults() {
            self.show_changes(true);
        }
        self.follow_faults();
        self.tell_clients();
        if self.world.faults.is_on() {
            self.manager.follow_removals(&self.world);
        }
        self.manager.follow_streams(&self.world);
        for context in std::mem::take(&mut self.world.removed) {
            self.schedule.queue.push(self.account_of_context(context), Work::EndingLanes(context));
        }
        if self.manager.has_outward() {
            self.follow_mads();
        }
        self.world.follow_wire(Instant::now);
        for channel in self.manager.take_full() {
            self.watch_event_socket(channel);
        }
        // What the steps after the flush have caused.
        backlog.more |= self.world.pending.has_more();
        backlog
    }

    /// Looks for the next command for a short time before sleeping. Commands come in groups, from
    /// clients that wait for each answer, and a wake-up takes longer than a command. Between two
    /// looks, other threads can have the processor.
    fn linger(&self, events: &mut Vec<Event>) {
        shm::spin::spin(LINGER, || {
            // If the wait fails, the next one reports it.
            let _ = self.poller.wait(events, Some(Duration::ZERO));
            (!events.is_empty()).then_some(())
        });
    }

    /// Puts events into the queue.
    fn collect(&mut self, events: &[Event]) {
        self.schedule.polled = Instant::now();
        for event in events {
            match Token::from(event.data) {
                Token::Wake => self.take_messages(),
                token => self.enqueue(token),
            }
        }
        let timers = [self.manager.next_time(), self.mads.mads.next_time()];
        if timers.into_iter().flatten().any(|wait| wait.is_zero()) && !self.schedule.timers_queued {
            self.schedule.timers_queued = true;
            self.schedule.queue.push(Account::Timers, Work::Timers);
        }
    }

    /// Puts an event into the queue, once.
    pub(super) fn enqueue(&mut self, token: Token) {
        let is_new = self.schedule.queued.insert(token);
        if is_new {
            self.schedule.queue.push(self.account(token), Work::Event(token));
        }
        // A death is reported as long as it is watched.
        if !is_new || matches!(token, Token::Death(_)) {
            self.mute(token);
        }
    }

    /// Stops watching an event that would otherwise be reported again and again before it is
    /// served.
    fn mute(&mut self, token: Token) {
        let (fd, interest) = match token {
            Token::Client(id) => match self.clients.get_mut(&id) {
                Some(client) => client.watched(),
                None => return,
            },
            Token::Admin(id) => match self.admins.get_mut(&id) {
                Some(admin) => admin.watched(),
                None => return,
            },
            Token::Mads(id) => match self.mads.watched(id) {
                Some(watched) => watched,
                None => return,
            },
            Token::Death(id) => {
                if let Some(death) = self.clients.get(&id).and_then(|client| client.death()) {
                    let _ = self.poller.unwatch(death);
                }
                return;
            }
            _ => return,
        };
        if interest.take().is_some() {
            let _ = self.poller.unwatch(fd);
        }
    }

    /// The account of an event.
    fn account(&self, token: Token) -> Account {
        match token {
            Token::Client(id) | Token::Death(id) => {
                self.clients.get(&id).map_or(Account::Newcomers, |client| Account::User(client.uid()))
            }
            Token::Admin(id) => self.admins.get(&id).map_or(Account::Newcomers, |admin| Account::User(admin.uid)),
            Token::Push(context) => self.account_of_context(ContextId(context)),
            Token::EventSocket(channel) => Account::User(self.manager.user_of(ChannelId(channel))),
            Token::Mads(id) => self.mads.user_of(id).map_or(Account::Newcomers, Account::User),
            Token::Node(_) | Token::ManagerNode | Token::NodesManager(_) => Account::Newcomers,
            Token::AdminNode | Token::NetlinkNode | Token::MadNode => Account::Newcomers,
            Token::Relays => Account::Relays,
            Token::Management | Token::Tunnels | Token::Streams => Account::Network,
            Token::Wake | Token::Addresses | Token::RunDir => Account::Host,
        }
    }

    pub(super) fn account_of_context(&self, context: ContextId) -> Account {
        self.world.contexts.get(&context).map_or(Account::Host, |context| Account::User(context.peer.uid))
    }

    /// Does a piece of work. Returns false if the agent must end.
    fn carry_out(&mut self, work: Work) -> bool {
        match work {
            Work::Event(token) => {
                self.schedule.queued.remove(&token);
                return self.handle(token);
            }
            Work::Message(message) => return self.take_message(message),
            Work::Ending(context) => self.close(context),
            Work::EndingChannel(channel) => self.close_channel(channel),
            Work::EndingLanes(context) => {
                if self.world.end_some_lanes(context, super::PIECE) > 0 {
                    self.schedule.queue.push_first(self.account_of_context(context), Work::EndingLanes(context));
                }
            }
            Work::Timers => {
                self.schedule.timers_queued = false;
                self.manager.on_time(&self.world);
                self.mads.mads.on_time(&mut self.world);
                self.follow_mads();
            }
        }
        true
    }

    /// Handles one event. Returns false if the agent must end.
    fn handle(&mut self, token: Token) -> bool {
        match token {
            Token::Wake => self.take_messages(),
            Token::Node(device) => self.accept(Node::Device(device as usize)),
            Token::ManagerNode => self.accept(Node::Manager(None)),
            Token::NodesManager(node) => self.accept(Node::Manager(Some(node as usize))),
            Token::AdminNode => self.accept_admins(AdminNode::Admin),
            Token::NetlinkNode => self.accept_admins(AdminNode::Netlink),
            Token::MadNode => self.accept_mads(),
            Token::Mads(id) => self.serve_mads(id),
            Token::Client(id) => self.serve(id),
            Token::Death(id) => self.disconnect(id),
            // An engine has made room.
            Token::Push(context) => self.world.flush_engine(ContextId(context)),
            Token::Admin(id) => return self.serve_admin(id),
            Token::Addresses => self.follow_addresses(),
            Token::Relays => self.world.relays.hand_on(),
            Token::Management => self.take_datagrams(),
            Token::Tunnels => self.take_tunnelled(),
            Token::Streams => self.manager.on_sockets(&self.world),
            Token::EventSocket(channel) => self.manager.on_room(&self.world, ChannelId(channel)),
            Token::RunDir => self.lose_run_dir(),
        }
        true
    }
}
