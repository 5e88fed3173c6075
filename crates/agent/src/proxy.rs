//! The proxy engine: POST_*, POLL_CQ and REQ_NOTIFY_CQ for clients that run no engine. The agent
//! runs an engine for them.
//!
//! [`Proxies`] stands between the clients and [`dispatch`]. A client that never sends ENGINE_HELLO
//! gets a [`worker`] thread with its own engine when it first needs one. It needs an engine when it
//! posts, when it polls or arms a CQ, and when one of its QPs leaves INIT, because then a peer may
//! reach the QP. It also needs one when it opens an XRC target, which it may have to serve later.
//! The engine takes over the existing objects ([`inventory`]), in pieces, while the client's
//! commands wait. It also takes over every object that is created later. The engine is like any
//! other: its control calls arrive through [`LocalControl`], in the client's own context. The
//! worker carries out the commands of its client in order, one at a time, so the agent's thread
//! never waits for an engine.

mod inventory;
mod worker;

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

use abi::Errno;
use abi::command::{EXTENDED, Header, number};
use abi::layout::Record;
use abi::qp::{ModifyQp, attr, state};

use crate::dispatch::{Reply, dispatch};
use crate::foreign::PassedFd;
use crate::headroom;
use crate::ids::ContextId;
use crate::inbox::{Inbox, Message, ReplyTo};
use crate::local::LocalControl;
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::world::World;
use inventory::{Change, Inventory};

/// A job of a worker.
enum WorkerJob {
    /// Take over objects that existed before.
    Know(Vec<Change>),
    /// Follow a change that the agent has made, then send its reply.
    Follow { change: Change, reply: Reply, to: ReplyTo },
    /// Carry out a command that needs an engine.
    Execute { request: Vec<u8>, to: ReplyTo },
}

/// Maximum number of objects that are described to a worker in one piece of work.
const PIECE: usize = 256;

/// A worker that does not know all objects of its client yet.
struct Starting {
    inventory: Inventory,
    /// Commands of the client that have arrived meanwhile.
    commands: Vec<(Vec<u8>, Vec<PassedFd>, ReplyTo)>,
}

/// The clients with a proxy engine.
pub(crate) struct Proxies {
    inbox: Inbox,
    workers: BTreeMap<ContextId, Sender<WorkerJob>>,
    starting: BTreeMap<ContextId, Starting>,
}

impl Proxies {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self { inbox, workers: BTreeMap::new(), starting: BTreeMap::new() }
    }

    /// Carries out a command. `None`: the reply will go to `to`, and the client's next command must
    /// wait for it.
    pub(crate) fn carry_out(
        &mut self,
        world: &mut World,
        client: ContextId,
        request: &[u8],
        fds: Vec<PassedFd>,
        to: ReplyTo,
    ) -> Option<Reply> {
        let takes_it = match number_of(request) {
            Some(number) if NEED_ENGINE.contains(&number) => match self.worker(world, client) {
                Ok(runs) => runs,
                Err(refusal) => return Some(Reply::refused(number, refusal)),
            },
            Some(number) if CONCERN_ENGINE.contains(&number) => self.workers.contains_key(&client),
            // Checked before the command: a peer that reaches a QP without an engine would wait
            // forever.
            _ if reaches(request) => match self.room(world, client) {
                Ok(()) => false,
                Err(refusal) => return Some(refusal.into()),
            },
            _ => false,
        };
        if let Some(starting) = self.starting.get_mut(&client) {
            starting.commands.push((request.to_vec(), fds, to));
            return None;
        }
        if takes_it {
            return self.submit(client, WorkerJob::Execute { request: request.to_vec(), to });
        }
        let reply = dispatch(world, client, request, fds);
        if reply.status != 0 {
            return Some(reply);
        }
        if self.workers.contains_key(&client) {
            if let Some(change) = inventory::change(world, client, request, &reply.bytes) {
                return self.submit(client, WorkerJob::Follow { change, reply, to });
            }
        } else if reaches(request)
            && let Err(refusal) = self.worker(world, client)
        {
            tracing::warn!(context = client.0, %refusal, "no engine for a program that has none");
        }
        Some(reply)
    }

    /// Ends the worker of a client that is gone. The worker closes its engine.
    pub(crate) fn forget(&mut self, client: ContextId) {
        self.workers.remove(&client);
        self.starting.remove(&client);
    }

    /// Tells a starting worker of the next objects of its client. After the last ones, the client's
    /// commands continue.
    pub(crate) fn go_on(&mut self, world: &mut World, client: ContextId) {
        let Some(starting) = self.starting.get_mut(&client) else { return };
        let (changes, is_all) = starting.inventory.take(world, PIECE);
        self.submit(client, WorkerJob::Know(changes));
        if !is_all {
            self.inbox.send(Message::Starting(client));
            return;
        }
        for (request, fds, to) in self.starting.remove(&client).into_iter().flat_map(|starting| starting.commands) {
            if let Some(reply) = self.carry_out(world, client, &request, fds, to.clone()) {
                self.inbox.send(Message::Reply { to, reply });
            }
        }
    }

    /// Checks that a client may have a worker, if it has no worker and no engine.
    fn room(&self, world: &World, client: ContextId) -> Outcome<()> {
        let has_engine = world.contexts.get(&client).is_none_or(|context| context.engine.is_some());
        if has_engine || self.workers.contains_key(&client) { Ok(()) } else { shares::room_for_proxy(world, client) }
    }

    /// Whether a client has a worker. If the client is open and has neither a worker nor an engine,
    /// starts a worker.
    fn worker(&mut self, world: &mut World, client: ContextId) -> Outcome<bool> {
        if !self.workers.contains_key(&client) {
            self.room(world, client)?;
            let Some(context) = world.contexts.get(&client).filter(|context| context.engine.is_none()) else {
                return Ok(false);
            };
            let Some(answer) = inventory::context(world, client) else { return Ok(false) };
            let (sender, jobs) = channel();
            let (inbox, profile) = (self.inbox.clone(), context.profile);
            let uid = context.peer.uid;
            let control = LocalControl::inner(self.inbox.clone(), client, uid);
            let running = world.users.run(uid);
            let name = format!("softhca-proxy-{}", client.0);
            let started = headroom::start_for(uid, name, headroom::STACK, move || {
                worker::run(control, answer, profile, &jobs, &inbox);
                drop(running);
            });
            if let Err(error) = started {
                tracing::warn!(context = client.0, %error, "no thread for a proxy engine");
                return refuse(Errno::ENOMEM, format!("the agent cannot start a thread for an engine: {error}"));
            }
            world.context(client)?.has_proxy = true;
            self.workers.insert(client, sender);
            self.starting.insert(client, Starting { inventory: Inventory::new(client), commands: Vec::new() });
            self.inbox.send(Message::Starting(client));
        }
        Ok(true)
    }

    /// Gives the worker a job. If the worker has ended, its client gets no reply, as if the device
    /// were gone.
    fn submit(&mut self, client: ContextId, job: WorkerJob) -> Option<Reply> {
        if let Some(worker) = self.workers.get(&client) {
            let _ = worker.send(job);
        }
        None
    }
}

/// Commands that only an engine can carry out.
const NEED_ENGINE: [u8; 6] = [
    number::POST_SEND,
    number::POST_RECV,
    number::POST_SRQ_RECV,
    number::POLL_CQ,
    number::REQ_NOTIFY_CQ,
    number::EX_MODIFY_CQ,
];
/// Commands that an engine itself sends to the agent, as a part of a larger change.
const CONCERN_ENGINE: [u8; 2] = [number::RESIZE_CQ, number::MODIFY_SRQ];

/// The number of a command in the legacy form, or of a command that exists only in the extended
/// form.
fn number_of(request: &[u8]) -> Option<u8> {
    let command = Header::read(request)?.command;
    let number = u8::try_from(command & !EXTENDED).ok()?;
    ((command & EXTENDED != 0) == (number == number::EX_MODIFY_CQ)).then_some(number)
}

/// Whether a command lets peers reach a client, which then needs an engine.
fn reaches(request: &[u8]) -> bool {
    becomes_reachable(request) || number_of(request) == Some(number::OPEN_QP)
}

/// Whether a MODIFY_QP lets a peer's packets in: from RTR on.
fn becomes_reachable(request: &[u8]) -> bool {
    let Some(header) = Header::read(request) else { return false };
    (header.command & !EXTENDED == u32::from(number::MODIFY_QP))
        && inventory::modify_body(request)
            .is_some_and(|body: ModifyQp| body.attr_mask & attr::STATE != 0 && body.qp_state == state::RTR)
}
