//! Socket addresses in the kernel's layout, as plain bytes. This module knows no host names and no
//! text. Principal type: [`Name`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

const V4_LEN: usize = 16;
const V6_LEN: usize = 28;

/// A `sockaddr_in` or `sockaddr_in6`.
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; V6_LEN],
}

impl Name {
    /// An empty name, to which the kernel writes an address of either family.
    pub(crate) const fn room() -> Name {
        Name { bytes: [0; V6_LEN] }
    }

    /// The address in the kernel's layout, and its length.
    pub(crate) fn of(address: &SocketAddr) -> (Name, u32) {
        let mut bytes = [0; V6_LEN];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[..2].copy_from_slice(&family(libc::AF_INET));
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (Name { bytes }, V4_LEN as u32)
            }
            SocketAddr::V6(v6) => {
                bytes[..2].copy_from_slice(&family(libc::AF_INET6));
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (Name { bytes }, V6_LEN as u32)
            }
        }
    }

    /// The address of which the kernel wrote `len` bytes.
    pub(crate) fn read(&self, len: usize) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let start = [bytes[0], bytes[1]];
        if start == family(libc::AF_INET) && len >= V4_LEN {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        } else if start == family(libc::AF_INET6) && len >= V6_LEN {
            let ip: [u8; 16] = std::array::from_fn(|index| bytes[8 + index]);
            let scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
        } else {
            None
        }
    }

    pub(crate) const fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    pub(crate) const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    pub(crate) const fn capacity(&self) -> u32 {
        V6_LEN as u32
    }
}

fn family(number: i32) -> [u8; 2] {
    (number as u16).to_ne_bytes()
}

/// A socket address of either family; only IPv6 uses the scope.
pub(crate) fn socket_address(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
        IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope_id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_both_families() {
        let (name, len) = Name::of(&"10.77.0.11:4791".parse().unwrap());
        assert_eq!((len, &name.bytes[..8]), (16, &[2, 0, 0x12, 0xb7, 10, 77, 0, 11][..]));
        let address = socket_address("fe80::11".parse().unwrap(), 4791, 3);
        let (name, len) = Name::of(&address);
        assert_eq!((len, &name.bytes[..10]), (28, &[10, 0, 0x12, 0xb7, 0, 0, 0, 0, 0xfe, 0x80][..]));
        assert_eq!((name.bytes[23], &name.bytes[24..]), (0x11, &[3, 0, 0, 0][..]));
    }

    #[test]
    fn a_socket_address_survives_conversion_to_the_kernels_form() {
        for text in ["10.77.0.11:4791", "[fd77::11]:49152"] {
            let address: SocketAddr = text.parse().unwrap();
            let (name, len) = Name::of(&address);
            assert_eq!(name.read(len as usize), Some(address));
            assert_eq!(name.read(len as usize - 1), None);
        }
        assert_eq!(Name::room().read(28), None);
    }
}
