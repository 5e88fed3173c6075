//! What can be wrong with a user's call, and why a datagram is dropped. Principal types: [`Error`], [`Dropped`].

use super::State;
use wire::cm::{Attribute, Gid};

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The id was destroyed, or never given out.
    #[error("the id was destroyed")]
    Stale,
    /// The call does not fit the id's state.
    #[error("{call} is not possible in state {state}")]
    State {
        /// What was called for.
        call: &'static str,
        /// The state that the id is in.
        state: State,
    },
    /// There are as many ids as there may be.
    #[error("the communication manager holds as many ids as it may")]
    Full,
    /// More private data, or additional information, than the message has room for.
    #[error("{len} bytes of private data do not fit into the {max} of a {message}")]
    PrivateData {
        /// The message.
        message: Attribute,
        /// How many bytes there were.
        len: usize,
        /// How many there may be.
        max: usize,
    },
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// It is not a message of the communication manager.
    #[error("{0}")]
    Malformed(#[from] wire::Error),
    /// It names a connection that is not here.
    #[error("a {message} for {comm_id:#010x}, which is no connection here")]
    Unknown {
        /// The message.
        message: Attribute,
        /// The receiver's id in it.
        comm_id: u32,
    },
    /// It comes from another address than its connection is with.
    #[error("a {message} for {comm_id:#010x} from {}, which is not the connection's peer", std::net::Ipv6Addr::from(*from))]
    Foreign {
        /// The message.
        message: Attribute,
        /// The receiver's id in it.
        comm_id: u32,
        /// Where it came from.
        from: Gid,
    },
    /// Its ids, or its queue pair, do not belong together.
    #[error("a {message} for {comm_id:#010x} whose other numbers are not that connection's")]
    Mismatch {
        /// The message.
        message: Attribute,
        /// The receiver's id in it.
        comm_id: u32,
    },
    /// It does not fit the connection's state; most often it is a late repetition.
    #[error("a {message} in state {state}")]
    Unexpected {
        /// The message.
        message: Attribute,
        /// The state.
        state: State,
    },
    /// It is a repetition of what is being answered, or was answered, which has been said again.
    #[error("a {message} that came before")]
    Repeated {
        /// The message.
        message: Attribute,
    },
    /// A REQ or SIDR_REQ too many.
    #[error("a {message} too many: {held} are held already")]
    Full {
        /// The message.
        message: Attribute,
        /// How many there are.
        held: usize,
    },
    /// A request that the communication manager itself has rejected.
    #[error("a {message} that was rejected: {reason}")]
    Rejected {
        /// The message.
        message: Attribute,
        /// Why.
        reason: wire::cm::Reason,
    },
}
