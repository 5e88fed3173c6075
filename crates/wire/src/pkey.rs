//! Partition keys (P_Keys): which packets a port or a queue pair accepts. IBA 10.9.
//!
//! A P_Key is 16 bits. The low 15 bits, the base, name the partition; base 0 is invalid. The
//! highest bit is set for a full member of the partition, and clear for a limited member. Limited
//! members of a partition do not hear each other.

/// The membership bit: set for full members.
pub const FULL: u16 = 0x8000;

/// The default partition, full member.
pub const DEFAULT: u16 = 0xffff;

/// The partition of a P_Key: its low 15 bits.
#[must_use]
pub const fn base(pkey: u16) -> u16 {
    pkey & !FULL
}

/// Whether a P_Key names a partition. An empty entry of a P_Key table does not.
#[must_use]
pub const fn is_valid(pkey: u16) -> bool {
    base(pkey) != 0
}

/// Whether a receiver with the P_Key `own` accepts a packet with the P_Key `theirs`: both name the
/// same partition, and at least one is a full member (IBA 10.9.3).
#[must_use]
pub const fn is_accepted(own: u16, theirs: u16) -> bool {
    is_valid(own) && base(own) == base(theirs) && (own | theirs) & FULL != 0
}

/// Whether a port with this P_Key table accepts a packet with the P_Key `theirs` for one of its
/// management QPs.
#[must_use]
pub fn is_in_table(table: &[u16], theirs: u16) -> bool {
    table.iter().any(|own| is_accepted(*own, theirs))
}

/// The index of the partition of `pkey` in a P_Key table: where the port is a full member, or else
/// where it is a limited member.
#[must_use]
pub fn index_of(table: &[u16], pkey: u16) -> Option<usize> {
    let at = |wanted: u16| table.iter().position(|own| *own == wanted).filter(|_| is_valid(pkey));
    at(pkey | FULL).or_else(|| at(base(pkey)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l12_one_of_two_members_must_be_full() {
        for (own, theirs, accepted) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0xffff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0x8002, false),
            (0x8001, 0x0001, true),
            (0x8000, 0x8000, false),
            (0x0000, 0x8000, false),
            (0xffff, 0x8000, false),
        ] {
            assert_eq!(is_accepted(own, theirs), accepted, "{own:#06x} and {theirs:#06x}");
        }
    }

    #[test]
    fn a_table_is_searched_by_partition() {
        let table = [0x0001, 0, 0x8002];
        let accepted = [0x8001, 0x0001, 0x8002, 0x0002, 0x8003, 0].map(|pkey| is_in_table(&table, pkey));
        assert_eq!(accepted, [true, false, true, true, false, false]);
        let found = [0x8001, 0x0001, 0x0002, 0x8003, 0].map(|pkey| index_of(&table, pkey));
        assert_eq!(found, [Some(0), Some(0), Some(2), None, None], "an empty entry is no partition");
        assert_eq!(index_of(&[0x0001, 0x8001], 0x0001), Some(1), "the full member is preferred");
    }
}
