//! Filters for packets, in a syntax like tcpdump's. The principal type is [`Filter`].
//!
//! ```text
//! host 10.0.0.2 and (qp 0x11 or qp 0x12)
//! src qp 0x11 and not ack
//! cm
//! dropped or fault
//! opcode write
//! ```

use std::net::IpAddr;
use std::str::FromStr;

use abi::reason::{Cause, DropRecord};
use winnow::Parser;
use winnow::combinator::{alt, delimited, opt, preceded, separated_foldl1, terminated};
use winnow::error::{ErrMode, ParserError};
use winnow::token::take_while;
use wire::Operation;
use wire::mad::CLASS_CM;

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
    Lid(Side, u32),
    Device(String),
    Opcode(String),
    Lane(Option<u32>),
    Wire,
    In,
    Out,
    Mad,
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

/// Why words are not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A word that has no meaning at its place.
    #[error(
        "{0:?} is not a condition; the conditions are [src|dst] host ADDRESS, [src|dst] qp N, [src|dst] pid N, [src|dst] lid N, device NAME, opcode NAME, lane [N], \
         wire, in, out, mad, cm, ack, nak, dropped, fault, and, or, not, ( and )"
    )]
    Unknown(String),
    /// Another word must follow.
    #[error("{0:?} must be followed by {1}")]
    Wants(String, &'static str),
    /// Parentheses do not match.
    #[error("a parenthesis is not closed, or not opened")]
    Parenthesis,
    /// There are so many that a parser could run out of stack.
    #[error("there are more than {NESTED_MAX} parentheses and nots")]
    Nested,
}

/// The most parentheses and nots of a filter.
const NESTED_MAX: usize = 100;

impl Filter {
    /// A filter that accepts every packet.
    #[must_use]
    pub fn any() -> Self {
        Self(Node::Any)
    }

    /// Parses the words. No words mean every packet.
    ///
    /// # Errors
    /// When the words are not a condition.
    pub fn parse(words: &[String]) -> Result<Self, FilterError> {
        let text = words.join(" ");
        let mut rest = text.trim_start();
        if rest.is_empty() {
            return Ok(Self::any());
        }
        let nots = text.split_whitespace().filter(|word| *word == "not").count();
        if text.matches(['(', '!']).count() + nots > NESTED_MAX {
            return Err(FilterError::Nested);
        }
        let parsed = terminated(any_of, end).parse_next(&mut rest).map_err(ErrMode::into_inner);
        parsed.map(Self).map_err(|error| error.unwrap_or(FilterError::Parenthesis))
    }

    /// Whether the filter accepts a packet.
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
            Self::Lid(side, lid) => {
                let lid = u16::try_from(*lid).ok();
                packet.link.zip(lid).is_some_and(|(link, lid)| side.holds(&lid, &link.slid, &link.dlid))
            }
            Self::Device(name) => packet.device.as_deref() == Some(name),
            Self::Opcode(name) => {
                let stream = || crate::words::streams::opcode(packet);
                let opcode = operation().map(|opcode| opcode.to_string()).or_else(stream);
                opcode.is_some_and(|opcode| is_called(&opcode, name))
            }
            Self::Lane(wanted) => match packet.path {
                Path::Lane { lane, .. } => wanted.is_none_or(|wanted| wanted == lane),
                _ => false,
            },
            Self::Wire => matches!(packet.path, Path::In(_) | Path::Out(_)),
            Self::In => matches!(packet.path, Path::In(_) | Path::LinkIn(_)),
            Self::Out => matches!(packet.path, Path::Out(_) | Path::LinkOut(_)),
            Self::Mad => is_mad(packet),
            // What of a datagram was kept may end before its class.
            Self::Cm => packet.dest_qp() == Some(1) && class(packet).is_none_or(|class| class == CLASS_CM),
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

/// Whether a packet is a management datagram.
fn is_mad(packet: &Packet) -> bool {
    packet.dest_qp().is_some_and(|qpn| qpn <= 1) && packet.headers().is_some_and(|headers| headers.opcode.has_deth())
}

/// The class of a management datagram, if it was kept.
fn class(packet: &Packet) -> Option<u8> {
    packet.payload().0.get(1).copied()
}

/// Whether an opcode has this name. "write", "rc-write-first" and "RDMA_WRITE first" are names of
/// "RC RDMA WRITE first".
fn is_called(opcode: &str, name: &str) -> bool {
    let plain =
        |text: &str| -> String { text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase() };
    let (name, opcode) = (plain(name), plain(opcode));
    opcode.contains(&name) || opcode.replacen("rdma", "", 1).contains(&name)
}

type Parsed<T> = Result<T, ErrMode<FilterError>>;

impl<'a> ParserError<&'a str> for FilterError {
    type Inner = Self;

    fn from_input(input: &&'a str) -> Self {
        Self::Unknown(input.split_whitespace().next().unwrap_or_default().to_owned())
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

/// Conditions of which one must hold.
fn any_of(input: &mut &str) -> Parsed<Node> {
    let or = |one, _, other| Node::Or(Box::new(one), Box::new(other));
    separated_foldl1(all_of, keyword(["or", "||"]), or).parse_next(input)
}

/// Conditions that must all hold; "and" and "&&" bind more tightly than "or".
fn all_of(input: &mut &str) -> Parsed<Node> {
    let and = |one, _, other| Node::And(Box::new(one), Box::new(other));
    separated_foldl1(one, keyword(["and", "&&"]), and).parse_next(input)
}

fn one(input: &mut &str) -> Parsed<Node> {
    if input.is_empty() {
        return Err(wants("and, or, not, (", "a condition"));
    }
    let not = preceded(symbol('!'), one).map(|node| Node::Not(Box::new(node)));
    alt((delimited(symbol('('), any_of, closing), not, condition)).parse_next(input)
}

fn condition(input: &mut &str) -> Parsed<Node> {
    let start = *input;
    let kind = word.parse_next(input)?;
    Ok(match kind {
        "not" => Node::Not(Box::new(one(input)?)),
        "src" => sided(input, kind, Side::From)?,
        "dst" => sided(input, kind, Side::To)?,
        "host" | "qp" | "pid" | "lid" => {
            *input = start;
            sided(input, kind, Side::Either)?
        }
        "device" => Node::Device(value(input, kind, "a name")?),
        "opcode" => Node::Opcode(value(input, kind, "a name, as send, write-first or acknowledge")?),
        "lane" => Node::Lane(opt(word.verify_map(number)).parse_next(input)?),
        "wire" => Node::Wire,
        "in" => Node::In,
        "out" => Node::Out,
        "mad" => Node::Mad,
        "cm" => Node::Cm,
        "ack" => Node::Ack,
        "nak" => Node::Nak,
        "dropped" => Node::Dropped,
        "fault" => Node::Fault,
        _ => return Err(ErrMode::Cut(FilterError::from_input(&start))),
    })
}

/// Conditions about the sender, the receiver, or either.
fn sided(input: &mut &str, before: &str, side: Side) -> Parsed<Node> {
    let kind = opt(word).parse_next(input)?;
    Ok(match kind {
        Some("host") => Node::Host(side, value(input, "host", "an address")?),
        Some("qp") => Node::Qp(side, value::<Number>(input, "qp", NUMBERS)?.0),
        Some("pid") => Node::Pid(side, value::<Number>(input, "pid", NUMBERS)?.0),
        Some("lid") => Node::Lid(side, value::<Number>(input, "lid", NUMBERS)?.0),
        _ => return Err(wants(before, "host, qp, pid or lid")),
    })
}

fn value<T: FromStr>(input: &mut &str, before: &str, what: &'static str) -> Parsed<T> {
    word.parse_to().parse_next(input).map_err(|_: ErrMode<FilterError>| wants(before, what))
}

fn wants(before: &str, what: &'static str) -> ErrMode<FilterError> {
    ErrMode::Cut(FilterError::Wants(before.to_owned(), what))
}

/// A word and the space behind it.
fn word<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    let letter = |letter: char| !letter.is_whitespace() && !matches!(letter, '(' | ')');
    terminated(take_while(1.., letter), space).parse_next(input)
}

fn keyword<'a>(words: [&'static str; 2]) -> impl Parser<&'a str, &'a str, ErrMode<FilterError>> {
    word.verify(move |word: &str| words.contains(&word))
}

fn symbol<'a>(which: char) -> impl Parser<&'a str, char, ErrMode<FilterError>> {
    terminated(which, space)
}

fn space<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    take_while(0.., char::is_whitespace).parse_next(input)
}

fn closing(input: &mut &str) -> Parsed<char> {
    symbol(')').parse_next(input).map_err(|_: ErrMode<FilterError>| ErrMode::Cut(FilterError::Parenthesis))
}

fn end(input: &mut &str) -> Parsed<()> {
    match input.chars().next() {
        None => Ok(()),
        Some(')') => Err(ErrMode::Cut(FilterError::Parenthesis)),
        Some(_) => Err(ErrMode::Cut(FilterError::from_input(input))),
    }
}

const NUMBERS: &str = "a number, as 17 or 0x11";

/// A number as people write it.
struct Number(u32);

impl FromStr for Number {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        number(word).map(Self).ok_or(())
    }
}

fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}
