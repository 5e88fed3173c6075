//! The configuration file: devices, their ports, GUIDs and limits.
//!
//! The file is TOML. Unknown keys are refused. Every value is checked here, so that the code behind
//! this module can rely on a [`Config`]. Each error message names the device, the key and the
//! accepted values. Without a file there is one device, `softhca0`, with one active Ethernet port.
//! [`crate::gids`] decides how the host's addresses become GIDs. `crates/agent/config.example.toml`
//! shows every key.

mod guid;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use abi::device::port_state;
use mad::topology::Topology;
use serde::{Deserialize, Deserializer};
use wire::pkey;
use wire::smp::Capability;

use crate::dscp::DscpTable;
use crate::gids::GID_TABLE_LEN;
use crate::limits::Limits;
use crate::pkeys::{PKEY_TABLE_LEN, PkeyTable};
use crate::priority::PriorityTable;
use crate::rate::Rate;
use crate::rnic::StartUp;
use crate::subnet_settings::{SubnetSettings, overlap};

pub use guid::Guid;

/// The maximum number of devices of one agent.
pub const MAX_DEVICES: usize = abi::board::DEVICE_MAX as usize;
/// The maximum number of ports of one device; the board has room for two.
pub const MAX_PORTS: usize = 2;
/// The UDP port of links to other agents.
pub const TUNNEL_PORT: u16 = subnet::tunnel::UDP_PORT;

/// The whole configuration of an agent.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// End the agent after this many seconds without a client. Absent: never.
    #[serde(deserialize_with = "seconds")]
    pub idle_exit: Option<Duration>,
    /// The system image GUID, which all devices have in common. Absent: the node GUID of the first
    /// device.
    pub system_guid: Option<Guid>,
    /// The only addresses that become GIDs, in their order. Empty: every address of the host.
    pub addresses: Vec<IpAddr>,
    /// How the agent receives packets of other hosts.
    pub wire: WireMode,
    /// The numbers of users who may send and receive management datagrams (`/dev/infiniband/umad0`,
    /// `issm0`), besides root and the agent's own user.
    pub mad_users: Vec<u32>,
    /// `softhca run` gives programs shared memory, unless its options or the environment say
    /// otherwise.
    pub shared_memory: bool,
    /// The fabric to which the devices are connected. Without one, no link leads from their ports.
    #[serde(skip)]
    pub topology: Option<Topology>,
    /// The agent manages that fabric itself.
    #[serde(skip)]
    pub has_subnet_manager: bool,
    /// The settings of the agent's own subnet manager, for a topology.
    pub subnet_manager: sm::Settings,
    /// Where links of the topology to other agents arrive. Absent: at the first of `addresses`, or
    /// at every address, on the usual UDP port.
    #[serde(skip)]
    pub tunnel: Option<SocketAddr>,
    /// Serve every user of this machine and keep them apart. Only `softhca agent --system` sets
    /// this; the file cannot.
    #[serde(skip)]
    pub system: bool,
    /// Give out QP numbers and keys in order, so that every agent gives the same numbers: for tests
    /// that compare them.
    #[serde(skip)]
    pub in_order: bool,
    /// The devices, in the order of their nodes `uverbs0`, `uverbs1`, …
    pub devices: Vec<DeviceConfig>,
}

/// How an agent receives packets of other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireMode {
    /// From UDP port 4791 of each address.
    #[default]
    Udp,
    /// Through the agent's forwarder, as in a process with several hosts. No socket is opened, and
    /// [`Config::addresses`] need not exist on this machine.
    #[serde(skip)]
    External,
    /// Not at all: clients of this agent reach only each other.
    Off,
}

/// One host channel adapter.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// The name that `ibv_devices` prints: letters, digits, `_` and `-`, at most 63 of them.
    pub name: String,
    /// The node GUID, as `0002:c903:0000:1234` or `0x0002c90300001234`. Absent: derived, the same
    /// at every start.
    pub node_guid: Option<Guid>,
    /// `vendor_part_id` of `ibv_query_device`.
    pub part_id: u32,
    /// The number of completion vectors.
    pub completion_vectors: u32,
    /// `2A` or `2B`: what a memory window of type 2 is bound to.
    pub memory_windows: MemoryWindows,
    /// `infiniband` (with RoCE) or `iwarp`: how queue pairs reach each other.
    pub transport: Transport,
    /// How an iWARP device begins its connections.
    pub iwarp: StartUp,
    /// Its ports: one or two.
    pub ports: Vec<PortConfig>,
    /// The limits that `ibv_query_device` reports and that the agent enforces.
    pub limits: Limits,
    /// What the fabric of a topology tells of the adapter.
    #[serde(skip)]
    pub fabric: Option<FabricAdapter>,
}

/// What the fabric of a topology tells of an adapter: its NodeInfo. Its verbs say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricAdapter {
    /// The GUID of its box.
    pub system_guid: Guid,
    /// Its maker.
    pub vendor_id: u32,
}

/// What the fabric of a topology tells of a port, with the codes of PortInfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricPort {
    /// VLCap: the data lanes.
    pub vl_cap: u8,
    /// MTUCap: the largest MTU.
    pub mtu_cap: u8,
}

/// One port of a device.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortConfig {
    /// The port GUID, the lower half of GID index 0. Absent: derived from the node GUID and the
    /// port number.
    pub guid: Option<Guid>,
    /// The largest active MTU in bytes: 256, 512, 1024, 2048 or 4096. Interfaces with a smaller MTU
    /// lower it.
    pub mtu: u32,
    /// `active`, `down`, `polling`, `init` or `armed`.
    pub state: PortState,
    /// `ethernet` or `infiniband`.
    pub link_layer: LinkLayer,
    /// Names of the network interfaces whose addresses become GIDs. Absent: all of them; loopback
    /// only if there is no other.
    pub interfaces: Option<Vec<String>>,
    /// The P_Keys of the port, from index 0: the partitions to which it belongs.
    pub pkeys: Vec<u16>,
    /// Width and speed of the link, such as `4X EDR`. Absent: an Ethernet port has the rate of its
    /// interface.
    pub rate: Option<Rate>,
    /// The upper half of GID index 0, as `fe80:0000:0000:0000`. Absent: the link-local prefix.
    pub subnet_prefix: Option<Guid>,
    /// PortInfo:CapabilityMask of an InfiniBand port, without the bit of a subnet manager. Absent:
    /// the capabilities that softhca has.
    pub capability_mask: Option<u32>,
    /// What a subnet manager sets at an InfiniBand port.
    pub subnet: SubnetSettings,
    /// The DSCP of each service level of an Ethernet port.
    pub dscp: DscpTable,
    /// The priority of each service level of an Ethernet port.
    pub priority: PriorityTable,
    /// A subnet manager gives the port its LIDs, and the agent does not. So it is in an agent with
    /// a topology.
    #[serde(skip)]
    pub managed: bool,
    /// In an agent with a topology: the IP address by which the connection manager finds the port.
    #[serde(skip)]
    pub address: Option<IpAddr>,
    /// What the fabric of a topology tells of it.
    #[serde(skip)]
    pub fabric: Option<FabricPort>,
}

/// The state of a port's link. Except in `Active`, QPs can be created and connected, but no packet
/// passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// Up, ready for traffic.
    Active,
    /// Down, and disabled.
    Down,
    /// Down, and looking for the other end of the link.
    Polling,
    /// Up, and waiting for a subnet manager.
    Init,
    /// Up, and set up by a subnet manager, but not active yet.
    Armed,
}

impl PortState {
    /// The logical and the physical state, with the codes of the ABI.
    pub fn codes(self) -> (u8, u8) {
        const POLLING: u8 = 2;
        const DISABLED: u8 = 3;
        const LINK_UP: u8 = 5;
        match self {
            Self::Active => (port_state::ACTIVE, LINK_UP),
            Self::Down => (port_state::DOWN, DISABLED),
            Self::Polling => (port_state::DOWN, POLLING),
            Self::Init => (port_state::INIT, LINK_UP),
            Self::Armed => (port_state::ARMED, LINK_UP),
        }
    }
}

/// How a port addresses other ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// RoCE: by GID, so every address vector has a GRH.
    #[default]
    Ethernet,
    /// By LID within a subnet, and by GID.
    Infiniband,
}

/// How the queue pairs of a device reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// InfiniBand's transport, over RoCE or an InfiniBand link.
    #[default]
    Infiniband,
    /// iWARP: RDMA over TCP.
    Iwarp,
}

/// What a memory window of type 2 is bound to. A device has one kind or the other (IBA 10.6.7.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum MemoryWindows {
    /// The number of a QP.
    #[serde(rename = "2A")]
    QueuePair,
    /// The number of a QP, and its protection domain.
    #[default]
    #[serde(rename = "2B")]
    QueuePairAndDomain,
}

/// Why a configuration was refused, as a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key or type.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value that cannot be accepted.
    #[error("{0}")]
    Value(String),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            idle_exit: None,
            system_guid: None,
            mad_users: Vec::new(),
            shared_memory: false,
            topology: None,
            has_subnet_manager: true,
            subnet_manager: sm::Settings::default(),
            tunnel: None,
            addresses: Vec::new(),
            wire: WireMode::default(),
            system: false,
            in_order: false,
            devices: vec![DeviceConfig::default()],
        }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            name: "softhca0".into(),
            node_guid: None,
            part_id: 1,
            completion_vectors: 4,
            memory_windows: MemoryWindows::default(),
            transport: Transport::default(),
            iwarp: StartUp::default(),
            ports: vec![PortConfig::default()],
            limits: Limits::default(),
            fabric: None,
        }
    }
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            guid: None,
            mtu: 4096,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            interfaces: None,
            pkeys: vec![pkey::DEFAULT],
            rate: None,
            subnet_prefix: None,
            capability_mask: None,
            subnet: SubnetSettings::default(),
            dscp: DscpTable::default(),
            priority: PriorityTable::default(),
            managed: false,
            address: None,
            fabric: None,
        }
    }
}

impl Config {
    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::of_file(path, &read(path)?)?;
        config.check()?;
        Ok(config)
    }

    /// What the text of the file at `path` says. The files that it names are relative to its
    /// folder.
    pub(crate) fn of_file(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text)?;
        if let Some(folder) = path.parent() {
            config.subnet_manager = config.subnet_manager.in_folder(folder);
        }
        Ok(config)
    }

    /// Checks the text of a configuration file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Sets the link layer of every port.
    #[must_use]
    pub fn with_link_layer(mut self, link_layer: LinkLayer) -> Self {
        for port in self.devices.iter_mut().flat_map(|device| &mut device.ports) {
            port.link_layer = link_layer;
        }
        self
    }

    /// Sets the transport of every device.
    #[must_use]
    pub fn with_transport(mut self, transport: Transport) -> Self {
        self.devices.iter_mut().for_each(|device| device.transport = transport);
        self
    }

    /// Checks that the values are valid together. The same rules apply to programs that build a
    /// [`Config`] themselves.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError::Value(text));
        for address in &self.addresses {
            if address.is_unspecified() || address.is_multicast() {
                return refuse(format!("`addresses`: {address} is no address of one host"));
            }
        }
        if self.addresses.len() >= GID_TABLE_LEN {
            let (count, most) = (self.addresses.len(), GID_TABLE_LEN - 1);
            return refuse(format!("`addresses` has {count} entries; a GID table has room for {most}"));
        }
        if self.devices.is_empty() || self.devices.len() > MAX_DEVICES {
            return refuse(format!("{} devices are configured; 1 to {MAX_DEVICES} are possible", self.devices.len()));
        }
        for (index, device) in self.devices.iter().enumerate() {
            device.check()?;
            if self.devices[..index].iter().any(|other| other.name == device.name) {
                return refuse(format!("two devices are named {:?}; give each its own `name`", device.name));
            }
            if device.node_guid.is_some()
                && self.devices[..index].iter().any(|other| other.node_guid == device.node_guid)
            {
                return refuse(format!("device {}: its `node_guid` belongs to another device already", device.name));
            }
        }
        self.check_lids()?;
        if self.topology.is_none() && self.subnet_manager != sm::Settings::default() {
            let text = "only the subnet of a topology has a manager of the agent; add `--topology FILE`, \
                or leave the settings out";
            return refuse(format!("`subnet_manager`: {text}"));
        }
        self.subnet_manager.check().or_else(|error| refuse(format!("`subnet_manager`: {error}")))
    }

    /// Checks that no two ports have a LID in common.
    fn check_lids(&self) -> Result<(), ConfigError> {
        let mut taken: Vec<(RangeInclusive<u16>, String)> = Vec::new();
        for device in &self.devices {
            for (number, port) in (1..).zip(&device.ports) {
                let Some(lids) = port.subnet.lids() else { continue };
                if let Some((_, other)) = taken.iter().find(|(others, _)| overlap(others, &lids)) {
                    let text = format!("device {:?}: port {number}: `lid`: {other} has this LID", device.name);
                    return Err(ConfigError::Value(text));
                }
                taken.push((lids, format!("port {number} of device {:?}", device.name)));
            }
        }
        Ok(())
    }
}

impl DeviceConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let name = &self.name;
        let refuse = |text: String| Err(ConfigError::Value(format!("device {name:?}: {text}")));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(plain) {
            return refuse("a `name` is 1 to 63 letters, digits, `_` or `-`".into());
        }
        if self.ports.is_empty() || self.ports.len() > MAX_PORTS {
            return refuse(format!("{} `ports` are configured; 1 to {MAX_PORTS} are possible", self.ports.len()));
        }
        if !(1..=1024).contains(&self.completion_vectors) {
            return refuse(format!("`completion_vectors` is {}; 1 to 1024 are possible", self.completion_vectors));
        }
        let is_plain = |port: &PortConfig| port.link_layer == LinkLayer::Ethernet;
        if self.transport == Transport::Iwarp && !(self.ports.len() == 1 && self.ports.iter().all(is_plain)) {
            return refuse("a device with the `transport` iwarp has one `ethernet` port".into());
        }
        if self.transport != Transport::Iwarp && self.iwarp != StartUp::default() {
            return refuse("`iwarp` is for devices with the `transport` iwarp".into());
        }
        self.iwarp.check().or_else(|text| refuse(format!("`iwarp`: {text}")))?;
        for (index, port) in self.ports.iter().enumerate() {
            if mtu_code(port.mtu).is_none() {
                return refuse(format!(
                    "port {}: `mtu` is {}; it is one of 256, 512, 1024, 2048, 4096",
                    index + 1,
                    port.mtu
                ));
            }
            if let Err(error) = PkeyTable::check(&port.pkeys, PKEY_TABLE_LEN) {
                return refuse(format!("port {}: `pkeys`: {error}", index + 1));
            }
            if port.link_layer == LinkLayer::Infiniband && port.dscp != DscpTable::default() {
                return refuse(format!("port {}: `dscp` is for `ethernet` ports", index + 1));
            }
            if port.link_layer == LinkLayer::Infiniband && port.priority != PriorityTable::default() {
                return refuse(format!("port {}: `priority` is for `ethernet` ports", index + 1));
            }
            if port.link_layer != LinkLayer::Infiniband && port.capability_mask.is_some() {
                return refuse(format!("port {}: `capability_mask` is for `infiniband` ports", index + 1));
            }
            if port.capability_mask.is_some_and(|mask| mask & Capability::SM != 0) {
                return refuse(format!(
                    "port {}: `capability_mask` contains {:#x}, which says that a subnet manager runs \
                     here; leave it out, it is set while one does",
                    index + 1,
                    Capability::SM
                ));
            }
            if let Err(error) = port.subnet.check(port.link_layer == LinkLayer::Infiniband) {
                return refuse(format!("port {}: `subnet`: {error}", index + 1));
            }
        }
        self.limits.check().map_err(|text| ConfigError::Value(format!("device {name:?}: {text}")))
    }
}

/// Checks the text of a configuration that has only devices.
pub(crate) fn parse_devices(text: &str) -> Result<Vec<DeviceConfig>, ConfigError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Only {
        devices: Vec<DeviceConfig>,
    }
    let config = Config { devices: toml::from_str::<Only>(text)?.devices, ..Config::default() };
    config.check()?;
    Ok(config.devices)
}

/// The text of a file of the configuration.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.display().to_string(), source })
}

/// The ABI's code of an MTU in bytes: 1 is 256, 5 is 4096.
pub fn mtu_code(bytes: u32) -> Option<u8> {
    match bytes {
        256 => Some(1),
        512 => Some(2),
        1024 => Some(3),
        2048 => Some(4),
        4096 => Some(5),
        _ => None,
    }
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Ok(Some(Duration::from_secs(u64::deserialize(deserializer)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_file_is_the_default() {
        let example = Config::parse(include_str!("../config.example.toml")).expect("the example is accepted");
        assert_eq!(format!("{:?}", example.devices[0].limits), format!("{:?}", Limits::default()));
        assert_eq!((example.devices[0].name.as_str(), example.devices[0].ports.len()), ("softhca0", 1));
        assert_eq!((example.addresses.len(), example.wire, example.shared_memory), (0, WireMode::Udp, false));
        assert_eq!(example.devices[0].ports[0].link_layer, LinkLayer::Ethernet);
        assert_eq!(example.subnet_manager, sm::Settings::default());
    }

    #[test]
    fn an_empty_file_means_one_default_device() {
        let config = Config::parse("").expect("an empty file is fine");
        assert_eq!(config.devices.len(), 1);
        assert_eq!(config.idle_exit, None);
    }

    #[test]
    fn complaints_name_the_key() {
        for (text, word) in [
            ("colour = 1", "colour"),
            ("[[devices]]\nname = 'a b'", "name"),
            ("[[devices]]\n[[devices.ports]]\nmtu = 1500", "mtu"),
            ("[[devices]]\n[[devices.ports]]\nstate = 'up'", "up"),
            ("[[devices]]\n[[devices.ports]]\nlink_layer = 'token-ring'", "token-ring"),
            ("[[devices]]\n[[devices.ports]]\npkeys = []", "pkeys"),
            ("[[devices]]\n[[devices.ports]]\npkeys = [0x8000]", "0x8000"),
            ("[[devices]]\n[[devices.ports]]\npkeys = [0x1ffff]", "pkeys"),
            ("[[devices]]\n[[devices.ports]]\nrate = '5X'", "4X EDR"),
            ("[[devices]]\n[[devices.ports]]\ncapability_mask = 0x10000", "infiniband"),
            ("[[devices]]\n[[devices.ports]]\nlink_layer = 'infiniband'\ncapability_mask = 0x10002", "leave it out"),
            ("[[devices]]\niwarp = { crc = false }", "transport"),
            ("[[devices]]\ntransport = 'iwarp'\niwarp = { revision = 3 }", "revision"),
            ("[[devices]]\nnode_guid = '12'", "GUID"),
            ("[[devices]]\nnode_guid = '0000:0000:0000:0000'", "zero"),
            ("[[devices]]\n[[devices]]", "softhca0"),
            ("[[devices]]\ncompletion_vectors = 0", "completion_vectors"),
            ("[[devices]]\n[devices.limits]\nmax_qp = 0", "max_qp"),
            ("[[devices]]\n[devices.limits]\nmax_qpp = 1", "max_qpp"),
            ("idle_exit = -1", "idle_exit"),
            ("shared_memory = 1", "shared_memory"),
            ("addresses = ['here']", "address"),
            ("addresses = ['0.0.0.0']", "addresses"),
            ("addresses = ['224.0.0.1']", "addresses"),
            ("wire = 'external'", "wire"),
            ("system = true", "system"),
            ("devices = []", "devices"),
            ("[subnet_manager]\ncolour = 1", "colour"),
            ("[subnet_manager]\nrouting = 'west'", "up-down"),
            ("[subnet_manager]\nroots = ['S1']", "16 hex digits"),
            ("[subnet_manager]\npriority = 5", "--topology FILE"),
        ] {
            let error = Config::parse(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text:?} was answered with {error:?}");
        }
    }
}
