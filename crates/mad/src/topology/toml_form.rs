//! The TOML form: a table for each node. The function is [`Topology::from_toml`].
//!
//! ```toml
//! [[node]]
//! name = "S1"
//! kind = "switch"            # or "hca", "router"
//! ports = 8
//! guid = "0x200001"          # also: system_guid, description, vendor_id, device_id, lid
//! address = "10.0.0.1"       # of an hca; with several ports, ["10.0.0.1", "10.0.0.2"]
//! links = { 1 = "H1[1] 4xEDR", 2 = "S2[7]", 3 = "@10.0.0.2/S9[3]" }
//! ```

use super::{Error, LONGEST, Link, Placed, Position, Topology, TopologyNode, error, number, rate};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use toml::Spanned;
use wire::smp::NodeType;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    node: Vec<Record>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    name: Spanned<String>,
    kind: Kind,
    ports: u8,
    description: Option<String>,
    guid: Option<Spanned<Number>>,
    system_guid: Option<Spanned<Number>>,
    vendor_id: Option<u32>,
    device_id: Option<u16>,
    lid: Option<u16>,
    #[serde(default)]
    address: Addresses,
    #[serde(default)]
    links: BTreeMap<String, Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Switch,
    Hca,
    Router,
}

/// The address of the first port, or those of all ports.
#[derive(Deserialize)]
#[serde(untagged)]
enum Addresses {
    One(IpAddr),
    Each(Vec<IpAddr>),
}

impl Default for Addresses {
    fn default() -> Self {
        Self::Each(Vec::new())
    }
}

/// A number, also as a text: numbers of TOML end at 2^63.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

impl Topology {
    /// Reads the TOML form.
    ///
    /// # Errors
    /// The file is malformed, or two links contradict each other.
    pub fn from_toml(text: &str) -> Result<Topology, Error> {
        if text.len() > LONGEST {
            return error((1, 1), format!("the file has more than {LONGEST} bytes; split the subnet"));
        }
        let file: File = toml::from_str(text).or_else(|wrong: toml::de::Error| {
            error(place(text, wrong.span().map_or(0, |span| span.start)), wrong.message())
        })?;
        let nodes = file.node.into_iter().map(|record| record.node(text)).collect::<Result<_, _>>()?;
        Topology::complete(nodes)
    }
}

/// The line and column of a byte.
fn place(text: &str, at: usize) -> Position {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

impl Record {
    fn node(self, text: &str) -> Result<Placed, Error> {
        let own = place(text, self.name.span().start);
        if !(1..=254).contains(&self.ports) {
            return error(own, format!("a node cannot have {} ports; it has 1 to 254", self.ports));
        }
        let unfit = |text: &str| text.contains(['"', '\n', '\r']);
        if unfit(self.name.get_ref()) || self.description.as_deref().is_some_and(unfit) {
            return error(own, "names and descriptions have no quotes and no line ends; choose others");
        }
        let guid = |number: Option<Spanned<Number>>| number.map(|number| guid(&number, text)).transpose();
        let (mut links, mut places) = (Vec::new(), Vec::new());
        for (port, value) in &self.links {
            let place = place(text, value.span().start);
            let Some(link) = link(port, value.get_ref()) else {
                return error(
                    place,
                    format!("{port} = \"{}\" is not a link; write 1 = \"H1[1] 4xEDR\"", value.get_ref()),
                );
            };
            links.push(link);
            places.push(place);
        }
        let node = TopologyNode {
            kind: match self.kind {
                Kind::Switch => NodeType::Switch,
                Kind::Hca => NodeType::Ca,
                Kind::Router => NodeType::Router,
            },
            name: self.name.into_inner(),
            description: self.description,
            ports: self.ports,
            guid: guid(self.guid)?,
            system_guid: guid(self.system_guid)?,
            vendor_id: self.vendor_id,
            device_id: self.device_id,
            lid: self.lid,
            addresses: match self.address {
                Addresses::One(address) => vec![address],
                Addresses::Each(addresses) => addresses,
            },
            links,
        };
        Ok(Placed { node, place: own, links: places })
    }
}

fn guid(value: &Spanned<Number>, text: &str) -> Result<u64, Error> {
    match value.get_ref() {
        Number::Number(number) => Ok(*number),
        Number::Text(word) => number(word).map_or_else(
            || error(place(text, value.span().start), format!("\"{word}\" is not a GUID; write one like \"0x2c9\"")),
            Ok,
        ),
    }
}

/// Reads the link `1 = "H1[1] 4xEDR"`.
fn link(port: &str, value: &str) -> Option<Link> {
    // An address may have brackets, too.
    let (peer, rest) = value.rsplit_once('[')?;
    let (peer_port, shown) = rest.split_once(']')?;
    let shown = match shown.trim() {
        "" => None,
        word => Some(rate(word)?),
    };
    Some(Link {
        port: port.parse().ok()?,
        guid: None,
        lid: None,
        lmc: None,
        peer: peer.trim().to_owned(),
        peer_port: peer_port.trim().parse().ok()?,
        width: shown.map(|(width, _)| width),
        speed: shown.map(|(_, speed)| speed),
    })
}
