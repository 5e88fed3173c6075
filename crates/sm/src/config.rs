//! What the operator chooses of a subnet manager. Not partitions, which have a file of their own
//! ([`crate::partitions`]). Principal type: [`Config`].

use crate::partitions::Partitions;
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use wire::smp::VlWeight;

/// The prefix of GIDs in a subnet without one of its own.
pub const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;

/// The choices of the operator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Of several managers, the one with the highest priority is the master. 0 to 15.
    pub priority: u8,
    /// Managers with another key are not trusted.
    pub sm_key: u64,
    /// The prefix of the subnet's GIDs.
    pub subnet_prefix: u64,
    /// Adapters and routers have 2^n LIDs. 0 to 7.
    pub lmc: u8,
    /// Give all LIDs anew, and forget those that ports have.
    pub reassign_lids: bool,
    /// How routes are chosen.
    pub routing: Routing,
    /// The partitions.
    pub partitions: Partitions,
    /// Switches check the P_Keys at ports that face adapters and routers.
    pub enforce_partitions: bool,
    /// Service levels and virtual lanes, or `None` to leave them.
    pub qos: Option<Qos>,
    /// The management key.
    pub mkey: MKey,
    /// The service level of datagrams to the manager.
    pub sm_sl: u8,
    /// PortInfo's subnet timeout: 4.096 µs × 2^n.
    pub subnet_timeout: u8,
    /// The longest time of a packet on a path, in path records: 4.096 µs × 2^n. 0 to 31.
    pub packet_life: u8,
    /// The largest code of virtual lanes that a port uses.
    pub most_vls: u8,
    /// The nodes that are kept. More are not managed.
    pub most_nodes: usize,
    /// Intervals, timeouts and retries.
    pub timing: Timing,
}

/// The management key of all ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MKey {
    /// The key; 0 protects nothing.
    pub key: u64,
    /// What a requester without the key may do, 0 to 3.
    pub protect: u8,
    /// How long the key stays after a violation, in seconds; 0 is forever.
    pub lease: u16,
}

/// How routes are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// The routing engine.
    pub engine: Engine,
    /// The node GUIDs of the roots for up/down and fat-tree. Empty: they are found.
    pub roots: Vec<u64>,
}

/// A routing engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Shortest paths, balanced.
    #[default]
    MinHop,
    /// A path goes up to a root and then down. Such routes cannot deadlock.
    UpDown,
    /// Up/down in a fat tree, with the paths of neighbours spread in order.
    FatTree,
    /// Shortest paths in the order of the ports' numbers, for meshes and hypercubes.
    DimensionOrder,
}

impl Engine {
    /// All routing engines.
    pub const ALL: [Engine; 4] = [Engine::MinHop, Engine::UpDown, Engine::FatTree, Engine::DimensionOrder];

    /// Its name, as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Engine::MinHop => "min-hop",
            Engine::UpDown => "up-down",
            Engine::FatTree => "fat-tree",
            Engine::DimensionOrder => "dimension-order",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Engine, String> {
        let engine = Engine::ALL.into_iter().find(|engine| engine.name() == text);
        engine.ok_or_else(|| {
            format!("{text:?} is no routing engine; there are {}", Engine::ALL.map(Engine::name).join(", "))
        })
    }
}

impl<'de> Deserialize<'de> for Engine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Engine, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Service levels and virtual lanes, alike at all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qos {
    /// The lane of each service level. Lanes that a port does not have are folded onto those that
    /// it has.
    pub sl_to_vl: [u8; 16],
    /// The arbitration table of high priority.
    pub high: Vec<VlWeight>,
    /// The arbitration table of low priority.
    pub low: Vec<VlWeight>,
    /// How much of high priority goes before low priority, in units of 4096 bytes.
    pub high_limit: u8,
}

impl Qos {
    /// The service levels whose packets are dropped, as bits: lane 15 carries no data.
    #[must_use]
    pub fn dropped(&self) -> u16 {
        (0..16).zip(self.sl_to_vl).filter(|(_, lane)| *lane == 15).fold(0, |bits, (sl, _)| bits | 1 << sl)
    }
}

/// Intervals, timeouts and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The time between sweeps.
    pub sweep_interval: Duration,
    /// How long a datagram waits for its answer.
    pub timeout: Duration,
    /// How often a datagram is sent again.
    pub retries: u32,
    /// The datagrams that wait for an answer at one time. At most 1000.
    pub outstanding: usize,
    /// The time between polls of the master.
    pub poll_interval: Duration,
    /// The polls without an answer after which the master is gone.
    pub poll_retries: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            sweep_interval: Duration::from_secs(10),
            timeout: Duration::from_millis(200),
            retries: 3,
            outstanding: 32,
            poll_interval: Duration::from_secs(2),
            poll_retries: 4,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            priority: 0,
            sm_key: 1,
            subnet_prefix: LINK_LOCAL,
            lmc: 0,
            reassign_lids: false,
            routing: Routing::default(),
            partitions: Partitions::default(),
            enforce_partitions: true,
            qos: None,
            mkey: MKey::default(),
            sm_sl: 0,
            subnet_timeout: 18,
            packet_life: 18,
            most_vls: 5,
            most_nodes: 49_151,
            timing: Timing::default(),
        }
    }
}
