//! The P_Key table of one port (IBA 10.9.1). This file makes no system calls.
//!
//! The configuration fills the table; [`crate::world::World::change_port`] changes it later. An
//! entry of 0 is empty. The principal type is [`PkeyTable`].

use std::fmt;

use abi::board::PKEY_MAX;
use wire::pkey;

/// The maximum number of P_Keys of one port; the board has room for as many.
pub const PKEY_TABLE_LEN: usize = PKEY_MAX as usize;

/// The P_Keys of one port, by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PkeyTable {
    entries: Vec<u16>,
}

/// Why a list of P_Keys is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPkeys {
    /// It is empty, or longer than the table.
    Count {
        /// How many P_Keys it has.
        count: usize,
        /// How many entries the table has.
        most: usize,
    },
    /// This P_Key names no partition.
    Invalid(u16),
    /// It is in the list twice.
    Twice(u16),
}

impl fmt::Display for BadPkeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { count, most } => write!(f, "it has {count} P_Keys; 1 to {most} are possible"),
            Self::Invalid(pkey) => {
                write!(f, "P_Key {pkey:#06x} is invalid: its low 15 bits must not be 0")
            }
            Self::Twice(pkey) => {
                write!(f, "P_Key {pkey:#06x} is in the list twice")
            }
        }
    }
}

impl PkeyTable {
    /// A table of `len` entries that begins with `pkeys`. It has at least as many entries as
    /// P_Keys.
    pub fn new(pkeys: &[u16], len: usize) -> Self {
        let mut entries = pkeys.to_vec();
        entries.resize(len.max(pkeys.len()), 0);
        Self { entries }
    }

    /// Checks a list of P_Keys for a table of `most` entries.
    pub fn check(pkeys: &[u16], most: usize) -> Result<(), BadPkeys> {
        if pkeys.contains(&0) {
            return Err(BadPkeys::Invalid(0));
        }
        Self::check_entries(pkeys, most)
    }

    /// Checks the first entries for a table of `most`. Some may be empty: a subnet manager leaves
    /// such holes where it has taken a port out of a partition.
    pub fn check_entries(pkeys: &[u16], most: usize) -> Result<(), BadPkeys> {
        if pkeys.is_empty() || pkeys.len() > most {
            return Err(BadPkeys::Count { count: pkeys.len(), most });
        }
        for (index, pkey) in pkeys.iter().enumerate().filter(|(_, pkey)| **pkey != 0) {
            if !pkey::is_valid(*pkey) {
                return Err(BadPkeys::Invalid(*pkey));
            }
            if pkeys[..index].contains(pkey) {
                return Err(BadPkeys::Twice(*pkey));
            }
        }
        Ok(())
    }

    /// How many entries the table has, with empty ones.
    pub fn length(&self) -> usize {
        self.entries.len()
    }

    /// All entries, by index.
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// The P_Keys without the empty entries at the end.
    pub fn used(&self) -> &[u16] {
        let end = self.entries.iter().rposition(|pkey| *pkey != 0).map_or(0, |last| last + 1);
        &self.entries[..end]
    }

    /// The entry at `index`: 0 if it is empty, `None` beyond the table.
    pub fn get(&self, index: u32) -> Option<u16> {
        self.entries.get(usize::try_from(index).ok()?).copied()
    }

    /// The P_Key of connections that name none: the first valid one, or 0.
    pub fn usual(&self) -> u16 {
        self.entries.iter().copied().find(|pkey| pkey::is_valid(*pkey)).unwrap_or(0)
    }

    /// The index of the partition of `pkey`.
    pub fn index_of(&self, pkey: u16) -> Option<u16> {
        pkey::index_of(&self.entries, pkey).map(|index| index as u16)
    }

    /// Replaces the P_Keys and returns whether the table has changed. The table keeps its length.
    ///
    /// # Errors
    /// A P_Key is invalid, or there are more than the table has entries. Then nothing has changed.
    pub fn set(&mut self, pkeys: &[u16]) -> Result<bool, BadPkeys> {
        Self::check_entries(pkeys, self.length())?;
        let new = Self::new(pkeys, self.length());
        let changed = *self != new;
        *self = new;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_entries_are_part_of_the_table() {
        let table = PkeyTable::new(&[0x8001, 0x0002], 4);
        assert_eq!((table.length(), table.used()), (4, &[0x8001, 0x0002][..]));
        assert_eq!((table.get(3), table.get(4)), (Some(0), None));
        assert_eq!((table.usual(), PkeyTable::new(&[], 1).usual()), (0x8001, 0));
    }

    #[test]
    fn a_changed_table_keeps_its_length() {
        let mut table = PkeyTable::new(&[0xffff], 2);
        assert_eq!(table.set(&[0xffff]), Ok(false));
        assert_eq!(table.set(&[0x8001, 0x8002]), Ok(true));
        assert_eq!(table.set(&[0x8001, 0x8002, 0x8003]), Err(BadPkeys::Count { count: 3, most: 2 }));
        assert_eq!(table.entries(), [0x8001, 0x8002]);
        assert_eq!((table.set(&[0, 0x8001]), table.entries()), (Ok(true), &[0, 0x8001][..]), "a hole");
        assert_eq!((table.set(&[0x8003]), table.entries()), (Ok(true), &[0x8003, 0][..]));
    }

    #[test]
    fn lists_that_name_no_partition_are_refused() {
        assert_eq!(PkeyTable::check(&[0xffff, 0x8001, 0x0002], PKEY_TABLE_LEN), Ok(()));
        assert_eq!(PkeyTable::check(&[], PKEY_TABLE_LEN), Err(BadPkeys::Count { count: 0, most: 128 }));
        assert_eq!(PkeyTable::check(&[0xffff; 129], PKEY_TABLE_LEN), Err(BadPkeys::Count { count: 129, most: 128 }));
        assert_eq!(PkeyTable::check(&[0xffff, 0, 0x8001], PKEY_TABLE_LEN), Err(BadPkeys::Invalid(0)));
        assert_eq!(PkeyTable::check(&[0xffff, 0x8000], PKEY_TABLE_LEN), Err(BadPkeys::Invalid(0x8000)));
        assert_eq!(PkeyTable::check(&[0x8001, 0x8001], PKEY_TABLE_LEN), Err(BadPkeys::Twice(0x8001)));
        assert_eq!(PkeyTable::check(&[0x0001, 0x8001], PKEY_TABLE_LEN), Ok(()), "a port may be both kinds of member");
    }
}
