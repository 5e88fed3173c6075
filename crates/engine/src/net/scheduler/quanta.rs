//! How a connection respects the window: when it sends, how much, and when it waits in line. Adds
//! to [`Qp`] and [`Engine`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::{Service, Time};
use udp::BATCH_MAX;

use super::{PLACES, SINGLE, STILL, Scheduled, SendScheduler, load};
use crate::engine::Engine;
use crate::net::peer::Peer;
use crate::qp::{Flow, Inner, Qp, Route};

/// Bytes of a middle packet beside its payload: a BTH and an ICRC.
const MIDDLE: u32 = 16;
/// Messages of this many packets leave and arrive in bursts.
const LONG: u32 = 4;
/// A quantum may be longer by this many packets if the message ends with them. Otherwise a later
/// quantum would need a system call for this rest. The first packet of a WRITE is longer, so it and
/// the packet after it need a call of their own anyway.
const REST: u32 = 2;

/// How many packets a window allows under way, and what one packet takes.
#[derive(Clone, Copy, Debug)]
struct Measure {
    window: u32,
    mtu: u32,
    places: u32,
}

impl Measure {
    fn of<Q>(peer: &Peer<Q>, mtu: u32, long: bool) -> Self {
        Self { window: peer.window.bytes(), mtu: mtu.max(1), places: if long { 1 } else { SINGLE } }
    }

    /// Packets of all connections together.
    fn whole(&self) -> u32 {
        (self.window / self.mtu).min(PLACES / self.places).max(1)
    }

    /// Packets for which there is room now.
    fn room<Q>(&self, scheduler: &SendScheduler<Q>) -> u32 {
        let bytes = self.window.saturating_sub(scheduler.bytes()) / self.mtu;
        bytes.min(PLACES.saturating_sub(scheduler.places()) / self.places)
    }

    /// Packets of one quantum: as many as one system call can send.
    fn burst(&self) -> u32 {
        (BATCH_MAX as u32 / (self.mtu + MIDDLE)).min(self.whole() / 2).max(1)
    }

    /// The quantum of a connection whose message has `left` packets left.
    fn quantum(&self, left: u32) -> u32 {
        let burst = self.burst();
        if burst > REST && left > burst && left - burst <= REST { left } else { burst }
    }

    /// Whether a connection with a short message need not wait in line.
    fn has_reserve<Q>(&self, scheduler: &SendScheduler<Q>) -> bool {
        scheduler.bytes() < self.window + self.window / 4 && scheduler.places() < PLACES + PLACES / 4
    }
}

impl Engine {
    /// Gives a quantum to each connection in line, as far as there is room. Returns whether a
    /// connection got one.
    pub(crate) fn schedule_waiting(self: &Arc<Self>) -> bool {
        crate::usermem::prepare_thread();
        // Cleared before the lines are read: a connection that joins later sets it again.
        self.net.crowded.store(false, Ordering::Release);
        let crowded =
            self.net.peers.lock().values().filter(|peer| peer.scheduler.is_crowded()).cloned().collect::<Vec<_>>();
        let (mut had, now) = (false, self.about_now());
        for peer in crowded {
            // Each connection once, so that the caller handles new acknowledgements in between.
            for _ in 0..peer.scheduler.waiting.load(Ordering::Relaxed) {
                let Some(qp) = peer.scheduler.next(peer.window.bytes(), now) else { break };
                had = true;
                let mut inner = qp.lock();
                inner.wire.quantum.scheduled = Scheduled::Has;
                qp.pump(&mut inner);
            }
            if peer.scheduler.is_crowded() {
                self.net.crowded.store(true, Ordering::Release);
            }
        }
        had
    }
}

impl Qp {
    /// Updates how many packets this connection may have under way. Returns false if it may send
    /// none before its quantum.
    pub(crate) fn open_window(&self, inner: &mut Inner, flow: &Flow, now: Time) -> bool {
        let losses = inner.requester.losses();
        if losses != inner.wire.losses {
            inner.wire.losses = losses;
            flow.peer.window.lose(now);
            if let Err(error) = flow.port.batch.lock().disconnect(&*flow.port.outlet) {
                flow.complain(&error);
            }
        }
        if matches!(self.service, Service::Uc | Service::Ud) || !inner.requester.has_unsent() {
            return true;
        }
        let mtu = inner.requester.mtu();
        let is_long = inner.requester.next_length() >= LONG * mtu;
        inner.wire.quantum.long = is_long;
        let scheduler = &flow.peer.scheduler;
        let now_under_way = Self::load(inner);
        scheduler.change(&mut inner.wire.quantum.load, now_under_way);
        let measure = Measure::of(&flow.peer, mtu, is_long);
        let (whole, burst) = (measure.whole(), measure.burst());
        let under_way = inner.requester.under_way();
        let window = match std::mem::take(&mut inner.wire.quantum.scheduled) {
            Scheduled::Has => under_way + measure.quantum(inner.requester.left_of_message()),
            Scheduled::Alone => under_way + 1,
            waits @ (Scheduled::None | Scheduled::Waits) => {
                let is_crowded = waits == Scheduled::Waits || scheduler.is_crowded();
                let is_alone = scheduler.load.load(Ordering::Relaxed) == inner.wire.quantum.load;
                let room = if is_alone { whole.saturating_sub(under_way) } else { measure.room(scheduler) };
                let wanted = if is_long { burst } else { 1 };
                if is_alone && !is_crowded {
                    // A system call for a few packets costs nearly as much as one for many. So a
                    // long message is sent in full bursts. It waits for room for a burst as long as
                    // at least one burst is under way, because acknowledgements will make room.
                    match room.checked_rem(burst) {
                        Some(rest) if is_long && (room > rest || under_way >= burst) => {
                            inner.requester.set_exclusive_window(under_way + room - rest, whole);
                            return true;
                        }
                        _ => whole,
                    }
                } else if !is_crowded && room >= wanted {
                    under_way + room
                } else if under_way == 0 && !is_long && measure.has_reserve(scheduler) {
                    inner.wire.quantum.scheduled = waits;
                    LONG.min(burst)
                } else {
                    self.stand_in_line(inner, flow, waits, now);
                    return false;
                }
            }
        };
        inner.requester.set_window(window);
        true
    }

    /// What this connection has under way.
    fn load(inner: &Inner) -> u64 {
        if inner.requester.fatal().is_some() {
            return 0;
        }
        let under_way = inner.requester.under_way();
        load(under_way * inner.requester.mtu(), under_way * if inner.wire.quantum.long { 1 } else { SINGLE })
    }

    fn stand_in_line(&self, inner: &mut Inner, flow: &Flow, before: Scheduled, now: Time) {
        inner.wire.quantum.scheduled = Scheduled::Waits;
        if before != Scheduled::Waits {
            inner.wire.quantum.since = now;
            if let Some(qp) = self.arc() {
                flow.peer.scheduler.join(Arc::downgrade(&qp));
            }
        }
        // Release: pairs with the acquire in `schedule_waiting`; a thread that reads this flag
        // finds the line.
        self.engine().net.crowded.store(true, Ordering::Release);
    }

    /// Counts what this connection has under way after packets were sent or acknowledged. Puts it
    /// in line if it has more to send than there is room for.
    pub(crate) fn recount(&self, inner: &mut Inner) {
        let Route::Wire(flow) = &inner.link.route else { return };
        let (flow, before) = (Arc::clone(flow), inner.wire.quantum.load);
        let scheduler = &flow.peer.scheduler;
        let now_under_way = Self::load(inner);
        scheduler.change(&mut inner.wire.quantum.load, now_under_way);
        // A connection that got a quantum and sent nothing waits for something else.
        let has_sent = inner.wire.quantum.load > before;
        if has_sent
            && inner.requester.has_unsent()
            && inner.wire.quantum.scheduled == Scheduled::None
            && scheduler.load.load(Ordering::Relaxed) != inner.wire.quantum.load
        {
            let now = self.time(inner);
            self.stand_in_line(inner, &flow, Scheduled::None, now);
        }
    }

    /// The connection ends or changes its route.
    pub(crate) fn uncount(&self, inner: &mut Inner) {
        let mut quantum = std::mem::take(&mut inner.wire.quantum);
        if let Route::Wire(flow) = &inner.link.route {
            flow.peer.scheduler.change(&mut quantum.load, 0);
            if flow.peer.scheduler.is_crowded() {
                // No packet from the peer will report this room.
                self.engine().net.crowded.store(true, Ordering::Release);
                self.engine().waker.kick();
            }
        }
    }

    /// When this connection must check whether the line stands still.
    pub(crate) fn waits_until(inner: &Inner) -> Option<Time> {
        (inner.wire.quantum.scheduled == Scheduled::Waits).then(|| inner.wire.quantum.since.after(STILL))
    }

    /// If no connection in the line got a quantum for a long time, this connection sends one packet
    /// out of turn.
    pub(crate) fn see_line(&self, inner: &mut Inner, now: Time) {
        if Self::waits_until(inner).is_some_and(|until| until <= now)
            && let Route::Wire(flow) = &inner.link.route
        {
            inner.wire.quantum.since = now;
            if flow.peer.scheduler.stands_still(now) {
                flow.peer.scheduler.scheduled_at.store(now.0, Ordering::Relaxed);
                inner.wire.quantum.scheduled = Scheduled::Alone;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_packets_there_is_room_for() {
        let scheduler = SendScheduler::<()>::default();
        let small = Measure { window: 128 * 1024, mtu: 256, places: SINGLE };
        assert_eq!((small.whole(), small.room(&scheduler)), (96, 96), "small packets take places");
        let long = Measure { window: 128 * 1024, mtu: 1024, places: 1 };
        assert_eq!((long.whole(), long.room(&scheduler), long.burst()), (128, 128, 62));
        assert_eq!([0, 1, 61, 62, 63, 64, 65, 1024].map(|left| long.quantum(left)), [62, 62, 62, 62, 63, 64, 62, 62]);
        scheduler.change(&mut 0, load(100 * 1024, 100));
        assert_eq!((small.room(&scheduler), long.room(&scheduler)), (83, 28));
        scheduler.change(&mut 0, load(100 * 1024, 300));
        assert_eq!((small.room(&scheduler), long.room(&scheduler)), (0, 0));
        let narrow = Measure { window: 8 * 1024, mtu: 16 * 1024, places: 1 };
        assert_eq!((narrow.whole(), narrow.burst()), (1, 1), "one packet may always go");
        assert_eq!(narrow.quantum(2), 1);
    }
}
