//! The shared progress mode at work: what follows a poll, and a post. Adds to [`Waker`], [`Engine`]
//! and [`Qp`].

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Polled;
use crate::engine::Engine;
use crate::helper::Waker;
use crate::lock::MutexGuard;
use crate::qp::{Inner, Qp};
use crate::tsc;

impl Waker {
    /// The program has polled; `found` says whether it got something. Returns whether it must check
    /// once more, and wait for locks.
    pub(super) fn polled_in_shared_mode(&self, found: bool) -> bool {
        let now = tsc::now();
        self.polled_at.store(now, Ordering::Relaxed);
        match self.progress_mode.polled(found, now) {
            Polled::Unchanged => return false,
            Polled::Over => {
                self.polls.store(0, Ordering::Relaxed);
                self.kick();
                return false;
            }
            Polled::MayStop => {
                self.wake_word.arm();
                shm::sleeper_fence();
                return true;
            }
            Polled::Unguarded => self.guard(),
            Polled::Polling => {}
        }
        self.silence();
        false
    }

    /// Disarms the wake word: the program is polling, so peers need not notify. The program may
    /// have lost its processor after it set the polling flag. Then the timer may have woken the
    /// helper thread, which has cleared the flag, armed the wake word and gone to sleep. Or another
    /// thread of the program has found completions and armed the wake word. In both cases the
    /// helper thread must check again.
    pub(super) fn silence(&self) {
        if self.wake_word.is_armed() {
            self.wake_word.disarm();
            // Pairs with the fence in `is_polling`, after which the helper arms the wake word: a
            // thread that disarms it sees why it was armed.
            fence(Ordering::SeqCst);
            if !self.progress_mode.polling.load(Ordering::Relaxed) {
                self.kick();
            }
        }
    }
}

impl Engine {
    /// A poll has ended in the shared progress mode; `found` says whether it got something.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_shared_poll(self: &Arc<Self>, found: bool) {
        if self.waker.polled_in_shared_mode(found) {
            // Packets that come after this check notify through the wake word.
            self.progress(true);
        }
        if !self.waker.progress_mode.is_on() {
            self.poll_each_time(false);
        }
    }
}

impl Qp {
    /// Sends posted requests while program and thread share the work: the program will poll for
    /// their completions.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_in_shared_mode(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        self.engine().waker.polled_in_shared_mode(false);
        let peer = self.pump_quietly(&mut inner);
        let on_wire = inner.link.on_wire();
        drop(inner);
        if let Some(lane) = peer {
            lane.wake_peer();
        }
        if on_wire {
            self.engine().waker.sent();
        }
    }
}
