//! Partitions: who is a member of which. The file has the form that opensm reads:
//!
//! ```text
//! Default=0x7fff, ipoib : ALL=full, SELF=full ;
//! storage=0x10, indx0, defmember=limited : 0x2c9000000001, 0x2c9000000002=full ;
//! ips = 0x20, ipoib, rate=3 :
//!     mgid=ff12:401b::707, sl=1
//!     ALL=full ;
//! ```
//! Not how the tables are set. Principal types: [`Partitions`], [`Partition`].

mod group;
mod text;

pub use group::{PartitionGroup, Shared};
pub use text::PartitionsError;

use std::collections::HashMap;
use wire::smp::NodeType;

/// The bit of a P_Key that marks a full member.
pub const FULL: u16 = 0x8000;
/// The default partition, without the bit of the membership.
pub const DEFAULT: u16 = 0x7fff;

/// How a port is a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Membership {
    /// It talks to all members.
    Full,
    /// It talks to full members only.
    #[default]
    Limited,
    /// It has both P_Keys.
    Both,
}

/// The ports that an entry of a partition names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// All end ports.
    All,
    /// All ports of adapters.
    Adapters,
    /// Port 0 of all switches.
    Switches,
    /// All ports of routers.
    Routers,
    /// The port of the subnet manager.
    Own,
    /// The port with this GUID.
    Guid(u64),
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Its name, or nothing.
    pub name: String,
    /// Its P_Key, without the bit of the membership.
    pub pkey: u16,
    /// It has a broadcast group for IP.
    pub ipoib: bool,
    /// Its P_Key is at index 0 of its members' tables, in place of the default partition's.
    pub index0: bool,
    /// Its service level, and what else its groups have if they do not say other.
    pub shared: Shared,
    /// The multicast groups that the file names. That of IPoIB is not among them.
    pub groups: Vec<PartitionGroup>,
    /// Its members. An entry for a GUID counts before one for a kind of ports.
    pub members: Vec<(Who, Membership)>,
}

/// All partitions of a subnet. One of them is the default partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// The partitions, in the order of the file.
    pub list: Vec<Partition>,
}

impl Default for Partitions {
    /// The default partition, of which all ports are full members.
    fn default() -> Partitions {
        let members = vec![(Who::All, Membership::Full), (Who::Own, Membership::Full)];
        let default = Partition { name: "Default".into(), pkey: DEFAULT, ipoib: true, members, ..Partition::default() };
        Partitions { list: vec![default] }
    }
}

/// The P_Keys of each port, made ready for many questions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// By partition: its key, whether that is at index 0, and its members by kind.
    kinds: Vec<(u16, bool, HashMap<Who, Membership>)>,
    /// The partitions of each GUID that is named.
    named: HashMap<u64, HashMap<u16, Membership>>,
}

impl Keys {
    pub(crate) fn new(partitions: &Partitions) -> Keys {
        let mut keys = Keys::default();
        for partition in &partitions.list {
            let mut kinds = HashMap::new();
            for (who, membership) in &partition.members {
                if let Who::Guid(guid) = who {
                    keys.named.entry(*guid).or_default().insert(partition.pkey, *membership);
                } else {
                    kinds.insert(*who, *membership);
                }
            }
            keys.kinds.push((partition.pkey, partition.index0, kinds));
        }
        keys
    }

    /// The P_Keys that a port shall have. A partition with `indx0` is first, or else the default
    /// partition.
    pub(crate) fn of(&self, guid: u64, node_type: u8, is_own: bool) -> Vec<u16> {
        let named = self.named.get(&guid);
        let mut found = Vec::new();
        let mut heads = Vec::new();
        for (pkey, index0, kinds) in &self.kinds {
            let own = is_own.then(|| kinds.get(&Who::Own)).flatten();
            let kind = kinds.get(&kind(node_type)).or_else(|| kinds.get(&Who::All));
            let Some(membership) = named.and_then(|named| named.get(pkey)).or(own).or(kind) else { continue };
            let first = if *membership == Membership::Limited { *pkey } else { *pkey | FULL };
            found.push(first);
            if *index0 {
                heads.push(*pkey);
            }
            if *membership == Membership::Both {
                found.push(*pkey);
            }
        }
        // Stable: the others keep their order.
        let head = heads.first().copied().unwrap_or(DEFAULT);
        found.sort_by_key(|pkey| *pkey & DEFAULT != head);
        found
    }
}

const fn kind(node_type: u8) -> Who {
    const SWITCH: u8 = NodeType::Switch as u8;
    const ROUTER: u8 = NodeType::Router as u8;
    match node_type {
        SWITCH => Who::Switches,
        ROUTER => Who::Routers,
        _ => Who::Adapters,
    }
}

/// A table with these P_Keys. A key that the port has keeps its index, so that queue pairs that use
/// the index stay in their partition; index 0 is for the first key. `None`: they are too many.
pub(crate) fn table(wanted: &[u16], now: &[u16], cap: usize) -> Option<Vec<u16>> {
    if wanted.len() > cap {
        return None;
    }
    let mut table = vec![0; cap.min(now.len().max(wanted.len()))];
    let (first, rest) = wanted.split_first()?;
    *table.first_mut()? = *first;
    let mut open = Vec::new();
    for key in rest {
        match now.iter().skip(1).position(|own| own == key) {
            Some(at) if table.get(at + 1) == Some(&0) => table[at + 1] = *key,
            _ => open.push(*key),
        }
    }
    for key in open {
        match table.iter().skip(1).position(|own| *own == 0) {
            Some(at) => table[at + 1] = key,
            None => table.push(key),
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_index_and_the_default_is_first() {
        assert_eq!(table(&[0xffff, 0x8001, 2], &[0xffff, 0x8005, 0x8001], 8).unwrap(), [0xffff, 2, 0x8001]);
        assert_eq!(table(&[0xffff], &[0x8001, 0xffff], 8).unwrap(), [0xffff, 0]);
        assert_eq!(table(&[0x8001, 2], &[], 8).unwrap(), [0x8001, 2]);
        assert_eq!(table(&[1, 2, 3], &[], 2), None);
    }

    #[test]
    fn a_named_port_counts_before_its_kind() {
        let text = "Default=0x7fff : ALL, SELF=full ; a=5 : ALL_CAS=full, 0x9=both ; b=6 : 0x9 ;";
        let keys = Keys::new(&Partitions::parse(text).unwrap());
        assert_eq!(keys.of(9, 1, false), [0x7fff, 0x8005, 5, 6]);
        assert_eq!(keys.of(8, 1, true), [0xffff, 0x8005]);
        assert_eq!(keys.of(8, 2, false), [0x7fff]);
        let text = "Default=0x7fff : ALL ; a=5, indx0 : 0x9=both ;";
        let keys = Keys::new(&Partitions::parse(text).unwrap());
        assert_eq!((keys.of(9, 1, false), keys.of(8, 1, false)), (vec![0x8005, 5, 0x7fff], vec![0x7fff]));
    }
}
