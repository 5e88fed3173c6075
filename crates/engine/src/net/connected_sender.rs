//! The connected send socket: a port connects its socket to the host to which it sends again and
//! again ([`udp::Socket::connect_sender`]), so that the kernel looks up the route only once.
//!
//! A connected socket numbers its datagrams from the number that the connect returned. The ICRC
//! covers the number, so this file counts along. If the number may be wrong, the port disconnects
//! its socket, and numbers start at 0 again. Principal type: [`ConnectedSender`].

use std::net::SocketAddr;

use crate::network::Outlet;

/// Datagrams in a row to one host, after which a port connects to it.
const REPEATS: u32 = 64;

/// The host to which a port is connected, if any, and the host to which it may connect next.
#[derive(Debug, Default)]
pub(crate) struct ConnectedSender {
    on: Option<SocketAddr>,
    /// The IPv4 identification of the next datagram.
    next: u16,
    /// The destination of the last datagrams, and their count.
    to: Option<SocketAddr>,
    repeats: u32,
    /// The network does not support it.
    never: bool,
}

impl ConnectedSender {
    /// Whether the port is connected to this host.
    pub(crate) fn is_on(&self, to: &SocketAddr) -> bool {
        self.on.as_ref() == Some(to)
    }

    /// The IPv4 identification of the next datagram.
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// The kernel has accepted or refused a datagram.
    pub(crate) fn sent(&mut self, outlet: &dyn Outlet, to: &SocketAddr, accepted: bool) {
        if self.on.is_some() {
            self.next = self.next.wrapping_add(1);
            if !accepted {
                self.leave(outlet);
            }
        }
        if self.is_on(to) || self.never || to.ip().is_multicast() {
            return;
        }
        if self.to.as_ref() != Some(to) {
            (self.to, self.repeats) = (Some(*to), 0);
        }
        self.repeats += 1;
        if self.repeats == REPEATS {
            self.connect_sender(outlet, to);
        }
    }

    /// A packet was lost, perhaps because of a wrong number.
    pub(crate) fn leave(&mut self, outlet: &dyn Outlet) {
        if self.on.is_some() {
            *self = Self { never: outlet.disconnect_sender().is_err(), ..Self::default() };
        }
    }

    fn connect_sender(&mut self, outlet: &dyn Outlet, to: &SocketAddr) {
        match outlet.connect_sender(to) {
            Ok(next) => (self.on, self.next) = (Some(*to), next),
            Err(error) => {
                tracing::debug!("a port is not connected to {to}: {error}");
                *self = Self { never: true, ..Self::default() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use super::*;

    /// The hosts to which a connect was tried, in order; an odd port is refused.
    #[derive(Default)]
    struct Told(Mutex<Vec<Option<SocketAddr>>>);

    impl Outlet for Told {
        fn port(&self) -> u16 {
            0xc123
        }

        fn send(&self, _: &udp::Outgoing<'_>) -> io::Result<()> {
            unreachable!("nothing is sent here")
        }

        fn connect_sender(&self, to: &SocketAddr) -> io::Result<u16> {
            self.0.lock().expect("no panic").push(Some(*to));
            if to.port() % 2 == 1 { Err(io::ErrorKind::Unsupported.into()) } else { Ok(0xfffe) }
        }

        fn disconnect_sender(&self) -> io::Result<()> {
            self.0.lock().expect("no panic").push(None);
            Ok(())
        }
    }

    fn host(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 2], port))
    }

    #[test]
    fn datagrams_in_a_row_to_one_host_connect_and_numbers_count_on() {
        let (outlet, mut connected_sender) = (Told::default(), ConnectedSender::default());
        for _ in 1..REPEATS {
            connected_sender.sent(&outlet, &host(2), true);
        }
        assert!(!connected_sender.is_on(&host(2)));
        assert_eq!(connected_sender.next(), 0);
        connected_sender.sent(&outlet, &host(2), true);
        assert!(connected_sender.is_on(&host(2)));
        assert_eq!(connected_sender.next(), 0xfffe);
        connected_sender.sent(&outlet, &host(2), true);
        connected_sender.sent(&outlet, &host(4), true);
        assert_eq!(connected_sender.next(), 0);
        for _ in 1..REPEATS {
            connected_sender.sent(&outlet, &host(4), true);
        }
        assert!(connected_sender.is_on(&host(4)), "it follows the traffic");
        assert_eq!(*outlet.0.lock().expect("no panic"), [Some(host(2)), Some(host(4))]);
    }

    #[test]
    fn two_hosts_in_turn_do_not_connect() {
        let (outlet, mut connected_sender) = (Told::default(), ConnectedSender::default());
        for index in 0..10 * REPEATS as u16 {
            connected_sender.sent(&outlet, &host(index % 2), true);
        }
        assert!(outlet.0.lock().expect("no panic").is_empty());
    }

    #[test]
    fn it_may_connect_again_after_it_has_disconnected() {
        let (outlet, mut connected_sender) = (Told::default(), ConnectedSender::default());
        connected_sender.leave(&outlet);
        for lost in [false, true] {
            for _ in 0..REPEATS {
                connected_sender.sent(&outlet, &host(2), true);
            }
            assert!(connected_sender.is_on(&host(2)));
            if lost {
                connected_sender.leave(&outlet);
            } else {
                connected_sender.sent(&outlet, &host(2), false);
            }
            assert!(!connected_sender.is_on(&host(2)));
            assert_eq!(connected_sender.next(), 0);
            connected_sender.sent(&outlet, &host(4), true);
        }
        assert_eq!(*outlet.0.lock().expect("no panic"), [Some(host(2)), None, Some(host(2)), None]);
    }

    #[test]
    fn a_failed_connect_is_not_repeated() {
        let (outlet, mut connected_sender) = (Told::default(), ConnectedSender::default());
        for _ in 0..3 * REPEATS {
            connected_sender.sent(&outlet, &host(1), true);
        }
        assert_eq!(*outlet.0.lock().expect("no panic"), [Some(host(1))]);
        assert_eq!(connected_sender.next(), 0);
    }
}
