//! The ways of a datagram socket to its peers: found over UDP and by the connection manager, while
//! the first datagrams already go over UDP. The principal type is [`Peer`].

use super::path::Path;
use super::{AGAIN, DatagramSocket, MOST_PEERS, State};
use crate::entry::{Outcome, Refusal};
use crate::layout::{AhAttr, GlobalRoute};
use crate::rsocket::address::{Name, is_wild, outward};
use crate::rsocket::cm::{Endpoint, Kind};
use crate::rsocket::verbs::{self, Handle};
use crate::rsocket::waiting::refusal;
use bytemuck::Zeroable;
use rsocket::datagram::{MAX_HEADER, MAX_SIZE, Purpose, Resolve};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

/// The time limit for resolving an address or a route, in milliseconds.
pub(super) const PATIENCE: i32 = 2000;

/// A peer of the socket.
pub(super) struct Peer {
    /// The path to the peer, as an index into the list of paths.
    path: usize,
    /// The peer's queue pair, once the peer has sent its number.
    qpn: Option<u32>,
    way: Way,
}

/// The progress of resolving the way to a peer.
enum Way {
    Unknown,
    /// An id that resolves the way.
    Asked(Endpoint),
    Known(Handle),
}

impl Peer {
    /// The descriptor to sleep on while the way is being resolved.
    pub(super) fn fd(&self) -> Option<RawFd> {
        match &self.way {
            Way::Asked(endpoint) => Some(endpoint.fd().as_raw_fd()),
            Way::Unknown | Way::Known(_) => None,
        }
    }
}

impl DatagramSocket {
    /// Sends to a peer's queue pair, or over UDP. Fails with EAGAIN if there is no room now.
    pub(super) fn send_now(&self, state: &mut State, to: SocketAddr, data: &[u8]) -> Outcome<()> {
        self.way_to(state, to, to)?;
        // This also takes answers, for a program that only sends.
        if matches!(state.peers.get(&to), Some(Peer { way: Way::Unknown | Way::Asked(_), .. })) {
            self.look_at_udp(state);
            self.look_for_ways(state);
        }
        if state.paths.iter().any(|path| !path.can_send()) {
            self.look(state, false);
        }
        let peer = state.peers.get(&to).ok_or(AGAIN)?;
        let path = state.paths.get_mut(peer.path).ok_or(Refusal(libc::EADDRNOTAVAIL))?;
        match (&peer.way, peer.qpn) {
            (Way::Known(handle), Some(qpn)) if path.takes(data.len()) => path.send(handle, qpn, data),
            _ => {
                let head = Resolve { purpose: Purpose::Data, qpn: path.number(), address: path.device.ip() };
                self.send_udp(head, to, data)
            }
        }
    }

    fn send_udp(&self, head: Resolve, to: SocketAddr, data: &[u8]) -> Outcome<()> {
        let mut room = [0; MAX_SIZE + MAX_HEADER];
        let size = head.emit(&mut room);
        let whole = room.get_mut(..size + data.len()).ok_or(Refusal(libc::EMSGSIZE))?;
        whole.get_mut(size..).unwrap_or_default().copy_from_slice(data);
        let to = outward(to, self.family);
        rustix::net::sendto(&self.udp, whole, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to).map_err(refusal)?;
        Ok(())
    }

    /// Makes sure that the peer is known and that the path to it exists. `device` is the address of
    /// the peer's device.
    pub(super) fn way_to(&self, state: &mut State, to: SocketAddr, device: SocketAddr) -> Outcome<usize> {
        if let Some(peer) = state.peers.get(&to) {
            return Ok(peer.path);
        }
        let own = self.bind_somewhere()?;
        let local = if is_wild(own.ip()) { with_port(towards(to)?, own.port()) } else { own };
        let path = match state.paths.iter().position(|path| path.local == local) {
            Some(path) => path,
            None => {
                state.paths.push(Path::new(local, device, &state.settings)?);
                // A sleeping thread does not wait for the new path yet.
                state.waiters.wake();
                state.paths.len() - 1
            }
        };
        if state.peers.len() >= MOST_PEERS {
            state.peers.clear();
        }
        state.peers.insert(to, Peer { path, qpn: None, way: Way::Unknown });
        Ok(path)
    }

    /// Handles a datagram that came over UDP.
    pub(super) fn over_udp(&self, state: &mut State, from: SocketAddr, bytes: &[u8]) {
        let Some((head, data)) = Resolve::parse(bytes) else { return };
        let device = device_of(from, head.address);
        let Ok(path) = self.way_to(state, from, device) else { return };
        if head.purpose == Purpose::Data {
            if state.inbox.len() < usize::from(state.settings.receive_queue) {
                state.inbox.push_back((from, data.to_vec()));
            }
            if let Some(path) = state.paths.get(path) {
                let answer = Resolve { purpose: Purpose::Answer, qpn: path.number(), address: path.device.ip() };
                let _ = self.send_udp(answer, from, &[]);
            }
        }
        let Some(peer) = state.peers.get_mut(&from) else { return };
        if peer.qpn == Some(head.qpn) && !matches!(peer.way, Way::Unknown) {
            return;
        }
        peer.qpn = Some(head.qpn);
        if matches!(peer.way, Way::Unknown)
            && let Some(path) = state.paths.get(path)
            && let Ok(endpoint) = ask(path, device)
        {
            peer.way = Way::Asked(endpoint);
            state.waiters.wake();
        }
    }

    /// Handles the answers of the connection manager.
    pub(super) fn look_for_ways(&self, state: &mut State) {
        let State { peers, paths, .. } = state;
        for peer in peers.values_mut() {
            let Way::Asked(endpoint) = &peer.way else { continue };
            let Ok(Some(news)) = endpoint.news() else { continue };
            let next = match news.kind {
                Kind::AddressResolved => endpoint.resolve_route(PATIENCE).map(|()| None),
                Kind::RouteResolved => {
                    paths.get(peer.path).ok_or(AGAIN).and_then(|path| handle(endpoint, path)).map(Some)
                }
                _ => Err(AGAIN),
            };
            match next {
                Ok(None) => {}
                Ok(Some(handle)) => peer.way = Way::Known(handle),
                // The next datagram from this peer starts another attempt. Until then UDP is used.
                Err(_) => peer.way = Way::Unknown,
            }
        }
    }
}

/// The address of a peer's device. It may differ from the address of its UDP datagrams, so the peer
/// sends it.
fn device_of(from: SocketAddr, said: IpAddr) -> SocketAddr {
    let of_use = said.is_ipv4() == from.is_ipv4() && !is_wild(said) && !said.is_multicast();
    let mut device = from;
    if of_use {
        device.set_ip(said);
    }
    device
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Begins to resolve the way from a path to a peer.
fn ask(path: &Path, to: SocketAddr) -> Outcome<Endpoint> {
    let endpoint = Endpoint::new(true)?;
    let source = Name::from(path.device).without_port();
    endpoint.resolve_address(Some(&source), &Name::from(to), PATIENCE)?;
    Ok(endpoint)
}

/// The address handle for a resolved way.
fn handle(found: &Endpoint, path: &Path) -> Outcome<Handle> {
    let record = found.path().ok_or(Refusal(libc::EHOSTUNREACH))?;
    let (context, port) = (path.endpoint.context(), path.endpoint.port());
    let mut attr = AhAttr::zeroed();
    attr.is_global = 1;
    attr.grh = GlobalRoute {
        dgid: record.dgid,
        flow_label: u32::from_be(record.flow_label),
        sgid_index: verbs::gid_index(context, port, record.sgid)?,
        hop_limit: record.hop_limit,
        traffic_class: record.traffic_class,
    };
    (attr.sl, attr.static_rate, attr.port_num) = (record.sl, record.rate, port);
    Handle::new(path.endpoint.pd(), attr)
}

/// The local address from which packets to a peer leave.
fn towards(to: SocketAddr) -> Outcome<SocketAddr> {
    let domain = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let probe = rustix::net::socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(refusal)?;
    rustix::net::connect(&probe, &to).map_err(refusal)?;
    let own = rustix::net::getsockname(&probe).map_err(refusal)?;
    SocketAddr::try_from(own).map_err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_address_that_is_told_if_that_can_be() {
        for (from, said, device) in [
            ("127.0.0.1:7", "127.0.0.3", "127.0.0.3:7"),
            ("127.0.0.1:7", "0.0.0.0", "127.0.0.1:7"),
            ("127.0.0.1:7", "224.0.0.1", "127.0.0.1:7"),
            ("127.0.0.1:7", "::2", "127.0.0.1:7"),
            ("[fe80::1%3]:7", "fe80::1", "[fe80::1%3]:7"),
        ] {
            let [from, device] = [from, device].map(|text| text.parse::<SocketAddr>().expect(text));
            assert_eq!(device_of(from, said.parse().expect(said)), device);
        }
    }
}
