//! What a stream tells its owner. Principal types: [`Event`], [`Status`].

use crate::ddp::Stag;
use crate::terminate::{Reason, Terminate};
use std::fmt;

/// How a work request ended, with the verbs' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// It was carried out.
    Success = 0,
    /// An incoming SEND did not fit into its receive request.
    LocalLength = 1,
    /// The program's own buffer was not there, or not allowed.
    LocalProtection = 4,
    /// The stream ended first.
    Flushed = 5,
    /// A local invalidation or bind was refused.
    MemoryManagement = 6,
    /// The peer named an STag that could not be invalidated.
    RemoteInvalidRequest = 9,
    /// The peer refused the access to its memory.
    RemoteAccess = 10,
    /// The peer could not carry out the request.
    RemoteOperation = 11,
    /// Any other error of an incoming SEND.
    General = 21,
}

impl Status {
    /// The status of a READ or atomic that the peer's Terminate message names.
    #[must_use]
    pub fn of_refused(reason: Reason) -> Status {
        if reason.is_protection() { Status::RemoteAccess } else { Status::RemoteOperation }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Success => "success",
            Status::LocalLength => "local length error",
            Status::LocalProtection => "local protection error",
            Status::Flushed => "flushed",
            Status::MemoryManagement => "memory management operation error",
            Status::RemoteInvalidRequest => "remote invalid request error",
            Status::RemoteAccess => "remote access error",
            Status::RemoteOperation => "remote operation error",
            Status::General => "general error",
        })
    }
}

/// A message that has arrived in a receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The receive request.
    pub receive: u64,
    /// The bytes of a SEND; 0 for immediate data.
    pub len: u32,
    /// The peer solicited an event.
    pub solicited: bool,
    /// The region that the message has invalidated.
    pub invalidated: Option<Stag>,
    /// The 8 bytes of immediate data.
    pub immediate: Option<[u8; 8]>,
}

/// Which side sent the Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one: the peer made a mistake, or a local buffer was not there.
    Us,
    /// The other one.
    Peer,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Both sides had nothing to send any more.
    Graceful,
    /// After a Terminate message.
    Terminated,
    /// The TCP connection ended while work was outstanding.
    Lost,
    /// This side aborted it.
    Aborted,
    /// The peer did not close in time.
    TimedOut,
}

/// What a stream tells its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The responder has seen the initiator's first FPDU and may send.
    Ready,
    /// A work request has ended. Work requests end in the order in which they were posted, each
    /// once.
    Completed {
        /// The owner's number.
        work: u64,
        /// How.
        status: Status,
    },
    /// A message has arrived.
    Received(Received),
    /// A receive request has ended with an error.
    ReceiveFailed {
        /// The receive request.
        receive: u64,
        /// How.
        status: Status,
    },
    /// The stream ends with a Terminate message.
    Terminated {
        /// Who sent it.
        by: Side,
        /// What it says.
        terminate: Terminate,
    },
    /// The stream is over. The owner flushes its receive requests. There is no further event.
    Closed(Close),
}
