//! Networks: through what packets leave for other hosts. For processes that is UDP; embedded fabrics bring a network of their own.
//!
//! Only sending: what arrives comes from the agent, by ring, or out of its sockets. Principal traits: [`Network`] and [`Outlet`].

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Something that carries packets between hosts.
pub trait Network: Send + Sync {
    /// A way out for packets from the address `source` (a GID; IPv4 in its mapped form), which interface `ifindex` carries. `hint`
    /// says which source port would be welcome.
    ///
    /// # Errors
    /// The address is not this host's, or there is no port left.
    fn open(&self, source: [u8; 16], ifindex: u32, hint: u16) -> io::Result<Arc<dyn Outlet>>;
}

/// A way out: one source address and port.
pub trait Outlet: Send + Sync {
    /// The source port, which is under the ICRC.
    fn port(&self) -> u16;

    /// Sends datagrams of one size; a network may lose them.
    ///
    /// # Errors
    /// Nothing was sent.
    fn send(&self, out: &udp::Outgoing<'_>) -> io::Result<()>;

    /// Makes it cheaper to send to one host, and gives the identification of the next datagram, from which they count on: as
    /// [`udp::Socket::connect_sender`].
    ///
    /// # Errors
    /// There is nothing to be had: the identifications stay 0.
    fn connect_sender(&self, to: &SocketAddr) -> io::Result<u16> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("what leads to {to} is no socket")))
    }

    /// All hosts are alike again, and identifications 0.
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

/// A GID as an address.
pub(crate) fn address(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// The scope that an address needs beside it: link-local ones mean something on one link only.
pub(crate) fn scope(address: IpAddr, ifindex: u32) -> u32 {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => ifindex,
        _ => 0,
    }
}
