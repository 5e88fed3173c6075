//! The priority of each service level of an Ethernet port: Linux gives packets this priority, and a
//! VLAN interface derives the priority in the VLAN tag (PCP) from it. The principal type is
//! [`PriorityTable`].

use abi::ah::SL_MAX;
use serde::{Deserialize, Deserializer, Serialize};

/// The largest priority: a larger one needs a privilege (socket(7), `SO_PRIORITY`).
const PRIORITY_MAX: u8 = 6;
/// The number of service levels.
const LEVELS: usize = SL_MAX as usize + 1;

/// A priority for each service level, or nothing: then Linux chooses the priorities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct PriorityTable(Option<[u8; LEVELS]>);

impl PriorityTable {
    /// The priority of packets with this service level.
    pub fn get(&self, sl: u8) -> Option<u8> {
        self.0.map(|table| table[usize::from(sl & SL_MAX)])
    }

    /// The table as words of the board: eight service levels in each, the first in the lowest four
    /// bits.
    pub(crate) fn words(&self) -> [u32; 2] {
        [0, 8].map(|from| {
            let entries = (from..from + 8).rev().map(|sl| self.get(sl).map_or(0, |priority| 8 | priority));
            entries.fold(0, |word, entry| word << 4 | u32::from(entry))
        })
    }
}

/// A list: the priority of service level 0, 1, …; those that are not in the list have priority 0.
impl<'de> Deserialize<'de> for PriorityTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Vec::<u8>::deserialize(deserializer)?;
        if given.len() > LEVELS {
            let text = format!("`priority` has {} entries; there are {LEVELS} service levels", given.len());
            return Err(serde::de::Error::custom(text));
        }
        if let Some((sl, priority)) = given.iter().enumerate().find(|(_, priority)| **priority > PRIORITY_MAX) {
            let text = format!("`priority` of service level {sl} is {priority}; 0 to {PRIORITY_MAX} are possible");
            return Err(serde::de::Error::custom(text));
        }
        let entry = |sl| given.get(sl).copied().unwrap_or(0);
        Ok(Self((!given.is_empty()).then(|| std::array::from_fn(entry))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_gives_each_service_level_a_priority() {
        let table: PriorityTable = serde_json::from_str("[0, 3, 6]").expect("valid");
        assert_eq!([0, 1, 2, 3, 15].map(|sl| table.get(sl)), [0, 3, 6, 0, 0].map(Some));
        assert_eq!(table.words(), [0x8888_8eb8, 0x8888_8888]);
        let none: PriorityTable = serde_json::from_str("[]").expect("valid");
        assert_eq!((none.get(3), none.words()), (None, [0, 0]));
    }

    #[test]
    fn values_that_are_no_priority_are_refused() {
        for (text, told) in [
            ("[0, 7]".to_owned(), "`priority` of service level 1 is 7; 0 to 6 are possible"),
            (format!("[{}1]", "1,".repeat(16)), "`priority` has 17 entries; there are 16 service levels"),
        ] {
            let said = serde_json::from_str::<PriorityTable>(&text).expect_err("refused").to_string();
            assert!(said.contains(told), "{said}");
        }
    }
}
