//! The UDP socket of tunnels: links of the topology to ports of other agents. The principal type is
//! [`TunnelSocket`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use subnet::rate::Mtu;
use subnet::tunnel::{UDP_PORT, datagram, longest_mtu};

use crate::config::Config;
use crate::mads::Mads;
use crate::world::World;

/// Datagrams that are taken in one piece of work. The poller is level-triggered, so the rest is
/// taken after the work of others.
const BATCH: usize = 32;
/// One byte more than the longest datagram, so that a longer one is noticed.
const ROOM: usize = datagram(Mtu::B4096) + 1;

/// The socket, from which every tunnel of the agent sends.
pub(super) struct TunnelSocket {
    socket: UdpSocket,
    peers: Vec<SocketAddr>,
    buffer: Box<[u8]>,
}

impl TunnelSocket {
    /// Opens the tunnels of the topology, if it has some.
    pub(super) fn open(world: &World, config: &Config, mads: &mut Mads) -> io::Result<Option<Self>> {
        let peers = mads.tunnel_peers();
        let Some(first) = peers.first().filter(|_| !world.wire.is_external()) else { return Ok(None) };
        let own = own_address(config, *first);
        if let Some(other) = peers.iter().find(|peer| peer.is_ipv4() != own.is_ipv4()) {
            let text = format!("no link can lead to {} from {}: use IPv4 or IPv6 for all", other.ip(), own.ip());
            return Err(io::Error::other(text));
        }
        let socket = UdpSocket::bind(own).map_err(|error| {
            let text = format!("UDP port {} of {} for links to other agents: {error}", own.port(), own.ip());
            io::Error::new(error.kind(), format!("{text}; --tunnel chooses another address or port"))
        })?;
        socket.set_nonblocking(true)?;
        // A burst waits here for the agent's thread, which may wait for a processor.
        udp::widen_receive_buffer(socket.as_fd())?;
        if !mads.open_tunnels(world, |peer| link_mtu(own.ip(), peer)) {
            return Err(io::Error::other("the system has no random numbers, which links to other agents need"));
        }
        Ok(Some(Self { socket, peers, buffer: vec![0; ROOM].into() }))
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a datagram. What the network refuses is lost, as on a bad cable.
    pub(super) fn send(&self, peer: SocketAddr, bytes: &[u8]) {
        if let Err(error) = self.socket.send_to(bytes, peer) {
            tracing::debug!(%peer, %error, "a datagram of a tunnel is lost");
        }
    }

    /// Takes datagrams that have arrived from peers.
    pub(super) fn receive(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut taken = Vec::new();
        for _ in 0..BATCH {
            let (length, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => continue,
            };
            let from = SocketAddr::new(from.ip(), from.port());
            if self.peers.contains(&from)
                && let Some(bytes) = self.buffer.get(..length)
            {
                taken.push((from, bytes.to_vec()));
            }
        }
        taken
    }
}

/// The address at which tunnels arrive: that of the configuration, or one of the agent's own.
fn own_address(config: &Config, peer: SocketAddr) -> SocketAddr {
    let own = config.addresses.iter().find(|address| address.is_ipv4() == peer.is_ipv4());
    let any = if peer.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    config.tunnel.unwrap_or_else(|| SocketAddr::new(own.copied().unwrap_or(any), UDP_PORT))
}

/// The longest MTU of a link whose packets reach the peer without fragments.
fn link_mtu(own: IpAddr, peer: SocketAddr) -> Mtu {
    let network = network_mtu(own, peer).unwrap_or_else(|error| {
        tracing::warn!(%peer, %error, "the MTU of the network is not known, and the link has MTU 256");
        0
    });
    let headers = if peer.is_ipv4() { 28 } else { 48 };
    let mtu = longest_mtu(network.saturating_sub(headers)).unwrap_or(Mtu::B256);
    if mtu < Mtu::B4096 {
        let (bytes, needed) = (mtu.bytes(), datagram(Mtu::B4096) + headers);
        tracing::warn!(
            "links to {} have MTU {bytes}, because packets of the network have at most {network} bytes; a network MTU of \
             {needed} allows 4096",
            peer.ip()
        );
    }
    mtu
}

/// The longest IP packet to a peer, as the kernel knows it.
fn network_mtu(own: IpAddr, peer: SocketAddr) -> io::Result<usize> {
    let socket = UdpSocket::bind(SocketAddr::new(own, 0))?;
    socket.connect(peer)?;
    let mtu = match peer {
        SocketAddr::V4(_) => rustix::net::sockopt::ip_mtu(&socket)?,
        SocketAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(&socket)?,
    };
    Ok(mtu as usize)
}
