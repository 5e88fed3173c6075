//! Which packets are wanted, in words as tcpdump has them. Principal type: [`Filter`].
//!
//! ```text
//! host 10.0.0.2 and (qp 0x11 or qp 0x12)      src qp 0x11 and not ack      cm      dropped or fault      opcode write
//! ```

use std::net::IpAddr;

use abi::reason::{Cause, DropRecord};
use wire::Operation;

use crate::packet::{Packet, Path};

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Node);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Any,
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Host(Side, IpAddr),
    Qp(Side, u32),
    Pid(Side, u32),
    Device(String),
    Opcode(String),
    Lane(Option<u32>),
    Wire,
    In,
    Out,
    Cm,
    Ack,
    Nak,
    Dropped,
    Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    From,
    To,
    Either,
}

impl Side {
    fn holds<T: PartialEq>(self, wanted: &T, from: &T, to: &T) -> bool {
        (self != Self::To && wanted == from) || (self != Self::From && wanted == to)
    }
}

/// Why words are no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A word that means nothing there.
    #[error(
        "{0:?} is no condition: there are [src|dst] host ADDRESS, [src|dst] qp N, [src|dst] pid N, device NAME, opcode NAME, lane [N], \
         wire, in, out, cm, ack, nak, dropped, fault, and, or, not, ( and )"
    )]
    Unknown(String),
    /// Something has to follow.
    #[error("{0:?} wants {1} behind it")]
    Wants(String, &'static str),
    /// Parentheses do not match.
    #[error("a parenthesis is not closed, or not opened")]
    Parenthesis,
}

impl Filter {
    /// Every packet.
    #[must_use]
    pub fn any() -> Self {
        Self(Node::Any)
    }

    /// The condition that the words say; none says every packet.
    ///
    /// # Errors
    /// They say none.
    pub fn parse(words: &[String]) -> Result<Self, FilterError> {
        let spaced = words.join(" ").replace('(', " ( ").replace(')', " ) ");
        let mut parser = Parser { words: spaced.split_whitespace().collect(), at: 0 };
        if parser.words.is_empty() {
            return Ok(Self::any());
        }
        let node = parser.any_of()?;
        match parser.next() {
            None => Ok(Self(node)),
            Some(")") => Err(FilterError::Parenthesis),
            Some(other) => Err(FilterError::Unknown(other.to_owned())),
        }
    }

    /// Whether a packet is wanted.
    #[must_use]
    pub fn wants(&self, packet: &Packet) -> bool {
        self.0.holds(packet)
    }
}

impl Node {
    fn holds(&self, packet: &Packet) -> bool {
        let operation = || packet.headers().map(|headers| headers.opcode);
        let [from, to] = packet.processes();
        match self {
            Self::Any => true,
            Self::Not(node) => !node.holds(packet),
            Self::And(one, other) => one.holds(packet) && other.holds(packet),
            Self::Or(one, other) => one.holds(packet) || other.holds(packet),
            Self::Host(side, ip) => side.holds(ip, &packet.from, &packet.to),
            Self::Qp(side, qpn) => side.holds(qpn, &packet.src_qp, &packet.dest_qp().unwrap_or(0)),
            Self::Pid(side, pid) => side.holds(pid, &from.pid, &to.pid),
            Self::Device(name) => packet.device.as_deref() == Some(name),
            Self::Opcode(name) => operation().is_some_and(|opcode| is_called(&opcode.to_string(), name)),
            Self::Lane(wanted) => match packet.path {
                Path::Lane { lane, .. } => wanted.is_none_or(|wanted| wanted == lane),
                _ => false,
            },
            Self::Wire => matches!(packet.path, Path::In(_) | Path::Out(_)),
            Self::In => matches!(packet.path, Path::In(_)),
            Self::Out => matches!(packet.path, Path::Out(_)),
            Self::Cm => packet.dest_qp() == Some(1),
            Self::Ack => operation().is_some_and(|opcode| opcode.operation == Operation::Acknowledge),
            Self::Nak => packet.headers().is_some_and(|headers| {
                headers.opcode.has_aeth() && !matches!(headers.aeth.syndrome, wire::Syndrome::Ack(_))
            }),
            Self::Dropped => packet.dropped.is_some() || packet.note.starts_with("dropped"),
            Self::Fault => {
                packet.note.starts_with("fault: ")
                    || packet.dropped.as_ref().and_then(DropRecord::cause) == Some(Cause::Fault)
            }
        }
    }
}

/// "write", "rc-write-first" and "RDMA_WRITE first" are names of "RC RDMA WRITE first".
fn is_called(opcode: &str, name: &str) -> bool {
    let plain =
        |text: &str| -> String { text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase() };
    let (name, opcode) = (plain(name), plain(opcode));
    opcode.contains(&name) || opcode.replacen("rdma", "", 1).contains(&name)
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    fn takes(&mut self, words: &[&str]) -> bool {
        let taken = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(taken);
        taken
    }

    fn any_of(&mut self) -> Result<Node, FilterError> {
        let mut node = self.all_of()?;
        while self.takes(&["or", "||"]) {
            node = Node::Or(Box::new(node), Box::new(self.all_of()?));
        }
        Ok(node)
    }

    fn all_of(&mut self) -> Result<Node, FilterError> {
        let mut node = self.one()?;
        while self.takes(&["and", "&&"]) {
            node = Node::And(Box::new(node), Box::new(self.one()?));
        }
        Ok(node)
    }

    fn one(&mut self) -> Result<Node, FilterError> {
        let Some(word) = self.next() else { return Err(FilterError::Wants("and, or, not, (".into(), "a condition")) };
        let side = match word {
            "src" => Side::From,
            "dst" => Side::To,
            _ => Side::Either,
        };
        let kind = if side == Side::Either { word } else { self.next().unwrap_or("") };
        Ok(match kind {
            "host" => Node::Host(side, self.value(kind, "an address")?),
            "qp" => Node::Qp(side, self.number(kind)?),
            "pid" => Node::Pid(side, self.number(kind)?),
            _ if side != Side::Either => return Err(FilterError::Wants(word.to_owned(), "host, qp or pid")),
            "not" | "!" => Node::Not(Box::new(self.one()?)),
            "(" => {
                let inside = self.any_of()?;
                if !self.takes(&[")"]) {
                    return Err(FilterError::Parenthesis);
                }
                inside
            }
            "device" => Node::Device(self.value(kind, "a name")?),
            "opcode" => Node::Opcode(self.value(kind, "a name, as send, write-first or acknowledge")?),
            "lane" => {
                let number = self.peek().and_then(number);
                self.at += usize::from(number.is_some());
                Node::Lane(number)
            }
            "wire" => Node::Wire,
            "in" => Node::In,
            "out" => Node::Out,
            "cm" => Node::Cm,
            "ack" => Node::Ack,
            "nak" => Node::Nak,
            "dropped" => Node::Dropped,
            "fault" => Node::Fault,
            _ => return Err(FilterError::Unknown(word.to_owned())),
        })
    }

    fn value<T: std::str::FromStr>(&mut self, before: &str, what: &'static str) -> Result<T, FilterError> {
        let found = self.next().and_then(|word| word.parse().ok());
        found.ok_or_else(|| FilterError::Wants(before.to_owned(), what))
    }

    fn number(&mut self, before: &str) -> Result<u32, FilterError> {
        self.next().and_then(number).ok_or_else(|| FilterError::Wants(before.to_owned(), "a number, as 17 or 0x11"))
    }
}

/// A number as people write it.
fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}
