//! The send scheduler: how the connections of an engine share what may be under way to one host.
//!
//! The scheduler counts what all connections together have under way. While there is room, or a
//! connection is the only one with packets under way, the connection goes on. When there is no
//! room, the connection waits in line, and so does every later connection. Acknowledgements make
//! room. The first in line gets it as one quantum, a burst of packets; if it has more to send, it
//! goes to the end of the line. So all connections get equal shares. A thousand connections fill a
//! receiver's buffer no more than one does, and send bursts as long as those of one. A connection
//! with nothing under way and a short message need not wait in line as long as a reserve lasts.
//!
//! While a connection waits in line, something is under way, so an answer or a timer will come.
//! Neither comes if the connections with packets under way wait for ever. For this case, a waiting
//! connection still sends one packet from time to time. What a connection does with its quantum is
//! in `scheduler/quanta.rs`. Principal types: [`SendScheduler`], [`SendQuantum`].

mod quanta;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::Time;
use udp::BATCH_MAX;

/// Places in the receiver's ring, in eighths. A packet of a long message takes an eighth, because
/// it comes with others.
const PLACES: u32 = 8 * 96;
/// Places (in eighths) of a packet that may come alone.
const SINGLE: u32 = 8;
/// A line stands still if no connection got a quantum for this long, in nanoseconds.
const STILL: u64 = 100_000_000;

/// What is under way to one host, and which connections wait for room.
pub(crate) struct SendScheduler<Q> {
    /// Bytes under way in the lower half, places in the upper half.
    load: AtomicU64,
    /// Weak, so that a QP that is destroyed while it waits is freed.
    line: Mutex<VecDeque<Weak<Q>>>,
    /// The length of the line.
    waiting: AtomicU32,
    /// When a connection last got a quantum, in the engine's time.
    scheduled_at: AtomicU64,
}

/// One connection's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendQuantum {
    /// What the connection has under way, counted as in [`SendScheduler`].
    load: u64,
    /// The connection has long messages.
    long: bool,
    scheduled: Scheduled,
    /// The connection waits since then.
    since: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scheduled {
    /// It goes on while there is room.
    #[default]
    None,
    Waits,
    /// It may send a burst.
    Has,
    /// It may send one packet, because the line stands still.
    Alone,
}

fn load(bytes: u32, places: u32) -> u64 {
    u64::from(places) << 32 | u64::from(bytes)
}

impl<Q> Default for SendScheduler<Q> {
    fn default() -> Self {
        Self {
            load: AtomicU64::new(0),
            line: Mutex::default(),
            waiting: AtomicU32::new(0),
            scheduled_at: AtomicU64::new(0),
        }
    }
}

impl<Q> SendScheduler<Q> {
    fn bytes(&self) -> u32 {
        self.load.load(Ordering::Relaxed) as u32
    }

    fn places(&self) -> u32 {
        (self.load.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Changes a connection's load.
    fn change(&self, from: &mut u64, to: u64) {
        if *from != to {
            // Modulo 2^64, so that both halves are correct at the same time.
            self.load.fetch_add(to.wrapping_sub(*from), Ordering::Relaxed);
            *from = to;
        }
    }

    fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn join(&self, qp: Weak<Q>) {
        let mut line = self.line.lock();
        line.push_back(qp);
        self.waiting.store(line.len() as u32, Ordering::Relaxed);
    }

    /// The first in line, if a window of this many bytes has room for a burst.
    fn next(&self, window: u32, now: Time) -> Option<Arc<Q>> {
        loop {
            let burst = (window / 2).min(BATCH_MAX as u32);
            let is_full = self.bytes() + burst > window || self.places() + PLACES / 4 > PLACES;
            if is_full && self.load.load(Ordering::Relaxed) != 0 {
                return None;
            }
            let mut line = self.line.lock();
            let first = line.pop_front()?;
            self.waiting.store(line.len() as u32, Ordering::Relaxed);
            drop(line);
            self.scheduled_at.store(now.0, Ordering::Relaxed);
            if let Some(qp) = first.upgrade() {
                return Some(qp);
            }
        }
    }

    /// Whether no connection had a quantum for too long.
    fn stands_still(&self, now: Time) -> bool {
        now.0.saturating_sub(self.scheduled_at.load(Ordering::Relaxed)) >= STILL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_add_up_in_both_halves() {
        let scheduler = SendScheduler::<()>::default();
        let (mut a, mut b) = (0, 0);
        scheduler.change(&mut a, load(5000, 4));
        scheduler.change(&mut b, load(100, 300));
        scheduler.change(&mut a, load(10, 7));
        assert_eq!((scheduler.bytes(), scheduler.places()), (110, 307));
        scheduler.change(&mut b, 0);
        scheduler.change(&mut a, 0);
        assert_eq!(scheduler.load.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_waiting_qp_sends_only_when_a_burst_fits() {
        let scheduler = SendScheduler::<()>::default();
        scheduler.join(Weak::new());
        scheduler.change(&mut 0, load(100 * 1024, 100));
        assert!(
            scheduler.next(128 * 1024, Time(1)).is_none() && scheduler.is_crowded(),
            "there is no room for a burst"
        );
        let mut rest = load(100 * 1024, 100);
        scheduler.change(&mut rest, 0);
        assert!(scheduler.next(128 * 1024, Time(1)).is_none() && !scheduler.is_crowded(), "who is gone has none");
        assert!(scheduler.stands_still(Time(1 + STILL)) && !scheduler.stands_still(Time(STILL)));
    }
}
