//! What may be under way towards one host.
//!
//! A host's buffers are small: a stock UDP socket holds a handful of large datagrams. For connections the bound is a window, shared by
//! all that have something under way, which a loss halves and progress widens. Unreliable traffic is never acknowledged, so between
//! softhca hosts it is metered by probes: small packets of the manufacturers' range, which the far engine answers once it has taken
//! everything before them. A host that never answers is foreign, and gets what it is sent. Principal type: [`Peer`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::Time;

use crate::qp::Qp;

/// Bytes of connections under way, at first.
const WINDOW: u32 = 128 * 1024;
const WINDOW_MIN: u32 = 8 * 1024;
const WINDOW_MAX: u32 = 1024 * 1024;
/// Packets of connections under way, however small: each takes a place in the receiver's ring.
const PACKETS: u32 = 96;
/// What an acknowledgement adds.
const GROWTH: u32 = 512;
/// Losses within this time are one.
const ONE_LOSS: u64 = 2_000_000;

/// Unreliable bytes without an answer, at most.
const UNANSWERED: u32 = 96 * 1024;
/// Bytes after which the next probe goes.
const STRIDE: u32 = 16 * 1024;
/// How long a host that has never answered is waited for, in nanoseconds.
const FIRST_ANSWER: u64 = 300_000_000;
/// The same for one that has.
const ANSWER: u64 = 1_000_000_000;
/// A host is foreign when it was silent so often in a row.
const SILENCES: u32 = 4;
/// A foreign host is asked again after this time.
const AGAIN: u64 = 60_000_000_000;

/// A host, as one engine sees it.
pub(crate) struct Peer {
    window: AtomicU32,
    /// Connections with something under way.
    active: AtomicU32,
    /// When the window was halved last, in the engine's time.
    lost_at: AtomicU64,
    meter: Mutex<Meter>,
}

/// The metering of unreliable traffic.
#[derive(Default)]
struct Meter {
    /// It has answered before.
    answers: bool,
    silences: u32,
    /// Not asked before this time: the host is foreign.
    foreign_until: Option<Time>,
    /// Bytes that no answer covers.
    unanswered: u32,
    /// Those of them since the last probe.
    since: u32,
    next: u64,
    /// Probes under way: number, the bytes that it covers, when it went.
    probes: VecDeque<(u64, u32, Time)>,
    /// Not held: whoever is destroyed while it waits is gone.
    waiting: Vec<Weak<Qp>>,
}

/// What a packet of unreliable traffic has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Send a probe with this number first.
    pub(crate) probe: Option<u64>,
    /// Wait for an answer, but not longer than until then.
    pub(crate) wait: Option<Time>,
}

const GO: Admission = Admission { probe: None, wait: None };

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            window: AtomicU32::new(WINDOW),
            active: AtomicU32::new(0),
            lost_at: AtomicU64::new(0),
            meter: Mutex::default(),
        }
    }

    /// One connection more, or less, that has something under way.
    pub(crate) fn count(&self, active: bool) {
        if active {
            self.active.fetch_add(1, Ordering::Relaxed);
        } else {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One connection's share of the window, in packets. Packets of long messages take places together.
    pub(crate) fn share(&self, mtu: u32, long: bool) -> u32 {
        let active = self.active.load(Ordering::Relaxed).max(1);
        let places = if long { 4 * PACKETS } else { PACKETS };
        let packets = (self.window.load(Ordering::Relaxed) / mtu.max(1)).min(places);
        (packets / active).max(1)
    }

    /// Something was acknowledged.
    pub(crate) fn progress(&self) {
        let window = self.window.load(Ordering::Relaxed);
        if window < WINDOW_MAX {
            self.window.store(window + GROWTH, Ordering::Relaxed);
        }
    }

    /// Something was lost.
    pub(crate) fn lose(&self, now: Time) {
        let last = self.lost_at.load(Ordering::Relaxed);
        if now.0 >= last.saturating_add(ONE_LOSS) || last == 0 {
            self.lost_at.store(now.0, Ordering::Relaxed);
            let window = self.window.load(Ordering::Relaxed);
            self.window.store((window / 2).max(WINDOW_MIN), Ordering::Relaxed);
        }
    }

    /// Asks whether an unreliable packet of `bytes` may go now.
    pub(crate) fn admit(&self, bytes: u32, now: Time) -> Admission {
        let mut meter = self.meter.lock();
        if meter.foreign_until.is_some_and(|until| now < until) {
            return GO;
        }
        meter.foreign_until = None;
        let probe = (meter.since >= STRIDE).then(|| meter.probe(now));
        if meter.unanswered + bytes > UNANSWERED
            && let Some(&(.., went)) = meter.probes.front()
        {
            let limit = went.after(if meter.answers { ANSWER } else { FIRST_ANSWER });
            if now < limit {
                return Admission { probe, wait: Some(limit) };
            }
            meter.fall_silent(now);
            if meter.foreign_until.is_some() {
                return GO;
            }
        }
        meter.unanswered += bytes;
        meter.since += bytes;
        Admission { probe, wait: None }
    }

    /// A QP waits for an answer.
    pub(crate) fn wait(&self, qp: &Arc<Qp>) {
        let mut meter = self.meter.lock();
        meter.waiting.retain(|other| other.strong_count() > 0);
        if !meter.waiting.iter().any(|other| std::ptr::eq(other.as_ptr(), &raw const **qp)) {
            meter.waiting.push(Arc::downgrade(qp));
        }
    }

    /// The answer to probe `number`, and with it to all before it. Gives those who may go on.
    pub(crate) fn answered(&self, number: u64) -> Vec<Arc<Qp>> {
        let mut meter = self.meter.lock();
        if number >= meter.next {
            // Nothing that was asked.
            return Vec::new();
        }
        (meter.answers, meter.silences, meter.foreign_until) = (true, 0, None);
        while let Some(&(first, covers, _)) = meter.probes.front()
            && first <= number
        {
            meter.unanswered -= covers;
            meter.probes.pop_front();
        }
        std::mem::take(&mut meter.waiting).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Meter {
    /// The number of a probe that covers everything since the last one.
    fn probe(&mut self, now: Time) -> u64 {
        let (number, covers) = (self.next, std::mem::take(&mut self.since));
        self.next += 1;
        self.probes.push_back((number, covers, now));
        number
    }

    /// No answer came in time: what was unanswered is taken for lost.
    fn fall_silent(&mut self, now: Time) {
        self.silences += 1;
        self.probes.clear();
        (self.unanswered, self.since) = (0, 0);
        if !self.answers || self.silences >= SILENCES {
            self.answers = false;
            self.foreign_until = Some(now.after(AGAIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_shared_halved_and_widened() {
        let peer = Peer::new();
        assert_eq!(peer.share(4096, false), WINDOW / 4096);
        peer.count(true);
        peer.count(true);
        assert_eq!(peer.share(4096, false), WINDOW / 8192);
        assert_eq!(peer.share(256, false), PACKETS / 2, "small packets take places, too");
        assert_eq!(peer.share(256, true), 4 * PACKETS / 2, "those of long messages take fewer");
        peer.lose(Time(5_000_000));
        peer.lose(Time(5_500_000));
        assert_eq!(peer.share(4096, false), WINDOW / 16384, "two losses at once are one");
        for round in 0..100 {
            peer.lose(Time(10_000_000 * round));
        }
        assert_eq!(peer.window.load(Ordering::Relaxed), WINDOW_MIN);
        (0..10_000).for_each(|_| peer.progress());
        assert_eq!(peer.window.load(Ordering::Relaxed), WINDOW_MAX);
        peer.count(false);
        peer.count(false);
        assert_eq!(peer.share(u32::MAX, false), 1, "one packet may always go");
    }

    /// Sends packets of 4 KiB until one has to wait; gives the numbers of the probes.
    fn fill(peer: &Peer, now: Time) -> Vec<u64> {
        let mut probes = Vec::new();
        for _ in 0..1000 {
            let admission = peer.admit(4096, now);
            probes.extend(admission.probe);
            if admission.wait.is_some() {
                return probes;
            }
        }
        panic!("nothing ever waits");
    }

    #[test]
    fn unanswered_bytes_have_a_bound_and_an_answer_frees_some() {
        let peer = Peer::new();
        let probes = fill(&peer, Time(1));
        assert_eq!(probes, [0, 1, 2, 3, 4, 5]);
        assert!(peer.answered(7).is_empty(), "a number that was never sent answers nothing");
        assert!(peer.admit(4096, Time(2)).wait.is_some());
        peer.answered(1);
        assert_eq!(fill(&peer, Time(2)), [6, 7]);
        peer.answered(7);
        assert_eq!(fill(&peer, Time(3)).len(), 6);
    }

    #[test]
    fn a_host_that_never_answers_is_not_waited_for_for_long() {
        let peer = Peer::new();
        fill(&peer, Time(0));
        let until = peer.admit(1, Time(1)).wait.expect("it waits");
        assert_eq!(until, Time(FIRST_ANSWER));
        assert_eq!(peer.admit(1, until), GO);
        for _ in 0..1000 {
            assert_eq!(peer.admit(4096, until), GO);
        }
        let again = until.after(AGAIN);
        assert_eq!(fill(&peer, again).len(), 6, "it is asked again");
        peer.answered(8);
        assert!(peer.meter.lock().answers);
    }

    #[test]
    fn a_host_that_has_answered_may_be_silent_a_few_times() {
        let peer = Peer::new();
        let mut now = Time(0);
        let first = fill(&peer, now);
        peer.answered(first[0]);
        for _ in 1..SILENCES {
            fill(&peer, now);
            now = now.after(ANSWER);
            assert_eq!(peer.admit(4096, now).wait, None);
            assert!(peer.meter.lock().foreign_until.is_none());
        }
        fill(&peer, now);
        now = now.after(ANSWER);
        peer.admit(4096, now);
        assert!(peer.meter.lock().foreign_until.is_some());
    }
}
