//! The user that asks the agent about itself, and what this user may see. The principal type is
//! [`Asker`].

use shm::socket::Socket;

/// The user that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Root, or the agent's own user. They can see everything anyway.
    Root,
    /// Another user.
    User(u32),
}

impl Asker {
    /// Whether data of the user `uid` may be shown in full.
    pub(crate) fn may_see(self, uid: u32) -> bool {
        self == Self::Root || self == Self::User(uid)
    }
}

/// The user at the other end of a connection.
pub(crate) fn asker(socket: &Socket) -> Asker {
    match socket.peer_credentials() {
        Ok(peer) if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() => Asker::Root,
        Ok(peer) => Asker::User(peer.uid),
        // No user has this number.
        Err(_) => Asker::User(u32::MAX),
    }
}
