//! Connections that their queue pairs have left. What has been sent reaches the peer only if nobody
//! closes the socket while the peer still sends: Linux answers such data with a reset and drops
//! what the socket has not sent yet. So the agent reads and drops what arrives until the peer closes
//! its direction, too. Adds to [`Tcp`]. Principal type: [`Closings`].

use std::collections::BTreeMap;

use engine::drop_arrived;
use protocol::Time;
use rustix::event::epoll::{self, EventFlags};
use rustix::net::{Shutdown, connect_unspec, shutdown};

use super::{Key, Tcp};
use crate::foreign::Foreign;
use crate::streams::{Leaving, LeftStream};

/// Maximum number of connections, and of those of one user. If another one comes, the oldest is
/// closed.
const CLOSINGS_MAX: usize = 1024;
const PER_USER: usize = 128;
/// How long the peer may take, in nanoseconds.
const PATIENCE: u64 = 10_000_000_000;
/// Bytes that are dropped of one connection before other sockets are served.
const DROPPED_AT_ONCE: usize = 256 * 1024;
/// Bytes that are dropped of one connection. A socket buffers at most 6 MiB by default (tcp(7)). A
/// peer that sends more than this after the end is not waiting for data.
const DROPPED_MAX: usize = 64 << 20;

/// All connections that their queue pairs have left, by number.
#[derive(Debug, Default)]
pub(super) struct Closings {
    by_number: BTreeMap<u32, Closing>,
    last: u32,
}

#[derive(Debug)]
struct Closing {
    socket: Foreign,
    uid: u32,
    dropped: usize,
}

impl Closings {
    /// The connection to close before one more of this user is added. `None`: there is room.
    fn to_evict(&self, uid: u32) -> Option<u32> {
        let mut of_user = self.by_number.iter().filter(|(_, closing)| closing.uid == uid);
        let oldest = of_user.next().map(|(number, _)| *number);
        if of_user.count() + 1 >= PER_USER {
            return oldest;
        }
        let oldest = self.by_number.keys().next().copied();
        oldest.filter(|_| self.by_number.len() >= CLOSINGS_MAX)
    }
}

impl Closing {
    /// Drops what has arrived. Returns whether the connection is over.
    fn drop_arrived(&mut self) -> bool {
        match drop_arrived(&*self.socket, DROPPED_AT_ONCE) {
            Some(len) => self.dropped += len,
            None => return true,
        }
        self.dropped > DROPPED_MAX
    }
}

impl Tcp {
    /// Closes a connection when its peer has closed it, too. One that was not taken is reset.
    pub(super) fn close_left(&mut self, left: LeftStream, now: Time) {
        let LeftStream { socket, uid, how } = left;
        match how {
            Leaving::ByEngine => {}
            Leaving::ByProcess => {
                // Nothing comes behind what the process has sent.
                let _ = shutdown(&*socket, Shutdown::Write);
            }
            Leaving::NotTaken => {
                // The engine may have the socket, too, so closing it would not be enough.
                let _ = connect_unspec(&*socket);
                return;
            }
        }
        if let Some(oldest) = self.closings.to_evict(uid) {
            self.close_now(oldest);
        }
        self.closings.last = self.closings.last.wrapping_add(1);
        let key = Key::Closing(self.closings.last);
        let interest = EventFlags::IN | EventFlags::RDHUP;
        if epoll::add(&self.epoll, &*socket, key.data(), interest).is_ok() {
            self.closings.by_number.insert(self.closings.last, Closing { socket, uid, dropped: 0 });
            self.deadlines.set(key, now.after(PATIENCE));
        }
    }

    /// Such a connection has bytes, or has ended.
    pub(super) fn on_closing_socket(&mut self, number: u32) {
        if self.closings.by_number.get_mut(&number).is_some_and(Closing::drop_arrived) {
            self.close_now(number);
        }
    }

    /// Closes such a connection at once.
    pub(super) fn close_now(&mut self, number: u32) {
        if let Some(Closing { socket, .. }) = self.closings.by_number.remove(&number) {
            // Its closing may take a while, and must not raise events.
            let _ = epoll::delete(&self.epoll, &*socket);
            self.deadlines.forget(Key::Closing(number));
        }
    }

    #[cfg(test)]
    pub(super) fn closings(&self) -> usize {
        self.closings.by_number.len()
    }
}
