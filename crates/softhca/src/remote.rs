//! Memory at the peer: the token that names it, and the rights that its owner gives. Principal type: [`RemoteRegion`].

use std::fmt;
use std::ops::{BitOr, RangeBounds};
use std::str::FromStr;

use abi::mr::access as right;

use crate::error::{Error, Result};
use crate::memory::inside;

/// What peers may do with [`Exposed`](crate::Exposed) memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// RDMA READ.
    pub const READ: Self = Self(right::REMOTE_READ);
    /// RDMA WRITE.
    pub const WRITE: Self = Self(right::REMOTE_WRITE);
    /// Fetch-and-add and compare-and-swap.
    pub const ATOMIC: Self = Self(right::REMOTE_ATOMIC);
    /// All of them.
    pub const ALL: Self = Self(right::REMOTE_READ | right::REMOTE_WRITE | right::REMOTE_ATOMIC);

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Names memory at a peer: address, key and length. Plain data, to be sent to those who may use it, as bytes or as text.
///
/// It is a claim of whoever sent it: the peer's adapter checks every use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// Address of the first byte, as the peer's adapter counts.
    pub addr: u64,
    /// The key that gives access.
    pub rkey: u32,
    /// Bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// Bytes of [`RemoteRegion::to_bytes`].
    pub const LEN: usize = 20;

    /// A part of it.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn part(&self, range: impl RangeBounds<usize>) -> Self {
        let (at, len) = inside(range, usize::try_from(self.len).unwrap_or(usize::MAX));
        Self { addr: self.addr.wrapping_add(at as u64), rkey: self.rkey, len: len as u64 }
    }

    /// As bytes, the same on every machine.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// From [`RemoteRegion::to_bytes`]. Any bytes name some memory; whether it is there is the peer's to say.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, rest @ ..] = *bytes;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([i, j, k, l]),
            len: u64::from_be_bytes(rest),
        }
    }
}

/// `0x7f0012340000+4096@0x1a07`: address, length, key.
impl fmt::Display for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}@{:#x}", self.addr, self.len, self.rkey)
    }
}

impl FromStr for RemoteRegion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let hex = |digits: &str| u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok();
        let parse = || {
            let (addr, rest) = text.split_once('+')?;
            let (len, rkey) = rest.split_once('@')?;
            Some(Self { addr: hex(addr)?, rkey: u32::try_from(hex(rkey)?).ok()?, len: len.parse().ok()? })
        };
        parse().ok_or_else(|| {
            Error::malformed(format!("{text:?} is no remote region, such as 0x7f0012340000+4096@0x1a07"))
        })
    }
}
