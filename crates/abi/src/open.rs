//! The first message on a node and its answer: the client's version, and the numbering of the
//! commands from 37 up.
//!
//! The client must send this message first. If the agent has another version, the client reports it
//! in one sentence and closes the connection.

/// "SHCA" in memory order.
pub const MAGIC: u32 = 0x4143_4853;
/// Version of everything in this crate.
pub const VERSION: u16 = 1;

record! {
    /// The first message that a client sends on a node.
    pub struct Open[16] {
        /// 0x41434853, the bytes "SHCA".
        0 => magic: u32,
        /// Version of this interface that the client was built for.
        4 => version: u16,
        /// Which numbering of the commands from 37 up: see `profile`.
        6 => profile: u16,
        /// See `flag`. Flags of another kind of node are refused.
        8 => flags: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// The agent's answer to `Open`. The connection stays open only if `status` is 0.
    pub struct OpenAnswer[16] {
        /// 0x41434853, the bytes "SHCA".
        0 => magic: u32,
        /// Version of this interface that the agent was built for.
        4 => version: u16,
        /// The requested profile.
        6 => profile: u16,
        /// 0, or a negative error number: -EPROTONOSUPPORT for another version, -EINVAL for a bad
        /// magic, profile or flag.
        8 => status: i32,
        /// Process id of the agent.
        12 => pid: u32,
    }
}

constants! {
    /// `Open::flags`.
    pub mod flag: u32 {
        /// Node `rdma_cm`: the event socket is a SOCK_SEQPACKET socket, whose messages are the
        /// events themselves (see `ucma::event_message`).
        TOLD = 1,
    }

    /// Numbering of the legacy commands from 37 up.
    pub mod profile: u16 {
        /// As mainline Linux numbers them.
        MAINLINE = 0,
        /// As OFED 1.x and the Solaris port of it number them.
        OFED = 1,
    }
}

impl Open {
    /// The message for this version.
    #[must_use]
    pub fn new(profile: u16) -> Self {
        Self { magic: MAGIC, version: VERSION, profile, flags: 0, reserved: 0 }
    }
}
