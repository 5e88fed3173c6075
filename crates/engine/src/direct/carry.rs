//! The initiator's side of direct access: carries out the next request in the calling thread, while
//! nothing of its QP is under way.
//!
//! Requests that do not fit a grant go over the lane, which reports the official error for them.
//! Principal method: [`Qp::go_direct`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::mr::access as right;
use abi::post::Sge;
use protocol::{Operation, SendOp, Service, Status};
use shm::life::ENDED;
use shm::{Sink, Source};

use super::{Ask, RemoteGrant};
use crate::access::{self, Atomic, HeldRegion, Refusal, beyond};
use crate::grant_table::{LIFE, LINE, field};
use crate::memory::SendBrief;
use crate::qp::{Inner, Qp, Route};
use crate::special::Special;
use crate::usermem::guarded::{GuardWord, NotDone};

/// The engine asks for a grant of a key after this many uses, and again each time the number of
/// uses has grown by this factor. If the peer has granted another key, the engine also asks at the
/// first use.
const WORTH: u32 = 8;
/// The most asks at the first use of a key, for each queue pair. A queue pair that uses many keys in
/// turn would ask all the time.
const FIRST_ASKS: u8 = 16;
/// After this many uses of a key, with two asks, the key counts as hopeless.
const VAIN: u32 = 100;
/// After that, the engine skips this many checks after each one.
const PAUSE: u32 = 15;

/// The memory of this process that a request reads or writes.
pub(crate) enum LocalData<'a, I> {
    /// Inline data in queue memory.
    Inline(Source<'a>),
    /// Inline data where the program has it, without a key.
    Program(Sge),
    /// A gather or scatter list.
    Elements(I),
}

/// The outcome of a request.
pub(super) enum Carried {
    Done,
    /// The atomic has been carried out, but its response cannot be stored.
    Unanswered(Refusal),
    /// This request does not fit.
    Unfit,
    /// The grant is revoked, or the thread is always interrupted.
    Shut,
}

impl Qp {
    /// Carries out the requests that the peer's grants cover. `HELD` then says whether the next
    /// request should wait until it can be carried out directly.
    #[inline]
    pub(crate) fn go_direct(self: &Arc<Self>, inner: &mut Inner) {
        inner.link.special.set(Special::HELD, false);
        if self.service == Service::Rc && inner.requester.may_be_direct() && inner.direct.is_worth_a_look() {
            self.try_direct(inner);
        }
    }

    fn try_direct(self: &Arc<Self>, inner: &mut Inner) {
        let is_special = self.special(inner).has_beside(Special::default());
        let peer = match &inner.link.route {
            Route::Lane(lane) if !is_special && !lane.is_dead() => lane.peer,
            _ => return,
        };
        let now = self.time(inner);
        while let Some(op) = inner.requester.poll_direct(now) {
            let Some(index) = inner.direct.find(op.rkey, peer, inner.attributes.dest_qp_num) else {
                return self.count_use(inner, op.rkey, peer);
            };
            let mut region = HeldRegion::of_qp(self.engine(), &**self, std::mem::take(&mut inner.queues.source));
            let entry: SendBrief = inner.queues.sq.read(op.slot);
            let data = if entry.inline != 0 {
                LocalData::Inline(inner.queues.sq.inline(op.slot, op.length as usize))
            } else {
                LocalData::Elements(inner.queues.sq.elements(op.slot, usize::from(entry.num_sge)))
            };
            let carried = self.carry(&op, &inner.direct.remote_grants[index], data, &mut region);
            inner.queues.source = region.into_kept();
            match carried {
                Carried::Done => {
                    self.count_carried(inner, &op);
                    inner.requester.direct_done(Ok(()));
                }
                Carried::Unanswered(refusal) => self.fail_direct(inner, op.slot, &refusal),
                Carried::Unfit => return,
                Carried::Shut => return drop(inner.direct.remote_grants.remove(index)),
            }
        }
        if let Some(op) = inner.requester.next_direct() {
            match inner.direct.find(op.rkey, peer, inner.attributes.dest_qp_num) {
                Some(index) => {
                    let fits = inner.direct.remote_grants[index].place(&op).is_some();
                    let holds = fits && inner.requester.awaits_only_direct_kinds();
                    inner.link.special.set(Special::HELD, holds);
                }
                None => self.count_use(inner, op.rkey, peer),
            }
        }
    }

    /// Counts a request that was carried out.
    #[inline]
    pub(super) fn count_carried(&self, inner: &mut Inner, op: &SendOp) {
        inner.direct.carried += 1;
        let mtu = inner.mtu_bits();
        inner.traffic.carried(op, mtu);
    }

    /// The response to the atomic that the requester has just returned cannot be stored.
    #[cold]
    pub(super) fn fail_direct(&self, inner: &mut Inner, slot: u32, refusal: &Refusal) {
        self.explain(inner, slot, Status::LocProtErr, refusal, refusal.advice());
        inner.requester.direct_done(Err(Status::LocProtErr));
    }

    #[inline]
    pub(super) fn carry<I>(
        &self,
        op: &SendOp,
        grant: &RemoteGrant,
        data: LocalData<'_, I>,
        region: &mut HeldRegion<'_>,
    ) -> Carried
    where
        I: Iterator<Item = Sge> + Clone,
    {
        let Some(mut place) = grant.place(op) else { return Carried::Unfit };
        if !self.fits(op, &data, region) {
            return Carried::Unfit;
        }
        let word = grant.grant_table.word(grant.line * LINE + field::NUMBER);
        let in_use = grant.grant_table.word(grant.line * LINE + field::IN_USE);
        // Pairs with the fence in `GrantTable::withdraw`: either the guarded copy reads the number
        // 0, or the granter sees that this engine is using the grant.
        if in_use.compare_exchange(0, grant.number, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return Carried::Unfit;
        }
        let guard = GuardWord { word, number: grant.number, life: grant.grant_table.word(LIFE) };
        let mut before = None;
        let done = match (op.operation, &data) {
            (Operation::Write, LocalData::Inline(bytes)) => beyond::put(guard, &place, *bytes),
            (Operation::Write, LocalData::Program(element)) => beyond::put_unkeyed(guard, &place, element),
            (Operation::Write, LocalData::Elements(list)) => {
                beyond::gather(region, self.pd, list.clone(), guard, &mut place)
            }
            (Operation::Read, LocalData::Elements(list)) => {
                beyond::scatter(region, self.pd, list.clone(), guard, place.source())
            }
            (Operation::FetchAdd, _) => {
                beyond::change(guard, &place, Atomic::FetchAdd(op.swap_add)).map(|value| before = Some(value))
            }
            _ => {
                let what = Atomic::CompareSwap { compare: op.compare, swap: op.swap_add };
                beyond::change(guard, &place, what).map(|value| before = Some(value))
            }
        };
        // Release: pairs with the granter's acquire. Clears only this grant's number, because
        // another grant may have the line by now.
        let _ = in_use.compare_exchange(grant.number, 0, Ordering::Release, Ordering::Relaxed);
        match (done, before, data) {
            (Ok(()), Some(value), LocalData::Elements(list)) => {
                let bytes = value.to_ne_bytes();
                let stored = access::scatter(region, self.pd, list, 0, Source::from(&bytes[..]));
                stored.map_or_else(Carried::Unanswered, |()| Carried::Done)
            }
            (Ok(()), ..) => Carried::Done,
            // The grant is useless if its copies never succeed, and it would make each request wait
            // for the one before.
            (Err(NotDone::Revoked | NotDone::Interrupted), ..) => Carried::Shut,
            (Err(NotDone::Fault), ..) => Carried::Unfit,
        }
    }

    /// Whether the local memory of a request has the right length, and can be accessed as far as
    /// that is known.
    #[inline]
    fn fits<I>(&self, op: &SendOp, data: &LocalData<'_, I>, region: &mut HeldRegion<'_>) -> bool
    where
        I: Iterator<Item = Sge> + Clone,
    {
        let is_write = op.operation == Operation::Write;
        let LocalData::Elements(list) = data else { return is_write };
        let room: u64 = list.clone().map(|sge| u64::from(sge.length)).sum();
        // The response to an atomic may have a larger buffer than needed.
        let fits = room == u64::from(op.length) || (op.operation.is_atomic() && room > u64::from(op.length));
        fits && beyond::is_sound(region, self.pd, list.clone(), !is_write)
    }

    /// A key was used for which there is no grant.
    fn count_use(&self, inner: &mut Inner, key: u32, peer: u32) {
        if inner.direct.count(key, || self.engine().direct.knows(peer)) {
            let ask = Ask { engine: peer, qpn: self.qpn(), dest: inner.attributes.dest_qp_num, key };
            self.engine().ask_for_way(ask);
        }
    }
}

impl RemoteGrant {
    /// Whether the grant is still valid; it may be revoked at any time.
    pub(super) fn is_open(&self) -> bool {
        let ended = self.grant_table.word(LIFE).load(Ordering::Relaxed) & ENDED != 0;
        !ended && self.grant_table.word(self.line * LINE + field::NUMBER).load(Ordering::Relaxed) == self.number
    }

    /// Where the request's memory lies in this process, if the grant covers all of it for this
    /// operation.
    fn place(&self, op: &SendOp) -> Option<Sink<'_>> {
        let (needed, align) = match op.operation {
            Operation::Write => (right::REMOTE_WRITE, 1),
            Operation::Read => (right::REMOTE_READ, 1),
            _ => (right::REMOTE_ATOMIC, 8),
        };
        let offset = op.remote_addr.checked_sub(self.addr)?;
        let place = self.share.sink(offset, u64::from(op.length))?;
        // Both the peer's address for the memory and the local one must be aligned; they may
        // differ.
        let aligned = op.remote_addr.is_multiple_of(align) && (place.start().addr() as u64).is_multiple_of(align);
        (aligned && op.length != 0 && self.rights & needed != 0).then_some(place)
    }
}

impl super::DirectState {
    /// Whether to check for direct access at all. QPs that never use it must not pay for the check.
    #[inline]
    fn is_worth_a_look(&mut self) -> bool {
        let worth = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        worth
    }

    /// Counts a use of a key; returns whether to ask for a grant now.
    fn count(&mut self, key: u32, knows_peer: impl FnOnce() -> bool) -> bool {
        let place = self.uses.iter().position(|(of, _)| *of == key).unwrap_or_else(|| {
            self.next = (self.next + 1) % self.uses.len();
            self.uses[self.next] = (key, 0);
            self.next
        });
        let count = &mut self.uses[place].1;
        *count = count.saturating_add(1);
        if *count > VAIN && self.remote_grants.is_empty() {
            self.pause = PAUSE;
        }
        if *count == 1 {
            let asks = self.first_asks < FIRST_ASKS && knows_peer();
            self.first_asks += u8::from(asks);
            return asks;
        }
        // At 8, 64, 512 …: an ask may be lost, and a refused grant may be given later.
        count.is_power_of_two() && *count >= WORTH && count.trailing_zeros().is_multiple_of(WORTH.trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::super::DirectState;

    #[test]
    fn a_known_peer_is_asked_at_the_first_use_and_any_peer_after_a_few() {
        let asks = |knows_peer: bool| {
            let mut state = DirectState::default();
            (1..=64).filter(|_| state.count(7, || knows_peer)).count()
        };
        assert_eq!(asks(false), 2, "at 8 and 64");
        assert_eq!(asks(true), 3, "at 1, 8 and 64");
        let mut state = DirectState::default();
        assert!(state.count(7, || true) && state.count(9, || true) && !state.count(7, || true));
    }
}
