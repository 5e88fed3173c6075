//! A device and its ports: their constant properties, their GID tables, which change, and how many
//! objects exist.
//!
//! It answers the queries of the ABI. Objects do not live here. The principal types are [`Device`]
//! and [`Port`].

use std::net::IpAddr;

use abi::Errno;
use abi::device::{QueryDeviceAnswer, QueryPortAnswer, VENDOR_ID, atomic_cap, cap, link_layer, mtu};
use abi::lid::Subnet;
use abi::private::{GidEntryAnswer, gid_type};
use wire::smp::Capability;

use crate::bounds::Bounds;
use crate::config::{DeviceConfig, Guid, LinkLayer, MemoryWindows, PortConfig, PortState, Transport, mtu_code};
use crate::dscp::DscpTable;
use crate::gids::{GID_TABLE_LEN, GidEntry, GidTable, HostAddress, LINK_LOCAL, first_link_local};
use crate::identity;
use crate::lids::Lid;
use crate::limits::Limits;
use crate::pkeys::{PKEY_TABLE_LEN, PkeyTable};
use crate::priority::PriorityTable;
use crate::rate::Rate;
use crate::refusal::{Outcome, refuse};
use crate::rnic::{self, StartUp};
use crate::subnet_settings::SubnetSettings;
use crate::table::Kind;
use crate::violation_counts::PortCounts;

/// The firmware version, in the parts that the ABI packs into one word.
pub const FIRMWARE: [u16; 3] = [0, 1, 0];
/// The longest message.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// One HCA.
#[derive(Debug)]
pub struct Device {
    /// Its index among the devices, which is also the number of its node.
    pub index: usize,
    /// The name that `ibv_devices` prints.
    pub name: String,
    /// Never zero.
    pub node_guid: Guid,
    /// The system image GUID: that of its box in the fabric of a topology, otherwise the same for
    /// all devices of an agent.
    pub system_guid: Guid,
    /// `vendor_id`.
    pub vendor_id: u32,
    /// `vendor_part_id`.
    pub part_id: u32,
    /// How many completion vectors there are.
    pub completion_vectors: u32,
    /// The kind of its memory windows of type 2.
    pub memory_windows: MemoryWindows,
    /// How its queue pairs reach each other.
    pub transport: Transport,
    /// How connections begin, if its transport is iWARP.
    pub iwarp: StartUp,
    /// The GUID of its only port follows the MAC address of the port's interface.
    pub(crate) follows_mac: bool,
    /// The limits that the agent enforces.
    pub limits: Limits,
    /// Port 1 first.
    pub ports: Vec<Port>,
    /// Bytes of device memory that are allocated.
    pub dm_used: u64,
    /// No search finds the device any more; see [`crate::devices`].
    pub(crate) is_removed: bool,
    used: [u32; 16],
}

/// One port.
#[derive(Debug)]
pub struct Port {
    /// The lower half of GID index 0.
    pub guid: Guid,
    /// The active MTU code: the configured MTU, or less if the interfaces of the GIDs have a
    /// smaller MTU.
    pub active_mtu: u8,
    bounds: Bounds,
    /// What a subnet manager has set; Ethernet ports keep the default.
    pub subnet: SubnetSettings,
    /// The port is down in every state of its interfaces.
    pub stays_down: bool,
    /// See `port_state` of the ABI.
    pub state: u8,
    /// The physical state of the link.
    pub physical_state: u8,
    /// A subnet manager gives the port its LIDs.
    pub managed: bool,
    /// The IP address by which the connection manager finds the port, in an agent with a topology.
    pub address: Option<IpAddr>,
    /// A program says that it is a subnet manager at this port (`issmN`).
    pub has_manager: bool,
    /// What is counted apart from the contexts that are open.
    pub(crate) counted: PortCounts,
    /// The link layer, which decides how the port is addressed.
    pub link_layer: LinkLayer,
    /// The LID of a port whose link layer is InfiniBand.
    pub lid: Option<Lid>,
    /// The GIDs.
    pub gids: GidTable,
    /// The P_Keys: the partitions of the port.
    pub pkeys: PkeyTable,
    /// What the service levels of an Ethernet port mean.
    pub service_levels: ServiceLevels,
    /// The rate of its link.
    pub rate: Rate,
    /// The rate is configured, so it does not follow the interface.
    pub keeps_rate: bool,
    /// The interfaces whose addresses become GIDs; without names, all interfaces.
    pub interfaces: Option<Vec<String>>,
    /// The transport of its device.
    pub transport: Transport,
}

/// What the service levels of an Ethernet port mean. All 0 on InfiniBand.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceLevels {
    /// The DSCP of each.
    pub dscp: DscpTable,
    /// The priority of each.
    pub priority: PriorityTable,
}

impl Device {
    /// Creates the device that `config` describes, for the agent that serves `place`.
    pub fn new(index: usize, config: &DeviceConfig, place: &str) -> Self {
        let node_guid =
            config.node_guid.or_else(|| rnic::guid(config)).unwrap_or_else(|| identity::derive(place, index));
        let new_port = |(port, number)| Port::new(port, config.transport, node_guid, number);
        let ports = config.ports.iter().zip(1..).map(new_port).collect();
        Self {
            index,
            name: config.name.clone(),
            node_guid,
            system_guid: config.fabric.map_or(node_guid, |fabric| fabric.system_guid),
            vendor_id: config.fabric.map_or(VENDOR_ID, |fabric| fabric.vendor_id),
            part_id: config.part_id,
            completion_vectors: config.completion_vectors,
            memory_windows: config.memory_windows,
            transport: config.transport,
            iwarp: config.iwarp,
            follows_mac: rnic::follows_mac(config),
            limits: config.limits,
            ports,
            dm_used: 0,
            is_removed: false,
            used: [0; 16],
        }
    }

    /// Removes the device: no packet passes its ports, and nobody reaches them.
    pub(crate) fn remove(&mut self) {
        self.is_removed = true;
        for port in &mut self.ports {
            port.set_state(PortState::Down);
            port.gids.clear();
            port.lid = None;
        }
    }

    /// The port with this number, or EINVAL if there is none.
    pub fn port(&self, number: u32) -> Outcome<&Port> {
        let index = usize::try_from(number).unwrap_or(usize::MAX).wrapping_sub(1);
        match self.ports.get(index) {
            Some(port) => Ok(port),
            None => {
                let count = self.ports.len();
                refuse(Errno::EINVAL, format!("{} has no port {number}; its ports are 1 to {count}", self.name))
            }
        }
    }

    /// Checks that one more object of this kind is allowed. Returns ENOMEM if not, as a full device
    /// does.
    pub fn room_for(&self, kind: Kind) -> Outcome<()> {
        let most = self.most(kind);
        if self.used[kind as usize] < most {
            return Ok(());
        }
        refuse(Errno::ENOMEM, format!("{} has all the {kind}s that it can have: {most}", self.name))
    }

    /// The maximum number of objects of a kind that can exist.
    pub fn most(&self, kind: Kind) -> u32 {
        let limits = &self.limits;
        match kind {
            Kind::Pd | Kind::Xrcd => limits.max_pd,
            Kind::Mr => limits.max_mr,
            Kind::Mw => limits.max_mw,
            // The smallest allocation is one byte.
            Kind::Dm => u32::try_from(limits.max_dm_size).unwrap_or(u32::MAX),
            Kind::Cq | Kind::Channel => limits.max_cq,
            Kind::Qp | Kind::Opened => limits.max_qp,
            Kind::Srq => limits.max_srq,
            Kind::Ah => limits.max_ah,
        }
    }

    /// Counts an object that was made.
    pub fn count_up(&mut self, kind: Kind) {
        self.used[kind as usize] += 1;
    }

    /// Counts an object that is gone.
    pub fn count_down(&mut self, kind: Kind) {
        self.used[kind as usize] -= 1;
    }

    /// How many objects of a kind exist.
    pub fn used(&self, kind: Kind) -> u32 {
        self.used[kind as usize]
    }

    /// The answer to QUERY_DEVICE for a user whose share is the whole device.
    pub fn attributes(&self) -> QueryDeviceAnswer {
        self.attributes_within(&self.limits)
    }

    /// Whether its transport is iWARP.
    pub fn is_iwarp(&self) -> bool {
        self.transport == Transport::Iwarp
    }

    /// The answer to QUERY_DEVICE for a user to whom `limits` apply.
    pub fn attributes_within(&self, limits: &Limits) -> QueryDeviceAnswer {
        let answer = self.full_attributes(limits);
        if self.is_iwarp() { rnic::attributes(answer) } else { answer }
    }

    fn full_attributes(&self, limits: &Limits) -> QueryDeviceAnswer {
        let [major, minor, micro] = FIRMWARE.map(u64::from);
        QueryDeviceAnswer {
            fw_ver: major << 32 | minor << 16 | micro,
            node_guid: self.node_guid.0.to_be(),
            sys_image_guid: self.system_guid.0.to_be(),
            max_mr_size: limits.max_mr_size,
            page_size_cap: !0xfff,
            vendor_id: self.vendor_id,
            vendor_part_id: self.part_id,
            hw_ver: 1,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            device_cap_flags: self.capabilities() as u32,
            max_sge: limits.max_sge,
            max_sge_rd: limits.max_sge,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_pd: limits.max_pd,
            max_mw: limits.max_mw,
            max_qp_rd_atom: limits.max_qp_rd_atom,
            max_res_rd_atom: limits.max_qp_rd_atom.saturating_mul(limits.max_qp),
            max_qp_init_rd_atom: limits.max_qp_init_rd_atom,
            atomic_cap: atomic_cap::HCA,
            max_mcast_grp: limits.max_mcast_grp,
            max_mcast_qp_attach: limits.max_mcast_qp_attach,
            max_total_mcast_qp_attach: limits.max_mcast_grp.saturating_mul(limits.max_mcast_qp_attach),
            max_ah: limits.max_ah,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: limits.max_srq_sge,
            max_pkeys: self.ports.iter().map(|port| port.pkeys.length()).max().unwrap_or(0) as u16,
            local_ca_ack_delay: 15,
            phys_port_cnt: self.ports.len() as u8,
            ..QueryDeviceAnswer::default()
        }
    }

    /// All capability bits.
    pub fn capabilities(&self) -> u64 {
        if self.is_iwarp() { self.all_capabilities() & rnic::CAPABILITIES } else { self.all_capabilities() }
    }

    fn all_capabilities(&self) -> u64 {
        cap::CURR_QP_STATE_MOD
            | cap::SYS_IMAGE_GUID
            | cap::RC_RNR_NAK_GEN
            | cap::PORT_ACTIVE_EVENT
            | cap::XRC
            | cap::SRQ_RESIZE
            | cap::MEM_WINDOW
            | cap::MEM_MGT_EXTENSIONS
            | cap::AUTO_PATH_MIG
            | cap::FLUSH_GLOBAL
            | cap::ATOMIC_WRITE
            | match self.memory_windows {
                MemoryWindows::QueuePair => cap::MW_TYPE_2A,
                MemoryWindows::QueuePairAndDomain => cap::MW_TYPE_2B,
            }
    }

    /// The answer to QUERY_PORT, without the violations, which contexts count
    /// ([`crate::world::World::port_attributes`]).
    pub fn port_attributes(&self, number: u32) -> Outcome<QueryPortAnswer> {
        const GRH_REQUIRED: u8 = 1;
        let port = self.port(number)?;
        let (link_layer, flags) = match port.link_layer {
            LinkLayer::Ethernet => (link_layer::ETHERNET, GRH_REQUIRED),
            LinkLayer::Infiniband => (link_layer::INFINIBAND, 0),
        };
        let subnet = &port.subnet;
        let manager = if port.has_manager { Capability::SM } else { 0 };
        let answer = QueryPortAnswer {
            port_cap_flags: port.bounds.capability_mask | manager,
            max_msg_sz: MAX_MESSAGE,
            gid_tbl_len: GID_TABLE_LEN as u32,
            pkey_tbl_len: port.pkeys.length() as u16,
            state: port.state,
            max_mtu: port.bounds.max_mtu,
            active_mtu: port.active_mtu,
            max_vl_num: port.bounds.data_lanes,
            active_width: port.rate.width,
            active_speed: port.rate.speed,
            phys_state: port.physical_state,
            lid: port.lid.map_or(0, |lid| lid.number),
            lmc: subnet.lmc(),
            sm_lid: port.sm_lid(),
            sm_sl: subnet.sm_sl(),
            subnet_timeout: if port.is_infiniband() { subnet.timeout() } else { 0 },
            init_type_reply: subnet.init_type_reply(),
            link_layer,
            flags,
            ..QueryPortAnswer::default()
        };
        Ok(if self.is_iwarp() { rnic::port_attributes(answer) } else { answer })
    }

    /// The GID at an index: zeros for an empty entry, EINVAL beyond the table.
    pub fn gid(&self, number: u32, index: u32) -> Outcome<[u8; 16]> {
        let port = self.port(number)?;
        self.check_gid_index(number, index)?;
        Ok(port.shown_gid(index).map(|entry| entry.gid).unwrap_or_default())
    }

    /// The entry at a GID index: ENODATA for an empty entry, EINVAL beyond the table.
    pub fn gid_entry(&self, number: u32, index: u32) -> Outcome<GidEntryAnswer> {
        let port = self.port(number)?;
        self.check_gid_index(number, index)?;
        match port.shown_gid(index) {
            Some(entry) => Ok(GidEntryAnswer {
                gid: entry.gid,
                gid_index: index,
                port: number,
                gid_type: port.gid_type(),
                ifindex: entry.ifindex,
            }),
            None => refuse(Errno::ENODATA, format!("GID index {index} of {} port {number} is empty", self.name)),
        }
    }

    /// The P_Key at an index, host order: 0 for an empty entry, EINVAL beyond the table.
    pub fn pkey(&self, number: u32, index: u32) -> Outcome<u16> {
        let table = &self.port(number)?.pkeys;
        match table.get(index) {
            Some(pkey) => Ok(pkey),
            None => refuse(
                Errno::EINVAL,
                format!("{} port {number} has no P_Key index {index}; its table has {}", self.name, table.length()),
            ),
        }
    }

    /// Checks the P_Key index of a QP: EINVAL beyond the table.
    pub fn check_pkey_index(&self, number: u8, index: u16) -> Outcome<()> {
        self.pkey(u32::from(number), u32::from(index)).map(|_| ())
    }

    fn check_gid_index(&self, number: u32, index: u32) -> Outcome<()> {
        let length = if self.is_iwarp() { 1 } else { GID_TABLE_LEN };
        if (index as usize) < length {
            return Ok(());
        }
        refuse(Errno::EINVAL, format!("{} port {number} has no GID index {index}; its table has {length}", self.name))
    }
}

impl Port {
    fn new(config: &PortConfig, transport: Transport, node_guid: Guid, number: u8) -> Self {
        let guid = config.guid.unwrap_or_else(|| match transport {
            Transport::Infiniband => identity::port_guid(node_guid, number),
            Transport::Iwarp => node_guid,
        });
        let takes_link_local = config.link_layer == LinkLayer::Ethernet
            && transport == Transport::Infiniband
            && config.guid.is_none()
            && config.subnet_prefix.is_none();
        let gids = GidTable::new(config.subnet_prefix.unwrap_or(LINK_LOCAL), guid);
        let mtu = mtu_code(config.mtu).unwrap_or(mtu::MTU_4096);
        // The table of a RoCE adapter has no room for more.
        let pkeys = if config.link_layer == LinkLayer::Infiniband { PKEY_TABLE_LEN } else { 0 };
        Self {
            guid,
            active_mtu: mtu,
            bounds: Bounds::new(mtu, config),
            subnet: if config.link_layer == LinkLayer::Infiniband { config.subnet } else { SubnetSettings::default() },
            stays_down: config.state != PortState::Active,
            state: config.state.codes().0,
            physical_state: config.state.codes().1,
            managed: config.managed,
            address: config.address,
            has_manager: false,
            counted: PortCounts::default(),
            link_layer: config.link_layer,
            lid: None,
            gids: if takes_link_local { gids.undecided() } else { gids },
            pkeys: PkeyTable::new(&config.pkeys, pkeys),
            service_levels: ServiceLevels {
                priority: config.priority,
                dscp: if config.link_layer == LinkLayer::Ethernet { config.dscp } else { DscpTable::default() },
            },
            rate: config.rate.unwrap_or(Rate::UNKNOWN),
            keeps_rate: config.rate.is_some() || config.link_layer == LinkLayer::Infiniband,
            interfaces: config.interfaces.clone(),
            transport,
        }
    }

    /// The GID at an index as programs see it. A port of iWARP shows only its MAC address; its
    /// other entries are the addresses by which the connection manager finds it.
    pub fn shown_gid(&self, index: u32) -> Option<GidEntry> {
        match self.transport {
            Transport::Infiniband => self.gids.entry(index),
            Transport::Iwarp if index == 0 => {
                let first = self.gids.entry(0)?;
                Some(GidEntry { gid: rnic::gid(self.guid), ifindex: self.carrier().unwrap_or(first.ifindex), ..first })
            }
            Transport::Iwarp => None,
        }
    }

    /// Takes another GUID. Returns whether it is another one.
    pub(crate) fn set_guid(&mut self, guid: Guid) -> bool {
        let changed = std::mem::replace(&mut self.guid, guid) != guid;
        if changed {
            self.gids.set_prefix(LINK_LOCAL, guid);
        }
        changed
    }

    /// Whether its packets are those of RoCE or InfiniBand.
    pub fn has_packets(&self) -> bool {
        self.transport == Transport::Infiniband
    }

    /// Whether ports are addressed by LIDs.
    pub fn is_infiniband(&self) -> bool {
        self.link_layer == LinkLayer::Infiniband
    }

    /// The LID of its subnet manager; 0 on Ethernet, and before a subnet manager has set it. If no
    /// subnet manager is expected, it is the port's own LID, because its agent has chosen that.
    pub fn sm_lid(&self) -> u16 {
        let own = || self.lid.filter(|_| !self.managed).map_or(0, |lid| lid.number);
        self.subnet.sm_lid.unwrap_or_else(own)
    }

    /// Takes the port into a state, whatever its interfaces do.
    pub fn set_state(&mut self, state: PortState) {
        self.stays_down = state != PortState::Active;
        (self.state, self.physical_state) = state.codes();
    }

    /// Sets the largest active MTU; `code` is that of the ABI.
    pub fn set_mtu(&mut self, code: u8) {
        self.bounds.mtu = code;
        self.active_mtu = self.gids.smallest_mtu().unwrap_or(mtu::MTU_4096).min(code);
    }

    /// The type of its GIDs, as the ABI numbers types.
    pub fn gid_type(&self) -> u32 {
        if self.is_infiniband() || !self.has_packets() { gid_type::IB } else { gid_type::ROCE_V2 }
    }

    /// The interface of the port's addresses. Loopback is returned only if there is no other.
    pub fn carrier(&self) -> Option<u32> {
        let entries = || self.gids.iter().map(|(_, entry)| entry).filter(|entry| entry.ifindex != 0);
        entries().find(GidEntry::leads_out).or_else(|| entries().next()).map(|entry| entry.ifindex)
    }

    /// The addresses to which LIDs map, as seen from this port.
    pub fn subnet(&self) -> Option<Subnet> {
        let lid = self.lid.filter(|lid| lid.index != 0)?;
        Subnet::around(&self.gids.entry(lid.index)?.gid, lid.hosts)
    }

    /// The port has appeared: makes a link-local address of its interface GID index 0, unless the
    /// configuration sets that GID or a port of the same interface has it. `host` may contain
    /// addresses that are not usable yet.
    pub(crate) fn appear(&mut self, host: &[HostAddress], taken: &[[u8; 16]]) {
        if self.gids.decide()
            && let Some(address) = first_link_local(host, taken)
        {
            self.gids.adopt(&address);
        }
    }

    /// Updates the GID table from the host's addresses, as [`GidTable::follow`] does, and the
    /// port's MTU from theirs.
    pub fn follow(&mut self, host: &[HostAddress], loopbacks: bool, loopback: u32) -> bool {
        let changed = self.gids.follow(host, loopbacks, loopback);
        self.set_mtu(self.bounds.mtu);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_device_answers_like_a_roce_hca() {
        let device = Device::new(0, &DeviceConfig::default(), "test");
        let facts = device.attributes();
        assert_eq!((facts.phys_port_cnt, facts.max_qp, facts.vendor_id), (1, 65_536, 0x534843));
        assert_eq!(u64::from_be(facts.node_guid), device.node_guid.0);
        let port = device.port_attributes(1).expect("port 1");
        assert_eq!((port.state, port.link_layer, port.active_mtu, port.phys_state), (4, 2, 5, 5));
        for number in [0, 2, u32::MAX] {
            assert_eq!(device.port_attributes(number).expect_err("no such port").errno, Errno::EINVAL);
        }
        assert_eq!(device.gid(1, 64).expect_err("beyond the table").errno, Errno::EINVAL);
        assert_eq!(device.gid(1, 5).expect("empty"), [0; 16]);
        assert_eq!(device.gid_entry(1, 5).expect_err("empty").errno, Errno::ENODATA);
        assert_eq!(device.pkey(1, 0).expect("the default"), 0xffff);
        assert_eq!(device.pkey(1, 1).expect_err("beyond the table").errno, Errno::EINVAL);
    }

    #[test]
    fn an_infiniband_port_has_a_lid_and_needs_no_grh() {
        let port = PortConfig { link_layer: LinkLayer::Infiniband, ..PortConfig::default() };
        let device = Device::new(0, &DeviceConfig { ports: vec![port], ..DeviceConfig::default() }, "test");
        let mut devices = crate::devices::Devices::from_iter([device]);
        crate::lids::assign(&mut devices);
        let port = devices[0].port_attributes(1).expect("port 1");
        assert_eq!((port.state, port.link_layer, port.flags, port.lmc), (4, 1, 0, 0));
        assert_eq!((port.lid, port.sm_lid), (0xbfff, 0xbfff));
        assert_eq!(devices[0].gid_entry(1, 0).expect("an entry").gid_type, gid_type::IB);
    }

    #[test]
    fn loopback_carries_a_port_only_if_it_is_alone() {
        let address =
            |text: &str, ifindex| HostAddress { ip: text.parse().expect(text), ifindex, mtu: 1500, prefix: 8 };
        let mut device = Device::new(0, &DeviceConfig::default(), "test");
        let port = &mut device.ports[0];
        assert_eq!(port.carrier(), None);
        port.follow(&[address("127.0.0.1", 1)], true, 1);
        assert_eq!(port.carrier(), Some(1));
        port.follow(&[address("127.0.0.1", 1), address("10.0.0.1", 7)], true, 1);
        assert_eq!(port.carrier(), Some(7));
    }

    #[test]
    fn a_new_port_adopts_a_link_local_address_once_unless_its_gid_is_configured() {
        let address = |text: &str| HostAddress { ip: text.parse().expect(text), ifindex: 2, mtu: 1500, prefix: 64 };
        let first = |config: PortConfig| {
            let device = DeviceConfig { ports: vec![config], node_guid: Some(Guid(9)), ..DeviceConfig::default() };
            let port = &mut Device::new(0, &device, "test").ports[0];
            port.appear(&[address("fe80::2")], &[]);
            port.appear(&[address("fe80::3")], &[]);
            port.gids.entry(0).expect("always valid").ip().to_string()
        };
        let usual = PortConfig::default;
        assert_eq!(first(usual()), "fe80::2");
        assert_eq!(first(PortConfig { guid: Some(Guid(5)), ..usual() }), "fe80::5");
        for config in [
            PortConfig { link_layer: LinkLayer::Infiniband, ..usual() },
            PortConfig { subnet_prefix: Some(LINK_LOCAL), ..usual() },
        ] {
            assert_ne!(first(config), "fe80::2");
        }
    }

    #[test]
    fn the_active_mtu_is_what_every_way_out_carries() {
        let address = |text: &str, mtu| HostAddress { ip: text.parse().expect(text), ifindex: 1, mtu, prefix: 8 };
        let mut device = Device::new(0, &DeviceConfig::default(), "test");
        let port = &mut device.ports[0];
        let (lo, wide, narrow) = (address("127.0.0.1", 65536), address("10.0.0.1", 9000), address("10.0.0.2", 1500));
        for (host, code) in [(&[lo][..], 5), (&[lo, wide], 5), (&[lo, wide, narrow], 3), (&[wide], 5), (&[], 5)] {
            port.follow(host, true, 1);
            assert_eq!(port.active_mtu, code, "{host:?}");
        }
        let small = PortConfig { mtu: 512, ..PortConfig::default() };
        let config = DeviceConfig { ports: vec![small], ..DeviceConfig::default() };
        let mut device = Device::new(0, &config, "test");
        device.ports[0].follow(&[narrow], true, 1);
        assert_eq!(device.ports[0].active_mtu, 2);
    }
}
