//! What may be under way towards one host.
//!
//! A host's buffers are small: a stock UDP socket holds a handful of large datagrams. For connections the bound is a window
//! ([`crate::net::window`]), in which they take turns ([`crate::net::scheduler`]). Unreliable traffic is never acknowledged, so between
//! softhca hosts it is metered by probes: small packets of the manufacturers' range, which the far engine answers once it has taken
//! everything before them. A host that never answers is foreign, and gets what it is sent. Principal type: [`Peer`].

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::Time;

use crate::net::congestion::Told;
use crate::net::scheduler::SendScheduler;
use crate::net::window::Window;
use crate::qp::Qp;

/// Unreliable bytes without an answer, at most; fewer where the window is narrower.
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
#[derive(Default)]
pub(crate) struct Peer {
    /// What connections may have under way, all together.
    pub(crate) window: Window,
    /// How they share it.
    pub(crate) scheduler: SendScheduler,
    /// When it was told last that its packets come marked.
    pub(crate) told: Told,
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
    /// Asks whether an unreliable packet of `bytes` may go now.
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
            self.window.progress(covers);
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
        let peer = Peer::default();
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
        let peer = Peer::default();
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
        let peer = Peer::default();
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
