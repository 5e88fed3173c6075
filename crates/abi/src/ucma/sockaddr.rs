//! Addresses as programs write them: `sockaddr_in`, `sockaddr_in6`, `sockaddr_ib`, and
//! [`Sockaddr`], which is any of them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::errno::Errno;
use crate::layout::Record;

record! {
    /// `sockaddr_in`.
    pub struct SockaddrIn[16] {
        /// AF_INET, 2.
        0 => family: u16,
        /// Port, network byte order.
        2 => port: [u8; 2],
        /// Address, network byte order.
        4 => addr: [u8; 4],
        /// 0.
        8 => zero: [u8; 8],
    }

    /// `sockaddr_in6`; where a record has room for one, a `SockaddrIn` may stand in its first 16
    /// bytes.
    pub struct SockaddrIn6[28] {
        /// AF_INET6, 10.
        0 => family: u16,
        /// Port, network byte order.
        2 => port: [u8; 2],
        /// Flow label, network byte order.
        4 => flowinfo: [u8; 4],
        /// Address, network byte order.
        8 => addr: [u8; 16],
        /// Interface of a link-local address.
        24 => scope_id: u32,
    }

    /// `sockaddr_ib`.
    pub struct SockaddrIb[48] {
        /// AF_IB, 27.
        0 => family: u16,
        /// P_Key, network byte order; 0xffff for any.
        2 => pkey: [u8; 2],
        /// Flow label, network byte order.
        4 => flowinfo: [u8; 4],
        /// GID, network byte order.
        8 => addr: [u8; 16],
        /// Service id, network byte order.
        24 => sid: [u8; 8],
        /// Mask of the valid bits of the service id, network byte order.
        32 => sid_mask: [u8; 8],
        /// Interface of a link-local address.
        40 => scope_id: u64,
    }
}

constants! {
    /// `family`.
    pub mod family: u16 {
        /// No address.
        UNSPEC = 0,
        /// IPv4.
        INET = 2,
        /// IPv6.
        INET6 = 10,
        /// GID and service id.
        IB = 27,
    }
}

/// An address of any family that ids can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sockaddr {
    /// IPv4 or IPv6 with a port.
    Ip(SocketAddr),
    /// A GID with a service id.
    Ib(SockaddrIb),
}

impl Sockaddr {
    /// Parses an address. `None` when there is none: no bytes, or the family UNSPEC.
    ///
    /// # Errors
    /// EINVAL when the bytes are too few for their family, EAFNOSUPPORT for other families.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        let Some(family) = bytes.first_chunk::<2>() else { return Ok(None) };
        match u16::from_ne_bytes(*family) {
            family::UNSPEC => Ok(None),
            family::INET => {
                let record = SockaddrIn::read(bytes).ok_or(Errno::EINVAL)?;
                let ip = Ipv4Addr::from(record.addr);
                Ok(Some(Self::Ip(SocketAddrV4::new(ip, u16::from_be_bytes(record.port)).into())))
            }
            family::INET6 => {
                let record = SockaddrIn6::read(bytes).ok_or(Errno::EINVAL)?;
                let (port, flow) = (u16::from_be_bytes(record.port), u32::from_be_bytes(record.flowinfo));
                Ok(Some(Self::Ip(SocketAddrV6::new(Ipv6Addr::from(record.addr), port, flow, record.scope_id).into())))
            }
            family::IB => Ok(Some(Self::Ib(SockaddrIb::read(bytes).ok_or(Errno::EINVAL)?))),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// The address as bytes, zeros behind it, and its length.
    #[must_use]
    pub fn emit(&self) -> ([u8; 128], u16) {
        let mut bytes = [0; 128];
        let mut put = |record: &[u8]| {
            bytes[..record.len()].copy_from_slice(record);
            u16::try_from(record.len()).unwrap_or_default()
        };
        let len = match self {
            Self::Ip(SocketAddr::V4(addr)) => put(SockaddrIn {
                family: family::INET,
                port: addr.port().to_be_bytes(),
                addr: addr.ip().octets(),
                zero: [0; 8],
            }
            .bytes()),
            Self::Ip(SocketAddr::V6(addr)) => put(SockaddrIn6 {
                family: family::INET6,
                port: addr.port().to_be_bytes(),
                flowinfo: addr.flowinfo().to_be_bytes(),
                addr: addr.ip().octets(),
                scope_id: addr.scope_id(),
            }
            .bytes()),
            Self::Ib(record) => put(record.bytes()),
        };
        (bytes, len)
    }

    /// The address in the room of a `SockaddrIn6`; a `SockaddrIb` does not fit and is zeros.
    #[must_use]
    pub fn short(&self) -> SockaddrIn6 {
        match self {
            Self::Ip(_) => SockaddrIn6::read_zero_extended(&self.emit().0),
            Self::Ib(_) => SockaddrIn6::default(),
        }
    }
}

impl std::fmt::Display for Sockaddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Ib(record) => {
                write!(f, "[{}] service {:#018x}", Ipv6Addr::from(record.addr), u64::from_be_bytes(record.sid))
            }
        }
    }
}
