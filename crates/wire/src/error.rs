//! The errors in the bytes of a packet; not those of a protocol state. Principal type: [`Error`].

/// Why bytes are not a packet, or why a packet does not fit into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes end inside a header.
    #[error("the packet ends inside its {header}: {needed} bytes needed, {left} left")]
    Truncated {
        /// The header's name.
        header: &'static str,
        /// Bytes that the header needs.
        needed: usize,
        /// Bytes that were left.
        left: usize,
    },
    /// The opcode is reserved, or of a transport that softhca does not support.
    #[error("opcode {0:#04x} is not one that softhca speaks")]
    Opcode(u8),
    /// The transport version is not 0.
    #[error("transport header version {0}, only 0 exists")]
    Version(u8),
    /// The version of the local routing header is not 0.
    #[error("link version {0}, only 0 exists")]
    LinkVersion(u8),
    /// The operation of a flow-control packet is unknown.
    #[error("flow-control operation {0}, only 0 and 1 exist")]
    LinkOperation(u8),
    /// The CRC of a flow-control packet is wrong.
    #[error("a flow-control packet with a wrong CRC")]
    LinkCrc,
    /// The network header is neither IPv6 nor IPv4 at the position that RoCEv2 defines.
    #[error("neither an IPv6 header nor an IPv4 header in its lower half")]
    Network,
    /// A management datagram that is not a message of the communication manager.
    #[error("a management datagram of class {class:#04x} and method {method:#04x}, not a message of the CM")]
    NotCm {
        /// Its class.
        class: u8,
        /// Its method.
        method: u8,
    },
    /// A message of the communication manager with another version.
    #[error("version {0} of the CM's messages, only 2 is known")]
    CmVersion(u8),
    /// The communication manager has no such message.
    #[error("attribute {0:#06x} is not a message of the CM")]
    CmAttribute(u16),
    /// The buffer to emit into is too small.
    #[error("{needed} bytes of headers do not fit into {room}")]
    NoRoom {
        /// Bytes that the headers need.
        needed: usize,
        /// Bytes of the buffer.
        room: usize,
    },
}
