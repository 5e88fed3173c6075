//! A connected send socket. A socket that sends to one host repeatedly is connected to it, which
//! saves a route lookup in each call. Connecting also makes the kernel count the IPv4
//! identification of the socket's datagrams, from a number that it does not report. But the number
//! can be seen: a datagram sent with a time stamp comes back, with all headers, on the error queue.
//! So a socket that connects sends two empty datagrams to a port of its own on this host. Their
//! headers show the next identification.

use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use crate::address::Name;
use crate::control::Control;
use crate::{Socket, sys};

/// `SOF_TIMESTAMPING_TX_SCHED`: the kernel stamps and returns the datagram before it gives it to
/// any interface.
const STAMP: u32 = 1 << 8;
/// Length of an IPv4 header without options and a UDP header.
const HEADERS: usize = 20 + 8;
/// Room for these headers and a link-layer header.
const ROOM: usize = 128;

impl Socket {
    /// Connects to a destination: sending to it with [`crate::Outgoing::connected`] costs less from
    /// now on. Returns the IPv4 identification of the next datagram, whatever its destination. Each
    /// call of [`Socket::send`] takes one number, and a burst counts on from it. With IPv6 the
    /// number is 0 and means nothing.
    ///
    /// # Errors
    /// There is no route to the destination, or this kernel does not return what it sends. Then the
    /// socket is in its state before the first call of [`Socket::connect_sender`].
    pub fn connect_sender(&self, to: &SocketAddr) -> io::Result<u16> {
        let connected = sys::connect(self.as_fd(), Some(&Name::of(to))).and_then(|()| match self.local().ip() {
            IpAddr::V4(local) => self.learn(local),
            IpAddr::V6(_) => Ok(0),
        });
        if connected.is_err() {
            self.disconnect_sender()?;
        }
        connected
    }

    /// Disconnects the socket: all datagrams have identification 0 again.
    ///
    /// # Errors
    /// The socket cannot be used any more.
    pub fn disconnect_sender(&self) -> io::Result<()> {
        sys::connect(self.as_fd(), None)
    }

    /// Finds the identification of the next datagram.
    fn learn(&self, local: Ipv4Addr) -> io::Result<u16> {
        let mirror = UdpSocket::bind((local, 0))?;
        let to = mirror.local_addr()?;
        let (first, second) = (self.show(&to)?, self.show(&to)?);
        if second != first.wrapping_add(1) {
            return Err(Error::new(ErrorKind::Unsupported, "this kernel does not count one after the other"));
        }
        Ok(second.wrapping_add(1))
    }

    /// Sends an empty datagram to a port of this host and returns its identification.
    fn show(&self, to: &SocketAddr) -> io::Result<u16> {
        let mut control = Control::new();
        control.push(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, STAMP.to_ne_bytes());
        sys::send(self.as_fd(), Some(to), &control, &[])?;
        let mut packet = [0; ROOM];
        let mut ignored = Control::new();
        let (len, ..) = sys::receive(self.as_fd(), &mut packet, &mut ignored, libc::MSG_ERRQUEUE)?;
        let start = len.checked_sub(HEADERS).ok_or(ErrorKind::Unsupported)?;
        let header = &packet[start..len];
        let ports = [self.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        if header[0] != 0x45 || header[9] != libc::IPPROTO_UDP as u8 || header[20..24] != ports {
            return Err(Error::new(ErrorKind::Unsupported, "this kernel shows something else"));
        }
        Ok(u16::from_be_bytes([header[4], header[5]]))
    }
}
