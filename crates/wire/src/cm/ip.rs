//! The RDMA IP CM service: connections by IP address and port. Its service ids, and the header that
//! it puts before the private data of REQ and SIDR_REQ. Not the resolution of addresses. IBA annex
//! A11. Principal types: [`Service`], [`Header`].

use crate::number::{be16, put16};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of this header.
pub const LEN: usize = 36;

const PREFIX: u64 = 0x0000_0000_0100_0000;
const PREFIX_MASK: u64 = 0xffff_ffff_ff00_0000;

/// A service of the IP CM: an IP protocol number and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// The IP protocol of the port number: 6 for TCP, 17 for UDP, 0x3f for IB.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

impl Service {
    /// The port numbers of TCP: reliable connections.
    pub const TCP: u8 = 6;
    /// The port numbers of UDP: datagrams.
    pub const UDP: u8 = 17;
    /// The port numbers of the InfiniBand port space.
    pub const IB: u8 = 0x3f;

    /// The service with this id, or `None` if the id is not one of the IP CM.
    #[must_use]
    pub const fn from_id(service_id: u64) -> Option<Service> {
        if service_id & PREFIX_MASK != PREFIX {
            return None;
        }
        let [.., protocol, high, low] = service_id.to_be_bytes();
        Some(Service { protocol, port: u16::from_be_bytes([high, low]) })
    }

    /// The service's id.
    #[must_use]
    pub const fn id(self) -> u64 {
        PREFIX | (self.protocol as u64) << 16 | self.port as u64
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Service::TCP => write!(f, "TCP port {}", self.port),
            Service::UDP => write!(f, "UDP port {}", self.port),
            Service::IB => write!(f, "IB port {}", self.port),
            other => write!(f, "port {} of protocol {other}", self.port),
        }
    }
}

/// Why private data does not begin with this header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The version of the header is not 0.
    #[error("version {0:#04x} of the IP CM header, only 0 is known")]
    Version(u8),
    /// The IP version is neither 4 nor 6.
    #[error("IP version {0}, neither 4 nor 6")]
    IpVersion(u8),
}

/// The IP addresses of a connection. Both have the same IP version: [`Header::emit`] uses the
/// source's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The port of the active side.
    pub source_port: u16,
    /// The address of the active side.
    pub source: IpAddr,
    /// The destination address; its port is in the service id.
    pub destination: IpAddr,
}

impl Header {
    /// Parses the header.
    ///
    /// # Errors
    /// The header's version or the IP version is unknown.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Header, Malformed> {
        if bytes[0] != 0 {
            return Err(Malformed::Version(bytes[0]));
        }
        let (source, destination) = match bytes[1] >> 4 {
            4 => (v4(bytes, 4).into(), v4(bytes, 20).into()),
            6 => (v6(bytes, 4).into(), v6(bytes, 20).into()),
            other => return Err(Malformed::IpVersion(other)),
        };
        Ok(Header { source_port: be16(bytes, 2), source, destination })
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes.fill(0);
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        put16(bytes, 2, self.source_port);
        put_address(bytes, 4, self.source);
        put_address(bytes, 20, self.destination);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} port {} to {}", self.source, self.source_port, self.destination)
    }
}

fn v4(bytes: &[u8; LEN], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at + 12], bytes[at + 13], bytes[at + 14], bytes[at + 15])
}

fn v6(bytes: &[u8; LEN], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Ipv6Addr::from(octets)
}

/// An IPv4 address takes the last four of the sixteen bytes.
fn put_address(bytes: &mut [u8; LEN], at: usize, address: IpAddr) {
    match address {
        IpAddr::V4(address) => bytes[at + 12..at + 16].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_hold_the_protocol_and_the_port() {
        let service = Service { protocol: Service::TCP, port: 7471 };
        assert_eq!(service.id(), 0x0106_1d2f);
        assert_eq!(Service::from_id(0x0106_1d2f), Some(service));
        assert_eq!(Service::from_id(0x0001_0106_1d2f), None);
        assert_eq!(Service::from_id(0x0206_1d2f), None);
        assert_eq!(Service { protocol: Service::IB, port: 1 }.id(), 0x013f_0001);
        assert_eq!(service.to_string(), "TCP port 7471");
    }

    /// The header in rping's REQ on Linux.
    #[test]
    fn an_ipv4_header_is_emitted_and_parsed_as_literal_bytes() {
        let mut bytes = [0; LEN];
        bytes[1..4].copy_from_slice(&[0x40, 0xbb, 0x1d]);
        bytes[16..20].copy_from_slice(&[10, 77, 0, 12]);
        bytes[32..36].copy_from_slice(&[10, 77, 0, 11]);
        let header = Header {
            source_port: 0xbb1d,
            source: Ipv4Addr::new(10, 77, 0, 12).into(),
            destination: Ipv4Addr::new(10, 77, 0, 11).into(),
        };
        assert_eq!(Header::parse(&bytes), Ok(header));
        let mut out = [0xaa; LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(header.to_string(), "from 10.77.0.12 port 47901 to 10.77.0.11");
    }

    #[test]
    fn an_ipv6_header_is_emitted_and_parsed_as_literal_bytes() {
        let header =
            Header { source_port: 1, source: "fd77::12".parse().unwrap(), destination: "fd77::11".parse().unwrap() };
        let mut bytes = [0xaa; LEN];
        header.emit(&mut bytes);
        assert_eq!(bytes[..6], [0, 0x60, 0, 1, 0xfd, 0x77]);
        assert_eq!((bytes[19], bytes[20], bytes[35]), (0x12, 0xfd, 0x11));
        assert_eq!(Header::parse(&bytes), Ok(header));
    }

    #[test]
    fn other_versions_are_refused() {
        let mut bytes = [0; LEN];
        assert_eq!(Header::parse(&bytes), Err(Malformed::IpVersion(0)));
        bytes[0] = 0x10;
        assert_eq!(Header::parse(&bytes), Err(Malformed::Version(0x10)));
    }
}
