//! What a peer does wrong in the rsocket protocol. Not what this side refuses. Principal type:
//! [`Violation`].

/// A violation of the protocol by the peer. Data from a peer is a claim; a false one ends the
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message of a kind that the protocol reserves.
    #[error("its message {0:#010x} is of a kind that the protocol reserves")]
    Reserved(u32),
    /// A message that travels as a SEND has another length.
    #[error("it sent {0} bytes as a message, which has 4")]
    Length(u32),
    /// More messages than it had credits for.
    #[error("it sent more messages than it had credits for")]
    Credits,
    /// More bytes than there was room for.
    #[error("it sent more bytes than it had room for")]
    Bytes,
    /// The private data of its connection request or reply is too short.
    #[error("its private data has {0} bytes, which is no rsocket's")]
    Short(usize),
    /// The peer uses another version.
    #[error("it speaks version {0} of the rsocket protocol, and only version 1 is known")]
    Version(u8),
    /// The peer's list of buffers has no entries, so no new buffer can be announced to it.
    #[error("its list of buffers has no entries")]
    NoEntries,
}
