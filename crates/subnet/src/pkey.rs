//! The partition keys of a port. [`wire::pkey`] says which keys match. Not the choice of a queue
//! pair's key. Principal type: [`Table`].

use wire::pkey::{DEFAULT, base, is_in_table, is_valid};

/// The P_Key table of a port, set by the manager. A port starts as a full member of the default
/// partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The entries after the manager has set them. An untouched table needs no memory.
    entries: Option<Box<[u16]>>,
}

impl Table {
    /// A table with these entries.
    #[must_use]
    pub fn new(entries: &[u16]) -> Table {
        Table { entries: Some(entries.into()) }
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[u16] {
        self.entries.as_deref().unwrap_or(&[DEFAULT])
    }

    /// Whether a packet with this key belongs to one of the port's partitions.
    #[must_use]
    pub fn admits(&self, pkey: u16) -> bool {
        is_in_table(self.entries(), pkey)
    }

    /// Whether a switch port with this table lets packets of this partition pass. Full and limited
    /// members are the same here: a manager gives the port the keys of the end port at its link,
    /// and a limited member must be able to send through it. The end port at the other side checks
    /// the membership.
    #[must_use]
    pub fn passes(&self, pkey: u16) -> bool {
        is_valid(pkey) && self.entries().iter().any(|own| base(*own) == base(pkey))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l12_a_table_admits_what_one_entry_matches() {
        let table = Table::new(&[0x0001, 0, 0x8002]);
        let admitted = [0x8001, 0x0001, 0x8002, 0x0002, 0x8003, 0].map(|key| table.admits(key));
        assert_eq!(admitted, [true, false, true, true, false, false]);
        assert!(Table::default().admits(0x7fff));
        let passing = [0x8001, 0x0001, 0x8002, 0x0002, 0x8003, 0, 0x8000].map(|key| table.passes(key));
        assert_eq!(passing, [true, true, true, true, false, false, false]);
    }
}
