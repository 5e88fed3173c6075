//! What a subnet manager sets at an InfiniBand port, besides its partitions and its prefix
//! (PortInfo, IBA 14.2.5.6).
//!
//! The configuration fills it, and [`crate::world::World::change_port`] changes it later. Ethernet
//! ports have none, because no subnet manager reaches them. The principal type is
//! [`SubnetSettings`].

use std::fmt;
use std::ops::RangeInclusive;

use abi::lid::{UNICAST_MAX, is_unicast};
use serde::Deserialize;

/// The largest LMC (IBA 4.1.3).
const LMC_MAX: u8 = 7;
/// The largest value of a code of 4 bits.
const FOUR_BITS: u8 = 15;
/// The largest value of a code of 5 bits.
const FIVE_BITS: u8 = 31;
/// The subnet timeout that opensm sets, 1.07 s.
const USUAL_TIMEOUT: u8 = 18;

/// The values of one port; what is absent has its default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubnetSettings {
    /// The base LID. Default: the agent assigns a LID ([`crate::lids`]).
    pub lid: Option<u16>,
    /// The port has 2^n LIDs, from its base LID on. Default: 0.
    pub lmc: Option<u8>,
    /// The LID of the subnet manager. Default: that of the port itself.
    pub sm_lid: Option<u16>,
    /// The service level of datagrams to the subnet manager. Default: 0.
    pub sm_sl: Option<u8>,
    /// The longest time to any port of the subnet: 4.096 µs × 2^n. Default: 18.
    pub timeout: Option<u8>,
    /// What the subnet manager did of what the port asked for when it started. Default: 0.
    pub init_type_reply: Option<u8>,
}

/// Why settings are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSettings {
    /// The port is an Ethernet port.
    Ethernet,
    /// A value is too large.
    TooLarge {
        /// The key of the value.
        key: &'static str,
        /// The value.
        value: u16,
        /// The largest value that is possible.
        most: u16,
    },
    /// The LID names no port.
    NoLid(u16),
    /// A port has several LIDs only if its base LID is set.
    NoBase,
    /// The base LID is not aligned.
    Unaligned {
        /// The base LID.
        lid: u16,
        /// How many LIDs the port has.
        count: u16,
    },
}

impl fmt::Display for BadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethernet => write!(f, "no subnet manager sets up an Ethernet port; `link_layer` is `ethernet`"),
            Self::TooLarge { key, value, most } => write!(f, "`{key}` is {value}; 0 to {most} are possible"),
            Self::NoLid(lid) => write!(f, "`lid` is {lid}; 1 to {UNICAST_MAX} name ports"),
            Self::NoBase => write!(f, "`lmc` gives the port several LIDs, so it needs `lid`, the first of them"),
            Self::Unaligned { lid, count } => write!(f, "`lid` is {lid}; with this `lmc` it is a multiple of {count}"),
        }
    }
}

impl SubnetSettings {
    /// Checks the values for a port.
    ///
    /// # Errors
    /// The first value that the port cannot have.
    pub fn check(&self, is_infiniband: bool) -> Result<(), BadSettings> {
        if !is_infiniband {
            return if *self == Self::default() { Ok(()) } else { Err(BadSettings::Ethernet) };
        }
        for (key, value, most) in [
            ("lmc", self.lmc().into(), LMC_MAX.into()),
            ("sm_lid", self.sm_lid.unwrap_or(0), UNICAST_MAX),
            ("sm_sl", self.sm_sl().into(), FOUR_BITS.into()),
            ("timeout", self.timeout().into(), FIVE_BITS.into()),
            ("init_type_reply", self.init_type_reply().into(), FOUR_BITS.into()),
        ] {
            if value > most {
                return Err(BadSettings::TooLarge { key, value, most });
            }
        }
        let count = 1u16 << self.lmc();
        match self.lid {
            None if count > 1 => Err(BadSettings::NoBase),
            Some(lid) if !is_unicast(lid) => Err(BadSettings::NoLid(lid)),
            Some(lid) if !lid.is_multiple_of(count) => Err(BadSettings::Unaligned { lid, count }),
            _ => Ok(()),
        }
    }

    /// These settings, and where they have a default those of `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            lid: self.lid.or(others.lid),
            lmc: self.lmc.or(others.lmc),
            sm_lid: self.sm_lid.or(others.sm_lid),
            sm_sl: self.sm_sl.or(others.sm_sl),
            timeout: self.timeout.or(others.timeout),
            init_type_reply: self.init_type_reply.or(others.init_type_reply),
        }
    }

    /// The LIDs that are set; `None` if the agent assigns one.
    pub fn lids(&self) -> Option<RangeInclusive<u16>> {
        let first = self.lid?;
        Some(first..=first | ((1 << self.lmc()) - 1))
    }

    /// The LMC.
    pub fn lmc(&self) -> u8 {
        self.lmc.unwrap_or(0)
    }

    /// The service level of datagrams to the subnet manager.
    pub fn sm_sl(&self) -> u8 {
        self.sm_sl.unwrap_or(0)
    }

    /// The code of the longest time to any port of the subnet.
    pub fn timeout(&self) -> u8 {
        self.timeout.unwrap_or(USUAL_TIMEOUT)
    }

    /// What the subnet manager did of what the port asked for.
    pub fn init_type_reply(&self) -> u8 {
        self.init_type_reply.unwrap_or(0)
    }
}

/// Whether two ports have a LID in common.
pub fn overlap(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_port_can_have_are_refused_by_name() {
        let none = SubnetSettings::default();
        assert_eq!((none.check(true), none.check(false), none.lids()), (Ok(()), Ok(()), None));
        let four = SubnetSettings { lid: Some(8), lmc: Some(2), ..none };
        assert_eq!((four.check(true), four.lids()), (Ok(()), Some(8..=11)));
        assert_eq!(four.check(false), Err(BadSettings::Ethernet));
        let last = SubnetSettings { lid: Some(0xbf80), lmc: Some(7), ..none };
        assert_eq!((last.check(true), last.lids()), (Ok(()), Some(0xbf80..=0xbfff)));
        for (bad, words) in [
            (SubnetSettings { lmc: Some(8), ..none }, "`lmc` is 8; 0 to 7"),
            (SubnetSettings { sm_lid: Some(0xc000), ..none }, "`sm_lid` is 49152; 0 to 49151"),
            (SubnetSettings { sm_sl: Some(16), ..none }, "`sm_sl` is 16; 0 to 15"),
            (SubnetSettings { timeout: Some(32), ..none }, "`timeout` is 32; 0 to 31"),
            (SubnetSettings { init_type_reply: Some(16), ..none }, "`init_type_reply` is 16; 0 to 15"),
            (SubnetSettings { lid: Some(0), ..none }, "`lid` is 0; 1 to 49151"),
            (SubnetSettings { lid: Some(0xc000), ..none }, "`lid` is 49152; 1 to 49151"),
            (SubnetSettings { lmc: Some(1), ..none }, "needs `lid`"),
            (SubnetSettings { lid: Some(6), lmc: Some(2), ..none }, "a multiple of 4"),
        ] {
            let told = bad.check(true).expect_err(words).to_string();
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn ranges_overlap_if_they_have_a_lid_in_common() {
        assert!(overlap(&(4..=7), &(7..=7)) && overlap(&(6..=6), &(4..=7)));
        assert!(!overlap(&(4..=7), &(8..=11)) && !overlap(&(8..=8), &(4..=7)));
    }
}
