//! The text form: records of nodes with lines of ports. It is what ibsim reads and ibnetdiscover
//! prints. The functions are [`Topology::from_text`] and [`write`].
//!
//! ```text
//! vendid=0x2c9
//! devid=0xb924
//! sysimgguid=0x200000
//! switchguid=0x200001(200001)
//! Switch  8 "S1"              # "leaf 1" base port 0 lid 3 lmc 0
//! [1]     "H1"[1](300001)     # "host 1" lid 4 4xQDR
//!
//! Ca      2 "H1"              # "host 1"
//! [1](300001)  "S1"[1]        # lid 4 lmc 0 "leaf 1" lid 3 4xQDR
//! ```
//! A line `# address 10.0.0.1 10.0.0.2` below the line of an adapter has the addresses of its
//! ports; ibsim takes it for a comment. Lines that ibsim does not know are ignored. So are its
//! aliases of ports (`@`) and its commands. The options `w=`, `s=` and `e=` of a port are codes of
//! PortInfo.

use super::{Error, LONGEST, Link, Placed, Position, Speed, Topology, TopologyNode, Width, error, number, rate};
use std::fmt;
use std::net::IpAddr;
use wire::smp::NodeType;

impl Topology {
    /// Reads the text form.
    ///
    /// # Errors
    /// A line is malformed, or two lines contradict each other.
    pub fn from_text(text: &str) -> Result<Topology, Error> {
        if text.len() > LONGEST {
            return error((1, 1), format!("the file has more than {LONGEST} bytes; split the subnet"));
        }
        let mut nodes: Vec<Placed> = Vec::new();
        let mut before = Before::default();
        let mut inside = false;
        for (nth, text) in text.lines().enumerate() {
            let mut line = Line { text, at: 0, number: nth + 1 };
            if text.starts_with('[') {
                let place = line.place();
                let Some(placed) = nodes.last_mut().filter(|_| inside) else {
                    return error(place, "a port without a node; put it directly under the line of its node");
                };
                placed.node.links.push(port(&mut line)?);
                placed.links.push(place);
            } else if let Some(kind) = kind(text) {
                nodes.push(header(&mut line, kind, std::mem::take(&mut before))?);
                inside = true;
            } else if let Some(placed) = nodes.last_mut().filter(|_| inside && text.starts_with('#')) {
                placed.node.addresses.extend(addresses(text));
            } else if !text.starts_with(['#', '@']) {
                inside &= !text.trim().is_empty();
                before.read(&mut line)?;
            }
        }
        Topology::complete(nodes)
    }
}

/// The lines before a node that tell of it.
#[derive(Default)]
struct Before {
    guid: Option<u64>,
    system_guid: Option<u64>,
    vendor_id: Option<u32>,
    device_id: Option<u16>,
}

impl Before {
    fn read(&mut self, line: &mut Line<'_>) -> Result<(), Error> {
        let Some((name, value)) = line.text.split_once('=') else { return Ok(()) };
        let name = name.trim();
        let known = ["vendid", "devid", "sysimgguid", "switchguid", "caguid", "hcaguid", "hcaguids", "rtguid"];
        if !known.contains(&name) {
            return Ok(());
        }
        line.at = line.text.len() - value.len();
        let place = line.place();
        let word = value.trim().split(['(', ' ', '\t', '#']).next().unwrap_or_default();
        let Some(value) = number(word) else {
            return error(place, format!("\"{word}\" is not a number; write one like 0x2c9"));
        };
        let too_large = |_| Error { line: place.0, column: place.1, what: format!("{name} {word} is too large") };
        match name {
            "vendid" => self.vendor_id = Some(u32::try_from(value).map_err(too_large)?),
            "devid" => self.device_id = Some(u16::try_from(value).map_err(too_large)?),
            "sysimgguid" => self.system_guid = Some(value),
            _ => self.guid = Some(value),
        }
        Ok(())
    }
}

/// The type of the node whose line this is.
fn kind(text: &str) -> Option<NodeType> {
    let word = text.split_whitespace().next()?;
    Some(match word {
        "Switch" => NodeType::Switch,
        "Hca" | "Ca" => NodeType::Ca,
        "Rt" => NodeType::Router,
        _ => return None,
    })
}

/// Reads `Switch 8 "S1" # "leaf 1" base port 0 lid 3 lmc 0`.
fn header(line: &mut Line<'_>, kind: NodeType, before: Before) -> Result<Placed, Error> {
    let place = line.place();
    line.word();
    line.blanks();
    let ports = line.number("the number of ports, 1 to 254")?;
    let Some(ports) = u8::try_from(ports).ok().filter(|ports| (1..=254).contains(ports)) else {
        return error(place, format!("a node cannot have {ports} ports; it has 1 to 254"));
    };
    line.blanks();
    let name = line.quoted("the name of the node")?;
    let (description, after_it) = quoted_in(line.rest());
    let lid = if kind == NodeType::Switch { after(after_it, "lid") } else { None };
    let Before { guid, system_guid, vendor_id, device_id } = before;
    let (addresses, links) = (Vec::new(), Vec::new());
    let node =
        TopologyNode { kind, name, description, ports, guid, system_guid, vendor_id, device_id, lid, addresses, links };
    Ok(Placed { node, place, links: Vec::new() })
}

/// Reads `# address 10.0.0.1 10.0.0.2`. Any other comment has no addresses.
fn addresses(comment: &str) -> Vec<IpAddr> {
    let mut words = comment.trim_start_matches('#').split_whitespace();
    let is_it = words.next() == Some("address");
    let addresses = is_it.then(|| words.map(str::parse).collect::<Result<_, _>>().ok()).flatten();
    addresses.unwrap_or_default()
}

/// Reads `[1](300001) "S1"[1] # lid 4 lmc 0 "leaf 1" lid 3 4xQDR`, with all after the names
/// optional.
fn port(line: &mut Line<'_>) -> Result<Link, Error> {
    let own = line.bracketed()?;
    let guid = line.guid()?;
    line.blanks();
    let peer = line.quoted("the name of the other node")?;
    let peer_port = if line.peek() == Some('[') { line.bracketed()? } else { 1 };
    line.guid()?;
    let comment = line.rest();
    // The port's own LID comes before the description of the other node, and the rate comes last.
    let own_part = comment.split('"').next().unwrap_or_default();
    let last_part = comment.rsplit('"').next().unwrap_or_default();
    let shown = last_part.split_whitespace().find_map(rate);
    let mut link = Link {
        port: own,
        guid,
        lid: after(own_part, "lid"),
        lmc: after(own_part, "lmc"),
        peer,
        peer_port,
        width: shown.map(|(width, _)| width),
        speed: shown.map(|(_, speed)| speed),
    };
    options(line, &mut link)?;
    Ok(link)
}

/// Reads `w=2 s=4 e=2`.
fn options(line: &Line<'_>, link: &mut Link) -> Result<(), Error> {
    let from = line.at;
    let text = line.rest().split('#').next().unwrap_or_default();
    for word in text.split_whitespace() {
        let Some((name, value)) = word.split_once('=') else { continue };
        let offset = word.as_ptr() as usize - line.text.as_ptr() as usize;
        let place = Line { at: offset.max(from), ..*line }.place();
        let Some(code) = number(value).and_then(|value| u8::try_from(value).ok()) else {
            return error(place, format!("\"{value}\" is not a code of PortInfo; write one like w=2"));
        };
        let speed = |extended: bool| {
            let fits =
                |row: &&(Speed, &str, u8, u8)| if extended { row.3 == code } else { row.2 == code && row.3 == 0 };
            Speed::ALL.iter().find(fits).map(|(speed, ..)| *speed)
        };
        match name {
            "w" => match Width::ALL.iter().find(|(.., own)| *own == code) {
                Some((width, ..)) => link.width = Some(*width),
                None => return error(place, "the width must be one of w=1 (1X), 2 (4X), 4 (8X), 8 (12X), 16 (2X)"),
            },
            "s" if code != 0 => match speed(false) {
                Some(speed) => link.speed = Some(speed),
                None => return error(place, "the speed must be one of s=1 (SDR), 2 (DDR), 4 (QDR)"),
            },
            "e" if code != 0 => match speed(true) {
                Some(speed) => link.speed = Some(speed),
                None => return error(place, "the speed must be one of e=1 (FDR), 2 (EDR), 4 (HDR), 8 (NDR)"),
            },
            _ => {}
        }
    }
    Ok(())
}

/// The first text in quotes, and what follows it.
fn quoted_in(comment: &str) -> (Option<String>, &str) {
    let mut parts = comment.splitn(3, '"');
    match (parts.next(), parts.next(), parts.next()) {
        (_, Some(quoted), Some(rest)) => (Some(quoted.to_owned()), rest),
        _ => (None, comment),
    }
}

/// The number behind a word.
fn after<T: TryFrom<u64>>(comment: &str, word: &str) -> Option<T> {
    let mut words = comment.split_whitespace().skip_while(|own| *own != word);
    words.next()?;
    number(words.next()?)?.try_into().ok()
}

/// A line, and how much of it was read.
#[derive(Clone, Copy)]
struct Line<'a> {
    text: &'a str,
    at: usize,
    number: usize,
}

impl<'a> Line<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn place(&self) -> Position {
        (self.number, self.text.get(..self.at).unwrap_or_default().chars().count() + 1)
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Reads up to the next character that does not fit.
    fn span(&mut self, fits: fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn word(&mut self) -> &'a str {
        self.span(|c| !c.is_whitespace())
    }

    fn number(&mut self, what: &str) -> Result<u64, Error> {
        let place = self.place();
        let digits = self.span(|c| c.is_ascii_digit());
        digits.parse().or_else(|_| error(place, format!("{what} is missing or too large")))
    }

    fn expect(&mut self, letter: char, what: &str) -> Result<(), Error> {
        if self.peek() != Some(letter) {
            return error(self.place(), format!("'{letter}' is missing; write {what}"));
        }
        self.at += letter.len_utf8();
        Ok(())
    }

    fn bracketed(&mut self) -> Result<u8, Error> {
        self.expect('[', "a port like [1]")?;
        let place = self.place();
        let number = self.number("the number of a port")?;
        self.expect(']', "a port like [1]")?;
        u8::try_from(number).or_else(|_| error(place, format!("{number} is not a port; ports are 1 to 254")))
    }

    fn quoted(&mut self, what: &str) -> Result<String, Error> {
        self.expect('"', &format!("{what} in quotes"))?;
        let text = self.span(|c| c != '"').to_owned();
        self.expect('"', &format!("{what} in quotes"))?;
        Ok(text)
    }

    /// Reads a GUID in parentheses, if there is one.
    fn guid(&mut self) -> Result<Option<u64>, Error> {
        if self.peek() != Some('(') {
            return Ok(None);
        }
        self.expect('(', "a GUID like (2c9)")?;
        let place = self.place();
        let digits = self.span(|c| c.is_ascii_hexdigit());
        self.expect(')', "a GUID like (2c9)")?;
        match u64::from_str_radix(digits, 16) {
            Ok(guid) => Ok(Some(guid)),
            Err(_) => error(place, "a GUID has 1 to 16 hexadecimal digits"),
        }
    }
}

/// Writes the record of a node.
pub(super) fn write(node: &TopologyNode, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (guid, word) = match node.kind {
        NodeType::Switch => ("switchguid", "Switch"),
        NodeType::Ca => ("caguid", "Ca"),
        NodeType::Router => ("rtguid", "Rt"),
    };
    if let Some(vendor) = node.vendor_id {
        writeln!(f, "vendid={vendor:#x}")?;
    }
    if let Some(device) = node.device_id {
        writeln!(f, "devid={device:#x}")?;
    }
    if let Some(system) = node.system_guid {
        writeln!(f, "sysimgguid={system:#x}")?;
    }
    if let Some(own) = node.guid {
        writeln!(f, "{guid}={own:#x}({own:x})")?;
    }
    write!(f, "{word}\t{} \"{}\"", node.ports, node.name)?;
    if node.description.is_some() || node.lid.is_some() {
        f.write_str("\t\t#")?;
    }
    if let Some(description) = &node.description {
        write!(f, " \"{description}\"")?;
    }
    if let Some(lid) = node.lid {
        write!(f, " base port 0 lid {lid} lmc 0")?;
    }
    f.write_str("\n")?;
    if !node.addresses.is_empty() {
        f.write_str("# address")?;
        node.addresses.iter().try_for_each(|address| write!(f, " {address}"))?;
        f.write_str("\n")?;
    }
    node.links.iter().try_for_each(|link| write_port(link, f))?;
    f.write_str("\n")
}

fn write_port(link: &Link, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "[{}]", link.port)?;
    if let Some(guid) = link.guid {
        write!(f, "({guid:x})")?;
    }
    write!(f, "\t\"{}\"[{}]", link.peer, link.peer_port)?;
    // A rate needs both of its parts; a part alone is an option.
    let rate = link.width.zip(link.speed);
    match (link.width, link.speed) {
        (Some(width), None) => write!(f, "\tw={}", width.code())?,
        (None, Some(speed)) => {
            let (.., ordinary, extended) = Speed::ALL[speed as usize];
            let (name, code) = if extended == 0 { ("s", ordinary) } else { ("e", extended) };
            write!(f, "\t{name}={code}")?;
        }
        _ => {}
    }
    if link.lid.is_some() || link.lmc.is_some() || rate.is_some() {
        f.write_str("\t\t#")?;
    }
    if let Some(lid) = link.lid {
        write!(f, " lid {lid}")?;
    }
    if let Some(lmc) = link.lmc {
        write!(f, " lmc {lmc}")?;
    }
    if let Some((width, speed)) = rate {
        write!(f, " \"{}\" {}x{}", link.peer, width.lanes(), speed.name())?;
    }
    f.write_str("\n")
}
