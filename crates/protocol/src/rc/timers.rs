//! What a reliable requester does when it hears nothing: one timer, for an answer or for a receiver that was not ready. Adds to
//! [`Requester`]; what is heard is in [`super::requester`]. IBA 9.7.6.1.3.
//!
//! The timer for an answer runs while one is awaited, and begins anew with all progress. When it ends, a try was in vain. Programs
//! choose it long, for a peer may be slow; but where packets are lost it is a long time to stand still for each that nothing
//! follows. So a caller who knows that the path loses packets may ask for probes: when nothing was heard for a little while, the oldest
//! packet is sent once more and alone, later again after twice the time, and so on; the rest follows when something is heard.
//! So a peer that is only slow is bothered with few packets. Probes count neither as tries nor as losses.
//!
//! A little while is long where every twentieth packet is lost, and short where a peer waits for a processor. So a path that has lost
//! something not long ago is asked sooner. A loss that nothing follows is known by its probe: what was late is answered twice, what was
//! lost once.

use super::requester::{ROUGH, Wait};
use crate::requester::Cursor;
use crate::{Requester, Time, timeout};
use wire::Psn;

/// A path that loses packets is probed so many times sooner.
const SOONER: u64 = 8;

impl Requester {
    /// When to call [`Requester::handle_timeout`], if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.rc.deadline != Time::NEVER).then_some(self.rc.deadline)
    }

    /// Time has passed. Too early a call does nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.rc.deadline == Time::NEVER || now < self.rc.deadline {
            return;
        }
        self.rc.deadline = Time::NEVER;
        match self.rc.wait {
            Wait::Answer if self.rc.reported => self.retry(now),
            Wait::Answer if now < self.rc.expiry => self.probe(now),
            // The path was full all the while: that is not the peer's silence.
            Wait::Answer if self.has_gone_back() => self.arm(now),
            Wait::Answer => self.retry(now),
            Wait::Ready => {
                self.rc.wait = Wait::Answer;
                self.arm(now);
            }
        }
    }

    /// A packet of ours, or its answer, was lost on a path that loses nothing: from now on the ordinary timer runs, until
    /// everything that was sent is answered.
    pub fn note_loss(&mut self, now: Time) {
        if self.service.is_reliable() && !self.is_stopped() && self.rc.unacked != self.cursor.high {
            self.rc.lossy = true;
            self.arm(now);
        }
    }

    /// The path loses packets, as is known only now.
    pub(crate) fn doubted(&mut self, now: Time) {
        let is_waiting = self.rc.wait == Wait::Answer && self.rc.unacked != self.cursor.high;
        if self.service.is_reliable() && !self.is_stopped() && is_waiting {
            self.start_timer(now);
        }
    }

    /// Whether the receiver was not ready and its time has not passed.
    pub(crate) fn is_waiting(&mut self, now: Time) -> bool {
        if self.rc.wait == Wait::Ready && now >= self.rc.deadline {
            self.handle_timeout(now);
        }
        self.rc.wait == Wait::Ready
    }

    /// A packet is sent, perhaps one that must be answered. `before` is where the cursor was before it.
    pub(crate) fn note_sent(&mut self, now: Time, psn: Psn, asks: bool, before: Cursor) {
        if self.rc.again && (before.op, before.packet) == (self.done, self.answered_packets()) {
            self.rc.again_since = now;
        }
        if !asks {
            return;
        }
        self.arm(now);
        // From when it is sent for the first time: too long if it is lost, but the shortest time is what counts.
        if !self.config.lossless && self.rc.timed.1 == Time::NEVER && before.high != self.cursor.high {
            self.rc.timed = (psn, now);
        }
    }

    /// The packet that was sent last was not sent after all.
    pub(crate) fn note_not_sent(&mut self, deadline: Time) {
        self.rc.deadline = deadline;
        if !self.rc.timed.0.is_before(self.cursor.high) {
            self.rc.timed.1 = Time::NEVER;
        }
    }

    /// If the packet that is being timed is answered, remember how long that took.
    pub(super) fn stop_watch(&mut self, now: Time) {
        let (psn, sent) = self.rc.timed;
        if sent != Time::NEVER && psn.is_before(self.rc.unacked) {
            let took = now.0.saturating_sub(sent.0);
            self.rc.soonest = if self.rc.soonest == 0 { took } else { self.rc.soonest.min(took) };
            self.rc.timed.1 = Time::NEVER;
        }
    }

    /// Starts the timer for an answer, unless it runs.
    pub(super) fn arm(&mut self, now: Time) {
        if self.rc.deadline == Time::NEVER {
            self.start_timer(now);
        }
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

    /// Nothing was heard for a while that is not yet too long.
    fn probe(&mut self, now: Time) {
        // While nothing has left since going back, nothing can be heard.
        if !self.has_gone_back() {
            self.send_again();
            self.rc.probing = true;
            self.rc.probes = self.rc.probes.saturating_add(1);
        }
        self.rc.deadline = self.rc.expiry.min(self.next_probe(now));
    }

    /// What progress tells of the path.
    pub(super) fn note_road(&mut self) {
        self.rc.rough = if self.rc.doubted { ROUGH } else { self.rc.rough.saturating_sub(1) };
        // Behind it nothing was under way: whatever is answered next was sent later.
        self.rc.doubted = std::mem::take(&mut self.rc.probing) && self.rc.unacked == self.cursor.high;
    }

    fn next_probe(&self, now: Time) -> Time {
        if self.config.probe_after == 0 || self.rc.expiry == Time::NEVER {
            return Time::NEVER;
        }
        // Some times what an answer takes at best, or it comes while we ask.
        let quiet = u64::from(self.config.probe_after) / if self.rc.rough > 0 { SOONER } else { 1 };
        let first = quiet.max(4 * self.rc.soonest);
        now.after(first << self.rc.probes.min(16))
    }
}
