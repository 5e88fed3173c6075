//! The two headers of datagram sockets. [`Source`] precedes each datagram on a UD queue pair.
//! [`Resolve`] precedes each datagram that still goes over UDP, because the receiver's queue pair
//! is not known yet. (`docs/rsocket`, "Datagram Overview".)

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The maximum size of a datagram and its header, on UD and on UDP: rdma-core's receivers have no
/// more room.
pub const MAX_SIZE: usize = 2048;

/// The size of the longest header.
pub const MAX_HEADER: usize = 28;

const TAG: u32 = 0x5555_5555;

/// The sender of a datagram: the header before the data on a UD queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source(pub SocketAddr);

impl Source {
    /// The encoded size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        if self.0.is_ipv4() { 8 } else { 24 }
    }

    /// Parses a datagram: the sender, and the data. `None` if the header is invalid.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        match bytes {
            [4, 8, p0, p1, a, b, c, d, data @ ..] => {
                let port = u16::from_be_bytes([*p0, *p1]);
                Some((Self(SocketAddr::new(Ipv4Addr::new(*a, *b, *c, *d).into(), port)), data))
            }
            [6, 24, p0, p1, f0, f1, f2, f3, rest @ ..] => {
                let (address, data) = rest.split_first_chunk::<16>()?;
                let flow = u32::from_be_bytes([*f0, *f1, *f2, *f3]);
                let port = u16::from_be_bytes([*p0, *p1]);
                Some((Self(SocketAddrV6::new(Ipv6Addr::from(*address), port, flow, 0).into()), data))
            }
            _ => None,
        }
    }

    /// Encodes the header at the start of `room`, and returns its size; 0 if there is no room.
    #[must_use]
    pub fn emit(&self, room: &mut [u8]) -> usize {
        let Some(room) = room.get_mut(..self.size()) else { return 0 };
        room[2..4].copy_from_slice(&self.0.port().to_be_bytes());
        match self.0 {
            SocketAddr::V4(address) => {
                room[..2].copy_from_slice(&[4, 8]);
                room[4..].copy_from_slice(&address.ip().octets());
            }
            SocketAddr::V6(address) => {
                room[..2].copy_from_slice(&[6, 24]);
                room[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
                room[8..].copy_from_slice(&address.ip().octets());
            }
        }
        self.size()
    }
}

/// The purpose of a UDP datagram between two datagram sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It carries data, and asks for the receiver's queue pair.
    Data,
    /// It only announces the sender's queue pair.
    Answer,
}

/// The header before a UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolve {
    /// The purpose of the datagram.
    pub purpose: Purpose,
    /// The sender's UD queue pair.
    pub qpn: u32,
    /// The sender's address. (The port is that of the UDP datagram.)
    pub address: IpAddr,
}

impl Resolve {
    /// The encoded size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        if self.address.is_ipv4() { 16 } else { 28 }
    }

    /// Parses a UDP datagram. `None` if the header is invalid.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let [t0, t1, t2, t3, version, op, length, _, q0, q1, q2, q3] = *head;
        if u32::from_be_bytes([t0, t1, t2, t3]) != TAG {
            return None;
        }
        let purpose = match op {
            0 => Purpose::Data,
            7 => Purpose::Answer,
            _ => return None,
        };
        let (address, data): (IpAddr, _) = match (version, length) {
            (4, 16) => rest.split_first_chunk::<4>().map(|(address, data)| (Ipv4Addr::from(*address).into(), data))?,
            (6, 28) => rest.split_first_chunk::<16>().map(|(address, data)| (Ipv6Addr::from(*address).into(), data))?,
            _ => return None,
        };
        Some((Self { purpose, qpn: u32::from_be_bytes([q0, q1, q2, q3]) & 0xFF_FFFF, address }, data))
    }

    /// Encodes the header at the start of `room`, and returns its size; 0 if there is no room.
    #[must_use]
    pub fn emit(&self, room: &mut [u8]) -> usize {
        let size = self.size();
        let Some(room) = room.get_mut(..size) else { return 0 };
        room[..4].copy_from_slice(&TAG.to_be_bytes());
        room[4] = if self.address.is_ipv4() { 4 } else { 6 };
        room[5] = match self.purpose {
            Purpose::Data => 0,
            Purpose::Answer => 7,
        };
        room[6] = if self.address.is_ipv4() { 16 } else { 28 };
        room[7] = 0;
        room[8..12].copy_from_slice(&(self.qpn & 0xFF_FFFF).to_be_bytes());
        match self.address {
            IpAddr::V4(address) => room[12..].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => room[12..].copy_from_slice(&address.octets()),
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_of_each_family() {
        let v4 = Source("10.1.2.3:7174".parse().unwrap());
        let v6 = Source("[fe80::1]:7174".parse().unwrap());
        let v6_bytes = [6, 24, 0x1C, 0x06, 0, 0, 0, 0, 0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for (source, bytes) in [(v4, &[4, 8, 0x1C, 0x06, 10, 1, 2, 3][..]), (v6, &v6_bytes[..])] {
            let mut room = [0; 64];
            assert_eq!(source.emit(&mut room), bytes.len());
            assert_eq!(&room[..bytes.len()], bytes);
            room[bytes.len()] = 0x77;
            let (parsed, data) = Source::parse(&room).unwrap();
            assert_eq!((parsed, data[0]), (source, 0x77));
        }
    }

    #[test]
    fn a_resolve_of_each_family() {
        let v4 = Resolve { purpose: Purpose::Data, qpn: 0x12_3456, address: "10.1.2.3".parse().unwrap() };
        let v6 = Resolve { purpose: Purpose::Answer, qpn: 0x12_3456, address: "fe80::1".parse().unwrap() };
        let v4_bytes = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3];
        let mut v6_bytes = [0; 28];
        v6_bytes[..14].copy_from_slice(&[0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0, 0, 0x12, 0x34, 0x56, 0xFE, 0x80]);
        v6_bytes[27] = 1;
        for (resolve, bytes) in [(v4, &v4_bytes[..]), (v6, &v6_bytes[..])] {
            let mut room = [0xEE; 64];
            assert_eq!(resolve.emit(&mut room), bytes.len());
            assert_eq!(&room[..bytes.len()], bytes);
            let (parsed, data) = Resolve::parse(&room).unwrap();
            assert_eq!((parsed, data.len()), (resolve, 64 - bytes.len()));
        }
    }

    #[test]
    fn short_and_strange_bytes_are_none() {
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3];
        for length in 0..bytes.len() {
            assert_eq!(Resolve::parse(&bytes[..length]), None);
        }
        for (place, value) in [(0, 0), (4, 6), (5, 1), (6, 28)] {
            let mut wrong = bytes;
            wrong[place] = value;
            assert_eq!(Resolve::parse(&wrong), None, "{place}");
        }
        assert_eq!(Source::parse(&[4, 8, 0, 0, 1, 2, 3]), None);
        assert_eq!(Source::parse(&[6, 24, 0, 0, 1, 2, 3, 4]), None);
        assert_eq!(Source::parse(&[4, 24, 0, 0, 1, 2, 3, 4]), None);
        assert_eq!(Source(SocketAddr::from(([1, 2, 3, 4], 5))).emit(&mut [0; 7]), 0);
    }
}
