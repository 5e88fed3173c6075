//! The description of a subnet in a file: nodes, ports and links. Not their state. Two forms are
//! read: the text that ibsim reads and ibnetdiscover prints ([`Topology::from_text`]), and TOML
//! ([`Topology::from_toml`]). [`Topology`]'s `Display` is the text form. Principal types:
//! [`Topology`], [`Error`].
//!
//! Nothing of this module needs the rest of the crate, so a crate of switches and links can have
//! it.

mod outside;
mod text;
mod toml_form;

pub use outside::Outside;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use wire::smp::NodeType;

/// The longest file, in bytes.
pub const LONGEST: usize = 64 << 20;

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The nodes, in the file's order.
    pub nodes: Vec<TopologyNode>,
}

/// A node of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyNode {
    /// What it is.
    pub kind: NodeType,
    /// Its name in the file.
    pub name: String,
    /// Its description; without one it is the name.
    pub description: Option<String>,
    /// How many ports it has.
    pub ports: u8,
    /// Its GUID.
    pub guid: Option<u64>,
    /// The GUID of its system.
    pub system_guid: Option<u64>,
    /// The vendor.
    pub vendor_id: Option<u32>,
    /// The vendor's number of the device.
    pub device_id: Option<u16>,
    /// The LID of a switch, as a hint.
    pub lid: Option<u16>,
    /// The IP addresses of the ports of an adapter, from port 1.
    pub addresses: Vec<IpAddr>,
    /// The ports with a link, by their numbers.
    pub links: Vec<Link>,
}

/// One end of a link. The other end has one, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The port.
    pub port: u8,
    /// The port's GUID.
    pub guid: Option<u64>,
    /// The port's LID, as a hint.
    pub lid: Option<u16>,
    /// The port has 2^n LIDs.
    pub lmc: Option<u8>,
    /// The other node. A name that begins with `@` is that of a node of another agent, which names
    /// this one ([`Outside`]).
    pub peer: String,
    /// The other node's port.
    pub peer_port: u8,
    /// How many lanes the link has.
    pub width: Option<Width>,
    /// How fast each lane is.
    pub speed: Option<Speed>,
}

/// How many lanes a link has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Width {
    X1,
    X2,
    X4,
    X8,
    X12,
}

/// How fast a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the usual names")]
pub enum Speed {
    Sdr,
    Ddr,
    Qdr,
    Fdr10,
    Fdr,
    Edr,
    Hdr,
    Ndr,
}

/// What is wrong in a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct Error {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Width {
    /// All widths: the lanes, and the code of PortInfo.
    pub const ALL: [(Width, u8, u8); 5] =
        [(Width::X1, 1, 1), (Width::X2, 2, 16), (Width::X4, 4, 2), (Width::X8, 8, 4), (Width::X12, 12, 8)];

    /// The number of lanes.
    #[must_use]
    pub fn lanes(self) -> u8 {
        Width::ALL.iter().find(|(width, ..)| *width == self).map_or(0, |(_, lanes, _)| *lanes)
    }

    /// The code in PortInfo.
    #[must_use]
    pub fn code(self) -> u8 {
        Width::ALL.iter().find(|(width, ..)| *width == self).map_or(0, |(.., code)| *code)
    }
}

impl Speed {
    /// All speeds: the name, the code of PortInfo's ordinary speeds, and that of the extended ones.
    pub const ALL: [(Speed, &'static str, u8, u8); 8] = [
        (Speed::Sdr, "SDR", 1, 0),
        (Speed::Ddr, "DDR", 2, 0),
        (Speed::Qdr, "QDR", 4, 0),
        (Speed::Fdr10, "FDR10", 4, 0),
        (Speed::Fdr, "FDR", 4, 1),
        (Speed::Edr, "EDR", 4, 2),
        (Speed::Hdr, "HDR", 4, 4),
        (Speed::Ndr, "NDR", 4, 8),
    ];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Speed::ALL.iter().find(|(speed, ..)| *speed == self).map_or("", |(_, name, ..)| *name)
    }
}

/// Reads `4xQDR`.
fn rate(word: &str) -> Option<(Width, Speed)> {
    let (lanes, speed) = word.split_once(['x', 'X'])?;
    let lanes: u8 = lanes.parse().ok()?;
    let width = Width::ALL.iter().find(|(_, own, _)| *own == lanes)?.0;
    let speed = Speed::ALL.iter().find(|(_, name, ..)| name.eq_ignore_ascii_case(speed))?.0;
    Some((width, speed))
}

/// Reads a number in decimal, or in hexadecimal with `0x`.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Where something stands in a file.
type Position = (usize, usize);

fn error<T>((line, column): Position, what: impl Into<String>) -> Result<T, Error> {
    Err(Error { line, column, what: what.into() })
}

/// A node while its file is read: where it stands, and where each link stands.
struct Placed {
    node: TopologyNode,
    place: Position,
    links: Vec<Position>,
}

impl Topology {
    /// The node with this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&TopologyNode> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Checks the nodes of a file, and completes each link that only one end names.
    fn complete(placed: Vec<Placed>) -> Result<Topology, Error> {
        let index = index(&placed)?;
        let mut missing: HashMap<(usize, u8), Link> = HashMap::new();
        for (nth, Placed { node, links, .. }) in placed.iter().enumerate() {
            for (link, place) in node.links.iter().zip(links) {
                if link.peer.starts_with(outside::MARK) {
                    leads_outside(node, link, *place)?;
                    continue;
                }
                let Some(&other) = index.get(&link.peer) else {
                    return error(*place, format!("there is no node \"{}\"; add it or remove the link", link.peer));
                };
                let peer = &placed[other].node;
                if link.peer_port == 0 || link.peer_port > peer.ports {
                    let (port, name, ports) = (link.peer_port, &link.peer, peer.ports);
                    return error(*place, format!("\"{name}\" has no port {port}; its ports are 1 to {ports}"));
                }
                if (other, link.peer_port) == (nth, link.port) {
                    return error(*place, "the link leads to its own port; name another port");
                }
                let back = Link {
                    port: link.peer_port,
                    guid: None,
                    lid: None,
                    lmc: None,
                    peer: node.name.clone(),
                    peer_port: link.port,
                    width: link.width,
                    speed: link.speed,
                };
                let named = peer.links.iter().find(|own| own.port == link.peer_port);
                let agreed = match named {
                    Some(own) => own.peer == node.name && own.peer_port == link.port,
                    None => missing.insert((other, link.peer_port), back).is_none(),
                };
                if !agreed {
                    let (port, name) = (link.peer_port, &link.peer);
                    return error(*place, format!("port {port} of \"{name}\" has another link; remove one of them"));
                }
            }
        }
        let mut nodes: Vec<TopologyNode> = placed.into_iter().map(|placed| placed.node).collect();
        for ((nth, _), link) in missing {
            nodes[nth].links.push(link);
        }
        nodes.iter_mut().for_each(|node| node.links.sort_by_key(|link| link.port));
        Ok(Topology { nodes })
    }
}

/// The nodes of a file by their names. Checks the ports that have links.
fn index(placed: &[Placed]) -> Result<HashMap<String, usize>, Error> {
    let mut index = HashMap::new();
    for (nth, Placed { node, place, links }) in placed.iter().enumerate() {
        if node.name.starts_with(outside::MARK) {
            return error(*place, format!("\"{}\" begins with @, as nodes of other agents do; rename it", node.name));
        }
        if index.insert(node.name.clone(), nth).is_some() {
            return error(*place, format!("node \"{}\" exists twice; give each node its own name", node.name));
        }
        let mut used = [false; 256];
        for (link, place) in node.links.iter().zip(links) {
            if link.port == 0 || link.port > node.ports {
                let (port, name, ports) = (link.port, &node.name, node.ports);
                return error(*place, format!("\"{name}\" has no port {port}; its ports are 1 to {ports}"));
            }
            if std::mem::replace(&mut used[usize::from(link.port)], true) {
                return error(*place, format!("port {} has two links; remove one of them", link.port));
            }
        }
    }
    Ok(index)
}

/// Checks a link to a node of another agent.
fn leads_outside(node: &TopologyNode, link: &Link, place: Position) -> Result<(), Error> {
    if link.outside().is_none() {
        let wanted = "@ADDRESS/NODE, such as @10.0.0.2/S2 or @10.0.0.2:5000/S2";
        return error(place, format!("\"{}\" names no node of another agent; write {wanted}", link.peer));
    }
    if node.name.len() > outside::LONGEST_NAME {
        let most = outside::LONGEST_NAME;
        return error(place, format!("a node with a link to another agent has a name of at most {most} bytes"));
    }
    if !(1..=254).contains(&link.peer_port) {
        return error(place, format!("\"{}\" has no port {}; ports are 1 to 254", link.peer, link.peer_port));
    }
    Ok(())
}

/// The text form, as ibnetdiscover prints it.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nodes.iter().try_for_each(|node| text::write(node, f))
    }
}

#[cfg(test)]
mod tests;
