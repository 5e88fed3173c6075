//! Which LID each end port gets. Not how it is set. A port keeps a valid LID. The map of GUIDs to
//! LIDs survives a restart of the manager; the caller keeps its file. Principal types: [`LidMap`],
//! [`Lids`].

use crate::inventory::{Inventory, PortId};
use std::collections::BTreeMap;
use std::fmt::Write;
use wire::smp::NodeType;

/// The last unicast LID.
pub const LAST: u16 = 0xbfff;

/// The base LID of each port GUID.
pub type LidMap = BTreeMap<u64, u16>;

/// A line of a map that is not a GUID and a LID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: \"{text}\" is not a port GUID and a LID, such as \"0x2c9000000001 5\"")]
pub struct LidMapError {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// Reads a map: a port GUID and its base LID in each line. Text after `#` is ignored.
///
/// # Errors
/// A line is malformed.
pub fn parse(text: &str) -> Result<LidMap, LidMapError> {
    let mut map = LidMap::new();
    for (nth, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = content.split_whitespace().collect();
        let entry = match words[..] {
            [] => continue,
            [guid, lid] => number(guid).zip(number(lid).and_then(|lid| u16::try_from(lid).ok())),
            _ => None,
        };
        match entry.filter(|(guid, lid)| *guid != 0 && (1..=LAST).contains(lid)) {
            Some((guid, lid)) => map.insert(guid, lid),
            None => return Err(LidMapError { line: nth + 1, text: content.trim().chars().take(80).collect() }),
        };
    }
    Ok(map)
}

/// Writes a map as [`parse`] reads it.
#[must_use]
pub fn emit(map: &LidMap) -> String {
    let mut text = String::from("# port GUID, base LID\n");
    for (guid, lid) in map {
        // A String takes everything.
        let _ = writeln!(text, "{guid:#018x} {lid}");
    }
    text
}

pub(crate) fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

/// The LIDs of a subnet.
#[derive(Clone, Debug, Default)]
pub struct Lids {
    /// The base LID and the LMC of each end port.
    pub of: BTreeMap<PortId, (u16, u8)>,
    /// Ports for which no LID was left.
    pub without: Vec<PortId>,
    /// Ports that had the LID of another port.
    pub duplicates: Vec<(PortId, u16)>,
}

/// What an end port wants.
struct Wish {
    port: PortId,
    guid: u64,
    now: u16,
    lmc: u8,
    is_own: bool,
}

struct Taken(Vec<bool>);

impl Taken {
    fn range(lid: u16, lmc: u8) -> Option<std::ops::Range<usize>> {
        let count = 1usize << lmc;
        let first = usize::from(lid);
        let valid = lid != 0 && first % count == 0 && first + count - 1 <= usize::from(LAST);
        valid.then_some(first..first + count)
    }

    /// Takes the LIDs, if all are valid and free.
    fn reserve(&mut self, lid: u16, lmc: u8) -> bool {
        let Some(range) = Taken::range(lid, lmc) else { return false };
        let free = !self.0[range.clone()].contains(&true);
        if free {
            self.0[range].fill(true);
        }
        free
    }

    /// The first free base LID from `from` on.
    fn free(&self, from: u16, lmc: u8) -> Option<u16> {
        let count = 1u16 << lmc;
        let mut lid = from.max(1).checked_next_multiple_of(count)?;
        while let Some(range) = Taken::range(lid, lmc) {
            if !self.0[range].contains(&true) {
                return Some(lid);
            }
            lid = lid.checked_add(count)?;
        }
        None
    }
}

/// Chooses LIDs: those of the map first, then those that ports have, then new ones. LIDs of the map
/// whose port is away stay free while others are left.
#[must_use]
pub fn assign(inventory: &Inventory, own: PortId, map: &LidMap, lmc: u8, reassign: bool) -> Lids {
    let mut lids = Lids::default();
    let mut taken = Taken(vec![false; usize::from(LAST) + 1]);
    let mut wishes = wishes(inventory, own, lmc.min(7));
    // The manager's own port is first, as the others send their traps to it.
    wishes.sort_by_key(|wish| (!wish.is_own, wish.guid, wish.port));
    let mut open = Vec::new();
    for wish in wishes {
        let mapped = map.get(&wish.guid).copied().filter(|_| !reassign);
        match mapped.filter(|lid| taken.reserve(*lid, wish.lmc)) {
            Some(lid) => {
                lids.of.insert(wish.port, (lid, wish.lmc));
            }
            None => open.push(wish),
        }
    }
    let mut rest = Vec::new();
    for wish in open {
        if !reassign && taken.reserve(wish.now, wish.lmc) {
            lids.of.insert(wish.port, (wish.now, wish.lmc));
            continue;
        }
        if wish.now != 0 && !reassign {
            lids.duplicates.push((wish.port, wish.now));
        }
        rest.push(wish);
    }
    let mut reserved = Taken(taken.0.clone());
    if !reassign {
        for lid in map.values() {
            reserved.reserve(*lid, lmc.min(7));
        }
    }
    let mut from = [1; 8];
    for wish in rest {
        let next = &mut from[usize::from(wish.lmc)];
        let found = reserved.free(*next, wish.lmc);
        if let Some(lid) = found {
            *next = lid;
        }
        match found.or_else(|| taken.free(1, wish.lmc)) {
            Some(lid) => {
                taken.reserve(lid, wish.lmc);
                reserved.reserve(lid, wish.lmc);
                lids.of.insert(wish.port, (lid, wish.lmc));
            }
            None => lids.without.push(wish.port),
        }
    }
    lids
}

fn wishes(inventory: &Inventory, own: PortId, lmc: u8) -> Vec<Wish> {
    let ports = inventory.end_ports().map(|(id, node, port)| Wish {
        port: id,
        guid: port.guid,
        now: port.info.lid,
        lmc: if node.info.node_type == NodeType::Switch as u8 { 0 } else { lmc },
        is_own: id == own,
    });
    ports.collect()
}

impl Inventory {
    /// Rebuilds [`Inventory::lids`] from the LIDs of the ports.
    pub fn index_lids(&mut self) {
        let mut lids = Vec::new();
        for (id, _, port) in self.end_ports() {
            let first = usize::from(port.info.lid);
            let end = first + (1usize << port.info.lmc.min(7));
            if first == 0 || end > usize::from(LAST) + 1 {
                continue;
            }
            if lids.len() < end {
                lids.resize(end, None);
            }
            lids[first..end].fill(Some(id));
        }
        self.lids = lids;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_survives_as_text() {
        let map = LidMap::from([(0x2c9_0000, 5), (u64::MAX, LAST)]);
        assert_eq!(parse(&emit(&map)).unwrap(), map);
        assert_eq!(parse("# nothing\n\n 0x10 7 # a port\n").unwrap(), LidMap::from([(16, 7)]));
        for wrong in ["0x10", "0x10 0", "0x10 49152", "x 5", "1 2 3"] {
            assert_eq!(parse(wrong).unwrap_err().line, 1, "{wrong}");
        }
    }
}
