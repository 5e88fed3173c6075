//! Sockets over RDMA, without sockets and without RDMA: the messages, the credits and the rings of rdma-core's rsocket
//! protocol, version 1 (its `librdmacm/docs/rsocket` describes it), so that a peer with rdma-core's library understands us.
//!
//! A connection is a [`Stream`]: it says what to post and is told what has completed; the bytes themselves lie in memory that
//! it never sees. A datagram socket needs no state here, only the headers in [`datagram`]. There is no clock, no memory and no
//! queue pair here; `librdmacm` has them.
//!
//! Where to read first: [`message`], then [`stream`].
#![forbid(unsafe_code)]

pub mod connect;
pub mod datagram;
pub mod iomap;
pub mod message;
pub mod ring;
pub mod stream;
pub mod target;
pub mod window;

pub use message::{Control, Message};
pub use stream::Stream;
pub use target::{Order, Target};

/// What a peer did that the protocol does not allow. Whatever a peer says is a claim; a false one ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message of a kind that the protocol reserves.
    #[error("its message {0:#010x} is of a kind that the protocol reserves")]
    Reserved(u32),
    /// More messages than it had credits for.
    #[error("it sent more messages than it had credits for")]
    Credits,
    /// More bytes than there was room for.
    #[error("it sent more bytes than it had room for")]
    Bytes,
    /// The private data of its connection request or reply is too short.
    #[error("its private data has {0} bytes, which is no rsocket's")]
    Short(usize),
    /// It speaks another version.
    #[error("it speaks version {0} of the rsocket protocol, and only version 1 is known")]
    Version(u8),
    /// It has no place where it could be told of new buffers.
    #[error("its list of buffers has no entries")]
    NoEntries,
}
