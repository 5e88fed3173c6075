//! The lease page: it says whether the agent reads its sockets, or an engine that polls does.
//!
//! Engines of the agent's own user write the page, so any word of it may hold any value. An invalid
//! value counts as free. This is the agent's half of the protocol in docs/abi.md ("Engines"). It
//! reads no clock and touches no socket. The principal type is [`ReceiveLease`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::wire::{GRANTED, lease};
use shm::region::Region;

/// How often the agent looks at a busy holder. On a machine with few processors, each look takes a
/// processor from another thread, which is then the holder or its peer.
const LOOK: Duration = Duration::from_millis(20);
/// How often the agent looks at a holder that was seen idle.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long a holder may be idle before the agent takes the lease back. A holder that only lost the
/// processor may still be handling a packet. If the time were short, packets that the agent reads
/// meanwhile would overtake that packet.
const PATIENCE: Duration = Duration::from_millis(25);
/// Maximum number of compare-and-swap attempts on the word in one call. A client that interferes
/// more often is hostile.
const TRIES: u32 = 8;

/// The reader, as the agent knows it.
#[derive(Debug)]
pub(crate) struct ReceiveLease {
    page: Arc<Region>,
    holder: Option<LeaseHolder>,
}

#[derive(Debug, Clone, Copy)]
struct LeaseHolder {
    engine: u32,
    beats: u32,
    looked: Instant,
    idle: Duration,
}

impl LeaseHolder {
    /// The time between the last look and the next one.
    fn pause(&self) -> Duration {
        if self.idle.is_zero() { LOOK } else { LOOK_AGAIN }
    }
}

impl ReceiveLease {
    pub(crate) fn new(page: Arc<Region>) -> Self {
        Self { page, holder: None }
    }

    /// The engine that reads, if one does.
    pub(crate) fn holder(&self) -> Option<u32> {
        self.holder.map(|holder| holder.engine)
    }

    /// How long to wait before the next look, if there is a holder.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.holder.as_ref().map(LeaseHolder::pause)
    }

    /// Looks at the page: grants the lease, notes a release, or takes the lease back from a holder
    /// that is gone or idle. `may` says which engines may read. The caller has handled everything
    /// that it read, and continues to read only if there is no holder afterwards.
    pub(crate) fn look(&mut self, now: Instant, may: impl Fn(u32) -> bool) {
        for _ in 0..TRIES {
            // Acquire: pairs with the release of the holder's store, so that the holder has
            // finished reading the sockets.
            let word = self.page.word(lease::LEASE).load(Ordering::Acquire);
            let engine = word & !GRANTED;
            let held = self.holder.filter(|holder| word == holder.engine | GRANTED);
            let next = if word == 0 {
                self.holder = None;
                return;
            } else if !may(engine) {
                0
            } else if let Some(holder) = held {
                match self.watch(holder, now) {
                    true => return,
                    false => 0,
                }
            } else if word == engine {
                word | GRANTED
            } else {
                0
            };
            let exchanged =
                self.page.word(lease::LEASE).compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed);
            if exchanged.is_ok() {
                tracing::debug!(engine, granted = next != 0, "the right to read the sockets");
                let beats = self.beats();
                self.holder = (next != 0).then_some(LeaseHolder { engine, beats, looked: now, idle: Duration::ZERO });
                return;
            }
        }
        self.page.word(lease::LEASE).store(0, Ordering::Release);
        self.holder = None;
    }

    /// Whether the holder may keep the lease.
    fn watch(&mut self, mut holder: LeaseHolder, now: Instant) -> bool {
        let passed = now.saturating_duration_since(holder.looked);
        if passed < holder.pause() {
            return true;
        }
        let beats = self.beats();
        // If the whole machine stood still, including the agent, at most the time of one look
        // counts.
        holder.idle = if beats == holder.beats { holder.idle + passed.min(holder.pause()) } else { Duration::ZERO };
        holder.beats = beats;
        holder.looked = now;
        self.holder = Some(holder);
        holder.idle < PATIENCE
    }

    fn beats(&self) -> u32 {
        self.page.word(lease::BEATS).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::wire::LEASE_PAGE_LEN;

    struct Setting {
        page: Arc<Region>,
        lease: ReceiveLease,
        now: Instant,
    }

    impl Setting {
        fn new() -> Self {
            let (page, _) = Region::create("softhca-lease", LEASE_PAGE_LEN).expect("a page");
            let page = Arc::new(page);
            Self { lease: ReceiveLease::new(page.clone()), page, now: Instant::now() }
        }

        fn write(&self, value: u32) {
            self.page.word(lease::LEASE).store(value, Ordering::Release);
        }

        /// Looks after some time, with engines 1 to 9 present. Returns the word and the holder
        /// after that.
        fn look_after(&mut self, time: Duration) -> (u32, Option<u32>) {
            self.now += time;
            self.lease.look(self.now, |engine| (1..10).contains(&engine));
            (self.page.word(lease::LEASE).load(Ordering::Acquire), self.lease.holder())
        }

        fn look(&mut self) -> (u32, Option<u32>) {
            self.look_after(Duration::ZERO)
        }
    }

    #[test]
    fn a_lease_is_granted_and_released() {
        let mut setting = Setting::new();
        assert_eq!(setting.look(), (0, None));
        setting.write(7);
        assert_eq!(setting.look(), (7 | GRANTED, Some(7)));
        assert_eq!(setting.look(), (7 | GRANTED, Some(7)));
        setting.write(0);
        assert_eq!(setting.look(), (0, None));
    }

    #[test]
    fn released_and_asked_for_between_two_looks() {
        let mut setting = Setting::new();
        setting.write(7);
        setting.look();
        setting.write(8);
        assert_eq!(setting.look(), (8 | GRANTED, Some(8)));
        setting.write(8);
        assert_eq!(setting.look(), (8 | GRANTED, Some(8)));
    }

    #[test]
    fn a_holder_that_does_nothing_loses_the_lease_and_one_that_beats_keeps_it() {
        let mut setting = Setting::new();
        setting.write(7);
        setting.look();
        for beat in 1..20 {
            setting.page.word(lease::BEATS).store(beat, Ordering::Relaxed);
            assert_eq!(setting.look_after(LOOK), (7 | GRANTED, Some(7)));
            assert_eq!(setting.look(), (7 | GRANTED, Some(7)), "to look more often is not to be impatient");
        }
        assert_eq!(setting.lease.pause(), Some(LOOK));
        let mut idle = Duration::ZERO;
        while setting.lease.holder().is_some() {
            let pause = setting.lease.pause().expect("it has a holder");
            let looked = setting.look_after(pause);
            idle += pause;
            assert_eq!(looked.1.is_some(), idle < PATIENCE, "to be slow is no harm, to be idle is");
        }
        assert_eq!((idle, setting.look()), (PATIENCE, (0, None)));
        assert_eq!(setting.lease.pause(), None);
    }

    #[test]
    fn the_lease_of_an_engine_that_is_gone_is_void() {
        let mut setting = Setting::new();
        setting.write(7);
        setting.look();
        setting.lease.look(setting.now, |_| false);
        assert_eq!(setting.look(), (0, None));
        setting.write(12);
        assert_eq!(setting.look(), (0, None), "and so is one that never was");
    }

    #[test]
    fn nonsense_counts_as_free() {
        let mut setting = Setting::new();
        for word in [GRANTED, 7 | GRANTED, u32::MAX, 0x7fff_ffff] {
            setting.write(word);
            assert_eq!(setting.look(), (0, None), "{word:#x}");
        }
        setting.write(7);
        setting.look();
        setting.write(8 | GRANTED);
        assert_eq!(setting.look(), (0, None), "who grants itself has nothing");
    }
}
