//! The slow path: POST_*, POLL_CQ and REQ_NOTIFY_CQ for clients that run no engine, by an engine that the agent runs for them.
//!
//! [`Paths`] stands between the clients and [`dispatch`]. A client that never says ENGINE_HELLO gets a [`worker`] thread with
//! an engine of its own when it first needs one: when it posts, polls or arms, or when a QP of its leaves INIT, for then a
//! peer may reach it, or when it opens an XRC target, which it may have to go on serving. The engine takes over the objects that exist ([`inventory`]), in pieces while the client's commands wait, and every one that is made later. It is an
//! engine like any other: its control calls come in through [`LocalControl`], in the client's own context. Commands of such
//! a client go through its worker in order, one at a time, so the agent's thread never waits for an engine.

mod inventory;
mod worker;

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

use abi::Errno;
use abi::command::{EXTENDED, Header, number};
use abi::layout::Record;
use abi::post::PostAnswer;
use abi::qp::{ModifyQp, attr, state};

use crate::account;
use crate::dispatch::{Reply, dispatch};
use crate::foreign::Passed;
use crate::headroom;
use crate::ids::ContextId;
use crate::inbox::{Inbox, Message, ReplyTo};
use crate::local::LocalControl;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::shares;
use crate::world::World;
use inventory::{Change, Inventory};

/// What a worker is to do next.
enum Job {
    /// Take over objects that there were before.
    Know(Vec<Change>),
    /// Follow a change that the agent has made, then hand on its reply.
    Follow { change: Change, reply: Reply, to: ReplyTo },
    /// Carry out a command that is an engine's affair.
    Execute { request: Vec<u8>, to: ReplyTo },
}

/// Objects that a worker is told of in one piece of work.
const PIECE: usize = 256;

/// A worker that has not been told yet of all that its client has.
struct Starting {
    inventory: Inventory,
    /// Commands of the client that have come meanwhile.
    commands: Vec<(Vec<u8>, Vec<Passed>, ReplyTo)>,
}

/// The clients whose engine the agent runs.
pub(crate) struct Paths {
    inbox: Inbox,
    workers: BTreeMap<ContextId, Sender<Job>>,
    starting: BTreeMap<ContextId, Starting>,
}

impl Paths {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self { inbox, workers: BTreeMap::new(), starting: BTreeMap::new() }
    }

    /// Carries out a command. None: the reply will go to `to`, and until then this client's next command has to wait.
    pub(crate) fn carry_out(
        &mut self,
        world: &mut World,
        client: ContextId,
        request: &[u8],
        fds: Vec<Passed>,
        to: ReplyTo,
    ) -> Option<Reply> {
        let takes_it = match number_of(request) {
            Some(number) if NEED_ENGINE.contains(&number) => match self.worker(world, client) {
                Ok(runs) => runs,
                Err(refusal) => return Some(refused(number, refusal).into()),
            },
            Some(number) if CONCERN_ENGINE.contains(&number) => self.workers.contains_key(&client),
            // Before it is done: a peer that reaches a QP without an engine would wait for ever.
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
            return self.submit(client, Job::Execute { request: request.to_vec(), to });
        }
        let reply = dispatch(world, client, request, fds);
        if reply.status != 0 {
            return Some(reply);
        }
        if self.workers.contains_key(&client) {
            if let Some(change) = inventory::change(world, client, request, &reply.bytes) {
                return self.submit(client, Job::Follow { change, reply, to });
            }
        } else if reaches(request)
            && let Err(refusal) = self.worker(world, client)
        {
            tracing::warn!(context = client.0, %refusal, "no engine for a program that has none");
        }
        Some(reply)
    }

    /// Ends the worker of a client that is gone; it takes its engine with it.
    pub(crate) fn forget(&mut self, client: ContextId) {
        self.workers.remove(&client);
        self.starting.remove(&client);
    }

    /// Tells a worker that starts one piece more of what its client has. After the last one the client's commands go on.
    pub(crate) fn go_on(&mut self, world: &mut World, client: ContextId) {
        let Some(starting) = self.starting.get_mut(&client) else { return };
        let (changes, is_all) = starting.inventory.take(world, PIECE);
        self.submit(client, Job::Know(changes));
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

    /// Whether a client may have a worker, if it has none and no engine.
    fn room(&self, world: &World, client: ContextId) -> Outcome<()> {
        let has_engine = world.contexts.get(&client).is_none_or(|context| context.engine.is_some());
        if has_engine || self.workers.contains_key(&client) { Ok(()) } else { shares::room_for_proxy(world, client) }
    }

    /// Whether a client has a worker, which is started now if it needs one: the client is open and has no engine.
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
            let started = headroom::start(format!("softhca-slow-{}", client.0), headroom::STACK, move || {
                account::enter(Some(uid));
                worker::run(control, answer, profile, &jobs, &inbox);
                drop(running);
            });
            if let Err(error) = started {
                tracing::warn!(context = client.0, %error, "no thread for the slow path");
                return refuse(Errno::ENOMEM, format!("the agent cannot start a thread for an engine: {error}"));
            }
            world.context(client)?.has_proxy = true;
            self.workers.insert(client, sender);
            self.starting.insert(client, Starting { inventory: Inventory::new(client), commands: Vec::new() });
            self.inbox.send(Message::Starting(client));
        }
        Ok(true)
    }

    /// Gives the worker something to do. A worker that has ended takes its client's reply with it: such a client gets none,
    /// as from a device that is gone.
    fn submit(&mut self, client: ContextId, job: Job) -> Option<Reply> {
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
/// Commands that an engine asks the agent for by itself, around something that it has to do.
const CONCERN_ENGINE: [u8; 2] = [number::RESIZE_CQ, number::MODIFY_SRQ];

/// The number of a command in the legacy form, or of one that exists in the extended form alone.
fn number_of(request: &[u8]) -> Option<u8> {
    let command = Header::read(request)?.command;
    let number = u8::try_from(command & !EXTENDED).ok()?;
    ((command & EXTENDED != 0) == (number == number::EX_MODIFY_CQ)).then_some(number)
}

/// A command that needs an engine, and for which there is none.
fn refused(number: u8, mut refusal: Refusal) -> Refusal {
    if matches!(number, number::POST_SEND | number::POST_RECV | number::POST_SRQ_RECV) {
        refusal.answer = PostAnswer { bad_wr: 1 }.bytes().to_vec();
    }
    refusal
}

/// Whether a command has peers reach a client, which has to have an engine then.
fn reaches(request: &[u8]) -> bool {
    becomes_reachable(request) || number_of(request) == Some(number::OPEN_QP)
}

/// Whether a MODIFY_QP lets packets of a peer in: from RTR on.
fn becomes_reachable(request: &[u8]) -> bool {
    let Some(header) = Header::read(request) else { return false };
    (header.command & !EXTENDED == u32::from(number::MODIFY_QP))
        && inventory::modify_body(request)
            .is_some_and(|body: ModifyQp| body.attr_mask & attr::STATE != 0 && body.qp_state == state::RTR)
}
