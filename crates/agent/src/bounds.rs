//! What a port can have at most: its configuration and the fabric of a topology say so. Principal
//! type: [`Bounds`].

use abi::device::mtu;

use crate::config::FabricPort;

/// What a port can have at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The code of the configured MTU.
    pub(crate) mtu: u8,
    /// The code of the largest MTU.
    pub(crate) max_mtu: u8,
    /// The code of its data lanes (VLCap). Without switches there is one.
    pub(crate) data_lanes: u8,
}

impl Bounds {
    pub(crate) fn new(mtu: u8, fabric: Option<FabricPort>) -> Self {
        let FabricPort { vl_cap, mtu_cap } = fabric.unwrap_or(FabricPort { vl_cap: 1, mtu_cap: mtu::MTU_4096 });
        Self { mtu, max_mtu: mtu_cap, data_lanes: vl_cap }
    }
}
