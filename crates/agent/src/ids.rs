//! Names of contexts, and who has opened one. Nothing else is known here; what a context has is [`crate::context`]'s.

/// Names a context for as long as the agent runs; also the number of its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub u32);

/// Who is on the other end, as the kernel said when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Process id, 0 when it is not visible from here.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// The program's short name.
    pub comm: String,
}
