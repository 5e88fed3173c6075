//! Adds completions to a CQ, and raises the events for them. Polling is not here. Adds to [`Cq`].

use std::sync::atomic::Ordering;

use abi::cq::{Wc, status};

use super::{Armed, Cq, CqRing};
use crate::engine::Deferred;
use crate::memory::{Cqe, word};
use crate::moderation::Verdict;
use crate::reason::{ReasonKind, note};

impl Cq {
    /// Adds an entry. If the queue is full, it is overrun: an error replaces the entry, after all
    /// existing entries. The event, and the failure of the QPs, follow outside of the caller's
    /// locks (V-41).
    pub(crate) fn push(&self, entry: &Cqe) {
        self.put(&mut self.ring.lock(), entry);
    }

    /// Adds entries. They are copied from their place in memory. A value that was just moved would
    /// first wait in the store buffer, behind all earlier stores, among them a record for the peer.
    pub(crate) fn push_all(&self, entries: &[Cqe]) {
        let mut ring = self.ring.lock();
        for entry in entries {
            self.put(&mut ring, entry);
        }
    }

    #[inline]
    fn put(&self, ring: &mut CqRing, entry: &Cqe) {
        if ring.overrun || ring.view.is_none() {
            return;
        }
        if ring.used() == ring.wheel.size() {
            return self.overrun(ring, entry);
        }
        if let Some((view, at)) = ring.entry(ring.producer) {
            if self.stamps.load(Ordering::Relaxed) {
                view.write(at, &Cqe { timestamp: self.engine.raw_clock(), ..*entry });
            } else {
                view.write(at, entry);
            }
        }
        if let Some(lint) = self.lint() {
            lint.came(self.handle, &entry.wc);
        }
        ring.producer = ring.next(ring.producer);
        ring.store(word::PRODUCER, ring.producer);
        self.waiting.store(true, Ordering::Release);
        if ring.armed.wants(entry) {
            self.tell_or_wait(ring);
        }
    }

    /// Handles an entry for which there is no place.
    #[cold]
    pub(super) fn overrun(&self, ring: &mut CqRing, entry: &Cqe) {
        ring.store(word::OVERRUN, 1);
        ring.overrun = true;
        let Wc { wr_id, opcode, qp_num, .. } = entry.wc;
        let wc = Wc { wr_id, opcode, qp_num, status: status::GENERAL_ERR, ..Wc::default() };
        let timestamp = if self.stamps.load(Ordering::Relaxed) { self.engine.raw_clock() } else { 0 };
        if let Some(lint) = self.lint() {
            lint.came(self.handle, &wc);
        }
        ring.lost = Some(Cqe { wc, timestamp, ..*entry });
        let entries = ring.wheel.size();
        note(
            self.engine.reasons.note(ReasonKind::Event),
            format_args!("CQ {} is overrun: its {entries} entries were not polled in time", self.handle),
        );
        if ring.armed != Armed::Nothing {
            self.tell(ring);
        }
        self.engine.defer(Deferred::Overrun(self.itself.clone()));
    }

    /// Raises the event for which the CQ was armed, unless it has to wait (CQ moderation).
    pub(super) fn tell_or_wait(&self, ring: &mut CqRing) {
        if ring.moderation.is_none() || !self.holds_back(ring) {
            self.tell(ring);
        }
    }

    /// Raises the event for which the CQ was armed, if a completion waits for which it is armed and
    /// which has had no event. Completions behind it may have another one.
    pub(super) fn tell_of_unpolled(&self, ring: &mut CqRing) {
        let wanted = ring.unpolled(ring.told).position(|entry| ring.armed.wants(&entry));
        if wanted.is_none() && (ring.lost.is_none() || ring.told >= ring.waiting()) {
            return;
        }
        let told = wanted.map_or(ring.waiting(), |index| ring.told + index as u32 + 1);
        self.tell_or_wait(ring);
        if ring.armed == Armed::Nothing {
            ring.told = told;
        }
    }

    /// Raises the event for which the CQ was armed.
    pub(super) fn tell(&self, ring: &mut CqRing) {
        ring.armed = Armed::Nothing;
        ring.told = ring.waiting();
        ring.store(word::ARMED, 0);
        if let Some(channel) = &self.channel {
            channel.raise(self.itself.clone());
        }
    }

    /// Whether the event for a new completion has to wait (CQ moderation).
    #[cold]
    fn holds_back(&self, ring: &mut CqRing) -> bool {
        match ring.moderation.as_mut().map(|moderation| moderation.add(self.engine.now())) {
            None | Some(Verdict::Now) => return false,
            Some(Verdict::Waits) => {}
            Some(Verdict::WaitsUntil(at)) => self.engine.end_period_at(at),
        }
        true
    }
}
