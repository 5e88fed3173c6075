//! Who asks the agent about itself, and what they may see. The principal type is [`Asker`].

use shm::socket::Socket;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Root, or the user that the agent runs as: they see everything anyway.
    Root,
    /// Another user.
    User(u32),
}

impl Asker {
    /// Whether what belongs to the user `uid` may be shown as it is.
    pub(crate) fn may_see(self, uid: u32) -> bool {
        self == Self::Root || self == Self::User(uid)
    }
}

/// Who is at the other end of a connection.
pub(crate) fn asker(socket: &Socket) -> Asker {
    match socket.peer_credentials() {
        Ok(peer) if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() => Asker::Root,
        Ok(peer) => Asker::User(peer.uid),
        // Nobody has this number.
        Err(_) => Asker::User(u32::MAX),
    }
}
