//! Link-layer addresses of IPoIB: 20 bytes with a queue pair and the GID of its port. RFC 4391 9.1.
//! Principal type: [`LinkAddress`].

use std::fmt;
use std::net::Ipv6Addr;

use wire::cm::Gid;

/// The address of an interface: `flags (1) | QPN (3) | GID (16)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkAddress {
    /// What the interface can do besides datagrams: [`LinkAddress::RC`], [`LinkAddress::UC`].
    pub flags: u8,
    /// The queue pair for datagrams, 24 bits.
    pub qpn: u32,
    /// The port.
    pub gid: Gid,
}

impl LinkAddress {
    /// The bytes of an address.
    pub const LEN: usize = 20;
    /// The flag of an interface that takes reliable connections. RFC 4755 3.1.
    pub const RC: u8 = 0x80;
    /// The flag of an interface that takes unreliable connections.
    pub const UC: u8 = 0x40;

    /// Parses an address. Every 20 bytes are one.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [flags, a, b, c, gid @ ..] = *bytes;
        Self { flags, qpn: u32::from_be_bytes([0, a, b, c]), gid }
    }

    /// The bytes of the address.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[0] = self.flags;
        bytes[4..].copy_from_slice(&self.gid);
        bytes
    }

    /// Whether packets can be sent there: it names a queue pair for datagrams, and a port.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        (2..0x00ff_ffff).contains(&self.qpn) && self.gid != [0; 16] && self.gid[0] != 0xff
    }
}

/// `80:00:01:23:fe80::1`: the flags and the QPN by bytes, as `ip link` prints them, and the GID.
impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, a, b, c] = self.qpn.to_be_bytes();
        write!(f, "{:02x}:{a:02x}:{b:02x}:{c:02x}:{}", self.flags, Ipv6Addr::from(self.gid))
    }
}

impl fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::LinkAddress;

    #[test]
    fn an_address_is_flags_qpn_and_gid() {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&[0x80, 0x01, 0x02, 0x03]);
        bytes[4..].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 7]);
        let address = LinkAddress::parse(&bytes);
        assert_eq!((address.flags, address.qpn, address.bytes()), (LinkAddress::RC, 0x01_0203, bytes));
        assert_eq!(address.to_string(), "80:01:02:03:fe80::200:0:0:7");
        assert!(address.is_usable());
        for bad in [LinkAddress { qpn: 1, ..address }, LinkAddress { gid: [0; 16], ..address }] {
            assert!(!bad.is_usable(), "{bad}");
        }
    }
}
