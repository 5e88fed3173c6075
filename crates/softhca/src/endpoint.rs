//! Addresses that two sides exchange before they communicate: [`Endpoint`] of a connected queue
//! pair, [`DatagramEndpoint`] of a datagram queue pair.
//!
//! They are plain data, encoded as bytes or as a line of text. The program carries them to the peer
//! (by a socket, a file, a job launcher).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::mtu::Mtu;

/// QPNs and PSNs have 24 bits.
const NUMBER: u32 = 0x00ff_ffff;

/// One end of a connection: the peer needs it for [`connect`](crate::Unconnected::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Whether the service is reliable.
    pub reliable: bool,
    /// The QPN.
    pub qpn: u32,
    /// The first PSN that the queue pair sends.
    pub psn: u32,
    /// Address of the queue pair's port.
    pub gid: Gid,
    /// MTU of the queue pair's port.
    pub mtu: Mtu,
    /// Maximum number of the peer's READs and atomics that the queue pair serves at the same time.
    pub reads: u8,
}

impl Endpoint {
    /// Length of [`Endpoint::to_bytes`].
    pub const LEN: usize = 28;

    /// Encodes the endpoint; the bytes are the same on every machine.
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

    /// Parses [`Endpoint::to_bytes`].
    ///
    /// # Errors
    /// The bytes are not an endpoint.
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
            Self { qpn, .. } if qpn > NUMBER => Err(Error::malformed(format!("{qpn:#x} is not a valid QPN"))),
            Self { psn, .. } if psn > NUMBER => Err(Error::malformed(format!("{psn} is not a valid PSN"))),
            _ => Ok(self),
        }
    }
}

/// `rc,0x100,1234567,4096,16,fe80::1`: service, QPN, first PSN, MTU, READs, GID.
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

/// The address of a queue pair for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramEndpoint {
    /// The QPN; [`DatagramEndpoint::GROUP`] for a multicast group.
    pub qpn: u32,
    /// The Q_Key that datagrams must carry.
    pub qkey: u32,
    /// Address of the queue pair's port, or of the group.
    pub gid: Gid,
}

impl DatagramEndpoint {
    /// Length of [`DatagramEndpoint::to_bytes`].
    pub const LEN: usize = 24;
    /// The QPN that stands for all members of a multicast group.
    pub const GROUP: u32 = NUMBER;

    /// Encodes the endpoint; the bytes are the same on every machine.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[8..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Parses [`DatagramEndpoint::to_bytes`].
    ///
    /// # Errors
    /// The bytes are not an endpoint.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self> {
        let [a, b, c, d, e, f, g, h, gid @ ..] = *bytes;
        Self { qpn: u32::from_be_bytes([a, b, c, d]), qkey: u32::from_be_bytes([e, f, g, h]), gid: Gid(gid) }.checked()
    }

    fn checked(self) -> Result<Self> {
        if self.qpn > NUMBER {
            return Err(Error::malformed(format!("{:#x} is not a valid QPN", self.qpn)));
        }
        Ok(self)
    }
}

/// `ud,0x100,0x11111111,fe80::1`: QPN, Q_Key, GID.
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

/// The sender of a datagram, as the datagram's header states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Address of the sender's port.
    pub gid: Gid,
    /// The sending queue pair.
    pub qpn: u32,
    /// The destination address of the datagram: one of our ports, or a multicast group.
    pub destination: Gid,
}

fn hex(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits.strip_prefix("0x")?, 16).ok()
}
