//! Connections without an id: those whose request has not arrived, and rejected peers that read
//! why. The principal type is [`Halves`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, TcpStream};

use iwarp::Responder;

/// Maximum number of connections.
pub(super) const HALVES_MAX: usize = 1024;
/// Maximum number of connections of one peer, so that it leaves room for others.
pub(super) const PER_PEER: u32 = 128;

/// A connection without an id.
#[derive(Debug)]
pub(super) enum Half {
    /// The request has not arrived, or not all of it.
    Starting { socket: TcpStream, responder: Box<Responder>, listener: u32 },
    /// A rejected peer reads why.
    Leaving(TcpStream),
}

impl Half {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Starting { socket, .. } | Self::Leaving(socket) => socket,
        }
    }
}

/// All connections without an id, by number.
#[derive(Debug, Default)]
pub(super) struct Halves {
    by_number: BTreeMap<u32, (IpAddr, Half)>,
    /// How many connections each peer has.
    peers: BTreeMap<IpAddr, u32>,
    last: u32,
}

impl Halves {
    /// Adds a connection, if there is room. Returns its number.
    pub(super) fn add(&mut self, half: Half) -> Option<(u32, &Half)> {
        let peer = peer(half.socket().peer_addr().ok()?.ip().to_canonical());
        if self.by_number.len() >= HALVES_MAX || self.peers.get(&peer).is_some_and(|count| *count >= PER_PEER) {
            return None;
        }
        *self.peers.entry(peer).or_default() += 1;
        self.last = self.last.wrapping_add(1);
        Some((self.last, &self.by_number.entry(self.last).insert_entry((peer, half)).into_mut().1))
    }

    pub(super) fn get(&self, number: u32) -> Option<&Half> {
        self.by_number.get(&number).map(|(_, half)| half)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Half> {
        self.by_number.get_mut(&number).map(|(_, half)| half)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Half> {
        let (peer, half) = self.by_number.remove(&number)?;
        if let Some(count) = self.peers.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&peer);
            }
        }
        Some(half)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }
}

/// What counts as one peer: an IPv4 address, or an IPv6 network of 64 bits, because a host may have
/// all addresses of it.
fn peer(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_peer_leaves_room_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let mut halves = Halves::default();
        let mut clients = Vec::new();
        let mut call = || {
            clients.push(TcpStream::connect(at).expect("it listens"));
            Half::Leaving(listener.accept().expect("it calls").0)
        };
        let numbers: Vec<u32> = (0..PER_PEER).map(|_| halves.add(call()).expect("room").0).collect();
        assert!(halves.add(call()).is_none(), "the peer has enough");
        assert!(numbers.iter().all(|number| halves.remove(*number).is_some()) && halves.remove(1).is_none());
        assert!(halves.add(call()).is_some() && halves.peers.len() == 1);
        const { assert!(PER_PEER as usize <= HALVES_MAX / 4) };
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one_peer() {
        let of = |text: &str| peer(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1:2:3"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
