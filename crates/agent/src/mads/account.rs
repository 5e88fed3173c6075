//! How many bytes of messages the agent keeps for each user: messages that programs are writing,
//! that are sent and received in segments, that wait for an answer, and that wait to be read. One
//! limit holds for all files of a user. The principal type is [`Accounts`].

use std::collections::HashMap;

/// Maximum number of bytes of one user's messages.
pub(super) const USER_BYTES_MAX: usize = 64 << 20;

/// The bytes of each user that has some.
#[derive(Debug, Default)]
pub(super) struct Accounts(HashMap<u32, usize>);

impl Accounts {
    /// Whether a user may have this many more bytes.
    pub(super) fn has_room(&self, uid: u32, more: usize) -> bool {
        self.bytes(uid).saturating_add(more) <= USER_BYTES_MAX
    }

    /// A part of a user's bytes has changed.
    pub(super) fn change(&mut self, uid: u32, before: usize, after: usize) {
        let bytes = self.bytes(uid).saturating_sub(before).saturating_add(after);
        if bytes == 0 {
            self.0.remove(&uid);
        } else {
            self.0.insert(uid, bytes);
        }
    }

    /// The bytes of a user.
    pub(super) fn bytes(&self, uid: u32) -> usize {
        self.0.get(&uid).copied().unwrap_or(0)
    }
}
