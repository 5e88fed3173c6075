//! Faults on demand: the content of a rule, and the place of an engine's rules behind its context
//! page.
//!
//! A [`Rule`] is one kind of fault, the packets or calls that it applies to, and how often it
//! happens. People write rules as text ([`text`]). The agent keeps them. An engine gets the rules
//! that apply to it as text again: one per line, with its number and its index among the counters.
//! [`decide`] chooses the packets, in the same way for the same seed. This module itself harms
//! nothing.

pub mod decide;
pub mod page;
pub mod text;

pub use decide::{Armed, Dice, Direction, Facts, Fate, Pair, Verdict, link_bit};
pub use page::{AREA_LEN, PLACES, TEXT_MAX, area, state};
pub use text::{BadRule, parse_all};

use std::fmt;

use crate::errno::Errno;

/// The environment variable that names the rules of one program: their text, separated by
/// semicolons, or the path of a TOML file.
pub const VARIABLE: &str = "SOFTHCA_FAULTS";

/// The most rules that apply to one engine.
pub const RULES: usize = 32;

/// One fault: its kind, its objects, and how often it happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The packets or calls that it applies to.
    pub select: Select,
    /// How often.
    pub when: When,
}

/// A kind of fault.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FaultKind {
    /// A packet is lost.
    Loss,
    /// A packet is delayed. The delay is random within a range around `by`.
    Delay {
        /// The delay, in nanoseconds.
        by: u64,
        /// The most by which the delay is longer or shorter, in nanoseconds.
        jitter: u64,
    },
    /// A packet is duplicated.
    Duplicate,
    /// A packet is delivered after the next one of its QP.
    Reorder,
    /// One bit of a packet flips, so its ICRC is wrong.
    Corrupt,
    /// Packets leave at this rate at most, in bits per second.
    Bandwidth(u64),
    /// A request that needs a receive request is answered with RNR NAK.
    Rnr,
    /// An acknowledgement is followed by one that acknowledges nothing new.
    GhostAck,
    /// A command of the verbs is refused.
    Fail {
        /// Its name, in lower case and without "ex_".
        command: String,
        /// The error with which it is refused.
        errno: Errno,
    },
    /// Connection requests are rejected.
    CmReject {
        /// The reason's code (IBA 12.6.7.2).
        reason: u16,
    },
    /// Connection requests are lost.
    CmTimeout,
    /// A port or a link is down, for a time or until the rule is cleared.
    PortDown {
        /// How long, in nanoseconds; 0: until the rule is cleared.
        lasts: u64,
    },
    /// The device is removed from the programs that have it open.
    Remove,
}

/// The packets or calls that a rule applies to: all, unless it names some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// A device's name, or its number.
    pub device: Option<String>,
    /// A port, from 1.
    pub port: Option<u32>,
    /// The address at the other end.
    pub peer: Option<std::net::IpAddr>,
    /// A queue pair's number, at either end.
    pub qp: Option<u32>,
    /// Packets of this sort.
    pub opcode: Option<Sort>,
    /// Outgoing packets, incoming packets, or both; by default outgoing ones.
    pub direction: Option<Way>,
    /// The process id of the program.
    pub pid: Option<u32>,
    /// A link of the topology, by the port at one of its ends. The direction is then that of this
    /// port; by default it is both.
    pub link: Option<LinkPort>,
}

/// A port of a node of the topology.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkPort {
    /// The name of the node.
    pub node: String,
    /// The port, from 1.
    pub port: u8,
}

impl fmt::Display for LinkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"[{}]", self.node, self.port)
    }
}

/// How often a rule acts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct When {
    /// The share of packets, up to 1; `None`: all of them.
    pub rate: Option<f64>,
    /// Only the nth, counted from 1.
    pub nth: Option<u64>,
    /// Every nth.
    pub every: Option<u64>,
    /// Not the first n.
    pub after: Option<u64>,
    /// At most this many times.
    pub count: Option<u64>,
    /// The seed of the random choice.
    pub seed: u64,
}

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Outgoing packets.
    Out,
    /// Incoming packets.
    In,
    /// Packets in both directions.
    Both,
}

/// A sort of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// SENDs, also those of datagrams.
    Send,
    /// RDMA WRITEs.
    Write,
    /// Requests of RDMA READs.
    Read,
    /// Responses of RDMA READs.
    ReadResponse,
    /// Requests of atomics.
    Atomic,
    /// Responses of atomics.
    AtomicAck,
    /// Acknowledgements.
    Ack,
    /// Negative acknowledgements, also RNR NAKs.
    Nak,
    /// All packets of a requester.
    Request,
    /// All packets of a responder.
    Response,
    /// Datagrams of the connection manager. A rule that does not name this sort never applies to
    /// them.
    Cm,
}

impl FaultKind {
    /// Whether packets are harmed, so that lanes can lose packets.
    #[must_use]
    pub fn is_of_packets(&self) -> bool {
        matches!(
            self,
            Self::Loss
                | Self::Delay { .. }
                | Self::Duplicate
                | Self::Reorder
                | Self::Corrupt
                | Self::Bandwidth(_)
                | Self::GhostAck
        )
    }

    /// Whether engines carry out this kind of fault.
    #[must_use]
    pub fn is_of_engines(&self) -> bool {
        self.is_of_packets() || *self == Self::Rnr
    }

    /// What happened to a packet or call, as in "3 packets were lost".
    #[must_use]
    pub fn done(&self) -> &'static str {
        match self {
            Self::Loss => "lost",
            Self::Delay { .. } => "delayed",
            Self::Duplicate => "repeated",
            Self::Reorder => "held back",
            Self::Corrupt => "damaged",
            Self::Bandwidth(_) => "slowed down",
            Self::Rnr => "answered with RNR NAK",
            Self::GhostAck => "followed by a ghost ACK",
            Self::Fail { .. } => "failed",
            Self::CmReject { .. } => "rejected",
            Self::CmTimeout => "swallowed",
            Self::PortDown { .. } => "taken down",
            Self::Remove => "removed",
        }
    }
}

impl Rule {
    /// Whether engines carry out this rule. The agent carries out rules about datagrams of the
    /// connection manager.
    #[must_use]
    pub fn is_of_engines(&self) -> bool {
        self.kind.is_of_engines() && self.select.opcode != Some(Sort::Cm)
    }

    /// Whether a connection between programs of one agent may lose packets by this rule. `ends` are
    /// the QP numbers of the connection, and `is_here` tells whether a GID is one of the agent's: a
    /// rule that names another address applies only to other hosts.
    #[must_use]
    pub fn may_harm(&self, ends: [u32; 2], is_here: impl Fn(&[u8; 16]) -> bool) -> bool {
        self.kind.is_of_packets()
            && self.select.opcode != Some(Sort::Cm)
            && self.select.qp.is_none_or(|qp| ends.contains(&qp))
            && self.select.peer.is_none_or(|peer| is_here(&decide::gid(peer)))
    }

    /// A rule that loses this share of all packets.
    #[must_use]
    pub fn loss(part: f64, seed: u64) -> Self {
        Self::of(FaultKind::Loss, part, seed)
    }

    /// A rule that applies a kind of fault to this share of all packets.
    #[must_use]
    pub fn of(kind: FaultKind, part: f64, seed: u64) -> Self {
        Self { kind, select: Select::default(), when: When { rate: Some(part), seed, ..When::default() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_a_share_has_its_rate_and_seed_and_nothing_else() {
        let rule = Rule::of(FaultKind::Corrupt, 0.25, 9);
        assert_eq!((&rule.kind, &rule.select), (&FaultKind::Corrupt, &Select::default()));
        assert_eq!(rule.when, When { rate: Some(0.25), seed: 9, ..When::default() });
        assert_eq!(Rule::loss(0.25, 9), Rule { kind: FaultKind::Loss, ..rule });
    }

    #[test]
    fn what_a_kind_does_has_words_of_its_own() {
        let kinds = [
            FaultKind::Loss,
            FaultKind::Duplicate,
            FaultKind::Reorder,
            FaultKind::Corrupt,
            FaultKind::Rnr,
            FaultKind::GhostAck,
            FaultKind::CmTimeout,
        ];
        let words: std::collections::BTreeSet<_> = kinds.iter().map(FaultKind::done).collect();
        assert_eq!((words.len(), FaultKind::Loss.done()), (kinds.len(), "lost"));
    }
}
