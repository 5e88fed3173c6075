//! The connected receive socket of an address: a second socket that receives from one sender only.
//! For a connected socket the kernel already knows the route of the sender's packets
//! ([`udp::Socket::receiver_pair`]).
//!
//! Packets from both sockets are handled alike. This file decides to which sender the second socket
//! is connected, and how often the engine reads the first socket, which receives from all other
//! senders. Principal type: [`ConnectedReceiver`].
//!
//! A reconnect keeps packets in order. The engine disconnects the socket and drains it. Then it
//! connects the socket to the new sender, and drains the earlier packets of this sender from the
//! other socket. Only the engine that may read the sockets connects.

use std::net::SocketAddr;

/// Datagrams of one sender in a row on the unconnected socket, after which the engine connects the
/// second socket to this sender.
const REPEATS: u32 = 256;
/// Ticks between two connects: a few milliseconds.
const PAUSE: u64 = 10_000_000;
/// After this many datagrams in a row on a connected socket, the engine reads the other sockets
/// only once in [`GLANCE`].
const FIXED: u32 = 64;
/// Ticks between two reads of the other sockets: about twenty microseconds.
const GLANCE: u64 = 50_000;

/// The traffic of the senders so far.
#[derive(Default)]
pub(crate) struct ConnectedReceiver {
    /// Datagrams in a row on a connected socket.
    fixed: u32,
    /// The last sender on the unconnected socket, and how often in a row it sent.
    from: Option<SocketAddr>,
    repeats: u32,
    /// The last connect, in ticks.
    connected: u64,
    /// The last read of the other sockets, in ticks.
    glanced: u64,
}

impl ConnectedReceiver {
    /// Whether all recent datagrams arrived on a connected socket.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed >= FIXED
    }

    /// Whether it suffices to read the connected sockets now: all traffic arrives on them, and the
    /// others were read a short time ago.
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

    /// A datagram has arrived on the connected socket or on the other one. Returns whether to
    /// connect.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    /// How many of `count` datagrams on the unconnected socket, from `ports` in turn, are a reason
    /// to connect.
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
