//! Messages from other threads of this process to the agent's thread. Adds to [`Server`].

use std::time::Instant;

use serde_json::Value;

use super::Server;
use super::admin_connections::AdminNode;
use super::passing::passed;
use super::scheduler::{Account, Work};
use crate::asker::Asker;
use crate::dispatch::{Reply, dispatch};
use crate::faults::manage;
use crate::foreign::PassedFd;
use crate::ids::ContextId;
use crate::inbox::{Message, ReplyTo};
use crate::listening::ourselves;
use crate::port_change::{BadChange, PortChange};

/// Maximum number of messages that are taken at once.
const MESSAGES: usize = 256;

impl Server {
    /// Puts messages into the queue, in order. The message of an engine goes on the account of the
    /// engine's client, and any other on this process's own account.
    pub(super) fn take_messages(&mut self) {
        self.inbox.drain();
        for _ in 0..MESSAGES {
            let Ok(message) = self.messages.try_recv() else { return };
            let account = match &message {
                Message::Call { context, inner: true, .. } | Message::Starting(context) => {
                    self.account_of_context(*context)
                }
                Message::Reply { to: ReplyTo::Connection { id, .. }, .. } | Message::Arrived { id, .. } => {
                    self.clients.get(id).map_or(Account::Host, |client| Account::User(client.uid()))
                }
                Message::Room(uid) => Account::User(*uid),
                _ => Account::User(rustix::process::getuid().as_raw()),
            };
            self.schedule.queue.push(account, Work::Message(message));
        }
        self.inbox.wake_again();
    }

    /// Does what a message asks for. Returns false if the agent must end.
    pub(super) fn take_message(&mut self, message: Message) -> bool {
        match message {
            Message::Open { device, profile, answer } => {
                let opened = self.world.open(device, profile, ourselves());
                self.local.contexts.extend(opened.as_ref().ok());
                let _ = answer.send(opened);
            }
            Message::Call { context, inner, request, fds, answer } => {
                let to = ReplyTo::Local(answer.clone());
                if let Some(reply) = self.call(context, inner, &request, passed(fds), to) {
                    let _ = answer.send(reply);
                }
            }
            Message::OpenChannel { answer } => {
                let opened = self.manager.open(ourselves(), true);
                self.local.channels.extend(opened.as_ref().ok().map(|(channel, _)| *channel));
                let _ = answer.send(opened);
            }
            Message::CallChannel { channel, request, answer } => {
                self.send_datagrams_of_process(channel);
                let _ = answer.send(self.manager.serve(&mut self.world, channel, &request));
            }
            Message::CloseChannel(channel) => {
                if self.local.channels.remove(&channel) {
                    self.close_channel(channel);
                    self.idle.since = Instant::now();
                }
            }
            Message::Admin(socket) => self.take_admin(socket, AdminNode::Admin),
            Message::Network(network) => self.manager.set_network(network),
            Message::Port { device, port, up } => {
                let changed = self.world.set_port(device, port, up);
                self.show_changes(changed);
            }
            Message::ChangePort { device, port, change, answer } => {
                let _ = answer.send(self.change_port(device, port, &change));
            }
            Message::Fault { question, answer } => {
                let _ = answer.send(self.take_fault(&question));
            }
            Message::Arrived { id, arrived } => self.take_arrived(id, arrived),
            Message::Starting(context) => self.proxies.go_on(&mut self.world, context),
            Message::Room(uid) => self.read_again(uid),
            Message::Reply { to, reply } => self.hand_on(to, reply),
            Message::Close(context) => {
                if self.local.contexts.remove(&context) {
                    self.close(context);
                    self.idle.since = Instant::now();
                }
            }
            Message::Stop => return false,
        }
        true
    }

    /// Carries out a command of this process. Without an answer now, it goes to `to` later.
    fn call(
        &mut self,
        context: ContextId,
        inner: bool,
        request: &[u8],
        fds: Vec<PassedFd>,
        to: ReplyTo,
    ) -> Option<Reply> {
        self.send_datagrams_of(context);
        self.mads.mads.find_paths(&mut self.world);
        let reply = match inner {
            true => Some(dispatch(&mut self.world, context, request, fds)),
            false => self.proxies.carry_out(&mut self.world, context, request, fds, to),
        };
        self.take_violations();
        self.world.flush_news();
        self.watch_push(context, None);
        self.world.follow_wire(Instant::now);
        reply
    }

    fn change_port(&mut self, device: usize, port: u32, change: &PortChange) -> Result<(), BadChange> {
        self.world.change_port(device, port, change)?;
        self.show_changes(true);
        Ok(())
    }

    fn take_fault(&mut self, question: &Value) -> Value {
        let (value, changed) = manage::answer(&mut self.world, Asker::Root, question);
        self.show_changes(changed);
        value
    }
}
