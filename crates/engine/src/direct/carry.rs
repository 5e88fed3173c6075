//! The initiator's side of direct: a request whose turn it is, while nothing of its QP is under way, is carried out here and now.
//!
//! Whatever does not fit goes by the lane, which knows the official error for it. Principal method: [`Qp::go_direct`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::mr::access as right;
use protocol::{Operation, SendOp, Service, Status};
use shm::life::ENDED;

use super::grant_table::{LIFE, LINE, field};
use super::{Ask, Way};
use crate::access::{self, Atomic, beyond};
use crate::qp::{Inner, Qp, Route};
use crate::usermem::guarded::{GuardWord, NotDone};
use crate::wqe::SendBrief;

/// A key is asked for when it was used so often, and then each time when it was used so many times as often.
const WORTH: u32 = 8;
/// After so many uses of a key, for which it was asked twice, it counts as hopeless.
const VAIN: u32 = 100;
/// Then so many looks are left out after each one.
const PAUSE: u32 = 15;

/// How a request went.
enum Carried {
    Done,
    Failed(Status),
    /// Not this one.
    Unfit,
    /// The grant holds no more, or nothing comes of it.
    Shut,
}

impl Qp {
    /// Carries out what can be carried out on the peer's memory, and says in `direct.holds` whether what comes next should wait until it can.
    #[inline]
    pub(crate) fn go_direct(self: &Arc<Self>, inner: &mut Inner) {
        inner.direct.holds = false;
        if self.service == Service::Rc
            && inner.requester.may_go_alone()
            && self.engine().direct.is_on()
            && inner.direct.is_worth_a_look()
        {
            self.try_direct(inner);
        }
    }

    fn try_direct(self: &Arc<Self>, inner: &mut Inner) {
        let engine = self.engine();
        let odd = inner.on_wire
            || inner.lossy
            || inner.pace.is_some()
            || inner.ruled
            || engine.is_capturing()
            || engine.lint().is_some();
        let peer = match &inner.route {
            Route::Lane(lane) if !odd && !lane.is_dead() => lane.peer,
            _ => return,
        };
        let now = self.time(inner);
        while let Some(op) = inner.requester.poll_alone(now) {
            let Some(index) = inner.direct.find(op.rkey, peer, inner.attributes.dest_qp_num) else {
                return self.count_use(inner, op.rkey, peer);
            };
            let way = Arc::clone(&inner.direct.ways[index]);
            match self.carry(inner, &op, &way) {
                Carried::Done => {
                    inner.direct.carried += 1;
                    inner.requester.alone_done(Ok(()));
                }
                Carried::Failed(status) => inner.requester.alone_done(Err(status)),
                Carried::Unfit => return,
                Carried::Shut => return drop(inner.direct.ways.remove(index)),
            }
        }
        if let Some(op) = inner.requester.next_fit() {
            match inner.direct.find(op.rkey, peer, inner.attributes.dest_qp_num) {
                Some(index) => {
                    let fits = inner.direct.ways[index].place(&op).is_some();
                    inner.direct.holds = fits && inner.requester.awaits_alike();
                }
                None => self.count_use(inner, op.rkey, peer),
            }
        }
    }

    fn carry(&self, inner: &Inner, op: &SendOp, way: &Way) -> Carried {
        let Some(place) = way.place(op) else { return Carried::Unfit };
        let entry: SendBrief = inner.sq.read(op.slot);
        let engine = self.engine();
        let elements = || (0..usize::from(entry.num_sge)).map(|number| inner.sq.element(op.slot, number));
        let inline = entry.inline != 0;
        let write = op.operation != Operation::Write;
        let room: u64 = elements().map(|sge| u64::from(sge.length)).sum();
        // The answer to an atomic may have more room than it takes.
        let fits = inline || room == u64::from(op.length) || (op.operation.is_atomic() && room > u64::from(op.length));
        if !fits || (!inline && !beyond::is_sound(engine, self.pd, elements(), write)) {
            return Carried::Unfit;
        }
        let word = way.grant_table.word(way.line * LINE + field::NUMBER);
        let at_it = way.grant_table.word(way.line * LINE + field::AT_IT);
        // Pairs with the fence in `GrantTable::withdraw`: either the guarded copy's look finds the number 0, or the granter finds us at it.
        if at_it.compare_exchange(0, way.number, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return Carried::Unfit;
        }
        let guard = GuardWord { word, number: way.number, life: way.grant_table.word(LIFE) };
        let mut before = None;
        let done = match op.operation {
            Operation::Write if inline => {
                beyond::put(guard, place, inner.sq.inline(op.slot, op.length as usize), op.length as usize)
            }
            Operation::Write => beyond::gather(engine, self.pd, elements(), guard, place),
            Operation::Read => beyond::scatter(engine, self.pd, elements(), guard, place),
            Operation::FetchAdd => {
                beyond::change(guard, place, Atomic::FetchAdd(op.swap_add)).map(|value| before = Some(value))
            }
            _ => {
                let what = Atomic::CompareSwap { compare: op.compare, swap: op.swap_add };
                beyond::change(guard, place, what).map(|value| before = Some(value))
            }
        };
        // Release: pairs with the granter's acquire. Only our own: the line may be another's by now.
        let _ = at_it.compare_exchange(way.number, 0, Ordering::Release, Ordering::Relaxed);
        match done {
            Ok(()) => {}
            // Of no use to one who never comes through, and who would have each request wait for the one before.
            Err(NotDone::Revoked | NotDone::Interrupted) => return Carried::Shut,
            Err(NotDone::Fault) => return Carried::Unfit,
        }
        let Some(value) = before else { return Carried::Done };
        // It was done, whatever becomes of the answer.
        let value = value.to_ne_bytes();
        match access::scatter(engine, self.pd, elements(), (0, value.len() as u32), value.as_ptr()) {
            Ok(()) => Carried::Done,
            Err(refusal) => {
                self.explain(inner, op.slot, Status::LocProtErr, &refusal, refusal.advice());
                Carried::Failed(Status::LocProtErr)
            }
        }
    }

    /// A key was used for which there is no grant.
    fn count_use(&self, inner: &mut Inner, key: u32, peer: u32) {
        if inner.direct.count(key) {
            let ask = Ask { engine: peer, qpn: self.qpn(), dest: inner.attributes.dest_qp_num, key };
            self.engine().ask_for_way(ask);
        }
    }
}

impl Way {
    /// Whether the grant still holds, which may have changed by the time that the caller knows.
    pub(super) fn is_open(&self) -> bool {
        let ended = self.grant_table.word(LIFE).load(Ordering::Relaxed) & ENDED != 0;
        !ended && self.grant_table.word(self.line * LINE + field::NUMBER).load(Ordering::Relaxed) == self.number
    }

    /// Where the request's memory lies in this process, if all of it is granted, for that.
    fn place(&self, op: &SendOp) -> Option<*mut u8> {
        let (needed, align) = match op.operation {
            Operation::Write => (right::REMOTE_WRITE, 1),
            Operation::Read => (right::REMOTE_READ, 1),
            _ => (right::REMOTE_ATOMIC, 8),
        };
        let offset = op.remote_addr.checked_sub(self.addr)?;
        let place = self.share.pointer(offset, u64::from(op.length))?;
        // Both the address that the peer has given it and its own: they may differ.
        let aligned = op.remote_addr.is_multiple_of(align) && (place.addr() as u64).is_multiple_of(align);
        (aligned && op.length != 0 && self.rights & needed != 0).then_some(place)
    }
}

impl super::Ways {
    /// Whether it is to be looked at all: those who never come to go direct must not pay for it.
    #[inline]
    fn is_worth_a_look(&mut self) -> bool {
        let worth = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        worth
    }

    /// Counts a use of a key; whether it is time to ask for it.
    fn count(&mut self, key: u32) -> bool {
        let place = self.uses.iter().position(|(of, _)| *of == key).unwrap_or_else(|| {
            self.next = (self.next + 1) % self.uses.len();
            self.uses[self.next] = (key, 0);
            self.next
        });
        let count = &mut self.uses[place].1;
        *count = count.saturating_add(1);
        if *count > VAIN && self.ways.is_empty() {
            self.pause = PAUSE;
        }
        // 8, 64, 512 …: an ask may be lost, and what was refused may be granted later.
        count.is_power_of_two() && *count >= WORTH && count.trailing_zeros().is_multiple_of(WORTH.trailing_zeros())
    }
}
