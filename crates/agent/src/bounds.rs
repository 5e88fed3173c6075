//! What a port can have at most, and what it can do: its configuration and the fabric of a topology
//! say so. Principal type: [`Bounds`].

use abi::device::mtu;
use subnet::managed::ADAPTER_CAPABILITIES;
use wire::smp::Capability;

use crate::config::{FabricPort, LinkLayer, PortConfig};

/// GIDs come from IP addresses: a bit that Linux's RoCE drivers set (IBV_PORT_IP_BASED_GIDS). On
/// InfiniBand it is [`Capability::OTHER_CHANGES_NOTICE`].
const IP_BASED_GIDS: u32 = 1 << 26;

/// What a port can have at most, and what it can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The code of the configured MTU.
    pub(crate) mtu: u8,
    /// The code of the largest MTU.
    pub(crate) max_mtu: u8,
    /// The code of its data lanes (VLCap). Without switches there is one.
    pub(crate) data_lanes: u8,
    /// The capability mask, without the bit of a subnet manager.
    pub(crate) capability_mask: u32,
}

impl Bounds {
    /// The bounds of a port; `mtu` is the code of its MTU.
    pub(crate) fn new(mtu: u8, config: &PortConfig) -> Self {
        let FabricPort { vl_cap, mtu_cap } = config.fabric.unwrap_or(FabricPort { vl_cap: 1, mtu_cap: mtu::MTU_4096 });
        let usual = || match config.link_layer {
            // A port of a topology has the mask that subnet management shows.
            _ if config.address.is_some() => ADAPTER_CAPABILITIES,
            LinkLayer::Ethernet => Capability::CM | IP_BASED_GIDS,
            LinkLayer::Infiniband => Capability::CM | Capability::SYSTEM_GUID | Capability::CLIENT_REREGISTER,
        };
        let capability_mask = config.capability_mask.unwrap_or_else(usual);
        Self { mtu, max_mtu: mtu_cap, data_lanes: vl_cap, capability_mask }
    }
}
