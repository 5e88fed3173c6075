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

/// The traps of bad keys that may wait. Any peer can cause them with packets of its own, so they
/// take no place from other traps.
pub const MOST_OF_KEYS: usize = 4;

/// The code of the shortest time between traps, about 4 ms: a manager that sets a shorter one would
/// drown in them.
const SHORTEST: u8 = 10;

/// After so many traps that nobody represses, the time between them doubles, and again after as
/// many, up to [`SLOWEST`] times. A dead manager so costs little. A manager that begins its work
/// looks at every port itself.
const PATIENCE: u32 = 16;
/// How many times the subnet timeout passes between traps that nobody represses, at most.
const SLOWEST: u32 = 64;

/// The traps of one end port that were not repressed.
#[derive(Clone, Debug, Default)]
pub struct Traps {
    waiting: VecDeque<(u64, Notice)>,
    next: u32,
    /// When the last one was sent.
    sent: Duration,
    /// The subnet timeout at that time, which bounds the rate; 0 before the first one.
    pace: Duration,
    /// How many were sent since a trap was added or repressed.
    unanswered: u32,
}

impl Traps {
    /// Adds a trap. The same notice waits only once. A trap of a bad key waits for the others, and
    /// for those of bad keys that came before it.
    pub fn push(&mut self, notice: Notice) {
        let is_of_key = is_of_key(&notice);
        let same = self.waiting.iter().filter(|(_, waiting)| self::is_of_key(waiting) == is_of_key).count();
        let most = if is_of_key { MOST_OF_KEYS } else { MOST - MOST_OF_KEYS };
        if same >= most || self.waiting.iter().any(|(_, waiting)| *waiting == notice) {
            return;
        }
        self.next = self.next.wrapping_add(1);
        let waiting = (self.next.into(), notice);
        if is_of_key {
            self.waiting.push_back(waiting);
        } else {
            self.waiting.push_front(waiting);
            self.unanswered = 0;
        }
    }

    /// How many were not repressed.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When the next one may be sent.
    fn allowed(&self) -> Duration {
        let slower = 1_u32.checked_shl(self.unanswered / PATIENCE).unwrap_or(SLOWEST).min(SLOWEST);
        self.sent.saturating_add(self.pace.saturating_mul(slower))
    }

    /// The trap to send now. It goes to the master manager's LID.
    pub fn poll_transmit(&mut self, port: &PortInfo, now: Duration) -> Option<Smp> {
        if now < self.allowed() || port.master_sm_lid == 0 || port.lid == 0 {
            return None;
        }
        let (transaction, notice) = self.waiting.pop_front()?;
        self.waiting.push_back((transaction, notice));
        (self.sent, self.pace) = (now, interval(port.subnet_timeout.max(SHORTEST)));
        self.unanswered = self.unanswered.saturating_add(1);
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
        let was_there = self.waiting.len() != before;
        if was_there {
            self.unanswered = 0;
        }
        was_there
    }

    /// When [`Traps::poll_transmit`] has something to send, if the port has a LID and a manager.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then(|| self.allowed())
    }
}

/// Whether a packet of a peer has caused it by its P_Key, Q_Key or management key.
const fn is_of_key(notice: &Notice) -> bool {
    matches!(notice.number, Notice::BAD_MKEY..=Notice::SWITCH_BAD_PKEY)
}

/// 4.096 µs × 2^n.
#[must_use]
pub fn interval(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(number: u16) -> Notice {
        Notice { number, ..Notice::default() }
    }

    /// How many traps are sent in this time.
    fn sent(traps: &mut Traps, port: &PortInfo, from: Duration, to: Duration) -> usize {
        let due = |traps: &Traps| traps.deadline().filter(|due| *due < to).map(|due| due.max(from));
        let mut count = 0;
        while let Some(now) = due(traps) {
            traps.poll_transmit(port, now).expect("it is due");
            count += 1;
        }
        count
    }

    #[test]
    fn traps_of_which_a_dead_manager_hears_nothing_become_rare() {
        const HOUR: Duration = Duration::from_secs(3600);
        let port = PortInfo { lid: 1, master_sm_lid: 2, subnet_timeout: 18, ..PortInfo::default() };
        let mut traps = Traps::default();
        traps.push(notice(128));
        let second = sent(&mut traps, &port, Duration::ZERO, Duration::from_secs(10));
        assert_eq!(second, 10, "about one in each second");
        assert!((60..200).contains(&sent(&mut traps, &port, Duration::ZERO, HOUR)));
        // A new trap does not wait for long, and is repeated as often as the first one.
        traps.push(notice(144));
        assert_eq!(sent(&mut traps, &port, HOUR, HOUR + Duration::from_secs(10)), 10);
        assert!(traps.repress(1) && traps.repress(2) && !traps.repress(2));
        assert_eq!(traps.deadline(), None);
    }

    #[test]
    fn a_flood_of_bad_keys_neither_delays_nor_replaces_other_traps() {
        let port = PortInfo { lid: 1, master_sm_lid: 2, subnet_timeout: 18, ..PortInfo::default() };
        let mut traps = Traps::default();
        let bad = |key| Notice { number: Notice::BAD_PKEY, details: [key; 54], ..Notice::default() };
        let number = |trap: Smp| u16::from_be_bytes([trap.data[4], trap.data[5]]);
        for key in 0..100 {
            traps.push(bad(key));
        }
        assert_eq!(traps.waiting.len(), MOST_OF_KEYS);
        traps.push(notice(Notice::LINK_STATE));
        let first = traps.poll_transmit(&port, Duration::ZERO).expect("a trap");
        assert_eq!(number(first), Notice::LINK_STATE);
        assert!(traps.repress(first.transaction));
        let next = traps.poll_transmit(&port, interval(18)).expect("a trap");
        assert_eq!((number(next), next.data[10]), (Notice::BAD_PKEY, 0), "the first of them");
        // If nobody represses them, new ones do not make the port send more often.
        let mut key = 100;
        let mut more = |traps: &mut Traps| {
            key += 1;
            traps.repress(2);
            traps.push(bad(key));
        };
        const HOUR: Duration = Duration::from_secs(3600);
        let mut now = HOUR;
        let mut count = 0;
        while now < 2 * HOUR {
            more(&mut traps);
            count += u32::from(traps.poll_transmit(&port, now).is_some());
            now = traps.deadline().expect("some wait").max(now);
        }
        assert!(count < 200, "{count}");
    }

    #[test]
    fn without_a_manager_nothing_is_sent() {
        let mut traps = Traps::default();
        traps.push(notice(128));
        let port = PortInfo { lid: 1, subnet_timeout: 18, ..PortInfo::default() };
        assert!(traps.poll_transmit(&port, Duration::ZERO).is_none());
    }
}
