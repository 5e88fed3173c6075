//! The names of contexts and ports, and the identity of the client that opened a context.
//! [`crate::context`] has the state of a context.

/// Names a context for as long as the agent runs; also the number of its engine. 0 names none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub u32);

/// A port: the index of its device, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortId {
    pub(crate) device: usize,
    pub(crate) port: u8,
}

/// The client at the other end, as the kernel reported it at the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Process id, or 0 if it is not visible in this PID namespace.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// The program's short name.
    pub comm: String,
}
