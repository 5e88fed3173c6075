//! Limits the outstanding bytes to one host.
//!
//! A host's buffers are small: a stock UDP socket holds a handful of large datagrams. For
//! connections the limit is a window ([`crate::net::window`]), which the send scheduler shares out
//! ([`crate::net::scheduler`]). Unreliable traffic is never acknowledged, so softhca hosts meter it
//! with probes. A probe is a small packet with an opcode of the manufacturers' range. The remote
//! engine answers it when it has received everything before it. A host that never answers is
//! foreign, and traffic to it is not metered. `Q` is the type of queue pairs, of which it keeps
//! lists. Principal type: [`Peer`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::Time;

use crate::net::scheduler::SendScheduler;
use crate::net::window::CongestionWindow;

/// Nanoseconds between two CNPs to one host, as adapters do.
const PAUSE: u64 = 50_000;
/// Unanswered bytes of unreliable traffic, at most; fewer if the window is narrower.
const UNANSWERED: u32 = 96 * 1024;
/// Bytes between two probes.
const STRIDE: u32 = 16 * 1024;
/// How long to wait for a host that has never answered, in nanoseconds.
const FIRST_ANSWER: u64 = 300_000_000;
/// How long to wait for a host that has answered before, in nanoseconds.
const ANSWER: u64 = 1_000_000_000;
/// A host is foreign after this many missing answers in a row.
const SILENCES: u32 = 4;
/// A foreign host is probed again after this time, in nanoseconds.
const AGAIN: u64 = 60_000_000_000;

/// A host, as one engine sees it.
pub(crate) struct Peer<Q> {
    /// What all connections together may have under way.
    pub(crate) window: CongestionWindow,
    /// How the connections share the window.
    pub(crate) scheduler: SendScheduler<Q>,
    /// When this engine last sent it a CNP.
    pub(crate) last_cnp: LastCnp,
    meter: Mutex<Meter<Q>>,
}

/// The metering of unreliable traffic.
struct Meter<Q> {
    /// The host has answered before.
    answers: bool,
    silences: u32,
    /// No probe before this time: the host is foreign.
    foreign_until: Option<Time>,
    /// Bytes that no answer covers.
    unanswered: u32,
    /// Unanswered bytes since the last probe.
    since: u32,
    next: u64,
    /// Probes under way: number, bytes covered, time of sending.
    probes: VecDeque<(u64, u32, Time)>,
    /// Weak, so that a QP that is destroyed while it waits is freed.
    waiting: Vec<Weak<Q>>,
}

/// What the sender of an unreliable packet has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Send a probe with this number first.
    pub(crate) probe: Option<u64>,
    /// Wait for an answer, at most until this time.
    pub(crate) wait: Option<Time>,
}

const GO: Admission = Admission { probe: None, wait: None };

impl<Q> Default for Peer<Q> {
    fn default() -> Self {
        let meter = Meter {
            answers: false,
            silences: 0,
            foreign_until: None,
            unanswered: 0,
            since: 0,
            next: 0,
            probes: VecDeque::new(),
            waiting: Vec::new(),
        };
        Self {
            window: CongestionWindow::default(),
            scheduler: SendScheduler::default(),
            last_cnp: LastCnp::default(),
            meter: Mutex::new(meter),
        }
    }
}

impl<Q> Peer<Q> {
    /// Whether an unreliable packet of `bytes` may be sent now.
    pub(crate) fn admit(&self, bytes: u32, now: Time) -> Admission {
        let mut meter = self.meter.lock();
        if meter.foreign_until.is_some_and(|until| now < until) {
            return GO;
        }
        meter.foreign_until = None;
        let most = UNANSWERED.min(self.window.bytes()).max(2 * STRIDE);
        let probe = (meter.since >= STRIDE).then(|| meter.probe(now));
        if meter.unanswered + bytes > most
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
    pub(crate) fn wait(&self, qp: &Arc<Q>) {
        let mut meter = self.meter.lock();
        meter.waiting.retain(|other| other.strong_count() > 0);
        if !meter.waiting.iter().any(|other| std::ptr::eq(other.as_ptr(), &raw const **qp)) {
            meter.waiting.push(Arc::downgrade(qp));
        }
    }

    /// Handles the answer to probe `number`, which also answers all probes before it. Returns the
    /// QPs that may go on.
    pub(crate) fn answered(&self, number: u64) -> Vec<Arc<Q>> {
        let mut meter = self.meter.lock();
        if number >= meter.next {
            // This probe was never sent.
            return Vec::new();
        }
        (meter.answers, meter.silences, meter.foreign_until) = (true, 0, None);
        while let Some(&(first, covers, _)) = meter.probes.front()
            && first <= number
        {
            meter.unanswered -= covers;
            self.window.progress(covers);
            meter.probes.pop_front();
        }
        std::mem::take(&mut meter.waiting).iter().filter_map(Weak::upgrade).collect()
    }
}

impl<Q> Meter<Q> {
    /// The number of a new probe that covers everything since the last one.
    fn probe(&mut self, now: Time) -> u64 {
        let (number, covers) = (self.next, std::mem::take(&mut self.since));
        self.next += 1;
        self.probes.push_back((number, covers, now));
        number
    }

    /// No answer came in time: the unanswered bytes are treated as lost.
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

/// When this engine last sent a CNP to a host.
#[derive(Debug, Default)]
pub(crate) struct LastCnp(AtomicU64);

impl LastCnp {
    /// Whether to send a CNP now.
    pub(crate) fn should_send(&self, now: Time) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let is_due = last == 0 || now.0 >= last + PAUSE;
        if is_due {
            self.0.store(now.0.max(1), Ordering::Relaxed);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets of 4 KiB until one has to wait; returns the numbers of the probes.
    fn fill(peer: &Peer<()>, now: Time) -> Vec<u64> {
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
        let peer = Peer::<()>::default();
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
        let peer = Peer::<()>::default();
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
        let peer = Peer::<()>::default();
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

    #[test]
    fn a_host_is_told_once_in_a_while() {
        let last = LastCnp::default();
        assert!(last.should_send(Time(0)) && last.should_send(Time(PAUSE + 1)));
        assert!(
            !last.should_send(Time(PAUSE + 2))
                && !last.should_send(Time(2 * PAUSE))
                && last.should_send(Time(2 * PAUSE + 1))
        );
    }
}
