//! When a reliable requester may send, and when it sends once more: the window, end-to-end credits,
//! and the timer. Adds to [`Requester`]. Answers are in [`super::requester`].
//!
//! **The window** is how many packets may be under way, and when the requester must request an
//! acknowledgement in order to continue. Packet numbers are counted, from the oldest one without an
//! answer up to the cursor. The answers to a READ are under way as soon as they are requested. The
//! caller, which knows the path, sets the window.
//!
//! A window never stops a requester for good. With nothing under way, the next packet or piece is
//! always admitted. The packet that fills the window requests an acknowledgement. If the window
//! becomes smaller later, the last packets under way may not have requested one. Then one more
//! packet is admitted, which requests an acknowledgement.
//!
//! On a shared path, the packets of other requesters may keep a requester from sending that packet.
//! So there, every packet at the end of the window requests an acknowledgement. On a path of its
//! own, a requester that awaits an answer does not request another one.
//!
//! **Credits**: in each acknowledgement, a responder may say how many more messages would find a
//! receive request. softhca's responders send none. IBA 9.7.7.2.
//!
//! Messages are numbered as they begin. A responder that has completed `msn` messages and has `n`
//! receive requests takes messages up to `msn + n`, the limit. Messages that need no receive
//! request are not limited. The requester also sends a message beyond the limit, but *limited*: the
//! message waits until everything before it is answered. Then only one packet is sent, which
//! requests an acknowledgement. So a queue never stops for good, and a receiver that is not ready
//! gets one useless packet instead of a whole window. softhca's responders use code 31, no credits,
//! because the executor looks for a receive request only when it carries out the message. While no
//! credits arrive, there is no limit.
//!
//! **The timer** says what to do when no answer comes, or when the receiver was not ready. IBA
//! 9.7.6.1.3.
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
use crate::operation::{Operation, QueuedOperation};
use crate::requester::Requester;
use crate::tally::Occurrence;
use crate::time::{Time, timeout};
use wire::{Headers, Psn, Syndrome, aeth};

/// How often to request an acknowledgement if the caller does not say: long messages free the
/// window as they go.
const ASK_EVERY: u32 = 32;
/// Bits of a message number.
const BITS: u32 = 24;
/// A path that has recently lost a packet is probed sooner, by this factor.
const SOONER: u64 = 8;

/// The window.
impl Requester {
    /// RC: sets how many packets may be under way, including the answers to READs. At least one
    /// packet or piece always may. The maximum is half of all numbers, because answers must be told
    /// apart.
    pub fn set_window(&mut self, packets: u32) {
        self.window = packets.clamp(1, Psn::WINDOW);
        let wanted = if self.config.ack_every == 0 { ASK_EVERY } else { self.config.ack_every };
        self.ask_every = wanted.min(self.window.div_ceil(4));
        self.is_exclusive = false;
    }

    /// Like [`Requester::set_window`], for the only requester on a path that takes `whole` packets:
    /// at most `packets` may be under way now. Each answer costs both sides a call. So the
    /// requester requests only as many as keep the path full.
    pub fn set_exclusive_window(&mut self, packets: u32, whole: u32) {
        self.set_window(packets);
        if self.config.ack_every == 0 {
            self.ask_every = (whole / 4).clamp(1, Psn::WINDOW / 4);
        }
        self.is_exclusive = true;
    }

    /// RC: packets that are sent or requested, and not answered. Packets that are to be
    /// retransmitted do not count.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        if !self.service.is_reliable() || self.is_stopped() {
            return 0;
        }
        let begun = self.cursor.op != self.cursor.started;
        let next = if begun { self.ops.at(self.cursor.op).first + self.cursor.packet } else { self.cursor.high };
        next - self.rc.unacked
    }

    /// Retransmissions because a packet, or its answer, was lost. Only goes up (and wraps).
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// Whether the window has room for the next packet of `entry`, or for the answer that it
    /// requests.
    pub(crate) fn fits_window(&self, entry: &QueuedOperation) -> bool {
        let (op, packet) = (&entry.op, self.cursor.packet);
        let takes = if op.operation == Operation::Read { self.piece_end(op, packet) - packet } else { 1 };
        let under_way = entry.first + packet - self.rc.unacked;
        // The last packets under way have not requested an acknowledgement. If no other packet was
        // under way, no answer would ever come.
        let none_requested = under_way <= self.cursor.since_ack_req;
        under_way + takes <= if none_requested { Psn::WINDOW } else { self.window() }
    }

    /// SEND and WRITE: how many packets from `psn` on fit into the window, and whether the packet
    /// that fills it must request an acknowledgement.
    #[inline(always)]
    pub(crate) fn room(&self, psn: Psn) -> (u32, bool) {
        let under_way = psn - self.rc.unacked;
        // An answer is already awaited. When it comes, the requester can request the next one.
        let is_ack_due = self.is_exclusive && self.cursor.since_ack_req < under_way;
        // If no packet under way has requested an acknowledgement, one more packet may.
        let least = u32::from(under_way <= self.cursor.since_ack_req && under_way < Psn::WINDOW);
        (self.window().saturating_sub(under_way).max(least), !is_ack_due)
    }

    /// While probing, the window is one packet.
    #[inline]
    fn window(&self) -> u32 {
        if self.rc.probing { 1 } else { self.window }
    }

    /// Whether the responder can remember one more atomic or piece of a READ.
    pub(crate) fn may_ask(&self) -> bool {
        // An operation that has begun may end even if the limit was set to 0 meanwhile.
        self.cursor.reads < u32::from(self.config.max_rd_atomic).max(1)
    }
}

/// Credits.
impl Requester {
    /// The number of messages in an operation that has packets. Each piece of a READ is one
    /// message.
    #[inline]
    pub(crate) fn messages(&self, entry: &QueuedOperation) -> u32 {
        match entry.op.operation {
            Operation::Read if self.config.read_piece > 0 => self.packets(&entry.op).div_ceil(self.config.read_piece),
            _ => 1,
        }
    }

    /// Reads the credits in a response. The caller passes no ghost answers, except a repetition of
    /// the last answer.
    pub(super) fn note_credits(&mut self, headers: &Headers) {
        let Syndrome::Ack(code) = headers.aeth.syndrome else { return };
        if !headers.opcode.has_aeth() {
            return;
        }
        let Some(credits) = aeth::credits(code) else {
            self.rc.limit = None;
            return;
        };
        let limit = headers.aeth.msn.wrapping_add(credits);
        // Codes are rounded down, so a later limit may look smaller. An earlier promise stays
        // valid.
        if self.rc.limit.is_none_or(|before| is_beyond(limit, before)) {
            self.rc.limit = Some(limit);
        }
    }

    /// Whether the next packet of `entry` would find a receive request, as far as is known.
    #[inline]
    pub(crate) fn has_credit(&self, entry: &QueuedOperation) -> bool {
        let Some(limit) = self.rc.limit else { return true };
        let takes = matches!(
            entry.op.operation,
            Operation::Send | Operation::SendImm | Operation::SendInv | Operation::WriteImm
        );
        // If the beginning of a message has arrived, the rest will find its receive request.
        !takes || !is_beyond(entry.number, limit) || entry.first.is_before(self.rc.unacked)
    }
}

/// The timer.
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
            Wait::Answer => {
                self.tally.note(Occurrence::LocalAckTimeoutErr);
                self.retry(now);
            }
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

/// Whether message `a` comes after message `b`.
fn is_beyond(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b) << (u32::BITS - BITS);
    ahead.cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::is_beyond;

    #[test]
    fn message_numbers_wrap() {
        assert!(is_beyond(1, 0) && !is_beyond(0, 0) && !is_beyond(0, 1));
        assert!(is_beyond(3, 0xff_ffff) && !is_beyond(0xff_ffff, 3));
        assert!(is_beyond(0x100_0000, 0xff_ffff), "a count that has passed 24 bits");
    }
}
