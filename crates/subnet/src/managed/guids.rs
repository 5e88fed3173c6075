//! The GUIDs of the nodes and ports of a topology: those of the file, and new ones that are unique
//! and the same each time. Principal type: [`Guids`].

use crate::fabric::Unconnectable;
use mad::topology::{Topology, TopologyNode};
use std::collections::HashMap;
use wire::smp::NodeType;

/// Why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbuildable {
    /// Two nodes have one GUID.
    #[error("\"{first}\" and \"{second}\" have the same GUID {guid:#x}; change one of them")]
    Guid {
        /// The GUID.
        guid: u64,
        /// A node with it.
        first: String,
        /// Another node with it.
        second: String,
    },
    /// Two nodes have one name.
    #[error("node \"{0}\" exists twice; give each node its own name")]
    Name(String),
    /// A link leads nowhere, or to a port with another link.
    #[error("port {port} of \"{node}\" cannot be connected: {cause}")]
    Link {
        /// The node.
        node: String,
        /// Its port.
        port: u8,
        /// Why.
        cause: Unconnectable,
    },
}

/// The GUIDs of a node.
pub(super) struct Guids {
    pub(super) node: u64,
    /// Those of its ports, from port 1; of a switch only that of port 0.
    pub(super) ports: Vec<u64>,
}

/// The GUIDs that are in use, each with the node that has it.
struct Used {
    owners: HashMap<u64, usize>,
    /// The next GUID to try for each type of nodes. These are the numbers that ibsim uses.
    next: [u64; 3],
}

impl Used {
    /// A GUID such that it and the `more` next ones are free.
    fn fresh(&mut self, owner: usize, kind: NodeType, more: u64) -> u64 {
        let next = &mut self.next[kind as usize - 1];
        loop {
            let guid = *next;
            *next += more + 1;
            if (guid..=guid + more).all(|guid| !self.owners.contains_key(&guid)) {
                self.owners.extend((guid..=guid + more).map(|guid| (guid, owner)));
                return guid;
            }
        }
    }
}

/// Finds the GUIDs of all nodes, in the order of the file.
///
/// # Errors
/// Two nodes of the file have the same GUID.
pub(super) fn assign(topology: &Topology) -> Result<Vec<Guids>, Unbuildable> {
    let base = base(topology);
    let mut used = Used { owners: HashMap::new(), next: [0x10_0000, 0x20_0000, 0x30_0000].map(|first| base | first) };
    for (at, node) in topology.nodes.iter().enumerate() {
        let named = node.guid.into_iter().chain(port_guids(node).map(|(_, guid)| guid));
        for guid in named.filter(|guid| *guid != 0) {
            if let Some(other) = used.owners.insert(guid, at).filter(|other| *other != at) {
                let name = |at: usize| topology.nodes[at].name.clone();
                return Err(Unbuildable::Guid { guid, first: name(other), second: name(at) });
            }
        }
    }
    Ok(topology.nodes.iter().enumerate().map(|(at, node)| of_node(&mut used, at, node)).collect())
}

/// What the new GUIDs of this file have in common, above the numbers that ibsim uses: nothing,
/// unless links lead to other agents. Then it is a hash of these links, because the other file has
/// other ones, and the subnet has the nodes of both. FNV-1a.
fn base(topology: &Topology) -> u64 {
    let links = topology.nodes.iter().flat_map(|node| node.links.iter().map(move |link| (node, link)));
    let outward = links.filter(|(_, link)| link.outside().is_some());
    let texts = outward.map(|(node, link)| format!("{}[{}]{}[{}]", node.name, link.port, link.peer, link.peer_port));
    let hash = texts.fold(None, |hash, text| {
        let first = hash.unwrap_or(0x811c_9dc5_u32);
        Some(text.bytes().fold(first, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    });
    hash.map_or(0, |hash| u64::from(hash) << 24)
}

/// The GUIDs of ports that the file names. The ports of a switch have none of their own.
fn port_guids(node: &TopologyNode) -> impl Iterator<Item = (u8, u64)> {
    let links = node.links.iter().filter(|_| node.kind != NodeType::Switch);
    links.filter_map(|link| Some((link.port, link.guid.filter(|guid| *guid != 0)?)))
}

fn of_node(used: &mut Used, at: usize, node: &TopologyNode) -> Guids {
    let is_switch = node.kind == NodeType::Switch;
    let more = if is_switch { 0 } else { u64::from(node.ports) };
    let guid = node.guid.filter(|guid| *guid != 0);
    let guid = guid.unwrap_or_else(|| used.fresh(at, node.kind, more));
    if is_switch {
        return Guids { node: guid, ports: vec![guid] };
    }
    let named: HashMap<u8, u64> = port_guids(node).collect();
    let port = |number: u8| {
        named.get(&number).copied().unwrap_or_else(|| {
            let usual = guid.wrapping_add(number.into());
            match *used.owners.entry(usual).or_insert(at) {
                owner if owner == at && !named.values().any(|named| *named == usual) => usual,
                _ => used.fresh(at, node.kind, 0),
            }
        })
    };
    Guids { node: guid, ports: (1..=node.ports).map(port).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guids(text: &str) -> Vec<(u64, Vec<u64>)> {
        let found = assign(&Topology::from_text(text).unwrap()).unwrap();
        found.into_iter().map(|guids| (guids.node, guids.ports)).collect()
    }

    #[test]
    fn nodes_without_guids_get_those_of_ibsim() {
        let text = "Switch 8 \"S1\"\n[1] \"H1\"\n\nHca 2 \"H1\"\n\nHca 1 \"H2\"\n";
        let expected =
            vec![(0x20_0000, vec![0x20_0000]), (0x10_0000, vec![0x10_0001, 0x10_0002]), (0x10_0003, vec![0x10_0004])];
        assert_eq!(guids(text), expected);
    }

    #[test]
    fn guids_of_the_file_stay_and_no_guid_occurs_twice() {
        let text = "caguid=0x100000\nCa 2 \"A\"\n[1](100007) \"B\"[1]\n\ncaguid=0x100002\nCa 1 \"B\"\n\nCa 1 \"C\"\n";
        let found = guids(text);
        assert_eq!((found[0].0, found[0].1[0], found[1].0), (0x10_0000, 0x10_0007, 0x10_0002));
        let mut all: Vec<u64> =
            found.into_iter().flat_map(|(node, ports)| std::iter::once(node).chain(ports)).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn the_files_of_two_agents_have_different_guids() {
        let file = |peer: u8| format!("Switch 8 \"S1\"\n[1] \"@10.0.0.{peer}/S1\"[1]\n");
        let (one, other) = (guids(&file(2))[0].0, guids(&file(1))[0].0);
        assert_ne!(one, other);
        assert_eq!([one & 0xff_ffff, other & 0xff_ffff], [0x20_0000; 2]);
        assert_eq!(guids(&file(2))[0].0, one, "the same each time");
    }

    #[test]
    fn two_nodes_with_one_guid_are_refused() {
        let text = "caguid=0x9\nCa 1 \"A\"\n\ncaguid=0x9\nCa 1 \"B\"\n";
        let error = assign(&Topology::from_text(text).unwrap()).err().unwrap();
        assert_eq!(error.to_string(), "\"A\" and \"B\" have the same GUID 0x9; change one of them");
    }
}
