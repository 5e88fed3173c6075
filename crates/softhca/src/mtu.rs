//! The MTUs of InfiniBand and RoCE: the maximum payload of a packet. Principal type: [`Mtu`].

use std::fmt;

use crate::error::{Error, Result};

/// The maximum payload of a packet. There are five values (IBA volume 1, 7.7.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// The verbs code of the MTU.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a verbs code; the nearest one for an unknown code.
    pub(crate) fn of_code(code: u8) -> Self {
        Self::ALL[usize::from(code.clamp(1, 5)) - 1]
    }
}

/// Converts a number of bytes: 256, 512, 1024, 2048 or 4096.
impl TryFrom<u32> for Mtu {
    type Error = Error;

    fn try_from(bytes: u32) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes);
        known.ok_or_else(|| Error::malformed(format!("{bytes} is not a valid MTU; use 256, 512, 1024, 2048 or 4096")))
    }
}

/// Writes the number of bytes.
impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_bytes_are_those_of_the_verbs() {
        let codes: Vec<_> = Mtu::ALL.into_iter().map(|mtu| (mtu.code(), mtu.bytes())).collect();
        assert_eq!(codes, [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]);
        assert!(Mtu::ALL.into_iter().all(|mtu| Mtu::of_code(mtu.code()) == mtu));
        assert!(Mtu::ALL.into_iter().all(|mtu| Mtu::try_from(mtu.bytes()).is_ok_and(|same| same == mtu)));
        assert!([0, 1, 255, 1000, 1500, 8192, u32::MAX].into_iter().all(|bytes| Mtu::try_from(bytes).is_err()));
        assert_eq!(Mtu::B1024.to_string(), "1024");
    }
}
