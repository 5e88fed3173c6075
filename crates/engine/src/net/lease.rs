//! The receive lease: the right to read the agent's sockets. One engine of the agent's own user
//! holds it at a time.
//!
//! An engine that has QPs on the wire asks for the lease in a word of shared memory and notifies
//! the agent. The agent finishes its current work and grants the lease. The holder increments a
//! counter whenever it reads; the agent takes the lease back when the counter does not change any
//! more. An engine gives the lease back when it is idle, or when most packets belong to other
//! engines. Principal type: [`ReceiveLease`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::wire::{GRANTED, lease as word};
use shm::{Notifier, Region};

use crate::core::Core;
use crate::tsc;

/// Without a packet for this long, in nanoseconds, the engine gives the lease back. The agent can
/// wait for packets without using the processor.
const IDLE: u64 = 20_000_000;
/// The same limit while the program polls; a polling program uses the processor anyway.
const IDLE_POLLING: u64 = 100_000_000;
/// Ticks within which packets count as one arrival: a fraction of a millisecond.
const ARRIVAL_SPAN: u64 = 500_000;
/// Misdelivered packets in one lease, at most. After that, the agent receives for all engines
/// during [`PAUSE`].
const MISDELIVERED: u32 = 64;
/// Nanoseconds before the engine asks again after too many misdelivered packets.
const PAUSE: u64 = 50_000_000;

/// The right to read the agent's sockets.
pub(crate) struct ReceiveLease {
    page: Region,
    /// When the last packet arrived, in the engine's time; 0 before the first packet.
    traffic: AtomicU64,
    /// When the last packet arrived, in ticks of the time stamp counter, which is cheaper to read.
    ticks: AtomicU64,
    misdelivered: AtomicU32,
    /// The engine does not ask for the lease before this time.
    pause: AtomicU64,
}

impl ReceiveLease {
    pub(crate) fn new(page: Region) -> Self {
        Self {
            page,
            traffic: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            misdelivered: AtomicU32::new(0),
            pause: AtomicU64::new(0),
        }
    }

    fn word(&self) -> &AtomicU32 {
        self.page.word(word::LEASE)
    }

    /// A packet has arrived.
    pub(crate) fn note_traffic(&self, core: &Core) {
        let ticks = tsc::now();
        if ticks.wrapping_sub(self.ticks.load(Ordering::Relaxed)) < ARRIVAL_SPAN {
            return;
        }
        self.ticks.store(ticks, Ordering::Relaxed);
        self.traffic.store(core.now().0, Ordering::Relaxed);
    }

    /// Whether this engine may read the sockets now; also shows the agent that the engine is alive.
    pub(crate) fn holds(&self, core: &Core) -> bool {
        // Acquire: pairs with the agent's release when it grants the lease, so that this engine
        // sees packets that the agent handed over before the grant.
        let held = self.word().load(Ordering::Acquire);
        if held != core.number() | GRANTED {
            return false;
        }
        let beats = self.page.word(word::BEATS);
        beats.store(beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Asks for the lease if no engine holds it and it `is_useful`: there is a socket to read, and
    /// packets come or the program polls.
    pub(crate) fn want(&self, core: &Core, agent: &Notifier, is_useful: bool) {
        let is_free = self.word().load(Ordering::Relaxed) == 0;
        if is_free && is_useful {
            self.ask(core, agent);
        }
    }

    fn ask(&self, core: &Core, agent: &Notifier) {
        let now = core.about_now().0;
        let since = now.saturating_sub(self.traffic.load(Ordering::Relaxed));
        // A program that does not poll keeps the lease only for this long. With a longer limit, a
        // program that polls from time to time would ask for it and give it back in turn.
        if now < self.pause.load(Ordering::Relaxed) || since > IDLE {
            return;
        }
        self.misdelivered.store(0, Ordering::Relaxed);
        if self.word().compare_exchange(0, core.number(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            tracing::debug!("engine {} asks to read the agent's sockets", core.number());
            agent.notify();
        }
    }

    /// Whether this engine has asked for the lease and has no answer yet.
    pub(crate) fn is_awaited(&self, core: &Core) -> bool {
        self.word().load(Ordering::Relaxed) == core.number()
    }

    /// Whether this engine holds the lease.
    pub(crate) fn is_ours(&self, core: &Core) -> bool {
        self.word().load(Ordering::Relaxed) == core.number() | GRANTED
    }

    /// Gives the lease back if no packet has arrived for long enough.
    pub(crate) fn rest(&self, core: &Core, agent: &Notifier) {
        let limit = if core.waker.is_watching() { IDLE_POLLING } else { IDLE };
        if core.now().0.saturating_sub(self.traffic.load(Ordering::Relaxed)) > limit {
            self.release(core.number(), agent);
        }
    }

    /// Gives the lease back.
    pub(crate) fn release(&self, number: u32, agent: &Notifier) {
        for mine in [number | GRANTED, number] {
            // Release: pairs with the agent's acquire, so that the agent sees misdelivered packets
            // that were given back before.
            if self.word().compare_exchange(mine, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                tracing::debug!("engine {number} gives the agent's sockets back");
                agent.notify();
                return;
            }
        }
    }

    /// Some packets belong to other engines.
    pub(crate) fn note_misdelivered(&self, core: &Core, agent: &Notifier, count: u32) {
        if self.misdelivered.fetch_add(count, Ordering::Relaxed) + count >= MISDELIVERED {
            self.pause.store(core.now().0 + PAUSE, Ordering::Relaxed);
            self.release(core.number(), agent);
        }
    }
}
