//! Connections that their queue pairs have left. What has been sent reaches the peer only if nobody
//! closes the socket while the peer still sends: Linux answers such data with a reset and drops
//! what the socket has not sent yet. So the agent reads and drops what arrives until the peer closes
//! its direction, too.
//!
//! The program may still have the socket, and may hold its lock. So the thread of the program's user
//! makes all calls on the socket ([`Foreign::act`]), except those of epoll, which need no lock. After
//! an event, the thread drops what has arrived, and then watches the socket again. Adds to [`Tcp`].
//! Principal type: [`Closings`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

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
/// One event, until the user's thread watches the socket again.
const INTEREST: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ONESHOT);

/// All connections that their queue pairs have left, by number.
#[derive(Debug, Default)]
pub(super) struct Closings {
    by_number: BTreeMap<u32, Closing>,
    last: u32,
}

#[derive(Debug)]
struct Closing {
    socket: Arc<Foreign>,
    uid: u32,
    /// How many bytes were dropped; at least [`DROPPED_MAX`] if the connection is over.
    dropped: Arc<AtomicUsize>,
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

impl Tcp {
    /// Closes a connection when its peer has closed it, too. One that was not taken is reset.
    pub(super) fn close_left(&mut self, left: LeftStream, now: Time) {
        let LeftStream { socket, uid, how } = left;
        let socket = Arc::new(socket);
        match how {
            Leaving::ByEngine => {}
            Leaving::ByProcess => {
                // Nothing comes behind what the process has sent.
                socket.act(|socket| {
                    let _ = shutdown(socket, Shutdown::Write);
                });
            }
            Leaving::NotTaken => {
                // The engine may have the socket, too, so closing it would not be enough.
                return socket.act(|socket| {
                    let _ = connect_unspec(socket);
                });
            }
        }
        if let Some(oldest) = self.closings.to_evict(uid) {
            self.close_now(oldest);
        }
        self.closings.last = self.closings.last.wrapping_add(1);
        let key = Key::Closing(self.closings.last);
        if epoll::add(&self.epoll, &*socket, key.data(), INTEREST).is_ok() {
            self.closings.by_number.insert(self.closings.last, Closing { socket, uid, dropped: Arc::default() });
            self.deadlines.set(key, now.after(PATIENCE));
        }
    }

    /// Such a connection has bytes, or has ended.
    pub(super) fn on_closing_socket(&mut self, number: u32) {
        let Some(Closing { socket, dropped, .. }) = self.closings.by_number.get(&number) else { return };
        if dropped.load(Relaxed) >= DROPPED_MAX {
            return self.close_now(number);
        }
        let (dropped, epoll) = (Arc::clone(dropped), Arc::clone(&self.epoll));
        socket.act(move |socket| {
            dropped.fetch_add(drop_arrived(socket, DROPPED_AT_ONCE).unwrap_or(DROPPED_MAX), Relaxed);
            // This fails if the connection was closed meanwhile.
            let _ = epoll::modify(&epoll, socket, Key::Closing(number).data(), INTEREST);
        });
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
