//! Clients in the agent's own process: they send commands through a channel instead of a socket,
//! and are otherwise like other clients.
//!
//! The principal type is [`LocalControl`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::sync_channel;

use abi::{Errno, Refusal};

use crate::account;
use crate::cm::ChannelId;
use crate::dispatch::Reply;
use crate::ids::ContextId;
use crate::inbox::{Inbox, Message};
use crate::refusal::{by_system, refuse};

/// One open of a device by this process.
#[derive(Debug)]
pub struct LocalControl {
    inbox: Inbox,
    context: ContextId,
    /// It belongs to a proxy engine. The context belongs to the engine's client, who ends it.
    inner: bool,
    /// The user for whom its engine's threads work, if it belongs to a proxy engine.
    user: Option<u32>,
}

impl LocalControl {
    pub(crate) fn open(inbox: Inbox, device: usize, profile: u16) -> Result<Self, Refusal> {
        let (answer, opened) = sync_channel(1);
        inbox.send(Message::Open { device, profile, answer });
        match opened.recv() {
            Ok(context) => Ok(Self { context: context?, inbox, inner: false, user: None }),
            Err(_) => refuse(Errno::EIO, GONE),
        }
    }

    /// The control of a proxy engine.
    pub(crate) fn inner(inbox: Inbox, context: ContextId, uid: u32) -> Self {
        Self { inbox, context, inner: true, user: Some(uid) }
    }

    /// The context's name in the agent.
    pub fn context(&self) -> ContextId {
        self.context
    }

    /// Carries out one command (header and body) and waits for its reply.
    pub fn command(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Reply, Refusal> {
        let fds =
            fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<std::io::Result<Vec<_>>>().map_err(by_system)?;
        let (answer, replied) = sync_channel(1);
        self.inbox.send(Message::Call {
            context: self.context,
            inner: self.inner,
            request: request.to_vec(),
            fds,
            answer,
        });
        match replied.recv() {
            Ok(reply) => reply.granted(),
            Err(_) => refuse(Errno::EIO, GONE),
        }
    }

    /// Ends the context now, and not when the value is dropped.
    pub fn end(&self) {
        if !self.inner {
            self.inbox.send(Message::Close(self.context));
        }
    }
}

/// An event channel of this process.
#[derive(Debug)]
pub struct LocalChannel {
    inbox: Inbox,
    channel: ChannelId,
}

impl LocalChannel {
    pub(crate) fn open(inbox: Inbox) -> Result<(Self, OwnedFd), Refusal> {
        let (answer, opened) = sync_channel(1);
        inbox.send(Message::OpenChannel { answer });
        match opened.recv() {
            Ok(opened) => opened.map(|(channel, event_socket)| (Self { inbox, channel }, event_socket)),
            Err(_) => refuse(Errno::EIO, GONE),
        }
    }
}

impl engine::Control for LocalChannel {
    fn call(&self, request: &[u8], _fds: &[BorrowedFd<'_>]) -> engine::Result<engine::Answer> {
        let (answer, replied) = sync_channel(1);
        self.inbox.send(Message::CallChannel { channel: self.channel, request: request.to_vec(), answer });
        match replied.recv() {
            Ok(reply) => reply.granted().map(engine::Answer::from),
            Err(_) => Err(engine::refusal(Errno::EIO, GONE)),
        }
    }

    fn close(&self) {
        self.inbox.send(Message::CloseChannel(self.channel));
    }
}

impl Drop for LocalChannel {
    fn drop(&mut self) {
        self.inbox.send(Message::CloseChannel(self.channel));
    }
}

impl From<Reply> for engine::Answer {
    fn from(reply: Reply) -> Self {
        Self { bytes: reply.bytes, fds: reply.fds }
    }
}

const GONE: &str = "the softhca agent of this process has ended, and with it the device";

impl engine::Control for LocalControl {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> engine::Result<engine::Answer> {
        match self.command(request, fds) {
            Ok(reply) => Ok(reply.into()),
            Err(refusal) => Err(engine::refusal(refusal.errno, refusal.reason)),
        }
    }

    fn enter(&self) {
        account::enter(self.user);
    }

    fn close(&self) {
        self.end();
    }
}

impl Drop for LocalControl {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Control;

    #[test]
    fn threads_of_an_engine_that_the_agent_runs_work_on_the_account_of_its_client() {
        let (sender, _messages) = std::sync::mpsc::channel();
        let inbox = Inbox::new(sender, shm::notifier::Notifier::new().expect("an eventfd"));
        LocalControl::inner(inbox, ContextId(1), 77).enter();
        assert_eq!(account::current(), Some(77));
    }
}
