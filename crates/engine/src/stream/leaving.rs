//! How a queue pair leaves its connection. The thread that resets or ends the queue pair waits for
//! the time of the end after it has released its locks, so nobody waits for it. Adds to [`Qp`].

use super::endings::Ending;
use super::{Live, duration};
use crate::lock;
use crate::qp::Qp;

impl Qp {
    /// Waits for the end of each connection that this queue pair has left. The caller holds no
    /// lock that another queue pair needs.
    pub(crate) fn finish_endings(&self) {
        while let Some(Ending { at, socket, addresses, .. }) = self.engine().net.streams.endings.take(self.qpn()) {
            lock::assert_none_held();
            std::thread::sleep(at.saturating_sub(duration(self.engine().now())));
            self.finish_socket(&socket, &addresses);
        }
    }

    /// Ends a connection whose queue pair does not use it any more: at once, or in
    /// [`Qp::finish_endings`].
    pub(super) fn leave_connection(&self, live: Live) {
        let now = duration(self.engine().now());
        match live.stream.end_wait(now) {
            None => self.finish_socket(&live.socket, &live.addresses),
            Some(wait) => {
                let Live { socket, addresses, .. } = live;
                let ending = Ending { qpn: self.qpn(), at: now + wait, socket, addresses };
                self.engine().net.streams.endings.add(ending);
            }
        }
    }
}
