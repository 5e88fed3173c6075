//! The timer of a reliable requester: what it does when no answer comes, or when the receiver was
//! not ready. Adds to [`Requester`]. Answers are in [`super::requester`]. IBA 9.7.6.1.3.
//!
//! The timer for an answer runs while an answer is awaited, and restarts with every progress. When
//! it ends, one try has failed. Programs choose a long timeout because a peer may be slow. But
//! where packets are lost, that is a long pause for each lost packet that no other packet follows.
//! So a caller that knows that the path loses packets may ask for probes. When no answer has come
//! for a short time, the requester retransmits only the oldest packet. It sends the next probe
//! after twice that time, and so on. The other packets follow when an answer comes. So a peer that
//! is only slow gets few extra packets. Probes count neither as retries nor as losses.
//!
//! One short time does not suit all paths. It is too long if every twentieth packet is lost, and
//! too short if the peer waits for a processor. So a path that has recently lost a packet is probed
//! sooner. Probes also detect a loss that no other packet follows: a packet that was only late is
//! answered twice, a lost packet once.

use super::requester::{LOSS_MEMORY, Wait};
use crate::requester::Requester;
use crate::time::{Time, timeout};
use wire::Psn;

/// A path that has recently lost a packet is probed sooner, by this factor.
const SOONER: u64 = 8;

impl Requester {
    /// When to call [`Requester::handle_timeout`] if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.rc.deadline != Time::NEVER).then_some(self.rc.deadline)
    }

    /// Time has passed. A call that is too early does nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.rc.deadline == Time::NEVER || now < self.rc.deadline {
            return;
        }
        self.rc.deadline = Time::NEVER;
        match self.rc.wait {
            Wait::Answer if self.rc.reported => self.retry(now),
            Wait::Answer if now < self.rc.expiry => self.probe(now),
            // The path was full the whole time, so the peer's silence does not count.
            Wait::Answer if self.has_gone_back() => self.arm(now),
            Wait::Answer => self.retry(now),
            Wait::Ready => {
                self.rc.wait = Wait::Answer;
                self.arm(now);
            }
        }
    }

    /// A packet of ours, or its answer, was lost on a lossless path. From now on the ordinary timer
    /// runs, until everything that was sent is answered.
    pub fn note_loss(&mut self, now: Time) {
        if self.service.is_reliable() && !self.is_stopped() && self.rc.unacked != self.cursor.high {
            self.rc.lossy = true;
            self.arm(now);
        }
    }

    /// The path turns out to lose packets.
    pub(crate) fn became_lossy(&mut self, now: Time) {
        let is_waiting = self.rc.wait == Wait::Answer && self.rc.unacked != self.cursor.high;
        if self.service.is_reliable() && !self.is_stopped() && is_waiting {
            self.start_timer(now);
        }
    }

    /// Whether the receiver was not ready and the RNR time has not passed.
    #[inline]
    pub(crate) fn is_waiting(&mut self, now: Time) -> bool {
        if self.rc.wait == Wait::Ready && now >= self.rc.deadline {
            self.handle_timeout(now);
        }
        self.rc.wait == Wait::Ready
    }

    /// A packet is sent, perhaps one that requests an answer. Before it, the cursor was at the
    /// packet `packet` of the operation `op`, and `high` was the first number never sent.
    #[inline]
    pub(crate) fn note_sent(&mut self, now: Time, psn: Psn, asks: bool, (op, packet, high): (u32, u32, Psn)) {
        if self.rc.again && (op, packet) == (self.done, self.answered_packets()) {
            self.rc.again_since = now;
        }
        if !asks {
            return;
        }
        self.arm(now);
        // Timed from the first transmission. If the packet is lost, the measured time is too long,
        // but only the shortest time counts.
        if !self.config.lossless && self.rc.timed.1 == Time::NEVER && high != self.cursor.high {
            self.rc.timed = (psn, now);
        }
    }

    /// If the timed packet is answered, remembers the shortest time that an answer took.
    pub(super) fn stop_watch(&mut self, now: Time) {
        let (psn, sent) = self.rc.timed;
        if sent != Time::NEVER && psn.is_before(self.rc.unacked) {
            let took = now.0.saturating_sub(sent.0);
            self.rc.soonest = if self.rc.soonest == 0 { took } else { self.rc.soonest.min(took) };
            self.rc.timed.1 = Time::NEVER;
        }
    }

    /// Starts the timer for an answer unless it runs already.
    #[inline]
    pub(super) fn arm(&mut self, now: Time) {
        if self.rc.deadline != Time::NEVER {
            return;
        }
        if self.config.lossless && !self.rc.lossy {
            // No timer runs.
            (self.rc.expiry, self.rc.probes) = (Time::NEVER, 0);
            return;
        }
        self.start_timer(now);
    }

    /// Starts the timer for an answer from the beginning.
    pub(super) fn start_timer(&mut self, now: Time) {
        let lossless = self.config.lossless && !self.rc.lossy;
        self.rc.expiry =
            match timeout(self.config.timeout).map(|once| once.saturating_mul(self.config.patience.max(1).into())) {
                Some(nanoseconds) if !lossless => now.after(nanoseconds),
                _ => Time::NEVER,
            };
        self.rc.probes = 0;
        self.rc.deadline = self.rc.expiry.min(self.next_probe(now));
    }

    /// No answer came for a while, but the timeout has not passed.
    fn probe(&mut self, now: Time) {
        // If nothing was sent since going back, no answer can come.
        if !self.has_gone_back() {
            self.send_again();
            self.rc.probing = true;
            self.rc.probes = self.rc.probes.saturating_add(1);
        }
        self.rc.deadline = self.rc.expiry.min(self.next_probe(now));
    }

    /// Updates the record of losses on the path after progress.
    pub(super) fn update_loss_state(&mut self) {
        self.rc.recent_loss = if self.rc.probe_answered { LOSS_MEMORY } else { self.rc.recent_loss.saturating_sub(1) };
        // No packet was under way behind the probe. So the next answer is either a second answer to
        // the probe, which is a ghost answer, or belongs to a packet that is sent later.
        self.rc.probe_answered = std::mem::take(&mut self.rc.probing) && self.rc.unacked == self.cursor.high;
    }

    fn next_probe(&self, now: Time) -> Time {
        if self.config.probe_after == 0 || self.rc.expiry == Time::NEVER {
            return Time::NEVER;
        }
        // At least four times the shortest response time. Otherwise the requester would send probes
        // while the answer is on its way.
        let quiet = u64::from(self.config.probe_after) / if self.rc.recent_loss > 0 { SOONER } else { 1 };
        let first = quiet.max(4 * self.rc.soonest);
        now.after(first << self.rc.probes.min(16))
    }
}
