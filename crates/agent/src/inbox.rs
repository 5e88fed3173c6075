//! Messages to the agent's thread from other threads, and from clients in its own process. The
//! principal types are [`Inbox`] and [`Message`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use abi::Refusal;
use engine::Network;
use shm::notifier::Notifier;
use shm::socket::Socket;

use crate::cm::ChannelId;
use crate::dispatch::Reply;
use crate::foreign::ReceivedMessage;
use crate::ids::ContextId;
use crate::port_change::{BadChange, PortChange};

/// The sender's side, for clients in this process and for the handle.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    sender: Sender<Message>,
    wake: Arc<Notifier>,
}

impl Inbox {
    /// `sender` takes the messages, and `wake` wakes the agent's thread.
    pub(crate) fn new(sender: Sender<Message>, wake: Notifier) -> Self {
        Self { sender, wake: Arc::new(wake) }
    }

    /// Sends the agent a message. Returns false if the agent has ended.
    pub(crate) fn send(&self, message: Message) -> bool {
        let sent = self.sender.send(message).is_ok();
        self.wake.notify();
        sent
    }

    /// Wakes the agent's thread again, because messages are left.
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

/// A message to the agent's thread.
pub(crate) enum Message {
    /// Open a device.
    Open {
        /// The device, by index.
        device: usize,
        /// The profile of the ABI.
        profile: u16,
        /// Gets the answer.
        answer: SyncSender<Result<ContextId, Refusal>>,
    },
    /// Carry out a command.
    Call {
        /// The context of the command.
        context: ContextId,
        /// The proxy engine of this context sent it, so the command must not go to the proxy engine
        /// again.
        inner: bool,
        /// Header and body.
        request: Vec<u8>,
        /// Its descriptors.
        fds: Vec<OwnedFd>,
        /// Gets the reply.
        answer: SyncSender<Reply>,
    },
    /// A proxy engine does not know all objects of this context yet.
    Starting(ContextId),
    /// End a context.
    Close(ContextId),
    /// Open an event channel.
    OpenChannel {
        /// Gets the answer, with the client's end of the event socket.
        answer: SyncSender<Result<(ChannelId, OwnedFd), Refusal>>,
    },
    /// Carry out a command of an event channel.
    CallChannel {
        /// The channel of the command.
        channel: ChannelId,
        /// Header and body.
        request: Vec<u8>,
        /// Gets the reply.
        answer: SyncSender<Reply>,
    },
    /// End an event channel.
    CloseChannel(ChannelId),
    /// Serve a connection of this process like one at the admin node.
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
    /// A port has new values.
    ChangePort {
        /// The device's index.
        device: usize,
        /// The port, from 1.
        port: u32,
        /// The values.
        change: PortChange,
        /// Gets the result.
        answer: SyncSender<Result<(), BadChange>>,
    },
    /// A `fault` request, as at the admin node.
    Fault {
        /// The request.
        question: serde_json::Value,
        /// Gets the answer.
        answer: SyncSender<serde_json::Value>,
    },
    /// A message with descriptors has been received from a client.
    Arrived {
        /// The client's connection.
        id: u32,
        /// The message.
        arrived: ReceivedMessage,
    },
    /// Messages of a user can be read again, because fewer descriptors wait to be closed.
    Room(u32),
    /// The reply to a command that another thread has carried out.
    Reply {
        /// The destination.
        to: ReplyTo,
        /// The reply.
        reply: Reply,
    },
    /// End the agent.
    Stop,
}

/// The destination of a reply that comes later.
#[derive(Debug, Clone)]
pub(crate) enum ReplyTo {
    /// The client with this connection.
    Connection {
        /// The connection.
        id: u32,
        /// The sequence number of the request.
        sequence: u32,
    },
    /// To a thread of this process.
    Local(SyncSender<Reply>),
}
