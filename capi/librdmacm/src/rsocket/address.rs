//! Socket addresses as the program passes them: the bytes of a `struct sockaddr` and their number.
//! The principal type is [`Name`].

use crate::entry::{Outcome, Refusal};
use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The maximum length of an address: `struct sockaddr_storage`.
const ROOM: usize = 128;

/// An address of any family.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; ROOM],
    length: usize,
}

impl Name {
    /// Reads an address of the program.
    ///
    /// # Safety
    /// `address` is NULL or has `length` bytes.
    pub(crate) unsafe fn read(address: *const c_void, length: u32) -> Outcome<Self> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if address.is_null() {
            return Err(Refusal(libc::EFAULT));
        }
        if !(2..=ROOM).contains(&length) {
            return Err(Refusal(libc::EINVAL));
        }
        let mut bytes = [0; ROOM];
        // SAFETY: the caller's promise, and no more bytes than the array has.
        unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), length) };
        let name = Self { bytes, length };
        match name.family() {
            libc::AF_INET if length < 16 => Err(Refusal(libc::EINVAL)),
            libc::AF_INET6 if length < 24 => Err(Refusal(libc::EINVAL)),
            _ => Ok(name),
        }
    }

    /// Reads an address whose length follows from its family.
    ///
    /// # Safety
    /// `address` points to a whole address of its family.
    pub(crate) unsafe fn known(address: *const c_void) -> Outcome<Self> {
        if address.is_null() {
            return Err(Refusal(libc::ENOTCONN));
        }
        // SAFETY: an address begins with its family.
        let family = unsafe { address.cast::<u16>().read_unaligned() };
        let length = match i32::from(family) {
            libc::AF_INET => 16,
            libc::AF_INET6 => 28,
            AF_IB => 48,
            _ => return Err(Refusal(libc::ENOTCONN)),
        };
        // SAFETY: the caller's promise.
        unsafe { Self::read(address, length) }
    }

    /// The wildcard address of a family.
    pub(crate) fn any(family: i32) -> Self {
        if family == libc::AF_INET6 {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into()
        } else {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()
        }
    }

    /// Copies the address to the program, shortened to the program's room. The stored length is the
    /// whole length.
    ///
    /// # Safety
    /// `length` is valid; `address` has as many bytes as it says, or is NULL.
    pub(crate) unsafe fn write(&self, address: *mut c_void, length: *mut u32) {
        if length.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        let room = usize::try_from(unsafe { length.read() }).unwrap_or(0);
        if !address.is_null() {
            // SAFETY: the caller's promise; no more bytes than either side has.
            unsafe { std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), address.cast::<u8>(), room.min(self.length)) };
        }
        // SAFETY: the caller's promise.
        unsafe { length.write(u32::try_from(self.length).unwrap_or(0)) };
    }

    /// The family.
    pub(crate) fn family(&self) -> i32 {
        u16::from_ne_bytes([self.bytes[0], self.bytes[1]]).into()
    }

    /// The address as a pointer for a C function.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.bytes.as_ptr().cast_mut().cast()
    }

    /// The address as an internet address. Fails with EAFNOSUPPORT for other families.
    pub(crate) fn internet(&self) -> Outcome<SocketAddr> {
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        let quad = |at: usize| std::array::from_fn::<u8, 4, _>(|index| self.bytes[at + index]);
        match self.family() {
            libc::AF_INET => Ok((Ipv4Addr::from(quad(4)), port).into()),
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|index| self.bytes[8 + index]));
                let scope = u32::from_ne_bytes(quad(24));
                Ok(SocketAddrV6::new(ip, port, u32::from_be_bytes(quad(4)), scope).into())
            }
            _ => Err(Refusal(libc::EAFNOSUPPORT)),
        }
    }

    /// The same address without a port.
    pub(crate) fn without_port(mut self) -> Self {
        self.bytes[2..4].copy_from_slice(&[0; 2]);
        self
    }
}

/// `AF_IB` of `rdma_cma.h`.
pub(crate) const AF_IB: i32 = 27;

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; ROOM];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        bytes[..2].copy_from_slice(&u16::try_from(family).unwrap_or(0).to_ne_bytes());
        let length = match address {
            SocketAddr::V4(address) => {
                bytes[4..8].copy_from_slice(&address.ip().octets());
                16
            }
            SocketAddr::V6(address) => {
                bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                28
            }
        };
        Self { bytes, length }
    }
}

/// The internal form of a host's address: an IPv4 host has its IPv4 address, also on an IPv6
/// socket. The flow label is dropped, because it does not belong to the host.
pub(crate) fn inward(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(address) => match address.ip().to_ipv4_mapped() {
            Some(ip) => (ip, address.port()).into(),
            None => SocketAddrV6::new(*address.ip(), address.port(), 0, address.scope_id()).into(),
        },
        SocketAddr::V4(_) => address,
    }
}

/// The form of an address that a socket of this family shows.
pub(crate) fn outward(address: SocketAddr, family: i32) -> SocketAddr {
    match address {
        SocketAddr::V4(address) if family == libc::AF_INET6 => (address.ip().to_ipv6_mapped(), address.port()).into(),
        address => address,
    }
}

/// The destination of a datagram: the wildcard address means this host.
pub(crate) fn aimed(to: SocketAddr) -> SocketAddr {
    let ip = match to.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return to,
    };
    SocketAddr::new(ip, to.port())
}

/// Whether the address is the wildcard address.
pub(crate) fn is_wild(ip: IpAddr) -> bool {
    ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in ["10.1.2.3:7471", "[fe80::1:2]:7471"] {
            let address: SocketAddr = text.parse().unwrap();
            let name = Name::from(address);
            assert_eq!(name.internet().ok(), Some(address));
            assert_eq!(name.without_port().internet().ok().map(|address| address.port()), Some(0));
            let (mut room, mut length) = ([0_u8; ROOM], 128);
            // SAFETY: `room` has as many bytes as `length` says.
            unsafe { name.write(room.as_mut_ptr().cast(), &raw mut length) };
            // SAFETY: as above.
            let read = unsafe { Name::read(room.as_ptr().cast(), length) };
            assert_eq!(read.ok().and_then(|name| name.internet().ok()), Some(address));
        }
    }

    #[test]
    fn a_host_has_one_address_inside() {
        for (outside, inside, family) in [
            ("127.0.0.1:7", "127.0.0.1:7", libc::AF_INET),
            ("[::ffff:127.0.0.1]:7", "127.0.0.1:7", libc::AF_INET6),
            ("[::ffff:0.0.0.0]:7", "0.0.0.0:7", libc::AF_INET6),
            ("[::1]:7", "[::1]:7", libc::AF_INET6),
            ("[fe80::1%3]:7", "[fe80::1%3]:7", libc::AF_INET6),
        ] {
            let [outside, inside] = [outside, inside].map(|text| text.parse::<SocketAddr>().unwrap());
            assert_eq!((inward(outside), outward(inside, family)), (inside, outside));
        }
        for (to, goes) in [("0.0.0.0:7", "127.0.0.1:7"), ("[::]:7", "[::1]:7"), ("10.0.0.1:7", "10.0.0.1:7")] {
            assert_eq!(aimed(to.parse().unwrap()), goes.parse().unwrap());
        }
    }

    #[test]
    fn short_ones_are_refused() {
        let bytes = Name::any(libc::AF_INET6).bytes;
        // SAFETY: there are more bytes than the length says.
        let read = unsafe { Name::read(bytes.as_ptr().cast(), 16) };
        assert_eq!(read.err(), Some(Refusal(libc::EINVAL)));
    }
}
