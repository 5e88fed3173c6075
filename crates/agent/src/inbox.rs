//! What the agent's thread is told by other threads, and by clients in its own process. The principal types are [`Inbox`] and
//! [`Message`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use engine::Network;
use shm::notifier::Notifier;
use shm::socket::Socket;

use crate::cm::ChannelId;
use crate::dispatch::Reply;
use crate::foreign::Arrived;
use crate::ids::ContextId;
use crate::refusal::Refusal;

/// How clients in this process, and the handle, reach the agent's thread.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    sender: Sender<Message>,
    wake: Arc<Notifier>,
}

impl Inbox {
    /// Where `sender` puts messages, and what wakes who takes them.
    pub(crate) fn new(sender: Sender<Message>, wake: Notifier) -> Self {
        Self { sender, wake: Arc::new(wake) }
    }

    /// Hands the agent a message; false when it is gone.
    pub(crate) fn send(&self, message: Message) -> bool {
        let sent = self.sender.send(message).is_ok();
        self.wake.notify();
        sent
    }

    /// Has the agent's thread look again: messages are left.
    pub(crate) fn wake_again(&self) {
        self.wake.notify();
    }

    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(crate) fn drain(&self) {
        self.wake.drain();
    }
}

/// What the agent's thread is told by others in its process.
pub(crate) enum Message {
    /// Open a device.
    Open {
        /// By index.
        device: usize,
        /// Numbering of the commands.
        profile: u16,
        /// Where the answer goes.
        answer: SyncSender<Result<ContextId, Refusal>>,
    },
    /// Carry out a command.
    Call {
        /// Whose.
        context: ContextId,
        /// By the engine that the agent runs for this context: it is not to be asked again.
        inner: bool,
        /// Header and body.
        request: Vec<u8>,
        /// Its descriptors.
        fds: Vec<OwnedFd>,
        /// Where the reply goes.
        answer: SyncSender<Reply>,
    },
    /// An engine that the agent runs has not been told of all objects of this context.
    Starting(ContextId),
    /// End a context.
    Close(ContextId),
    /// Open an event channel.
    OpenChannel {
        /// Where the answer goes, with the client's end of the bell.
        answer: SyncSender<Result<(ChannelId, OwnedFd), Refusal>>,
    },
    /// Carry out a command of an event channel.
    CallChannel {
        /// Whose.
        channel: ChannelId,
        /// Header and body.
        request: Vec<u8>,
        /// Where the reply goes.
        answer: SyncSender<Reply>,
    },
    /// End an event channel.
    CloseChannel(ChannelId),
    /// Somebody in this process asks as others do at the admin node.
    Admin(Socket),
    /// Send management datagrams through this network.
    Network(Arc<dyn Network>),
    /// Take a port down, or make it active.
    Port {
        /// The device, by index.
        device: usize,
        /// The port, from 1.
        port: u32,
        /// Whether it is to be active.
        up: bool,
    },
    /// Something about faults, as the admin node is asked.
    Fault {
        /// What.
        question: serde_json::Value,
        /// Where the answer goes.
        answer: SyncSender<serde_json::Value>,
    },
    /// A message with descriptors has been received from a client.
    Arrived {
        /// Which client.
        id: u32,
        /// The message.
        arrived: Arrived,
    },
    /// Messages of a user are read again: less of it waits to be closed.
    Room(u32),
    /// The reply to a command that was carried out elsewhere.
    Reply {
        /// Who waits for it.
        to: ReplyTo,
        /// The reply.
        reply: Reply,
    },
    /// End the agent.
    Stop,
}

/// Where the reply to a command goes when it is not there at once.
#[derive(Debug, Clone)]
pub(crate) enum ReplyTo {
    /// To the client with this connection, for this request.
    Connection {
        /// Which client.
        id: u32,
        /// Which request.
        sequence: u32,
    },
    /// To a thread of this process.
    Local(SyncSender<Reply>),
}
