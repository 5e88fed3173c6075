//! Connections that their queue pairs have left, and whose end must not reach the peer yet
//! ([`iwarp::Quirks::hold_end`]). A queue pair leaves its connection here under its lock. The thread
//! that resets or ends the queue pair waits for the time after it has released its locks, so
//! nobody waits for it. Principal type: [`Endings`].

use std::os::fd::OwnedFd;
use std::time::Duration;

use iwarp::Transmit;
use parking_lot::Mutex;

use super::part::Addresses;
use super::serving::discard_arrived;
use super::{Live, duration};
use crate::lock;
use crate::qp::Qp;

/// The connections that wait for their end.
#[derive(Default)]
pub(crate) struct Endings(Mutex<Vec<Ending>>);

struct Ending {
    qpn: u32,
    at: Duration,
    socket: OwnedFd,
    addresses: Addresses,
}

impl Endings {
    fn take(&self, qpn: u32) -> Option<Ending> {
        let mut list = self.0.lock();
        let at = list.iter().position(|ending| ending.qpn == qpn)?;
        Some(list.swap_remove(at))
    }
}

impl Qp {
    /// Waits for the end of each connection that this queue pair has left. The caller holds no
    /// lock that another queue pair needs.
    pub(crate) fn finish_endings(&self) {
        while let Some(Ending { at, socket, addresses, .. }) = self.engine().net.streams.endings.take(self.qpn()) {
            lock::assert_none_held();
            std::thread::sleep(at.saturating_sub(duration(self.engine().now())));
            self.end_socket(&socket, &addresses, Transmit::Finish);
            discard_arrived(&socket);
        }
    }

    /// Ends a connection whose queue pair does not use it any more: at once, or in
    /// [`Qp::finish_endings`].
    pub(super) fn leave_connection(&self, live: Live) {
        let now = duration(self.engine().now());
        match live.stream.end_wait(now) {
            None => {
                self.end_socket(&live.socket, &live.addresses, Transmit::Finish);
                discard_arrived(&live.socket);
            }
            Some(wait) => {
                let Live { socket, addresses, .. } = live;
                let ending = Ending { qpn: self.qpn(), at: now + wait, socket, addresses };
                self.engine().net.streams.endings.0.lock().push(ending);
            }
        }
    }
}
