//! Memory at the peer: the token that names it, and the rights that its owner grants. Principal
//! type: [`RemoteRegion`].

use std::fmt;
use std::ops::{BitOr, Bound, RangeBounds};
use std::str::FromStr;

use abi::errno::Errno;
use abi::mr::access as right;

use crate::error::{Error, Result};
use crate::range::checked;

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
    /// All rights.
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

/// Names memory at a peer: address, key and length. It is plain data, which a program sends as
/// bytes or as text to those who may use the memory.
///
/// A region is a claim of its sender: the peer's adapter checks every access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// Address of the first byte, in the address space of the peer's adapter.
    pub addr: u64,
    /// The rkey.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// Length of [`RemoteRegion::to_bytes`].
    pub const LEN: usize = 20;

    /// A part of the region: `region.part(64..72)?` names 8 bytes. The region comes from a peer, so
    /// a range outside is an error, not a panic.
    ///
    /// # Errors
    /// EINVAL when the range is not inside, or goes beyond the end of the address space.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let shown = (range.start_bound().cloned(), range.end_bound().cloned());
        let part = || {
            let (at, len) = checked(range, usize::try_from(self.len).ok()?)?;
            let addr = self.addr.checked_add(at as u64)?;
            addr.checked_add((len as u64).saturating_sub(1))?;
            Some(Self { addr, rkey: self.rkey, len: len as u64 })
        };
        part().ok_or_else(|| {
            let reason = format!("the range {} is outside the remote region {self}", Shown(shown));
            Error::refused(Errno::EINVAL, reason)
        })
    }

    /// Encodes the region; the bytes are the same on every machine.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Parses [`RemoteRegion::to_bytes`]. Any bytes name some memory; the peer decides whether it
    /// exists.
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

/// Formats a range as Rust writes it.
struct Shown((Bound<usize>, Bound<usize>));

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = self.0;
        match start {
            Bound::Included(start) => write!(f, "{start}")?,
            Bound::Excluded(before) => write!(f, "{}", before.saturating_add(1))?,
            Bound::Unbounded => {}
        }
        match end {
            Bound::Included(end) => write!(f, "..={end}"),
            Bound::Excluded(end) => write!(f, "..{end}"),
            Bound::Unbounded => write!(f, ".."),
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
