//! Connections to the admin node and to the NETLINK_RDMA node. Each connection sends a request,
//! gets its answer in as many pieces as needed, and sends the next request. Adds to [`Server`].

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use shm::socket::Socket;

use super::{ACCEPTED, Server};
use crate::admin::telling::{Tell, Telling};
use crate::admin::{self, QueryOutcome, Verdict};
use crate::foreign::Foreign;
use crate::headroom;
use crate::listening::accepted;
use crate::netlink;
use crate::poller::{Token, watch_for};

/// The maximum number of answers to one user that are sent at a time. Further requests wait.
const TELLINGS: usize = 64;

/// The node of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdminNode {
    Admin,
    Netlink,
}

/// One connection.
pub(super) struct AdminConnection {
    node: AdminNode,
    pub(super) uid: u32,
    socket: Foreign<Socket>,
    /// The events for which its socket is watched, if any.
    interest: Option<EventFlags>,
    telling: Option<Box<dyn Tell>>,
    /// Whether the server reads nothing from it, because too many descriptors of its user wait to
    /// be closed.
    held_up: bool,
}

impl AdminConnection {
    pub(super) fn watched(&mut self) -> (BorrowedFd<'_>, &mut Option<EventFlags>) {
        (self.socket.as_fd(), &mut self.interest)
    }
}

/// A user's connections, and its waiting requests.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) clients: usize,
    pub(super) admins: usize,
    tellings: usize,
    /// Connections whose requests wait.
    parked: VecDeque<u32>,
}

impl Server {
    pub(super) fn accept_admins(&mut self, node: AdminNode) {
        for _ in 0..ACCEPTED {
            let closers = &mut self.world.closers;
            let listener = match node {
                AdminNode::Admin => self.listeners.admin.as_ref(),
                AdminNode::Netlink => self.listeners.netlink.as_ref(),
            };
            let Some(socket) = listener.and_then(|listener| accepted(listener, &mut self.listeners.spare, closers))
            else {
                return;
            };
            let uid = socket.peer_credentials().map_or(u32::MAX, |peer| peer.uid);
            if self.is_one_too_many(uid) {
                tracing::debug!(uid, "a user with too many connections is turned away");
                drop(Foreign::new(socket, self.world.closers.of(uid)));
                continue;
            }
            self.take_admin(socket, node);
        }
    }

    pub(super) fn take_admin(&mut self, socket: Socket, node: AdminNode) {
        let uid = socket.peer_credentials().map_or(u32::MAX, |peer| peer.uid);
        let id = self.next_connection();
        let socket = Foreign::new(socket, self.world.closers.of(uid));
        if socket.set_nonblocking(true).is_ok()
            && self.poller.watch(socket.as_fd(), Token::Admin(id), EventFlags::IN).is_ok()
        {
            self.registry.users.entry(uid).or_default().admins += 1;
            let interest = Some(EventFlags::IN);
            self.admins.insert(id, AdminConnection { node, uid, socket, interest, telling: None, held_up: false });
        }
    }

    /// Handles a request, or sends the next piece of an answer. Returns `false` if the agent must
    /// end.
    pub(super) fn serve_admin(&mut self, id: u32) -> bool {
        let Some(admin) = self.admins.get_mut(&id) else { return true };
        let uid = admin.uid;
        if admin.telling.is_none() {
            // A held-up connection is not watched for requests, so this event is its end.
            if admin.held_up {
                self.end_admin(id);
                return true;
            }
            if admin.socket.closer().is_full() {
                admin.held_up = true;
                self.watch_admin(id, EventFlags::empty());
                return true;
            }
            let has = self.registry.users.entry(uid).or_default();
            if self.world.users.apart && has.tellings >= TELLINGS {
                has.parked.push_back(id);
                if admin.interest.take().is_some() {
                    let _ = self.poller.unwatch(admin.socket.as_fd());
                }
                return true;
            }
            let answer = match admin.node {
                AdminNode::Admin => {
                    let parts = (&self.manager, &mut self.mads.mads);
                    admin::serve(&mut self.world, parts, (id, &admin.socket), &mut self.buffer)
                }
                AdminNode::Netlink => netlink::serve(&admin.socket, &mut self.buffer),
            };
            self.world.flush_news();
            match answer {
                QueryOutcome::Tell(telling, changed) => {
                    admin.telling = Some(telling);
                    has.tellings += 1;
                    if changed {
                        self.follow_mads();
                        self.show_changes(true);
                    }
                }
                QueryOutcome::Counters(device, port) => {
                    admin.telling = Some(Box::new(Telling::text(&serde_json::json!({}))));
                    has.tellings += 1;
                    self.show_counters(&device, port);
                }
                QueryOutcome::Over(Verdict::Continues) => {
                    self.unpark(uid);
                    self.watch_admin(id, EventFlags::IN);
                    return true;
                }
                QueryOutcome::Over(Verdict::Ends) => {
                    self.end_admin(id);
                    return true;
                }
                QueryOutcome::Over(Verdict::Stop) => return false,
            }
        }
        self.tell(id);
        true
    }

    /// Sends one piece of an answer.
    fn tell(&mut self, id: u32) {
        let Some(admin) = self.admins.get_mut(&id) else { return };
        let Some(telling) = &mut admin.telling else { return };
        let uid = admin.uid;
        // Each piece allocates. An answer that cannot be completed is ended at once.
        if !headroom::is_there() {
            return self.end_admin(id);
        }
        if !telling.go_on(&self.world, (&self.manager, &self.mads.mads)) {
            return self.enqueue(Token::Admin(id));
        }
        match admin.socket.try_send(&telling.message(), &[]) {
            Ok(()) if telling.sent() => {
                admin.telling = None;
                self.watch_admin(id, EventFlags::IN);
                self.end_telling(uid);
            }
            Ok(()) => self.enqueue(Token::Admin(id)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.watch_admin(id, EventFlags::OUT),
            Err(_) => self.end_admin(id),
        }
    }

    /// An answer has ended: starts the next waiting request of the user.
    fn end_telling(&mut self, uid: u32) {
        if let Some(has) = self.registry.users.get_mut(&uid) {
            has.tellings = has.tellings.saturating_sub(1);
        }
        self.unpark(uid);
    }

    fn unpark(&mut self, uid: u32) {
        if let Some(id) = self.registry.users.get_mut(&uid).and_then(|has| has.parked.pop_front()) {
            self.enqueue(Token::Admin(id));
        }
    }

    /// Reads the requests of a user again, from at most `most` connections. Returns their number.
    pub(super) fn ask_again(&mut self, uid: u32, most: usize) -> usize {
        let held_up = self.admins.iter_mut().filter(|(_, admin)| admin.uid == uid && admin.held_up);
        let mut count = 0;
        for (id, admin) in held_up.take(most) {
            count += 1;
            admin.held_up = false;
            let (socket, now) = admin.watched();
            watch_for(&self.poller, socket, Token::Admin(*id), now, EventFlags::IN);
        }
        count + self.mads.ask_again(&self.poller, uid, most - count)
    }

    fn watch_admin(&mut self, id: u32, interest: EventFlags) {
        if let Some(admin) = self.admins.get_mut(&id) {
            let (socket, now) = admin.watched();
            watch_for(&self.poller, socket, Token::Admin(id), now, interest);
        }
    }

    fn end_admin(&mut self, id: u32) {
        let Some(admin) = self.admins.remove(&id) else { return };
        let _ = self.poller.unwatch(admin.socket.as_fd());
        self.world.captures.end(&mut self.world.contexts, id);
        if admin.telling.is_some() {
            self.end_telling(admin.uid);
        } else {
            self.unpark(admin.uid);
        }
        self.count_out(admin.uid, |has| &mut has.admins);
        // The idle time begins only now: `softhca run` keeps its connection while its program runs.
        self.idle.since = Instant::now();
    }

    /// Counts the end of a user's connection.
    pub(super) fn count_out(&mut self, uid: u32, which: impl FnOnce(&mut Connections) -> &mut usize) {
        let Some(has) = self.registry.users.get_mut(&uid) else { return };
        let count = which(has);
        *count = count.saturating_sub(1);
        if (has.clients, has.admins) == (0, 0) {
            self.registry.users.remove(&uid);
        }
    }

    /// Whether a user has as many connections as it may, or there is no memory for another one. One
    /// `softhca run` keeps one connection open for each program. A program has one client
    /// connection for each context; a client without a first message has no context yet.
    pub(super) fn is_one_too_many(&self, uid: u32) -> bool {
        if !headroom::is_there() {
            return true;
        }
        let share = self.world.users.contexts as usize;
        let Some(has) = self.registry.users.get(&uid) else { return false };
        self.world.users.apart && (has.admins >= share || has.clients >= 2 * share)
    }
}
