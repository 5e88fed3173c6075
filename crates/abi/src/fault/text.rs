//! Parses and formats rules in the form that people write.
//!
//! ```text
//! KIND [VALUE] [KEY VALUE]...        loss 5% qp 0x11 seed 7         fail create_qp ENOMEM nth 2
//! ```
//! Spaces, commas or equals signs separate words; semicolons or line ends separate rules. An error
//! names the wrong word and the allowed alternatives. Principal functions: [`parse`],
//! [`parse_all`].

use std::fmt;
use std::time::Duration;

use winnow::Parser;
use winnow::combinator::{opt, preceded, terminated};
use winnow::error::{ErrMode, ParserError};
use winnow::token::take_while;

use super::{FaultKind, LinkPort, Rule, Select, Sort, Way, When};
use crate::command::ROWS;
use crate::errno::Errno;

/// Why a text is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRule(pub String);

type Parsed<T> = Result<T, ErrMode<BadRule>>;

fn bad<T>(text: impl Into<String>) -> Parsed<T> {
    Err(ErrMode::Cut(BadRule(text.into())))
}

impl<'a> ParserError<&'a str> for BadRule {
    type Inner = Self;

    fn from_input(input: &&'a str) -> Self {
        Self(format!("unexpected {input:?}"))
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

/// The kinds, with their values and their effects: for help and for messages.
pub const KINDS: [(&str, &str, &str); 13] = [
    ("loss", "[RATE]", "packets are lost"),
    ("delay", "TIME [jitter TIME]", "packets are delayed"),
    ("duplicate", "[RATE]", "packets are duplicated"),
    ("reorder", "[RATE]", "packets arrive after the QP's next, or 1 ms later"),
    ("corrupt", "[RATE]", "one bit of a packet flips: the ICRC is wrong"),
    ("bandwidth", "SPEED", "packets leave at this rate at most"),
    ("rnr", "[RATE]", "requests are answered with RNR NAK"),
    ("ghost-ack", "[RATE]", "acknowledgements are followed by an old one"),
    ("fail", "COMMAND ERRNO", "a verbs command fails"),
    ("cm-reject", "[REASON]", "connection requests are rejected (28: consumer)"),
    ("cm-timeout", "", "connection requests are lost"),
    ("port-down", "[for TIME]", "a port or link is down, for a time or until cleared"),
    ("remove", "", "programs lose the device"),
];

/// The keys, with their values and their meanings.
pub const KEYS: [(&str, &str, &str); 14] = [
    ("device", "NAME", "only this device"),
    ("port", "N", "only this port of it"),
    ("peer", "ADDRESS", "only packets to and from this address"),
    ("qp", "NUMBER", "only packets of this queue pair, at either end"),
    ("opcode", "SORT", "only these packets"),
    ("direction", "out|in|both", "sent (default), received, or both"),
    ("pid", "NUMBER", "only programs of this process"),
    ("link", "NODE[PORT]", "only over this link of the topology"),
    ("rate", "RATE", "this share of them: 5%, or 0.05"),
    ("nth", "N", "only the nth, counted from 1"),
    ("every", "N", "every nth"),
    ("after", "N", "not the first N"),
    ("count", "N", "at most N times"),
    ("seed", "N", "seed of the random choice, to repeat a run"),
];

const SORTS: [(&str, Sort); 11] = [
    ("send", Sort::Send),
    ("write", Sort::Write),
    ("read", Sort::Read),
    ("read-response", Sort::ReadResponse),
    ("atomic", Sort::Atomic),
    ("atomic-ack", Sort::AtomicAck),
    ("ack", Sort::Ack),
    ("nak", Sort::Nak),
    ("request", Sort::Request),
    ("response", Sort::Response),
    ("cm", Sort::Cm),
];

const WAYS: [(&str, Way); 3] = [("out", Way::Out), ("in", Way::In), ("both", Way::Both)];

/// The reason with which a program declines a connection (IBA 12.6.7.2).
const DECLINED: u16 = 28;

/// Parses several rules. Empty rules are skipped.
///
/// # Errors
/// The error in the first bad rule.
pub fn parse_all(text: &str) -> Result<Vec<Rule>, BadRule> {
    let texts = text.split([';', '\n']).map(str::trim).filter(|text| !text.is_empty());
    texts.map(parse).collect()
}

/// Parses one rule.
///
/// # Errors
/// The error in the rule.
pub fn parse(text: &str) -> Result<Rule, BadRule> {
    let parsed = preceded(separators, rule).parse_next(&mut &*text);
    parsed.map_err(|error| {
        let why = error.into_inner().map_or_else(|_| String::new(), |BadRule(why)| why);
        BadRule(format!("bad rule {:?}: {why}", text.trim()))
    })
}

fn is_separator(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, ',' | '=')
}

fn separators<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    take_while(0.., is_separator).parse_next(input)
}

/// A word and the separators after it.
fn word<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    terminated(take_while(1.., |letter| !is_separator(letter)), separators).parse_next(input)
}

/// The value of a kind or key.
fn value<'a>(input: &mut &'a str, of: &str, takes: &str) -> Parsed<&'a str> {
    opt(word).parse_next(input)?.map_or_else(|| bad(format!("{of} takes {takes}, but nothing follows")), Ok)
}

/// The next word, unless it is a key.
fn optional<'a>(input: &mut &'a str) -> Parsed<Option<&'a str>> {
    opt(word.verify(|word: &str| word != "for" && word != "jitter" && !is_key(word))).parse_next(input)
}

/// Takes the next word if it is this one.
fn follows(input: &mut &str, wanted: &str) -> Parsed<bool> {
    Ok(opt(word.verify(|word: &str| word == wanted)).parse_next(input)?.is_some())
}

fn is_key(word: &str) -> bool {
    KEYS.iter().any(|(key, ..)| *key == word)
}

fn rule(input: &mut &str) -> Parsed<Rule> {
    let mut when = When { seed: 1, ..When::default() };
    let Some(first) = opt(word).parse_next(input)? else { return bad(format!("it is empty; kinds are {}", kinds())) };
    let mut name = first.replace('_', "-");
    // "cm reject" is "cm-reject".
    for second in ["reject", "timeout", "down"] {
        let both = format!("{first}-{second}");
        if KINDS.iter().any(|(kind, ..)| *kind == both) && follows(input, second)? {
            name = both;
        }
    }
    let kind = kind(input, &name, &mut when)?;
    let mut select = Select::default();
    while let Some(key) = opt(word).parse_next(input)? {
        let Some((_, takes, _)) = KEYS.iter().find(|(known, ..)| *known == key) else {
            let keys: Vec<&str> = KEYS.iter().map(|(key, ..)| *key).collect();
            return bad(format!("unknown key {key:?}; keys are {}", keys.join(", ")));
        };
        if key == "link" {
            select.link = Some(link(input, takes)?);
            continue;
        }
        let value = value(input, key, takes)?;
        match key {
            "device" => select.device = Some(value.to_owned()),
            "port" => select.port = Some(small(key, value)?),
            "peer" => {
                let address = value.parse().or_else(|_| bad(format!("peer must be an IP address, not {value:?}")))?;
                select.peer = Some(address);
            }
            "qp" => select.qp = Some(small(key, value)?),
            "opcode" => select.opcode = Some(one_of(key, value, &SORTS)?),
            "direction" => select.direction = Some(one_of(key, value, &WAYS)?),
            "pid" => select.pid = Some(small(key, value)?),
            "rate" => when.rate = Some(rate(value)?),
            "nth" => when.nth = Some(counted(key, value)?),
            "every" => when.every = Some(counted(key, value)?),
            "after" => when.after = Some(number(key, value)?),
            "count" => when.count = Some(counted(key, value)?),
            _ => when.seed = number(key, value)?,
        }
    }
    let rule = Rule { kind, select, when };
    fits(&rule)?;
    Ok(rule)
}

/// A port of a topology. A name in quotes may have any other letter.
fn link(input: &mut &str, takes: &str) -> Parsed<LinkPort> {
    let (name, rest) = match input.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').unwrap_or_default(),
        None => input.split_at(input.find(|letter| letter == '[' || is_separator(letter)).unwrap_or(input.len())),
    };
    let port = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let port = port.and_then(|(port, rest)| Some((port.parse().ok().filter(|port| *port != 0)?, rest)));
    match port {
        Some((port, rest)) if !name.is_empty() && !rest.starts_with(|letter| !is_separator(letter)) => {
            *input = rest;
            separators(input)?;
            Ok(LinkPort { node: name.to_owned(), port })
        }
        _ => bad(format!("link takes {takes}, for example \"S1\"[3], not {:?}", input.trim_end())),
    }
}

/// The kind of this name, with what belongs to it.
fn kind(input: &mut &str, name: &str, when: &mut When) -> Parsed<FaultKind> {
    Ok(match name {
        "loss" => rated(input, when, FaultKind::Loss)?,
        "duplicate" => rated(input, when, FaultKind::Duplicate)?,
        "reorder" => rated(input, when, FaultKind::Reorder)?,
        "corrupt" => rated(input, when, FaultKind::Corrupt)?,
        "rnr" => rated(input, when, FaultKind::Rnr)?,
        "ghost-ack" => rated(input, when, FaultKind::GhostAck)?,
        "delay" => {
            let by = time("delay", value(input, "delay", TIMES)?)?;
            let jitter = if follows(input, "jitter")? { time("jitter", value(input, "jitter", TIMES)?)? } else { 0 };
            FaultKind::Delay { by, jitter }
        }
        "bandwidth" => FaultKind::Bandwidth(speed(value(input, "bandwidth", SPEEDS)?)?),
        "fail" => {
            let command = command(value(input, "fail", "a command and an errno")?)?;
            let errno = errno(value(input, "fail", "a command and an errno")?)?;
            FaultKind::Fail { command, errno }
        }
        "cm-reject" => {
            let reason = optional(input)?.map(|word| number("reason", word)).transpose()?;
            let reason = u16::try_from(reason.unwrap_or(DECLINED.into()));
            FaultKind::CmReject { reason: reason.or_else(|_| bad("reason must be below 65536"))? }
        }
        "cm-timeout" => FaultKind::CmTimeout,
        "port-down" => {
            let lasts = if follows(input, "for")? { time("for", value(input, "for", TIMES)?)?.max(1) } else { 0 };
            FaultKind::PortDown { lasts }
        }
        "remove" => FaultKind::Remove,
        other => return bad(format!("unknown kind of fault {other:?}; kinds are {}", kinds())),
    })
}

/// A key that has no meaning for a kind is an error.
fn fits(rule: &Rule) -> Parsed<()> {
    let Rule { kind, select, when } = rule;
    let name = kind.to_string();
    if !kind.is_of_engines() && (select.qp.is_some() || select.opcode.is_some() || select.direction.is_some()) {
        return bad(format!("{name} does not take qp, opcode or direction: it does not act on packets"));
    }
    if *kind == FaultKind::Rnr && select.direction.is_some() {
        return bad("rnr does not take direction: the receiver of a request always answers it");
    }
    if select.link.is_some() {
        if !matches!(kind, FaultKind::Loss | FaultKind::Delay { .. } | FaultKind::Corrupt | FaultKind::PortDown { .. })
        {
            return bad(format!("{name} does not take link: a link takes loss, delay, corrupt and port-down"));
        }
        if select.opcode == Some(Sort::Cm) {
            return bad("link does not take opcode cm: rules about links are for packets of queue pairs");
        }
        if matches!(kind, FaultKind::PortDown { .. }) && (select.device.is_some() || select.port.is_some()) {
            return bad("port-down takes a link, or a device and a port: give one of them");
        }
    }
    if select.opcode == Some(Sort::Cm) && matches!(kind, FaultKind::GhostAck | FaultKind::Rnr) {
        return bad(format!(
            "{name} does not take opcode cm: connection manager datagrams are not acknowledged; use loss, delay, duplicate, \
             reorder, corrupt or bandwidth"
        ));
    }
    if matches!(kind, FaultKind::PortDown { .. } | FaultKind::Remove)
        && (*when != When { seed: when.seed, ..When::default() })
    {
        return bad(format!("{name} happens at once: it does not take rate, nth, every, after or count"));
    }
    if !kind.is_of_engines()
        && select.peer.is_some()
        && !matches!(kind, FaultKind::CmReject { .. } | FaultKind::CmTimeout)
    {
        return bad(format!("{name} does not take peer: it acts neither on packets nor on connection requests"));
    }
    Ok(())
}

fn rated(input: &mut &str, when: &mut When, kind: FaultKind) -> Parsed<FaultKind> {
    when.rate = optional(input)?.map(rate).transpose()?;
    Ok(kind)
}

fn kinds() -> String {
    KINDS.map(|(kind, ..)| kind).join(", ")
}

fn rate(word: &str) -> Parsed<f64> {
    let value = match word.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|value| value / 100.0),
        None => word.parse(),
    };
    match value {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => bad(format!("rate must be between 0% and 100%, for example 5% or 0.05, not {word:?}")),
    }
}

const TIMES: &str = "a time, for example 50us, 2ms or 1s";
const SPEEDS: &str = "a speed, for example 100mbit or 1gbit";

/// The longest time: 31 years.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A time in nanoseconds.
fn time(key: &str, word: &str) -> Parsed<u64> {
    // The limit is far below the clock's range, because the time is added to the clock.
    let parsed = humantime::parse_duration(word).ok().filter(|time| *time <= LONGEST);
    let parsed = parsed.and_then(|time| u64::try_from(time.as_nanos()).ok());
    parsed.map_or_else(|| bad(format!("{key} must be {TIMES}, not {word:?}")), Ok)
}

/// A rate in bits per second.
fn speed(word: &str) -> Parsed<u64> {
    let units = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let split = word.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at(split);
    let factor = units.iter().find(|(known, _)| known.eq_ignore_ascii_case(unit)).map(|(_, factor)| factor);
    let speed = factor.zip(number.parse::<f64>().ok()).map(|(factor, number)| number * factor);
    // A double counts exactly up to 2^53, which is far more than any network has.
    let speed = speed.filter(|speed| (1.0..=1e18).contains(speed)).map(|speed| speed.round() as u64);
    speed.map_or_else(|| bad(format!("bandwidth must be {SPEEDS}, not {word:?}")), Ok)
}

fn number(key: &str, word: &str) -> Parsed<u64> {
    let value = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    value.or_else(|_| bad(format!("{key} must be a number, not {word:?}")))
}

fn small(key: &str, word: &str) -> Parsed<u32> {
    u32::try_from(number(key, word)?).or_else(|_| bad(format!("{key}: {word} is too large")))
}

fn counted(key: &str, word: &str) -> Parsed<u64> {
    match number(key, word)? {
        0 => bad(format!("{key} must be at least 1")),
        some => Ok(some),
    }
}

fn one_of<T: Copy>(key: &str, word: &str, all: &[(&str, T)]) -> Parsed<T> {
    match all.iter().find(|(name, _)| *name == word) {
        Some((_, value)) => Ok(*value),
        None => {
            let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            bad(format!("{key} must be one of {}, not {word:?}", names.join(", ")))
        }
    }
}

/// The name of a command in rules: in lower case, and the same for its legacy and its extended
/// form.
#[must_use]
pub fn command_name(row: &str) -> String {
    row.strip_prefix("EX_").unwrap_or(row).to_ascii_lowercase()
}

fn command(word: &str) -> Parsed<String> {
    let wanted = word.to_ascii_lowercase();
    let wanted = wanted.strip_prefix("ibv_").unwrap_or(&wanted);
    if ROWS.iter().any(|row| command_name(row.name) == wanted) {
        return Ok(wanted.to_owned());
    }
    let mut names: Vec<String> = ROWS.iter().map(|row| command_name(row.name)).collect();
    names.sort();
    names.dedup();
    bad(format!("unknown command {word:?}; commands are {}", names.join(", ")))
}

fn errno(word: &str) -> Parsed<Errno> {
    let named = Errno::ALL.iter().find(|errno| errno.name() == Some(word)).copied();
    let numbered = || word.parse().ok().filter(|value| (1..4096).contains(value)).map(Errno);
    named.or_else(numbered).map_or_else(|| bad(format!("unknown errno {word:?}; examples are ENOMEM and 12")), Ok)
}

/// A time in the largest unit in which it is a whole number.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
        match units.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}ns", self.0),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss => f.write_str("loss"),
            Self::Delay { by, jitter: 0 } => write!(f, "delay {}", Time(*by)),
            Self::Delay { by, jitter } => write!(f, "delay {} jitter {}", Time(*by), Time(*jitter)),
            Self::Duplicate => f.write_str("duplicate"),
            Self::Reorder => f.write_str("reorder"),
            Self::Corrupt => f.write_str("corrupt"),
            Self::Bandwidth(bits) => match *bits {
                bits if bits.is_multiple_of(1_000_000_000) => write!(f, "bandwidth {}gbit", bits / 1_000_000_000),
                bits if bits.is_multiple_of(1_000_000) => write!(f, "bandwidth {}mbit", bits / 1_000_000),
                bits => write!(f, "bandwidth {bits}bit"),
            },
            Self::Rnr => f.write_str("rnr"),
            Self::GhostAck => f.write_str("ghost-ack"),
            Self::Fail { command, errno } => match errno.name() {
                Some(name) => write!(f, "fail {command} {name}"),
                None => write!(f, "fail {command} {}", errno.0),
            },
            Self::CmReject { reason } => write!(f, "cm-reject {reason}"),
            Self::CmTimeout => f.write_str("cm-timeout"),
            Self::PortDown { lasts: 0 } => f.write_str("port-down"),
            Self::PortDown { lasts } => write!(f, "port-down for {}", Time(*lasts)),
            Self::Remove => f.write_str("remove"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, select, when } = self;
        write!(f, "{kind}")?;
        if let Some(rate) = when.rate {
            // Values given in percent are written in percent again.
            let percent = (rate * 100.0 * 1e9).round() / 1e9;
            let key = if matches!(
                kind,
                FaultKind::Loss
                    | FaultKind::Duplicate
                    | FaultKind::Reorder
                    | FaultKind::Corrupt
                    | FaultKind::Rnr
                    | FaultKind::GhostAck
            ) {
                ""
            } else {
                "rate "
            };
            write!(f, " {key}{percent}%")?;
        }
        let text = |f: &mut fmt::Formatter<'_>, key: &str, value: Option<&dyn fmt::Display>| match value {
            Some(value) => write!(f, " {key} {value}"),
            None => Ok(()),
        };
        let name = |sort: Sort| SORTS.iter().find(|(_, other)| *other == sort).map_or("", |(name, _)| name);
        let way = |way: Way| WAYS.iter().find(|(_, other)| *other == way).map_or("", |(name, _)| name);
        text(f, "device", select.device.as_ref().map(|value| value as _))?;
        text(f, "port", select.port.as_ref().map(|value| value as _))?;
        text(f, "peer", select.peer.as_ref().map(|value| value as _))?;
        if let Some(qp) = select.qp {
            write!(f, " qp {qp:#x}")?;
        }
        text(f, "opcode", select.opcode.map(name).as_ref().map(|value| value as _))?;
        text(f, "direction", select.direction.map(way).as_ref().map(|value| value as _))?;
        text(f, "pid", select.pid.as_ref().map(|value| value as _))?;
        text(f, "link", select.link.as_ref().map(|value| value as _))?;
        text(f, "nth", when.nth.as_ref().map(|value| value as _))?;
        text(f, "every", when.every.as_ref().map(|value| value as _))?;
        text(f, "after", when.after.as_ref().map(|value| value as _))?;
        text(f, "count", when.count.as_ref().map(|value| value as _))?;
        if when.seed != 1 {
            write!(f, " seed {}", when.seed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_back_as_they_were_written() {
        for text in [
            "loss 5%",
            "loss 5% qp 0x11 seed 7",
            "loss 0.1% device softhca0 port 1 peer 10.0.0.2 opcode read-response direction both pid 7",
            "duplicate nth 3",
            "reorder every 100 after 10 count 5",
            "corrupt 0.1% seed 9",
            "delay 50us",
            "delay 2ms jitter 500us rate 10%",
            "bandwidth 100mbit peer fe80::1",
            "bandwidth 2gbit",
            "rnr 1%",
            "ghost-ack 10%",
            "fail create_qp ENOMEM nth 2",
            "fail reg_mr 4095",
            "cm-reject 28 count 1",
            "cm-timeout peer 10.0.0.2",
            "port-down for 500ms device softhca0",
            "remove device softhca1",
            "loss 5% link \"S1\"[3] seed 7",
            "delay 2ms direction out link \"a switch, with = and [\"[12]",
            "port-down for 300ms link \"S1\"[3]",
        ] {
            let rule = parse(text).expect(text);
            assert_eq!(rule.to_string(), text);
            assert_eq!(parse(&rule.to_string()), Ok(rule));
        }
    }

    #[test]
    fn there_are_other_ways_to_write_the_same() {
        for (one, other) in [
            ("loss=5%,seed=7", "loss 5% seed 7"),
            ("loss rate 0.05", "loss 5%"),
            ("cm reject", "cm-reject 28"),
            ("cm timeout", "cm-timeout"),
            ("port down for 1s", "port-down for 1000ms"),
            ("delay 1.5ms", "delay 1500us"),
            ("fail ibv_create_qp 12", "fail create_qp ENOMEM"),
            ("ghost_ack", "ghost-ack"),
            ("loss link S1[3], seed 7", "loss link \"S1\"[3] seed 7"),
        ] {
            assert_eq!(parse(one), parse(other), "{one}");
        }
        let all = parse_all("loss=5%,seed=7; rnr 1% ;;\nfail reg_mr ENOMEM").expect("three");
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn errors_of_fault_rules_name_the_permitted_words() {
        for (text, expected) in [
            ("", "kinds are loss, delay"),
            ("lose 5%", "unknown kind of fault \"lose\"; kinds are loss"),
            ("loss 120%", "rate must be between 0% and 100%, for example 5% or 0.05, not \"120%\""),
            ("loss 5% qpn 3", "unknown key \"qpn\"; keys are device, port"),
            ("loss 5% qp", "qp takes NUMBER, but nothing follows"),
            ("loss 5% qp x", "qp must be a number, not \"x\""),
            ("loss peer here", "peer must be an IP address, not \"here\""),
            ("loss opcode sends", "opcode must be one of send, write, read"),
            ("loss nth 0", "nth must be at least 1"),
            ("loss link S1", "link takes NODE[PORT], for example \"S1\"[3], not \"S1\""),
            ("loss link S1[0]", "link takes NODE[PORT]"),
            ("loss link [1]", "link takes NODE[PORT]"),
            ("loss link \"S1[1]", "link takes NODE[PORT]"),
            ("loss link S1[1]x", "link takes NODE[PORT]"),
            ("rnr link S1[1]", "rnr does not take link"),
            ("loss opcode cm link S1[1]", "for packets of queue pairs"),
            ("port-down port 1 link S1[1]", "give one of them"),
            ("port-down direction in link S1[1]", "does not take qp, opcode or direction"),
            ("delay", "delay takes a time, for example 50us"),
            ("delay 5", "delay must be a time"),
            ("delay 32years", "delay must be a time"),
            ("bandwidth 5km", "bandwidth must be a speed"),
            ("bandwidth 5", "bandwidth must be a speed"),
            ("bandwidth 0gbit", "bandwidth must be a speed"),
            ("fail make_qp ENOMEM", "unknown command \"make_qp\"; commands are "),
            ("fail create_qp ENOROOM", "unknown errno \"ENOROOM\"; examples are ENOMEM and 12"),
            ("fail create_qp ENOMEM qp 3", "fail create_qp ENOMEM does not take qp, opcode or direction"),
            ("port-down nth 3", "port-down happens at once"),
            ("rnr direction out", "rnr does not take direction"),
            ("ghost-ack opcode cm", "connection manager datagrams are not acknowledged"),
            ("rnr 5% opcode cm", "use loss, delay, duplicate, reorder, corrupt or bandwidth"),
        ] {
            let BadRule(why) = parse(text).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        }
        assert!(parse_all("loss 5%; oops").is_err());
    }
}
