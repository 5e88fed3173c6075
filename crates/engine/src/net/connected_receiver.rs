//! The connected receive socket of an address: a second socket, which hears one sender only, because the kernel then knows the way of what
//! comes from there ([`udp::Socket::receiver_pair`]). Whichever socket something comes by, it is taken in the same way; this is
//! about which sender it is connected to, and how often the socket for everybody else is looked at. Principal type: [`ConnectedReceiver`].
//!
//! When it is connected anew, everything stays in order: first to nobody, and what is in it is taken; then to the new sender, and
//! what came from there before, by the other socket, is taken. Only who may read the sockets connects.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::engine::Engine;
use crate::net::inbox::{Inbox, Reception, Shared};

/// Datagrams of one sender in a row, past the connected socket, for which that is connected to the sender.
const REPEATS: u32 = 256;
/// Ticks between one such connect and the next: a few milliseconds.
const PAUSE: u64 = 10_000_000;
/// Datagrams in a row that came by the connected socket, after which the other sockets are looked at only so often:
const FIXED: u32 = 64;
/// ticks, some twenty microseconds.
const GLANCE: u64 = 50_000;
/// Datagrams that are taken out of a socket before it counts as empty: senders may go on.
const DRAIN: usize = 4096;

/// What is known of who sends.
#[derive(Default)]
pub(crate) struct ConnectedReceiver {
    /// Datagrams in a row that came by a connected socket.
    fixed: u32,
    /// Who has sent past it, and how often in a row.
    from: Option<SocketAddr>,
    repeats: u32,
    /// When it was last connected.
    connected: u64,
    /// When the other sockets were last looked at.
    glanced: u64,
}

impl ConnectedReceiver {
    /// Whether what came lately has come by a connected socket.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed >= FIXED
    }

    /// Whether only a connected socket needs to be looked at just now: everything comes there, and the others were looked at a moment ago.
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

    /// A datagram has come, by a connected socket or past it; says whether that is a reason to connect.
    pub(crate) fn note(&mut self, by_connected: bool, from: &SocketAddr, now: impl FnOnce() -> u64) -> bool {
        if by_connected {
            self.fixed = self.fixed.saturating_add(1);
            self.repeats = 0;
            return false;
        }
        self.fixed = 0;
        if self.repeats == 0 || self.from.as_ref() != Some(from) {
            (self.from, self.repeats) = (Some(*from), 0);
        }
        self.repeats += 1;
        if self.repeats < REPEATS {
            return false;
        }
        self.repeats = 0;
        let now = now();
        let is_time = now.wrapping_sub(self.connected) >= PAUSE;
        if is_time {
            self.connected = now;
        }
        is_time
    }
}

impl Engine {
    /// Connects the receive socket of the address that `shared` hears, if there is one, to the sender `at`. Gives the datagrams that were taken meanwhile.
    #[cold]
    pub(crate) fn connect_receiver(
        self: &Arc<Self>,
        inbox: &Inbox,
        reception: &mut Reception,
        (sockets, shared): (&[Shared], &Shared),
        at: &SocketAddr,
    ) -> usize {
        let Some(connected) = sockets.iter().find(|one| one.is_connected() && one.gid() == shared.gid()) else {
            return 0;
        };
        if connected.socket().connect_receiver(None).is_err() {
            return 0;
        }
        reception.alike.forget();
        let before = self.drain(inbox, reception, connected);
        if let Err(error) = connected.socket().connect_receiver(Some(at)) {
            tracing::debug!("the receive socket cannot be connected to {at}: {error}");
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

    /// How many of `count` datagrams that came past the connected socket, from ports in turn, are a reason to connect.
    fn reasons(connected: &mut ConnectedReceiver, ports: &[u16], count: u32, now: u64) -> usize {
        let mut ports = ports.iter().cycle().map(|port| sender(*port));
        (0..count).filter(|_| connected.note(false, &ports.next().expect("endless"), || now)).count()
    }

    #[test]
    fn one_sender_again_and_again_is_a_reason_but_not_too_often() {
        let (mut connected, mut now) = (ConnectedReceiver::default(), PAUSE);
        assert_eq!(reasons(&mut connected, &[1], REPEATS - 1, now), 0);
        assert_eq!(reasons(&mut connected, &[1], 1, now), 1);
        now += PAUSE - 1;
        assert_eq!(reasons(&mut connected, &[1], REPEATS, now), 0, "a moment ago");
        now += 1;
        assert_eq!(reasons(&mut connected, &[1], 3 * REPEATS, now), 1);
        now += PAUSE;
        assert_eq!(reasons(&mut connected, &[1, 2], 10 * REPEATS, now), 0, "two in turn");
        for _ in 0..3 {
            assert_eq!(reasons(&mut connected, &[1], REPEATS - 1, now), 0);
            assert!(!connected.note(true, &sender(2), || unreachable!("no reason to ask")), "and one that it hears");
        }
    }

    #[test]
    fn the_others_are_looked_at_now_and_then_and_always_while_something_comes_there() {
        let mut connected = ConnectedReceiver::default();
        let time = GLANCE;
        assert!(!connected.suffices(|| unreachable!("nothing has come by it")));
        for _ in 0..FIXED {
            assert!(!connected.suffices(|| unreachable!("not often enough")));
            connected.note(true, &sender(1), || time);
        }
        assert!(!connected.suffices(|| time), "it is time for a glance");
        assert!(connected.suffices(|| time) && connected.suffices(|| time + GLANCE - 1));
        assert!(!connected.suffices(|| time + GLANCE));
        assert!(connected.suffices(|| time + GLANCE + 1));
        connected.note(false, &sender(2), || time);
        assert!(!connected.suffices(|| unreachable!("somebody else is there")));
    }
}
