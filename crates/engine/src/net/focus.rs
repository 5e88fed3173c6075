//! The focus of an address: a second socket, which is connected and hears one sender only, because the kernel then knows the way of what
//! comes from there ([`udp::Socket::receiver_and_focus`]). Whichever socket something comes by, it is taken in the same way; this is
//! about which sender the focus is aimed at, and how often the socket for everybody else is looked at. Principal type: [`Focus`].
//!
//! When the focus is aimed anew, everything stays in order: first at nobody, and what is in it is taken; then at the new sender, and
//! what came from there before, by the other socket, is taken. Only who may read the sockets aims.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::engine::Engine;
use crate::net::inbox::{Inbox, Reception, Shared};

/// Datagrams of one sender in a row, past the focus, for which it is aimed.
const HABIT: u32 = 256;
/// Ticks between one aiming and the next: a few milliseconds.
const PAUSE: u64 = 10_000_000;
/// Datagrams in a row that came by the focus, after which the other sockets are looked at only so often:
const FIXED: u32 = 64;
/// ticks, some twenty microseconds.
const GLANCE: u64 = 50_000;
/// Datagrams that are taken out of a socket before it counts as empty: senders may go on.
const DRAIN: usize = 4096;

/// What is known of who sends.
#[derive(Default)]
pub(crate) struct Focus {
    /// Datagrams in a row that came by a focus.
    fixed: u32,
    /// Who has sent past it, and how often in a row.
    from: Option<SocketAddr>,
    repeats: u32,
    /// When it was last aimed.
    aimed: u64,
    /// When the other sockets were last looked at.
    glanced: u64,
}

impl Focus {
    /// Whether what came lately has come by a focus.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed >= FIXED
    }

    /// Whether only a focus needs to be looked at just now: everything comes there, and the others were looked at a moment ago.
    pub(crate) fn suffices(&mut self, now: impl FnOnce() -> u64) -> bool {
        if !self.is_fixed() {
            return false;
        }
        let now = now();
        if now.wrapping_sub(self.glanced) < GLANCE {
            return true;
        }
        self.glanced = now;
        false
    }

    /// A datagram has come, by a focus or past it; says whether that is a reason to aim.
    pub(crate) fn note(&mut self, by_focus: bool, from: &SocketAddr, now: impl FnOnce() -> u64) -> bool {
        if by_focus {
            self.fixed = self.fixed.saturating_add(1);
            self.repeats = 0;
            return false;
        }
        self.fixed = 0;
        if self.repeats == 0 || self.from.as_ref() != Some(from) {
            (self.from, self.repeats) = (Some(*from), 0);
        }
        self.repeats += 1;
        if self.repeats < HABIT {
            return false;
        }
        self.repeats = 0;
        let now = now();
        let is_time = now.wrapping_sub(self.aimed) >= PAUSE;
        if is_time {
            self.aimed = now;
        }
        is_time
    }
}

impl Engine {
    /// Aims the focus of the address that `shared` hears, if there is one, at the sender `at`. Gives the datagrams that were taken meanwhile.
    #[cold]
    pub(crate) fn aim(
        self: &Arc<Self>,
        inbox: &Inbox,
        reception: &mut Reception,
        (sockets, shared): (&[Shared], &Shared),
        at: &SocketAddr,
    ) -> usize {
        let Some(focus) = sockets.iter().find(|one| one.is_focus() && one.gid() == shared.gid()) else { return 0 };
        if focus.socket().aim(None).is_err() {
            return 0;
        }
        reception.alike.forget();
        let before = self.drain(inbox, reception, focus);
        if let Err(error) = focus.socket().aim(Some(at)) {
            tracing::debug!("the focus cannot be aimed at {at}: {error}");
        }
        before + self.drain(inbox, reception, shared)
    }

    fn drain(self: &Arc<Self>, inbox: &Inbox, reception: &mut Reception, shared: &Shared) -> usize {
        (0..DRAIN).take_while(|_| self.take_datagrams(inbox, reception, shared, false).is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    /// How many of `count` datagrams that came past the focus, from ports in turn, are a reason to aim.
    fn reasons(focus: &mut Focus, ports: &[u16], count: u32, now: u64) -> usize {
        let mut ports = ports.iter().cycle().map(|port| sender(*port));
        (0..count).filter(|_| focus.note(false, &ports.next().expect("endless"), || now)).count()
    }

    #[test]
    fn one_sender_again_and_again_is_a_reason_but_not_too_often() {
        let (mut focus, mut now) = (Focus::default(), PAUSE);
        assert_eq!(reasons(&mut focus, &[1], HABIT - 1, now), 0);
        assert_eq!(reasons(&mut focus, &[1], 1, now), 1);
        now += PAUSE - 1;
        assert_eq!(reasons(&mut focus, &[1], HABIT, now), 0, "a moment ago");
        now += 1;
        assert_eq!(reasons(&mut focus, &[1], 3 * HABIT, now), 1);
        now += PAUSE;
        assert_eq!(reasons(&mut focus, &[1, 2], 10 * HABIT, now), 0, "two in turn");
        for _ in 0..3 {
            assert_eq!(reasons(&mut focus, &[1], HABIT - 1, now), 0);
            assert!(!focus.note(true, &sender(2), || unreachable!("no reason to ask")), "and one that it hears");
        }
    }

    #[test]
    fn the_others_are_looked_at_now_and_then_and_always_while_something_comes_there() {
        let mut focus = Focus::default();
        let time = GLANCE;
        assert!(!focus.suffices(|| unreachable!("nothing has come by it")));
        for _ in 0..FIXED {
            assert!(!focus.suffices(|| unreachable!("not often enough")));
            focus.note(true, &sender(1), || time);
        }
        assert!(!focus.suffices(|| time), "it is time for a glance");
        assert!(focus.suffices(|| time) && focus.suffices(|| time + GLANCE - 1));
        assert!(!focus.suffices(|| time + GLANCE));
        assert!(focus.suffices(|| time + GLANCE + 1));
        focus.note(false, &sender(2), || time);
        assert!(!focus.suffices(|| unreachable!("somebody else is there")));
    }
}
