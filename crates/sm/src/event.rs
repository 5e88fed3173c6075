//! What a manager tells its caller. Principal types: [`Event`], [`Problem`].

use crate::config::Engine;
use crate::inventory::PortId;
use crate::lids::LidMap;
use std::fmt;
use std::time::Duration;
use wire::notice::{KeyNotice, Notice, SwitchPKeyNotice};
use wire::smp::SmState;

/// Something for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The manager has another state now.
    State(SmState),
    /// A sweep is complete: all ports have LIDs and routes, and the links are active. Sweeps that
    /// find no change are not told, and a storm of traps is told once.
    Up(Up),
    /// The inventory has changed. [`crate::Manager::epoch`] is the number of the change.
    Changed,
    /// The map of LIDs has changed; the caller writes it to its file.
    Lids(LidMap),
    /// A notice for those that have subscribed to it: a port that came or went, or the trap of a
    /// port. The first 64 bytes and the issuer's GID are set.
    Notice(Box<Notice>),
    /// Something is wrong in the subnet.
    Problem(Problem),
    /// A port has dropped packets for their key. This event is raised for the 1st, 10th, 100th …
    /// trap of each kind from each port.
    Violation(Violation),
}

/// Packets that a port has dropped for their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the trap, such as [`Notice::BAD_PKEY`].
    pub number: u16,
    /// The GUID of the port that has sent the trap: of a switch, that of port 0.
    pub guid: u64,
    /// The LID of the sender of the packet; 0 if it is not known.
    pub sender: u16,
    /// The traps of this kind from this port.
    pub traps: u64,
}

impl Violation {
    /// What the trap of a port says, if it is about a key.
    pub(crate) fn of(notice: &Notice, guid: u64) -> Option<Violation> {
        let sender = match notice.number {
            _ if !notice.generic => return None,
            Notice::BAD_PKEY | Notice::BAD_QKEY => notice.details::<KeyNotice>().lid1,
            Notice::SWITCH_BAD_PKEY => notice.details::<SwitchPKeyNotice>().lid1,
            Notice::BAD_MKEY => 0,
            _ => return None,
        };
        Some(Violation { number: notice.number, guid, sender, traps: 1 })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { number, guid, sender, traps } = self;
        let key = match *number {
            Notice::BAD_MKEY => "management key",
            Notice::BAD_QKEY => "Q_Key",
            _ => "P_Key",
        };
        write!(f, "port GUID {guid:#x} has dropped a packet for its {key}")?;
        if *sender != 0 {
            write!(f, "; its source LID is {sender}")?;
        }
        write!(f, " (trap {number}, number {traps} of this port)")
    }
}

/// What a sweep has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Up {
    /// The switches.
    pub switches: usize,
    /// The adapters and routers.
    pub adapters: usize,
    /// The routing engine that was used.
    pub engine: Engine,
    /// Requests without a good answer. If there are any, the next sweep is a heavy one.
    pub errors: usize,
    /// Datagrams that the manager has sent since it began.
    pub sent: u64,
    /// The sweeps since the caller was told of one.
    pub sweeps: u32,
    /// The time from the beginning of this sweep to its end.
    pub took: Duration,
}

impl fmt::Display for Up {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Up { switches, adapters, errors, sweeps, .. } = self;
        write!(f, "subnet up: {switches} switches, {adapters} adapters and routers, {errors} errors")?;
        if *sweeps > 1 { write!(f, ", {sweeps} sweeps") } else { Ok(()) }
    }
}

/// Something wrong in the subnet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Problem {
    /// An agent does not answer.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// An agent refuses a request.
    #[error("refused with status {status:#06x}: {what}")]
    Refused {
        /// The request.
        what: String,
        /// The status of the answer.
        status: u16,
    },
    /// The link of the manager's own port is down.
    #[error("the port of the subnet manager is down; check its cable")]
    OwnPortDown,
    /// A node says what no node can be.
    #[error("the node behind node {:#x} port {} has an impossible NodeInfo", .0.node, .0.port)]
    Impossible(PortId),
    /// Two nodes have one GUID, or a cable was moved during the sweep.
    #[error("node GUID {guid:#x} is at two places: port {port} has links to two ports; give each node its own GUID")]
    DuplicateGuid {
        /// The GUID.
        guid: u64,
        /// The port that has two links.
        port: u8,
    },
    /// Two ports had one LID, or a LID was not valid. The port gets a new one.
    #[error("LID {lid} of node {:#x} port {} is not valid or belongs to another port; it gets a new one", .port.node, .port.port)]
    DuplicateLid {
        /// The port.
        port: PortId,
        /// The LID.
        lid: u16,
    },
    /// All LIDs are in use.
    #[error("no LID is left for node {:#x} port {}; use a smaller LMC", .0.node, .0.port)]
    NoLid(PortId),
    /// A table of P_Keys is too small for the partitions of its port.
    #[error("node {:#x} port {} is in {wanted} partitions, and its table has room for {cap}", .port.node, .port.port)]
    PKeys {
        /// The port.
        port: PortId,
        /// The P_Keys that it should have.
        wanted: usize,
        /// The P_Keys that fit.
        cap: usize,
    },
    /// A switch has too few entries in its forwarding table.
    #[error("switch {node:#x} has room for {cap} LIDs, and {top} is in use")]
    LinearCap {
        /// The switch.
        node: u64,
        /// The entries of its table.
        cap: u16,
        /// The last LID in use.
        top: u16,
    },
    /// The routing engine does not fit the subnet.
    #[error("{0}")]
    Fallback(String),
    /// Some switches have no path to each other.
    #[error("{0} pairs of switches have no path")]
    Unreachable(usize),
    /// A manager with another key is in the subnet.
    #[error("the subnet manager at port GUID {0:#x} has another SM_Key and is ignored")]
    Untrusted(u64),
    /// The subnet has more nodes than the limit.
    #[error("the subnet has more than {0} nodes; the others are not managed")]
    TooManyNodes(usize),
}
