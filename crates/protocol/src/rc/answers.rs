//! What an RC responder still has to say, in order: answers to READs, atomics, ATOMIC WRITEs and FLUSHes, each remembered in case it is asked for again,
//! and behind them one ACK or NAK. Principal type: [`Answers`]. IBA 9.7.5.1 (acknowledging), 9.7.5.2.6 (repetitions), C9-150 (what
//! is remembered).
//!
//! An answer's number answers all packets before it, so an ACK may be held back and joined with later ones, but must never pass
//! a READ or atomic that is not answered: hence one place for it, behind them all.

use super::standing::KEPT;
use crate::{Nak, ResponderConfig, Response, Source};
use wire::{Aeth, Headers, NakCode, Opcode, Operation, Place, Psn, Syndrome};

/// A READ or an atomic that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// Read `len` bytes, of which those before `until` were asked for last.
    Read { len: u32, until: u32 },
    /// The word was this.
    Atomic { value: u64 },
    /// It is done, and there is no more to say: ATOMIC WRITE, or FLUSH.
    Confirmed { flush: bool },
}

/// A request that is remembered, and how far its answer has been sent.
#[derive(Clone, Copy, Debug)]
struct Saved {
    request: Request,
    /// Its numbers: `packets` of them from `first` on.
    first: Psn,
    packets: u32,
    va: u64,
    rkey: u32,
    xrc_srq: u32,
    msn: u32,
    /// The answer, as it was asked for last: from `begin`, next to send is `next`, up to `end`. Packets behind `first`.
    begin: u32,
    next: u32,
    end: u32,
    /// It was answered in full at least once.
    answered: bool,
}

/// What was carried out, and what its answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A READ of so many bytes.
    Read {
        /// How many bytes.
        len: u32,
    },
    /// An atomic.
    Atomic {
        /// What the word was.
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

/// A request with an answer of its own that was carried out, for [`super::standing::Standing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of its first answer.
    pub first: Psn,
    /// How many packets the answer has.
    pub packets: u32,
    /// Where the memory is.
    pub va: u64,
    /// The key that opened it.
    pub rkey: u32,
    /// The shared receive queue on whose domain the key is.
    pub xrc_srq: u32,
    /// Messages completed with it.
    pub msn: u32,
    /// What it was.
    pub what: Carried,
    /// It was answered in full.
    pub answered: bool,
}

/// What follows the answers to READs and atomics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Answer {
    #[default]
    None,
    /// Everything before the awaited packet has come.
    Ack,
    /// This packet was repeated, and has come before.
    AckAgain(Psn),
    /// The awaited packet is missing.
    SequenceNak,
    /// The awaited packet needs a receive request.
    RnrNak,
    /// The packet of this number is refused.
    FatalNak(Nak, Psn),
}

/// What the last poll took.
#[derive(Clone, Copy, Debug, Default)]
enum Taken {
    #[default]
    Nothing,
    Packet {
        of: usize,
        answered: bool,
    },
    Last(Answer),
}

/// Everything that is still to be said.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The last requests, a ring.
    saved: Box<[Option<Saved>]>,
    /// Where the next one goes: over the oldest.
    oldest: usize,
    /// How many of them have something to send.
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

    /// Whether one more READ or atomic may come. The place that it takes must have been answered: then a requester that keeps to
    /// the agreed number has gone on from there.
    pub(crate) fn has_room(&self) -> bool {
        self.saved.get(self.oldest).is_some_and(|place| place.is_none_or(|saved| saved.answered))
    }

    /// What is remembered, oldest first; the newest ones where that is too much.
    pub(super) fn kept(&self) -> [Option<Kept>; KEPT] {
        let (newer, older) = self.saved.split_at(self.oldest.min(self.saved.len()));
        let all = older.iter().chain(newer).flatten();
        let too_old = all.clone().count().saturating_sub(KEPT);
        let mut kept = [None; KEPT];
        for (place, saved) in kept.iter_mut().zip(all.skip(too_old)) {
            let what = match saved.request {
                Request::Read { len, .. } => Carried::Read { len },
                Request::Atomic { value } => Carried::Atomic { value },
                Request::Confirmed { flush: false } => Carried::Written,
                Request::Confirmed { flush: true } => Carried::Flushed,
            };
            let Saved { first, packets, va, rkey, xrc_srq, msn, answered, .. } = *saved;
            *place = Some(Kept { first, packets, va, rkey, xrc_srq, msn, what, answered });
        }
        kept
    }

    /// Remembers that, with nothing to send: whoever misses an answer asks for it again.
    pub(super) fn restore(&mut self, msn: u32, kept: &[Option<Kept>]) {
        self.msn = msn;
        let room = self.saved.len();
        if room == 0 {
            return;
        }
        for kept in kept.iter().flatten() {
            let Kept { first, packets, va, rkey, xrc_srq, msn, what, .. } = *kept;
            let request = match what {
                Carried::Read { len } => Request::Read { len, until: len },
                Carried::Atomic { value } => Request::Atomic { value },
                Carried::Written => Request::Confirmed { flush: false },
                Carried::Flushed => Request::Confirmed { flush: true },
            };
            // Answered, for else a requester that has had its answer would find no room for the next one.
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

    /// Something is to be acknowledged.
    pub(super) fn acknowledge(&mut self) {
        if matches!(self.last, Answer::None | Answer::AckAgain(_)) {
            self.last = Answer::Ack;
        }
    }

    /// A SEND or WRITE is to be acknowledged again, packet `psn` of it, and with it what came behind; but not a READ or atomic
    /// that came behind: it was answered, but that is perhaps what was lost, and it will be asked for again.
    pub(super) fn acknowledge_again(&mut self, psn: Psn, expected: Psn) {
        let next = self.saved.iter().flatten().map(|saved| saved.first).filter(|first| psn.is_before(*first));
        let until = next.fold(expected, |end, first| if first.is_before(end) { first } else { end }) - 1;
        match self.last {
            Answer::None => self.last = Answer::AckAgain(until),
            Answer::AckAgain(before) if before.is_before(until) => self.last = Answer::AckAgain(until),
            _ => {}
        }
    }

    /// The packet that a waiting NAK asks for has come.
    pub(super) fn take_back_nak(&mut self) {
        if matches!(self.last, Answer::SequenceNak | Answer::RnrNak) {
            // What came before has been received, and perhaps nobody has said so yet.
            self.last = Answer::Ack;
        }
    }

    /// A READ or atomic was carried out: answer it, and remember it.
    pub(super) fn answer(&mut self, first: Psn, packets: u32, (va, rkey, xrc_srq): (u64, u32, u32), request: Request) {
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
        // The answer's number says that everything before has come.
        self.last = Answer::None;
    }

    /// The remembered request that has packet `psn`, newest first, and how far into it that is.
    fn find(&mut self, psn: Psn) -> Option<(&mut Saved, u32)> {
        let (newer, older) = self.saved.split_at_mut(self.oldest);
        let newest_first = newer.iter_mut().rev().chain(older.iter_mut().rev());
        newest_first.flatten().map(|saved| (psn - saved.first, saved)).find_map(|(packet, saved)| {
            let found = packet < saved.packets;
            found.then_some((saved, packet))
        })
    }

    /// Answers an atomic again, as the first time. False when it is not remembered.
    pub(super) fn repeat_atomic(&mut self, headers: &Headers) -> bool {
        let wire::AtomicEth { va, rkey, .. } = headers.atomic;
        match self.find(headers.psn) {
            Some((saved, _))
                if matches!(saved.request, Request::Atomic { .. }) && (saved.va, saved.rkey) == (va, rkey) =>
            {
                let sent = saved.again(0, 1);
                self.unsent += usize::from(sent);
                true
            }
            _ => false,
        }
    }

    /// Answers an ATOMIC WRITE or FLUSH again, as the first time. False when it is not remembered.
    pub(super) fn repeat_confirmation(&mut self, headers: &Headers) -> bool {
        let wire::Reth { va, rkey, .. } = headers.reth;
        let Some((saved, _)) = self.find(headers.psn) else { return false };
        let same = matches!(saved.request, Request::Confirmed { flush } if flush == headers.opcode.is_flush());
        if !same || (saved.va, saved.rkey) != (va, rkey) {
            return false;
        }
        let sent = saved.again(0, 1);
        self.unsent += usize::from(sent);
        true
    }

    /// Answers a READ again, all of it or a part. False when it is not remembered, or was another READ.
    pub(super) fn repeat_read(&mut self, headers: &Headers, mtu: u32) -> bool {
        let wire::Reth { va, rkey, len } = headers.reth;
        let Some((saved, packet)) = self.find(headers.psn) else { return false };
        let Request::Read { len: whole, until } = &mut saved.request else { return false };
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

    /// Whether an ACK is all that there is to say.
    pub(super) fn only_ack(&self) -> bool {
        self.unsent == 0 && matches!(self.last, Answer::Ack)
    }

    /// What is left to say is said.
    pub(super) fn said(&mut self) {
        self.taken = Taken::Last(std::mem::take(&mut self.last));
    }

    pub(super) fn any(&self) -> bool {
        self.unsent > 0 || !matches!(self.last, Answer::None)
    }

    pub(super) fn poll(&mut self, config: &ResponderConfig, expected: Psn) -> Option<Response> {
        if self.unsent > 0 {
            return self.poll_saved(config);
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
        Some(Response { headers: headers(config, Operation::Acknowledge, psn, aeth), source: Source::None })
    }

    fn poll_saved(&mut self, config: &ResponderConfig) -> Option<Response> {
        let count = self.saved.len();
        let of = (self.oldest..self.oldest + count)
            .map(|index| index % count)
            .find(|&index| self.saved[index].is_some_and(|saved| saved.next != saved.end))?;
        let saved = self.saved[of].as_mut()?;
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: saved.msn };
        let psn = saved.first + saved.next;
        let response = match saved.request {
            Request::Atomic { value } => {
                let headers = Headers { atomic_ack: value, ..headers(config, Operation::AtomicAcknowledge, psn, aeth) };
                Response { headers, source: Source::None }
            }
            Request::Confirmed { .. } => {
                let headers = headers(config, Operation::ReadResponseOnly, psn, aeth);
                Response { headers, source: Source::None }
            }
            Request::Read { until, .. } => {
                let operation = match Place::of(saved.next == saved.begin, saved.next + 1 == saved.end) {
                    Place::First => Operation::ReadResponseFirst,
                    Place::Middle => Operation::ReadResponseMiddle,
                    Place::Last => Operation::ReadResponseLast,
                    Place::Only => Operation::ReadResponseOnly,
                };
                let offset = saved.next * config.mtu;
                let len = (until - offset).min(config.mtu);
                let source = Source::Read { va: saved.va, rkey: saved.rkey, offset, len, xrc_srq: saved.xrc_srq };
                Response { headers: headers(config, operation, psn, aeth), source }
            }
        };
        self.taken = Taken::Packet { of, answered: saved.answered };
        saved.next += 1;
        if saved.next == saved.end {
            saved.answered = true;
            self.unsent -= 1;
        }
        Some(response)
    }

    pub(super) fn unpoll(&mut self) {
        match std::mem::take(&mut self.taken) {
            Taken::Nothing => {}
            Taken::Last(answer) => self.last = answer,
            Taken::Packet { of, answered } => {
                if let Some(saved) = &mut self.saved[of] {
                    self.unsent += usize::from(saved.next == saved.end);
                    saved.next -= 1;
                    saved.answered = answered;
                }
            }
        }
    }

    /// The READ whose packet was polled last cannot be read. Its number, if the requester must be told: then nothing else is
    /// said any more.
    pub(super) fn give_up_read(&mut self) -> Option<Psn> {
        self.unpoll_packet().and_then(|(psn, answered)| {
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

    /// Takes the packet that was polled last, and all that follow it in its answer, off what is to be said.
    fn unpoll_packet(&mut self) -> Option<(Psn, bool)> {
        let Taken::Packet { of, answered } = std::mem::take(&mut self.taken) else { return None };
        let saved = self.saved[of].as_mut()?;
        let psn = saved.first + (saved.next - 1);
        if saved.next != saved.end {
            saved.next = saved.end;
            self.unsent -= 1;
        }
        Some((psn, answered))
    }
}

impl Saved {
    /// Sends packets `[begin, end)` again. True if nothing of it was waiting to be sent.
    fn again(&mut self, begin: u32, end: u32) -> bool {
        let idle = self.next == self.end;
        (self.begin, self.next, self.end) = (begin, begin, end);
        idle
    }
}

fn headers(config: &ResponderConfig, operation: Operation, psn: Psn, aeth: Aeth) -> Headers {
    let opcode = Opcode::new(config.service.transport(), operation);
    let (dest_qp, pkey, migrated) = (config.dest_qp, config.pkey, config.migrated);
    Headers { opcode, psn, dest_qp, pkey, migrated, aeth, ..Headers::default() }
}
