//! What two sides tell each other to talk: [`Endpoint`] of a connected queue pair, [`DatagramEndpoint`] of a datagram one.
//!
//! Plain data, as bytes or as a line of text; how they travel is the program's affair (a socket, a file, a job launcher).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::mtu::Mtu;

/// Numbers of queue pairs and packets have 24 bits.
const NUMBER: u32 = 0x00ff_ffff;

/// One end of a connection: what the peer's [`connect`](crate::Unconnected::connect) needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Whether the service is reliable.
    pub reliable: bool,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The first packet number that it sends.
    pub psn: u32,
    /// Address of its port.
    pub gid: Gid,
    /// The longest packet that its port takes.
    pub mtu: Mtu,
    /// How many READs and atomics of the peer it serves at a time.
    pub reads: u8,
}

impl Endpoint {
    /// Bytes of [`Endpoint::to_bytes`].
    pub const LEN: usize = 28;

    /// As bytes, the same on every machine.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = if self.reliable { 1 } else { 2 };
        bytes[1] = self.reads;
        bytes[2..4].copy_from_slice(&(self.mtu.bytes() as u16).to_be_bytes());
        bytes[4..8].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_be_bytes());
        bytes[12..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// From [`Endpoint::to_bytes`].
    ///
    /// # Errors
    /// The bytes are no endpoint.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[12..]);
        let reliable = match bytes[0] {
            1 => true,
            2 => false,
            other => return Err(Error::malformed(format!("an endpoint begins with 1 or 2, these bytes with {other}"))),
        };
        let mtu = Mtu::try_from(u32::from(u16::from_be_bytes([bytes[2], bytes[3]])))?;
        Self { reliable, qpn: word(4), psn: word(8), gid: Gid(gid), mtu, reads: bytes[1] }.checked()
    }

    fn checked(self) -> Result<Self> {
        match self {
            Self { qpn, .. } if qpn > NUMBER => Err(Error::malformed(format!("{qpn:#x} is no number of a queue pair"))),
            Self { psn, .. } if psn > NUMBER => Err(Error::malformed(format!("{psn} is no packet number"))),
            _ => Ok(self),
        }
    }
}

/// `rc,0x100,1234567,4096,16,fe80::1`: service, QP number, first packet number, MTU, READs, GID.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, psn, gid, mtu, reads, .. } = self;
        write!(f, "{},{qpn:#x},{psn},{mtu},{reads},{gid}", if self.reliable { "rc" } else { "uc" })
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut fields = text.trim().split(',');
            let mut next = || fields.next();
            let reliable = match next()? {
                "rc" => true,
                "uc" => false,
                _ => return None,
            };
            let endpoint = Self {
                reliable,
                qpn: hex(next()?)?,
                psn: next()?.parse().ok()?,
                mtu: Mtu::try_from(next()?.parse::<u32>().ok()?).ok()?,
                reads: next()?.parse().ok()?,
                gid: next()?.parse().ok()?,
            };
            fields.next().is_none().then_some(endpoint)
        };
        parse()
            .ok_or_else(|| {
                Error::malformed(format!("{text:?} is no endpoint, such as rc,0x100,1234567,4096,16,fe80::1"))
            })?
            .checked()
    }
}

/// Where datagrams for a queue pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramEndpoint {
    /// Number of the queue pair; [`DatagramEndpoint::GROUP`] for a multicast group.
    pub qpn: u32,
    /// The key that datagrams have to show.
    pub qkey: u32,
    /// Address of its port, or the group.
    pub gid: Gid,
}

impl DatagramEndpoint {
    /// Bytes of [`DatagramEndpoint::to_bytes`].
    pub const LEN: usize = 24;
    /// The number that stands for every member of a multicast group.
    pub const GROUP: u32 = NUMBER;

    /// As bytes, the same on every machine.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[8..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// From [`DatagramEndpoint::to_bytes`].
    ///
    /// # Errors
    /// The bytes are no endpoint.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self> {
        let [a, b, c, d, e, f, g, h, gid @ ..] = *bytes;
        Self { qpn: u32::from_be_bytes([a, b, c, d]), qkey: u32::from_be_bytes([e, f, g, h]), gid: Gid(gid) }.checked()
    }

    fn checked(self) -> Result<Self> {
        if self.qpn > NUMBER {
            return Err(Error::malformed(format!("{:#x} is no number of a queue pair", self.qpn)));
        }
        Ok(self)
    }
}

/// `ud,0x100,0x11111111,fe80::1`: QP number, Q_Key, GID.
impl fmt::Display for DatagramEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ud,{:#x},{:#x},{}", self.qpn, self.qkey, self.gid)
    }
}

impl FromStr for DatagramEndpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut fields = text.trim().strip_prefix("ud,")?.split(',');
            let mut next = || fields.next();
            let endpoint = Self { qpn: hex(next()?)?, qkey: hex(next()?)?, gid: next()?.parse().ok()? };
            fields.next().is_none().then_some(endpoint)
        };
        parse()
            .ok_or_else(|| {
                Error::malformed(format!("{text:?} is no datagram endpoint, such as ud,0x100,0x11111111,fe80::1"))
            })?
            .checked()
    }
}

/// Where a datagram came from, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Address of the sender's port.
    pub gid: Gid,
    /// The sending queue pair.
    pub qpn: u32,
    /// The address that it was sent to: a port of ours, or a multicast group.
    pub destination: Gid,
}

fn hex(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits.strip_prefix("0x")?, 16).ok()
}
