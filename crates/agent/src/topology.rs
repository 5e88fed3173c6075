//! A topology file: its channel adapters become devices, and the agent has its fabric. The function
//! is [`load`].

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;

use mad::topology::{Topology, TopologyNode};
use subnet::NodeId;
use subnet::managed::{Managed, Unbuildable};
use subnet::tunnel::reach::is_of_one_port;
use wire::smp::NodeType;

use crate::config::{
    self, Config, ConfigError, DeviceConfig, FabricAdapter, FabricPort, Guid, LinkLayer, MAX_DEVICES, MAX_PORTS,
    PortConfig, PortState, TUNNEL_PORT,
};

/// Reads a file in TOML, if its name ends so, or in the form of ibsim and ibnetdiscover. `others`
/// is the configuration without the topology, from [`without_devices`] or the default one.
///
/// # Errors
/// The file cannot be read, or says something that cannot be.
pub fn load(path: &Path, others: Config) -> Result<Config, ConfigError> {
    let text = config::read(path)?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let topology = if is_toml { Topology::from_toml(&text) } else { Topology::from_text(&text) };
    let topology = topology.map_err(|error| ConfigError::Value(error.to_string()))?;
    Ok(Config { devices: devices(&topology)?, topology: Some(topology), ..others })
}

/// Reads a configuration file for an agent with a topology.
///
/// # Errors
/// The file cannot be read, has an unknown key or type, or has devices.
pub fn without_devices(path: &Path) -> Result<Config, ConfigError> {
    let text = config::read(path)?;
    let config = Config::of_file(path, &text)?;
    if toml::from_str::<toml::Table>(&text)?.contains_key("devices") {
        let text = "the adapters of the topology are the devices; leave `devices` out, or start without `--topology`";
        return Err(ConfigError::Value(format!("`devices`: {text}")));
    }
    Ok(config)
}

/// The choices of the agent's own subnet manager: the settings, and the files that they name.
/// `usual` has what the settings do not say.
///
/// # Errors
/// A setting is out of its range, or a file is unreadable or malformed.
pub fn manager(config: &Config, usual: sm::Config) -> Result<sm::Config, ConfigError> {
    let choices = config.subnet_manager.config(usual, |path| std::fs::read_to_string(path));
    choices.map_err(|error| ConfigError::Value(format!("`subnet_manager`: {error}")))
}

/// The devices of the first channel adapters, of which an agent can have so many. Their names are
/// those of the nodes. The others are in the fabric, and management sees them, but no program runs
/// there.
///
/// # Errors
/// The fabric cannot be built; there is no channel adapter, or one of the first has too many ports.
pub fn devices(topology: &Topology) -> Result<Vec<DeviceConfig>, ConfigError> {
    let devices: Vec<_> = adapters(topology)?.take(MAX_DEVICES).collect::<Result<_, _>>()?;
    if devices.is_empty() {
        return Err(ConfigError::Value("the topology has no `Hca`, so no program can run on it".into()));
    }
    Ok(devices)
}

/// Each channel adapter as a device.
///
/// # Errors
/// The fabric cannot be built, or an address belongs to two adapters or to none.
pub(crate) fn adapters(
    topology: &Topology,
) -> Result<impl Iterator<Item = Result<DeviceConfig, ConfigError>> + '_, ConfigError> {
    let present = nodes(topology).map_err(|error| ConfigError::Value(error.to_string()))?;
    let nodes = || topology.nodes.iter().filter(|node| node.kind == NodeType::Ca);
    let mut taken = BTreeSet::new();
    for address in nodes().flat_map(|node| &node.addresses) {
        if !is_of_one_port(*address) {
            return Err(ConfigError::Value(format!("the topology: {address} is no address of one adapter")));
        }
        if !taken.insert(*address) {
            return Err(ConfigError::Value(format!("the topology: two adapters have the address {address}")));
        }
    }
    Ok((1..).zip(nodes()).map(move |(number, node)| device(node, present.get(&node.name), number, &taken)))
}

/// A subnet with links to other agents has an address on the network: its ports have it as a GID,
/// and send from it to the ports of other agents. It is that of the configuration, or the one from
/// which the first of these agents is reached.
///
/// # Errors
/// No network leads there.
pub(crate) fn with_address(config: &Config) -> Result<Config, ConfigError> {
    let mut config = config.clone();
    let nodes = config.topology.iter().flat_map(|topology| &topology.nodes);
    let peer = nodes.flat_map(|node| &node.links).find_map(|link| Some(link.outside()?.address));
    let Some(peer) = peer else { return Ok(config) };
    if config.addresses.is_empty() {
        let own = config.tunnel.map(|own| own.ip()).filter(|own| !own.is_unspecified());
        let own = own.map_or_else(|| towards(peer), Ok).map_err(|error| {
            ConfigError::Value(format!("no network leads to {peer}, to which a link of the topology leads: {error}"))
        })?;
        config.addresses = vec![own];
    }
    let ports = config.devices.iter_mut().flat_map(|device| &mut device.ports);
    ports.for_each(|port| port.interfaces = None);
    Ok(config)
}

/// The address from which packets to a host leave. No packet is sent.
fn towards(peer: IpAddr) -> io::Result<IpAddr> {
    let any = if peer.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((peer, TUNNEL_PORT))?;
    Ok(socket.local_addr()?.ip())
}

fn device(
    node: &TopologyNode,
    present: Option<&mad::node::Node>,
    number: u16,
    taken: &BTreeSet<IpAddr>,
) -> Result<DeviceConfig, ConfigError> {
    let count = usize::from(node.ports);
    if count == 0 || count > MAX_PORTS {
        let text = format!("node {:?} has {count} ports; 1 to {MAX_PORTS} are possible for an `Hca`", node.name);
        return Err(ConfigError::Value(text));
    }
    let port = |index: usize| present.and_then(|node| node.port(index as u8 + 1));
    let ports = (0..count).map(|index| PortConfig {
        guid: port(index).map(|port| Guid(port.guid)),
        link_layer: LinkLayer::Infiniband,
        state: PortState::Polling,
        interfaces: Some(Vec::new()),
        managed: true,
        address: node.addresses.get(index).copied().or_else(|| {
            let usual = IpAddr::V4(usual_address(number, index as u8 + 1));
            (!taken.contains(&usual)).then_some(usual)
        }),
        fabric: port(index).map(|port| FabricPort { vl_cap: port.info.vls.cap, mtu_cap: port.info.link.mtu_cap }),
        ..PortConfig::default()
    });
    Ok(DeviceConfig {
        name: node.name.clone(),
        node_guid: present.map(|node| Guid(node.info.node_guid)),
        part_id: present.map_or(1, |node| node.info.device_id.into()),
        ports: ports.collect(),
        fabric: present
            .map(|node| FabricAdapter { system_guid: Guid(node.info.system_guid), vendor_id: node.info.vendor_id }),
        ..DeviceConfig::default()
    })
}

/// The nodes of the fabric, by name.
fn nodes(topology: &Topology) -> Result<HashMap<String, mad::node::Node>, Unbuildable> {
    let managed = Managed::new(topology)?;
    let named = (0..).map(NodeId).map_while(|id| Some((managed.name(id)?.to_owned(), managed.node(id)?.clone())));
    Ok(named.collect())
}

/// The address of a port whose file names none: 127.PORT.0.N for the N-th adapter. Loopback
/// addresses exist on every host, so programs can use them for their own sockets, too.
fn usual_address(number: u16, port: u8) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, port, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_become_devices_whose_ports_wait_for_a_manager() {
        let text = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[2]\n\nHca 2 \"H1\"\n\nHca 2 \"H2\"\n";
        let topology = Topology::from_text(text).expect("valid");
        let devices = devices(&topology).expect("two");
        assert_eq!(devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["H1", "H2"]);
        let config = Config { devices, ..Config::default() };
        config.check().expect("a valid configuration");
        let world = crate::world::World::new(&config, "test").expect("a world");
        let port = world.devices[1].port_attributes(2).expect("port 2");
        assert_eq!((port.state, port.phys_state, port.lid, port.sm_lid), (1, 2, 0, 0));
    }

    #[test]
    fn a_devices_verbs_tell_what_its_node_tells() {
        let text = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\n\
            vendid=0x1234\ndevid=0x77\nsysimgguid=0x99\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";
        let topology = Topology::from_text(text).expect("valid");
        let config = Config { devices: devices(&topology).expect("two"), ..Config::default() };
        let world = crate::world::World::new(&config, "test").expect("a world");
        let facts = |index: usize| {
            let facts = world.devices[index].attributes();
            (u64::from_be(facts.sys_image_guid), facts.vendor_id, facts.vendor_part_id)
        };
        assert_eq!(facts(0), (0x99, 0x1234, 0x77));
        // A box of its own, and softhca's numbers.
        let own = world.devices[1].node_guid.0;
        assert_eq!(facts(1), (own, abi::device::VENDOR_ID, 1));
        let fabric = nodes(&topology).expect("buildable");
        let info = &fabric["H2"].port(1).expect("port 1").info;
        let port = world.devices[1].port_attributes(1).expect("port 1");
        assert_eq!((port.max_vl_num, port.max_mtu), (info.vls.cap, info.link.mtu_cap));
        assert!(port.max_vl_num > 1);
    }

    #[test]
    fn adapters_that_cannot_be_devices_are_refused_by_name() {
        for (text, words) in [("Switch 4 \"S1\"\n", "no `Hca`"), ("Hca 3 \"big\"\n", "\"big\" has 3 ports")] {
            let topology = Topology::from_text(text).expect("valid");
            let told = devices(&topology).expect_err(words).to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
