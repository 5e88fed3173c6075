//! Networks: how packets leave for other hosts. Processes use UDP; embedded fabrics bring a network
//! of their own. The connections of iWARP are sockets in each network.
//!
//! This is only for sending. Received packets come from the agent, through a ring or from its
//! sockets. Principal traits: [`Network`] and [`Outlet`].

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::net::connect_unspec;

/// Something that carries packets between hosts.
pub trait Network: Send + Sync {
    /// Opens an outlet for packets from the address `source` (a GID; IPv4 in its mapped form),
    /// which interface `ifindex` has. `hint` is the preferred source port.
    ///
    /// # Errors
    /// The address does not belong to this host, or no port is left.
    fn open(&self, source: [u8; 16], ifindex: u32, hint: u16) -> io::Result<Arc<dyn Outlet>>;

    /// Resets the TCP connection of a queue pair of iWARP, also if other descriptors of it exist.
    fn reset(&self, socket: BorrowedFd<'_>) {
        // An error means that the connection is gone already.
        let _ = connect_unspec(socket);
    }
}

/// An outlet: one source address and port.
pub trait Outlet: Send + Sync {
    /// The source port, which the ICRC covers.
    fn port(&self) -> u16;

    /// Sends datagrams of one size; a network may lose them.
    ///
    /// # Errors
    /// Nothing was sent.
    fn send(&self, out: &udp::Outgoing<'_>) -> io::Result<()>;

    /// Makes sending to one host cheaper, like [`udp::Socket::connect_sender`]. Returns the
    /// identification of the next datagram; each later datagram has the next number.
    ///
    /// # Errors
    /// The network does not support it: the identifications stay 0.
    fn connect_sender(&self, to: &SocketAddr) -> io::Result<u16> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("what leads to {to} is no socket")))
    }

    /// Undoes `connect_sender`: identifications are 0 again.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn disconnect_sender(&self) -> io::Result<()> {
        Ok(())
    }
}

/// UDP, through sockets of this process.
pub(crate) struct Udp;

impl Network for Udp {
    fn open(&self, source: [u8; 16], ifindex: u32, hint: u16) -> io::Result<Arc<dyn Outlet>> {
        let address = address(source);
        Ok(Arc::new(udp::Socket::sender(address, scope(address, ifindex), hint)?))
    }
}

impl Outlet for udp::Socket {
    fn port(&self) -> u16 {
        self.port()
    }

    fn send(&self, out: &udp::Outgoing<'_>) -> io::Result<()> {
        self.send(out)
    }

    fn connect_sender(&self, to: &SocketAddr) -> io::Result<u16> {
        self.connect_sender(to)
    }

    fn disconnect_sender(&self) -> io::Result<()> {
        self.disconnect_sender()
    }
}

/// The IP address of a GID.
pub(crate) fn address(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// The scope id of an address: link-local addresses are valid on one link only.
pub(crate) fn scope(address: IpAddr, ifindex: u32) -> u32 {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => ifindex,
        _ => 0,
    }
}
