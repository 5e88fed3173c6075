//! Partition keys and the table of a port. A key's low 15 bits name the partition. The top bit is
//! set for a full member. Not the choice of a queue pair's key. Principal type: [`Table`].

/// The bit of a full member.
pub const FULL: u16 = 0x8000;
/// Full member of the default partition.
pub const DEFAULT: u16 = 0xffff;

/// Whether members with these two keys may talk: one partition, and at least one full member. A
/// zero key is an empty entry and matches nothing.
#[must_use]
pub const fn matches(a: u16, b: u16) -> bool {
    (a ^ b) & !FULL == 0 && a & !FULL != 0 && (a | b) & FULL != 0
}

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
        self.entries().iter().any(|own| matches(*own, pkey))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l12_two_keys_match_if_equal_and_one_is_full() {
        assert!(matches(0x8001, 0x8001) && matches(0x8001, 0x0001) && matches(0x0001, 0x8001));
        assert!(!matches(0x0001, 0x0001), "two limited members");
        assert!(!matches(0x8001, 0x8002), "two partitions");
        assert!(!matches(0x8000, 0x8000), "an empty entry");
    }

    #[test]
    fn l12_a_table_admits_what_one_entry_matches() {
        let table = Table::new(&[0x0001, 0, 0x8002]);
        let admitted = [0x8001, 0x0001, 0x8002, 0x0002, 0x8003, 0].map(|key| table.admits(key));
        assert_eq!(admitted, [true, false, true, true, false, false]);
        assert!(Table::default().admits(0x7fff));
    }
}
