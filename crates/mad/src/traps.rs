//! The traps of an end port: each is repeated until the manager represses it. Not what causes them.
//! IBA 13.4.9 and 14.3.9. Principal type: [`Traps`].

use std::collections::VecDeque;
use std::time::Duration;
use wire::layout::Layout;
use wire::mad::{CLASS_SUBN_LID, METHOD_TRAP};
use wire::notice::Notice;
use wire::smp::{CLASS_VERSION, PortInfo, Smp};

/// The traps that may wait. A port that has more to tell drops the newest.
pub const MOST: usize = 16;

/// The code of the shortest time between traps, about 4 ms: a manager that sets a shorter one would
/// drown in them.
const SHORTEST: u8 = 10;

/// The traps of one end port that were not repressed.
#[derive(Clone, Debug, Default)]
pub struct Traps {
    waiting: VecDeque<(u64, Notice)>,
    next: u32,
    /// When the first one may be sent: the subnet timeout bounds the rate.
    allowed: Duration,
}

impl Traps {
    /// Adds a trap. The same notice waits only once.
    pub fn push(&mut self, notice: Notice) {
        if self.waiting.len() < MOST && self.waiting.iter().all(|(_, waiting)| *waiting != notice) {
            self.next = self.next.wrapping_add(1);
            self.waiting.push_back((self.next.into(), notice));
        }
    }

    /// The trap to send now. It goes to the master manager's LID.
    pub fn poll_transmit(&mut self, port: &PortInfo, now: Duration) -> Option<Smp> {
        if now < self.allowed || port.master_sm_lid == 0 || port.lid == 0 {
            return None;
        }
        let (transaction, notice) = self.waiting.pop_front()?;
        self.waiting.push_back((transaction, notice));
        self.allowed = now.saturating_add(interval(port.subnet_timeout.max(SHORTEST)));
        let notice = Notice { issuer_lid: port.lid, ..notice };
        let mut trap = Smp {
            base_version: wire::mad::BASE_VERSION,
            class: CLASS_SUBN_LID,
            class_version: CLASS_VERSION,
            method: METHOD_TRAP,
            transaction,
            attribute: Notice::ATTRIBUTE,
            mkey: port.mkey,
            ..Smp::default()
        };
        let mut whole = [0; Notice::LEN];
        notice.write(&mut whole);
        trap.data.copy_from_slice(&whole[..Notice::SHORT]);
        Some(trap)
    }

    /// Ends the repetition of the trap with this transaction id: the owner calls it for a
    /// TrapRepress, which is no request to [`crate::sma`]. Returns whether the trap was one of
    /// these; otherwise a client at the port may have sent it.
    pub fn repress(&mut self, transaction: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != transaction);
        self.waiting.len() != before
    }

    /// When [`Traps::poll_transmit`] has something to send, if the port has a LID and a manager.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(self.allowed)
    }
}

/// 4.096 µs × 2^n.
#[must_use]
pub fn interval(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}
