//! What an iWARP device shows of itself, as Linux's siw driver does, and how its connections begin
//! ([`StartUp`]). The connections are in [`crate::cm`]. The device itself is a
//! [`crate::device::Device`].

use abi::device::{QueryDeviceAnswer, QueryPortAnswer, cap};
use iwarp::startup::RtrSet;
use iwarp::{Quirks, Terms};
use serde::Deserialize;

use crate::config::{DeviceConfig, Guid, Transport};

/// The node type in sysfs.
pub(crate) const NODE_TYPE: &str = "4: RNIC";
/// The longest message.
const MAX_MESSAGE: u32 = u32::MAX;
/// The port's capabilities, as siw has them: communication management and device management.
const PORT_CAPS: u32 = 0x0009_0000;

/// The capabilities that an iWARP device can have.
pub(crate) const CAPABILITIES: u64 = cap::MEM_MGT_EXTENSIONS | cap::MEM_WINDOW | cap::MW_TYPE_2A | cap::MW_TYPE_2B;

/// The most READs that a side serves at a time.
const MOST_DEPTH: u16 = 128;

/// How an iWARP device begins its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StartUp {
    /// Ask for CRCs. They are used if either side asks.
    pub crc: bool,
    /// The revision of MPA that outgoing connections have: 1 or 2.
    pub revision: u8,
    /// Ask for the peer-to-peer model of revision 2, in which either side may send first.
    pub peer_to_peer: bool,
    /// Work around what Linux's siw driver does against the RFCs.
    pub siw: WorkArounds,
}

/// Work-arounds for siw, as the bits of [`Quirks::of`]. In a configuration: `true` for all of them,
/// or their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "AllOrNamed")]
pub struct WorkArounds(pub(crate) u8);

#[derive(Deserialize)]
#[serde(untagged)]
enum AllOrNamed {
    All(bool),
    Named(Vec<String>),
}

impl WorkArounds {
    /// All of them, or none.
    pub(crate) const fn all(all: bool) -> Self {
        Self(if all { u8::MAX >> (u8::BITS as usize - Quirks::NAMES.len()) } else { 0 })
    }
}

impl TryFrom<AllOrNamed> for WorkArounds {
    type Error = String;

    fn try_from(wanted: AllOrNamed) -> Result<Self, String> {
        let names = match wanted {
            AllOrNamed::All(all) => return Ok(Self::all(all)),
            AllOrNamed::Named(names) => names,
        };
        names.iter().try_fold(Self(0), |found, name| {
            let place = Quirks::NAMES.iter().position(|known| known == name);
            let unknown =
                || format!("`siw`: there is no work-around \"{name}\"; there are {}", Quirks::NAMES.join(", "));
            Ok(Self(found.0 | 1 << place.ok_or_else(unknown)?))
        })
    }
}

impl Default for StartUp {
    fn default() -> Self {
        Self { crc: true, revision: 2, peer_to_peer: true, siw: WorkArounds::default() }
    }
}

impl StartUp {
    /// Checks the values.
    ///
    /// # Errors
    /// What is wrong, for the user.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.revision {
            1 | 2 => Ok(()),
            other => Err(format!("`revision` is {other}; 1 and 2 are possible")),
        }
    }

    /// The terms of a connection whose program serves `responder_resources` READs at a time, and
    /// has at most `initiator_depth` READs outstanding.
    pub(crate) fn terms(&self, responder_resources: u8, initiator_depth: u8) -> Terms {
        Terms {
            revision: self.revision,
            crc: self.crc,
            ird: responder_resources.into(),
            most_ird: MOST_DEPTH,
            ord: initiator_depth.into(),
            peer_to_peer: self.peer_to_peer.then_some(RtrSet { send: false, write: true, read: true }),
            quirks: Quirks::of(self.siw.0),
            ..Terms::default()
        }
    }
}

/// The attributes of a device, without what only InfiniBand's transport has.
pub(crate) fn attributes(of: QueryDeviceAnswer) -> QueryDeviceAnswer {
    QueryDeviceAnswer {
        max_sge_rd: 1,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 0,
        max_pkeys: 0,
        local_ca_ack_delay: 0,
        ..of
    }
}

/// The attributes of a port.
pub(crate) fn port_attributes(of: QueryPortAnswer) -> QueryPortAnswer {
    QueryPortAnswer {
        port_cap_flags: PORT_CAPS,
        max_msg_sz: MAX_MESSAGE,
        gid_tbl_len: 1,
        pkey_tbl_len: 0,
        max_vl_num: 0,
        flags: 0,
        ..of
    }
}

/// The interface whose MAC address names an iWARP device: the only one of its port.
fn interface(config: &DeviceConfig) -> Option<&str> {
    let port = config.ports.first().filter(|_| config.transport == Transport::Iwarp)?;
    let [name] = port.interfaces.as_deref()? else { return None };
    Some(name)
}

/// Whether the GID is the MAC address that the interface has now.
pub(crate) fn follows_mac(config: &DeviceConfig) -> bool {
    let has_guid = config.node_guid.is_some() || config.ports.iter().any(|port| port.guid.is_some());
    !has_guid && interface(config).is_some()
}

/// The node GUID of an iWARP device that is bound to one interface: that of its MAC address.
pub(crate) fn guid(config: &DeviceConfig) -> Option<Guid> {
    let name = interface(config)?;
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/address")).ok()?;
    let mut mac = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    // Loopback has no MAC address.
    (mac != [0; 6]).then(|| guid_of(mac))
}

/// The EUI-64 of a MAC address.
pub(crate) fn guid_of([a, b, c, d, e, f]: [u8; 6]) -> Guid {
    Guid(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
}

/// The only GID of a port: the MAC address behind its GUID.
pub(crate) fn gid(port: Guid) -> [u8; 16] {
    let [a, b, c, _, _, d, e, f] = port.0.to_be_bytes();
    let mut gid = [0; 16];
    gid[..6].copy_from_slice(&[a ^ 2, b, c, d, e, f]);
    gid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn a_gid_is_the_mac_address_of_its_guid() {
        let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
        assert_eq!(guid_of(mac), Guid(0x5054_00ff_fe12_3456));
        assert_eq!(gid(guid_of(mac))[..7], [0x52, 0x54, 0, 0x12, 0x34, 0x56, 0]);
    }

    #[test]
    fn work_arounds_are_all_or_named() {
        let parsed = |text: &str| toml::from_str::<StartUp>(text).map(|start_up| start_up.terms(1, 1).quirks);
        assert_eq!(parsed("siw = true").expect("all"), Quirks::SIW);
        assert_eq!(parsed("siw = false").expect("none"), Quirks::default());
        let two = parsed("siw = [\"any_rtr\", \"hold_end\"]").expect("two");
        assert_eq!(two, Quirks { any_rtr: true, hold_end: Quirks::SIW.hold_end, ..Quirks::default() });
        let error = parsed("siw = [\"hold\"]").expect_err("no such name").to_string();
        assert!(error.contains("\"hold\"") && error.contains("hold_first_fpdu, hold_end"), "{error}");
    }

    #[test]
    fn an_iwarp_device_shows_what_siw_shows() {
        let config = DeviceConfig { transport: Transport::Iwarp, ..DeviceConfig::default() };
        let device = Device::new(0, &config, "test");
        let facts = device.attributes();
        assert_eq!((facts.max_ah, facts.max_mcast_grp, facts.max_sge_rd, facts.max_pkeys), (0, 0, 1, 0));
        assert_eq!(device.capabilities() & !CAPABILITIES, 0, "both forms of the query show these");
        let port = device.port_attributes(1).expect("port 1");
        assert_eq!((port.gid_tbl_len, port.pkey_tbl_len, port.link_layer, port.flags), (1, 0, 2, 0));
        assert_eq!((port.max_msg_sz, port.port_cap_flags), (0xffff_ffff, 0x0009_0000));
        assert_eq!(device.gid(1, 0).expect("the only one")[6..], [0; 10]);
        assert_eq!(device.gid(1, 1).expect_err("no such index").errno, abi::Errno::EINVAL);
    }
}
