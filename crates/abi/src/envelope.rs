//! The few bytes around every command and reply, so that threads that share a connection do not mix
//! up their replies.
//!
//! A request message is [`RequestEnvelope`] + the command as a program would write it to a kernel's
//! uverbs file. A reply message is [`ReplyEnvelope`] + the bytes that the kernel would have copied
//! to `response`. File descriptors are attached as SCM_RIGHTS.

record! {
    /// Precedes each command.
    pub struct RequestEnvelope[8] {
        /// Chosen by the client; the reply repeats it.
        0 => sequence: u32,
        /// See `request`.
        4 => flags: u32,
    }

    /// Precedes each reply.
    pub struct ReplyEnvelope[16] {
        /// The sequence number of the request.
        0 => sequence: u32,
        /// 0, or a negative error number. On error there are no answer bytes, except those of
        /// POST_*, which name the refused WR.
        4 => status: i32,
        /// Number of file descriptors attached to this message.
        8 => fds: u32,
        /// 0.
        12 => reserved: u32,
    }
}

constants! {
    /// `RequestEnvelope::flags`.
    pub mod request: u32 {
        /// The agent sends no reply, also if the command fails. It still carries out the commands
        /// of one connection in order.
        QUIET = 1,
    }
}

/// Longest request message, in bytes, envelope included.
pub const REQUEST_MAX: usize = 64 * 1024;
/// Longest reply message, in bytes, envelope included.
pub const REPLY_MAX: usize = 64 * 1024;
/// Most file descriptors attached to one message, in either direction.
pub const FDS_MAX: usize = 8;
