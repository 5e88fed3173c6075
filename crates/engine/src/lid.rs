//! Addresses by LID: resolves an address vector without a GRH on ports whose link layer is
//! InfiniBand.
//!
//! A LID of this agent names one of its ports. In a subnet with switches on several hosts, another
//! LID may be one of another agent, whose address the board has. Any other LID is the host part of
//! an address in the port's own subnet. In all cases a GID replaces the LID when the vector is set,
//! and all later code uses only GIDs (docs/decisions/0019-lids-without-a-fabric.md). Ethernet ports
//! have no LIDs: there the agent refuses vectors without a GRH.

use abi::board::{self, port_word};
pub(crate) use abi::lid::NO_GRH;
use abi::lid::{Subnet, is_unicast};

use crate::board::{Board, Place};

/// The GID that a LID stands for, and the index of the source GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GidRoute {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid_index: u8,
}

impl Board {
    fn lid_word(&self, place: Place, which: usize) -> u32 {
        board::port(place.device, place.port).map_or(0, |at| self.word(at + which))
    }

    /// The base LID of a port of this agent; 0 on Ethernet.
    pub(crate) fn lid(&self, place: Place) -> u16 {
        u16::try_from(self.lid_word(place, port_word::LID)).unwrap_or(0)
    }

    /// The bits in which the LIDs of a port differ.
    pub(crate) fn path_bits(&self, place: Place) -> u8 {
        let lmc = self.lid_word(place, port_word::LMC).min(7);
        (1 << lmc) - 1
    }

    /// Whether a port has this LID.
    pub(crate) fn has_lid(&self, place: Place, lid: u16) -> bool {
        lid & !u16::from(self.path_bits(place)) == self.lid(place)
    }

    /// The GIDs for the path from a port to a LID. `None` if no port can have the LID.
    pub(crate) fn gid_route(&self, from: Place, lid: u16) -> Option<GidRoute> {
        if !is_unicast(lid) || self.lid(from) == 0 {
            return None;
        }
        // Other subnets may use the same LIDs.
        let prefix = |place: Place| self.gid(place.device, place.port, 0).map(|gid| u128::from_be_bytes(gid) >> 64);
        let own = prefix(from);
        if let Some(place) = self.places().find(|place| self.has_lid(*place, lid) && prefix(*place) == own) {
            return Some(GidRoute { dgid: self.gid(place.device, place.port, 0)?, sgid_index: 0 });
        }
        if let Some(dgid) = self.remote_gid(lid) {
            return Some(GidRoute { dgid, sgid_index: self.address_index(from)? });
        }
        let (subnet, index) = self.subnet(from)?;
        Some(GidRoute { dgid: subnet.gid(lid)?, sgid_index: index })
    }

    /// The LID of the sender of a packet from another host, if `to` is the address of one of this
    /// device's LIDs and the sender is in its subnet.
    pub(crate) fn lid_of_sender(&self, device: u32, from: &[u8; 16], to: &[u8; 16]) -> Option<u16> {
        self.places().filter(|place| place.device == device).find_map(|place| {
            let (subnet, index) = self.subnet(place)?;
            let addressed = self.gid(place.device, place.port, u32::from(index)).as_ref() == Some(to);
            subnet.lid(from).filter(|_| addressed)
        })
    }

    /// The index of the GID from which a port sends to LIDs of other hosts.
    fn address_index(&self, place: Place) -> Option<u8> {
        u8::try_from(self.lid_word(place, port_word::LID_GID)).ok().filter(|index| *index != 0)
    }

    /// The addresses that LIDs stand for on this port, and the index of the GID in this subnet.
    fn subnet(&self, place: Place) -> Option<(Subnet, u8)> {
        let index = self.address_index(place)?;
        let gid = self.gid(place.device, place.port, u32::from(index))?;
        Some((Subnet::around(&gid, self.lid_word(place, port_word::LID_HOSTS))?, index))
    }
}
