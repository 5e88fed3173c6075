//! Connections that their queue pairs have left, and whose end must not reach the peer yet
//! ([`iwarp::Quirks::hold_end`]). A queue pair leaves its connection here under its lock
//! (`leaving.rs`). Principal type: [`Endings`].

use std::os::fd::OwnedFd;
use std::time::Duration;

use parking_lot::Mutex;

use super::part::Addresses;

/// The connections that wait for their end.
#[derive(Default)]
pub(crate) struct Endings(Mutex<Vec<Ending>>);

/// One of them.
pub(super) struct Ending {
    pub(super) qpn: u32,
    /// When its end may reach the peer.
    pub(super) at: Duration,
    pub(super) socket: OwnedFd,
    pub(super) addresses: Addresses,
}

impl Endings {
    pub(super) fn add(&self, ending: Ending) {
        self.0.lock().push(ending);
    }

    /// Takes one of a queue pair's.
    pub(super) fn take(&self, qpn: u32) -> Option<Ending> {
        let mut list = self.0.lock();
        let at = list.iter().position(|ending| ending.qpn == qpn)?;
        Some(list.swap_remove(at))
    }
}
