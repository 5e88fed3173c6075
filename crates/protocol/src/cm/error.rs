//! The errors of a user's call, and the reasons for which a datagram is dropped. Principal types:
//! [`Error`], [`Dropped`].

use super::state::CmState;
use wire::cm::{Attribute, Gid};

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The id was destroyed or never existed.
    #[error("the id was destroyed")]
    Stale,
    /// The call does not fit the id's state.
    #[error("{call} is not possible in state {state}")]
    State {
        /// The operation.
        call: &'static str,
        /// The id's state.
        state: CmState,
    },
    /// The maximum number of ids is reached.
    #[error("the communication manager holds as many ids as it may")]
    Full,
    /// The private data or additional information is longer than the message allows.
    #[error("{len} bytes of private data do not fit into the {max} of a {message}")]
    PrivateData {
        /// The message.
        message: Attribute,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// The datagram is not a message of the communication manager.
    #[error("{0}")]
    Malformed(#[from] wire::Error),
    /// The message names a connection that does not exist here.
    #[error("a {message} for {comm_id:#010x}, which is no connection here")]
    Unknown {
        /// The message.
        message: Attribute,
        /// The receiver's id in it.
        comm_id: u32,
    },
    /// The message comes from an address that is not its connection's peer.
    #[error("a {message} for {comm_id:#010x} from {}, which is not the connection's peer", std::net::Ipv6Addr::from(*from))]
    Foreign {
        /// The message.
        message: Attribute,
        /// The receiver's id in it.
        comm_id: u32,
        /// The sender.
        from: Gid,
    },
    /// The ids or the queue pair in the message do not belong together.
    #[error("a {message} for {comm_id:#010x} whose other numbers are not that connection's")]
    Mismatch {
        /// The message.
        message: Attribute,
        /// The receiver's id in it.
        comm_id: u32,
    },
    /// The message does not fit the connection's state. Most often it is a late repetition.
    #[error("a {message} in state {state}")]
    Unexpected {
        /// The message.
        message: Attribute,
        /// The state.
        state: CmState,
    },
    /// The message is a repetition. If it was answered before, the answer was sent again.
    #[error("a {message} that came before")]
    Repeated {
        /// The message.
        message: Attribute,
    },
    /// There are too many REQs or SIDR_REQs.
    #[error("a {message} too many: {held} are held already")]
    Full {
        /// The message.
        message: Attribute,
        /// How many are held.
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
