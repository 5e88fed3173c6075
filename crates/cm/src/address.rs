//! Addresses as the connection manager passes them: a `sockaddr` of IPv4, IPv6 or AF_IB, with its
//! length. Addresses that the standard library's types can represent are converted; the others stay
//! bytes. The principal type is [`Address`].

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// `AF_INET`, `AF_INET6` and `AF_IB` of Linux.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_IB: u16 = 27;

/// The space for any address: `struct sockaddr_storage`.
const ROOM: usize = 128;

/// An address, or no address (length 0).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    bytes: [u8; ROOM],
    len: u8,
}

/// A native InfiniBand address (`struct sockaddr_ib`): a GID and a service id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressIb {
    /// The partition key; 0xffff matches any.
    pub pkey: u16,
    /// Flow label and traffic class.
    pub flow_info: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// The service id.
    pub service: u64,
    /// The bits of the service id that are valid.
    pub service_mask: u64,
    /// The scope of a link-local address.
    pub scope: u64,
}

impl Address {
    /// No address.
    pub const NONE: Self = Self { bytes: [0; ROOM], len: 0 };

    /// Reads an address from the first bytes of a `sockaddr`. The family decides the length; bytes
    /// after it are ignored. Returns `None` for an unknown family, or if there are too few bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let len = Self::len_of(family)?;
        let mut address = Self::NONE;
        address.bytes[..len].copy_from_slice(bytes.get(..len)?);
        address.len = u8::try_from(len).ok()?;
        Some(address)
    }

    /// The length of a `sockaddr` of a family, if the connection manager knows the family.
    #[must_use]
    pub fn len_of(family: u16) -> Option<usize> {
        match family {
            AF_INET => Some(16),
            AF_INET6 => Some(28),
            AF_IB => Some(48),
            _ => None,
        }
    }

    /// The bytes of the `sockaddr`; empty without an address.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes with zeros up to the size of a `sockaddr_storage`.
    #[must_use]
    pub fn storage(&self) -> [u8; ROOM] {
        self.bytes
    }

    /// The length of the address in bytes; 0 without an address.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The length as the records store it.
    pub(crate) fn size(&self) -> u16 {
        self.len.into()
    }

    /// Whether there is no address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The family's number; 0 without an address.
    #[must_use]
    pub fn family(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[0], self.bytes[1]])
    }

    /// The IP address and port, if it is an IP address.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.array(2));
        match self.family() {
            AF_INET => Some(SocketAddrV4::new(Ipv4Addr::from(self.array::<4>(4)), port).into()),
            AF_INET6 => {
                let flow = u32::from_ne_bytes(self.array(4));
                let scope = u32::from_ne_bytes(self.array(24));
                Some(SocketAddrV6::new(Ipv6Addr::from(self.array::<16>(8)), port, flow, scope).into())
            }
            _ => None,
        }
    }

    /// The native address, if it is one.
    #[must_use]
    pub fn ib(&self) -> Option<AddressIb> {
        (self.family() == AF_IB).then(|| AddressIb {
            pkey: u16::from_be_bytes(self.array(2)),
            flow_info: u32::from_be_bytes(self.array(4)),
            gid: self.array(8),
            service: u64::from_be_bytes(self.array(24)),
            service_mask: u64::from_be_bytes(self.array(32)),
            scope: u64::from_ne_bytes(self.array(40)),
        })
    }

    /// The port in host order: that of an IP address, or the low half of the service id of a native
    /// address.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self.family() {
            AF_INET | AF_INET6 => u16::from_be_bytes(self.array(2)),
            AF_IB => u16::from_be_bytes(self.array(30)),
            _ => 0,
        }
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.bytes[at + index])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        let mut made = Self::NONE;
        match address {
            SocketAddr::V4(v4) => {
                made.len = 16;
                made.put(0, &AF_INET.to_ne_bytes());
                made.put(4, &v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                made.len = 28;
                made.put(0, &AF_INET6.to_ne_bytes());
                made.put(4, &v6.flowinfo().to_ne_bytes());
                made.put(8, &v6.ip().octets());
                made.put(24, &v6.scope_id().to_ne_bytes());
            }
        }
        made.put(2, &address.port().to_be_bytes());
        made
    }
}

impl From<AddressIb> for Address {
    fn from(ib: AddressIb) -> Self {
        let mut made = Self::NONE;
        made.len = 48;
        made.put(0, &AF_IB.to_ne_bytes());
        made.put(2, &ib.pkey.to_be_bytes());
        made.put(4, &ib.flow_info.to_be_bytes());
        made.put(8, &ib.gid);
        made.put(24, &ib.service.to_be_bytes());
        made.put(32, &ib.service_mask.to_be_bytes());
        made.put(40, &ib.scope.to_ne_bytes());
        made
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.socket_addr() {
            return address.fmt(f);
        }
        match self.ib() {
            Some(ib) => write!(f, "[{}] service {:#x}", Ipv6Addr::from(ib.gid), ib.service),
            None => f.write_str("no address"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_both_ways() {
        for text in ["10.1.2.3:7471", "[fe80::1%3]:18515", "[::1]:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let made = Address::from(address);
            assert_eq!(made.socket_addr(), Some(address));
            assert_eq!(made.port(), address.port());
            assert_eq!(Address::from_bytes(&made.storage()), Some(made));
            assert_eq!(made.to_string(), text);
        }
        let ib = AddressIb {
            pkey: 0xffff,
            gid: [7; 16],
            service: 0x0106_1d2f,
            service_mask: u64::MAX,
            ..AddressIb::default()
        };
        let made = Address::from(ib);
        assert_eq!((made.ib(), made.len(), made.port()), (Some(ib), 48, 0x1d2f));
    }

    #[test]
    fn ipv4_is_a_sockaddr_in() {
        let made = Address::from(SocketAddr::from(([10, 1, 2, 3], 0x1d2f)));
        assert_eq!(made.bytes(), [2, 0, 0x1d, 0x2f, 10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn bytes_of_no_address_are_not_parsed() {
        assert_eq!(Address::from_bytes(&[2, 0, 1]), None);
        assert_eq!(Address::from_bytes(&[1; 16]), None);
        assert!(Address::NONE.is_empty() && Address::NONE.socket_addr().is_none() && Address::NONE.ib().is_none());
        assert_eq!(Address::NONE.to_string(), "no address");
    }
}
