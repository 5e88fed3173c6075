//! The pending answers of an RC responder, in order: answers to READs, atomics, ATOMIC WRITEs and
//! FLUSHes, and behind them one ACK or NAK. Each answered request is remembered, because the
//! requester may repeat it. Not here: whether a request is accepted, which [`super::responder`]
//! decides. Principal type: [`Answers`]. IBA 9.7.5.1 (acknowledging), 9.7.5.2.6 (repetitions),
//! C9-150 (what is remembered).
//!
//! An answer's number answers all packets before it. So an ACK may be delayed and coalesced with
//! later ones. But it must never pass a READ or atomic that is not answered. Therefore there is
//! only one place for an ACK or NAK, behind all other answers.

use super::standing::KEPT;
use crate::responder::ResponderConfig;
use crate::step::{Nak, Response, ResponseData};
use wire::{Aeth, Headers, NakCode, Opcode, Operation, Place, Psn, Syndrome};

/// A READ or an atomic that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) enum CarriedOut {
    /// Read `len` bytes. The last request asked for those before `until`.
    Read { len: u32, until: u32 },
    /// The word had this value before.
    Atomic { value: u64 },
    /// ATOMIC WRITE or FLUSH. It is done, and its answer has no data.
    Confirmed { flush: bool },
}

/// A remembered request, and how far its answer has been sent.
#[derive(Clone, Copy, Debug)]
struct Saved {
    request: CarriedOut,
    /// Its packet numbers: `packets` of them from `first` on.
    first: Psn,
    packets: u32,
    va: u64,
    rkey: u32,
    xrc_srq: u32,
    msn: u32,
    /// The answer as the last request asked for it: packets `begin` to `end`, of which `next` is
    /// the next to send. All three count from `first`.
    begin: u32,
    next: u32,
    end: u32,
    /// Whether it was answered in full at least once.
    answered: bool,
}

/// A request that was carried out, and what its answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A READ.
    Read {
        /// Bytes that were read.
        len: u32,
    },
    /// An atomic.
    Atomic {
        /// The word's value before.
        value: u64,
    },
    /// An ATOMIC WRITE.
    Written,
    /// A FLUSH.
    Flushed,
}

impl Default for Carried {
    fn default() -> Self {
        Carried::Read { len: 0 }
    }
}

/// An executed request with an answer of its own, for [`super::standing::Standing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of its first answer.
    pub first: Psn,
    /// Packets of the answer.
    pub packets: u32,
    /// The address.
    pub va: u64,
    /// The rkey.
    pub rkey: u32,
    /// The shared receive queue whose domain has the key.
    pub xrc_srq: u32,
    /// The message sequence number of its answer.
    pub msn: u32,
    /// The operation and its result.
    pub what: Carried,
    /// Whether it was answered in full.
    pub answered: bool,
}

/// The ACK or NAK behind the answers to READs and atomics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Answer {
    #[default]
    None,
    /// Everything before the expected packet has arrived.
    Ack,
    /// This packet is a duplicate: it arrived before.
    AckAgain(Psn),
    /// The expected packet is missing.
    SequenceNak,
    /// The expected packet needs a receive request.
    RnrNak,
    /// The packet with this number is refused.
    FatalNak(Nak, Psn),
}

/// The answer that the last poll returned.
#[derive(Clone, Copy, Debug, Default)]
enum Taken {
    #[default]
    Nothing,
    Packets {
        of: usize,
        count: u32,
        answered: bool,
    },
    Last(Answer),
}

/// All pending answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The last requests, as a ring.
    saved: Box<[Option<Saved>]>,
    /// The index of the oldest request, which the next request replaces.
    oldest: usize,
    /// Requests in `saved` with packets to send.
    unsent: usize,
    pub(super) last: Answer,
    taken: Taken,
    /// Messages completed, 24 bits.
    pub(crate) msn: u32,
}

impl Answers {
    /// Makes room for `count` requests.
    pub(crate) fn remember(&mut self, count: u8) {
        if self.saved.len() != usize::from(count) {
            self.saved = vec![None; count.into()].into();
            self.oldest = 0;
            self.unsent = 0;
        }
    }

    /// Whether one more READ or atomic may come. It would replace the oldest remembered request,
    /// which must have been answered. A requester that respects the agreed number sends one more
    /// request only after it has received that answer.
    pub(crate) fn has_room(&self) -> bool {
        self.saved.get(self.oldest).is_some_and(|place| place.is_none_or(|saved| saved.answered))
    }

    /// The remembered requests, oldest first. If there are more than [`KEPT`], the newest ones.
    pub(super) fn kept(&self) -> [Option<Kept>; KEPT] {
        let (newer, older) = self.saved.split_at(self.oldest.min(self.saved.len()));
        let all = older.iter().chain(newer).flatten();
        let too_old = all.clone().count().saturating_sub(KEPT);
        let mut kept = [None; KEPT];
        for (place, saved) in kept.iter_mut().zip(all.skip(too_old)) {
            let what = match saved.request {
                CarriedOut::Read { len, .. } => Carried::Read { len },
                CarriedOut::Atomic { value } => Carried::Atomic { value },
                CarriedOut::Confirmed { flush: false } => Carried::Written,
                CarriedOut::Confirmed { flush: true } => Carried::Flushed,
            };
            let Saved { first, packets, va, rkey, xrc_srq, msn, answered, .. } = *saved;
            *place = Some(Kept { first, packets, va, rkey, xrc_srq, msn, what, answered });
        }
        kept
    }

    /// Remembers these requests, with nothing to send. A requester that misses an answer repeats
    /// its request.
    pub(super) fn restore(&mut self, msn: u32, kept: &[Option<Kept>]) {
        self.msn = msn;
        let room = self.saved.len();
        if room == 0 {
            return;
        }
        for kept in kept.iter().flatten() {
            let Kept { first, packets, va, rkey, xrc_srq, msn, what, .. } = *kept;
            let request = match what {
                Carried::Read { len } => CarriedOut::Read { len, until: len },
                Carried::Atomic { value } => CarriedOut::Atomic { value },
                Carried::Written => CarriedOut::Confirmed { flush: false },
                Carried::Flushed => CarriedOut::Confirmed { flush: true },
            };
            // Marked as answered. Otherwise a requester that already has its answer would find no
            // room for the next request.
            let saved = Saved {
                request,
                first,
                packets,
                va,
                rkey,
                xrc_srq,
                msn,
                begin: 0,
                next: packets,
                end: packets,
                answered: true,
            };
            self.saved[self.oldest] = Some(saved);
            self.oldest = (self.oldest + 1) % room;
        }
    }

    pub(super) fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    /// A packet must be acknowledged.
    pub(super) fn acknowledge(&mut self) {
        if matches!(self.last, Answer::None | Answer::AckAgain(_)) {
            self.last = Answer::Ack;
        }
    }

    /// Packet `psn` of a SEND or WRITE is a duplicate and is acknowledged again, together with all
    /// that came after it. The ACK must not pass a later READ or atomic: its answer may be what was
    /// lost, and the requester will ask for it again.
    pub(super) fn acknowledge_again(&mut self, psn: Psn, expected: Psn) {
        let next = self.saved.iter().flatten().map(|saved| saved.first).filter(|first| psn.is_before(*first));
        let until = next.fold(expected, |end, first| if first.is_before(end) { first } else { end }) - 1;
        match self.last {
            Answer::None => self.last = Answer::AckAgain(until),
            Answer::AckAgain(before) if before.is_before(until) => self.last = Answer::AckAgain(until),
            _ => {}
        }
    }

    /// The packet that a pending NAK asks for has arrived.
    pub(super) fn take_back_nak(&mut self) {
        if matches!(self.last, Answer::SequenceNak | Answer::RnrNak) {
            // Earlier packets have been received, and perhaps they are not acknowledged yet.
            self.last = Answer::Ack;
        }
    }

    /// A READ or atomic was carried out: answers and remembers it.
    pub(super) fn answer(
        &mut self,
        first: Psn,
        packets: u32,
        (va, rkey, xrc_srq): (u64, u32, u32),
        request: CarriedOut,
    ) {
        self.count_message();
        let place = &mut self.saved[self.oldest];
        if place.is_some_and(|old| old.next != old.end) {
            self.unsent -= 1;
        }
        let msn = self.msn;
        *place = Some(Saved {
            request,
            first,
            packets,
            va,
            rkey,
            xrc_srq,
            msn,
            begin: 0,
            next: 0,
            end: packets,
            answered: false,
        });
        self.oldest = (self.oldest + 1) % self.saved.len();
        self.unsent += 1;
        // The answer's number acknowledges everything before.
        self.last = Answer::None;
    }

    /// Finds the remembered request that has packet `psn`, newest first, and the packet's position
    /// in it.
    fn find(&mut self, psn: Psn) -> Option<(&mut Saved, u32)> {
        let (newer, older) = self.saved.split_at_mut(self.oldest);
        let newest_first = newer.iter_mut().rev().chain(older.iter_mut().rev());
        newest_first.flatten().map(|saved| (psn - saved.first, saved)).find_map(|(packet, saved)| {
            let found = packet < saved.packets;
            found.then_some((saved, packet))
        })
    }

    /// Repeats the answer to an atomic. Returns false if it is not remembered.
    pub(super) fn repeat_atomic(&mut self, headers: &Headers) -> bool {
        let wire::AtomicEth { va, rkey, .. } = headers.atomic;
        match self.find(headers.psn) {
            Some((saved, _))
                if matches!(saved.request, CarriedOut::Atomic { .. }) && (saved.va, saved.rkey) == (va, rkey) =>
            {
                let sent = saved.again(0, 1);
                self.unsent += usize::from(sent);
                true
            }
            _ => false,
        }
    }

    /// Repeats the answer to an ATOMIC WRITE or FLUSH. Returns false if it is not remembered.
    pub(super) fn repeat_confirmation(&mut self, headers: &Headers) -> bool {
        let wire::Reth { va, rkey, .. } = headers.reth;
        let Some((saved, _)) = self.find(headers.psn) else { return false };
        let same = matches!(saved.request, CarriedOut::Confirmed { flush } if flush == headers.opcode.is_flush());
        if !same || (saved.va, saved.rkey) != (va, rkey) {
            return false;
        }
        let sent = saved.again(0, 1);
        self.unsent += usize::from(sent);
        true
    }

    /// Answers a READ again, in full or in part. Returns false if it is not remembered, or if this
    /// is another READ.
    pub(super) fn repeat_read(&mut self, headers: &Headers, mtu: u32) -> bool {
        let wire::Reth { va, rkey, len } = headers.reth;
        let Some((saved, packet)) = self.find(headers.psn) else { return false };
        let CarriedOut::Read { len: whole, until } = &mut saved.request else { return false };
        let offset = packet * mtu;
        let same = saved.rkey == rkey && saved.va.wrapping_add(offset.into()) == va;
        if !same || len > *whole - offset {
            return false;
        }
        *until = offset + len;
        let sent = saved.again(packet, packet + len.div_ceil(mtu).max(1));
        self.unsent += usize::from(sent);
        true
    }

    /// Whether an ACK is the only pending answer.
    pub(super) fn only_ack(&self) -> bool {
        self.unsent == 0 && matches!(self.last, Answer::Ack)
    }

    /// Whether the answer to a READ or atomic waits to be sent.
    pub(super) fn owes_data(&self) -> bool {
        self.unsent > 0
    }

    /// Whether the answer to a READ waits to be sent.
    pub(super) fn owes_read(&self) -> bool {
        let waits = |saved: &Saved| matches!(saved.request, CarriedOut::Read { .. }) && saved.next != saved.end;
        self.unsent > 0 && self.saved.iter().flatten().any(waits)
    }

    pub(super) fn any(&self) -> bool {
        self.unsent > 0 || !matches!(self.last, Answer::None)
    }

    #[inline(always)]
    pub(super) fn poll(&mut self, config: &ResponderConfig, expected: Psn, most: u32) -> Option<Response> {
        if self.unsent > 0 {
            return self.poll_saved(config, most);
        }
        let (syndrome, psn) = match self.last {
            Answer::None => return None,
            Answer::Ack => (Syndrome::ACK, expected - 1),
            Answer::AckAgain(until) => (Syndrome::ACK, until),
            Answer::SequenceNak => (Syndrome::Nak(NakCode::PsnSequence), expected),
            Answer::RnrNak => (Syndrome::RnrNak(config.min_rnr_timer), expected),
            Answer::FatalNak(nak, psn) => (Syndrome::Nak(nak.into()), psn),
        };
        self.taken = Taken::Last(std::mem::take(&mut self.last));
        let aeth = Aeth { syndrome, msn: self.msn };
        Some(response(config, Operation::Acknowledge, psn, aeth, ResponseData::None))
    }

    fn poll_saved(&mut self, config: &ResponderConfig, most: u32) -> Option<Response> {
        let count = self.saved.len();
        let of = (self.oldest..self.oldest + count)
            .map(|index| index % count)
            .find(|&index| self.saved[index].is_some_and(|saved| saved.next != saved.end))?;
        let saved = self.saved[of].as_mut()?;
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: saved.msn };
        let psn = saved.first + saved.next;
        let (mut count, mut atomic_ack) = (1, 0);
        let (operation, source) = match saved.request {
            CarriedOut::Atomic { value } => {
                atomic_ack = value;
                (Operation::AtomicAcknowledge, ResponseData::None)
            }
            CarriedOut::Confirmed { .. } => (Operation::ReadResponseOnly, ResponseData::None),
            CarriedOut::Read { until, .. } => {
                let operation = match Place::of(saved.next == saved.begin, saved.next + 1 == saved.end) {
                    Place::First => Operation::ReadResponseFirst,
                    Place::Middle => {
                        count = (saved.end - 1 - saved.next).min(most.max(1));
                        Operation::ReadResponseMiddle
                    }
                    Place::Last => Operation::ReadResponseLast,
                    Place::Only => Operation::ReadResponseOnly,
                };
                let offset = saved.next * config.mtu;
                let len = (until - offset).min(config.mtu);
                let source = ResponseData::Read { va: saved.va, rkey: saved.rkey, offset, len, xrc_srq: saved.xrc_srq };
                (operation, source)
            }
        };
        let response = Response { count, atomic_ack, ..response(config, operation, psn, aeth, source) };
        self.taken = Taken::Packets { of, count, answered: saved.answered };
        saved.next += count;
        if saved.next == saved.end {
            saved.answered = true;
            self.unsent -= 1;
        }
        Some(response)
    }

    /// Takes back what was polled last, except for the first `sent` packets.
    pub(super) fn unpoll(&mut self, sent: u32) {
        match std::mem::take(&mut self.taken) {
            Taken::Nothing => {}
            Taken::Last(answer) => self.last = answer,
            Taken::Packets { of, count, answered } => {
                if let Some(saved) = &mut self.saved[of] {
                    self.unsent += usize::from(saved.next == saved.end);
                    saved.next -= count - sent.min(count);
                    saved.answered = answered;
                }
            }
        }
    }

    /// The READ whose packets were polled last cannot be read: `sent` of them were sent, and not
    /// the next one. Returns its number if the requester must get a NAK. Then all other answers are
    /// dropped.
    pub(super) fn give_up_read(&mut self, sent: u32) -> Option<Psn> {
        self.drop_packets(sent).and_then(|(psn, answered)| {
            if answered {
                return None;
            }
            for saved in self.saved.iter_mut().flatten() {
                saved.next = saved.end;
            }
            self.unsent = 0;
            Some(psn)
        })
    }

    /// Drops the packets that were polled last but for the first `sent`, and all later packets of
    /// their answer. Returns the number of the first packet that was dropped.
    fn drop_packets(&mut self, sent: u32) -> Option<(Psn, bool)> {
        let Taken::Packets { of, count, answered } = std::mem::take(&mut self.taken) else { return None };
        let saved = self.saved[of].as_mut()?;
        let psn = saved.first + (saved.next - count + sent.min(count - 1));
        if saved.next != saved.end {
            saved.next = saved.end;
            self.unsent -= 1;
        }
        Some((psn, answered))
    }
}

impl Saved {
    /// Sends packets `[begin, end)` again. Returns true if no packet of this answer was waiting to
    /// be sent.
    fn again(&mut self, begin: u32, end: u32) -> bool {
        let idle = self.next == self.end;
        (self.begin, self.next, self.end) = (begin, begin, end);
        idle
    }
}

#[inline]
fn response(config: &ResponderConfig, operation: Operation, psn: Psn, aeth: Aeth, source: ResponseData) -> Response {
    Response { opcode: Opcode::new(config.service.transport(), operation), psn, count: 1, aeth, atomic_ack: 0, source }
}
