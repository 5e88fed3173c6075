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
use wire::lids;

use crate::board::{Board, DevicePort};
use crate::memory::DatagramEntry;

/// The GID that a LID stands for, and the index of the source GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GidRoute {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid_index: u8,
}

impl Board {
    fn lid_word(&self, place: DevicePort, which: usize) -> u32 {
        board::port(place.device, place.port).map_or(0, |at| self.word(at + which))
    }

    /// The base LID of a port of this agent; 0 on Ethernet.
    pub(crate) fn lid(&self, place: DevicePort) -> u16 {
        u16::try_from(self.lid_word(place, port_word::LID)).unwrap_or(0)
    }

    /// The bits in which the LIDs of a port differ.
    pub(crate) fn path_bits(&self, place: DevicePort) -> u8 {
        let lmc = self.lid_word(place, port_word::LMC).min(7);
        (1 << lmc) - 1
    }

    /// Whether a port has this LID.
    pub(crate) fn has_lid(&self, place: DevicePort, lid: u16) -> bool {
        lid & !u16::from(self.path_bits(place)) == self.lid(place)
    }

    /// The GIDs for the path from a port to a LID. `None` if no port can have the LID.
    pub(crate) fn gid_route(&self, from: DevicePort, lid: u16) -> Option<GidRoute> {
        if !is_unicast(lid) || self.lid(from) == 0 {
            return None;
        }
        // Other subnets may use the same LIDs.
        let prefix =
            |place: DevicePort| self.gid(place.device, place.port, 0).map(|gid| u128::from_be_bytes(gid) >> 64);
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

    /// What a datagram says of its LIDs, if its destination LID is one of another agent of the
    /// subnet, and that agent is at the destination's address.
    pub(crate) fn lids_of_datagram(&self, from: DevicePort, entry: &DatagramEntry) -> Option<lids::Header> {
        let is_there = self.has_paths() && self.remote_gid(entry.lid) == Some(entry.dgid);
        is_there.then(|| lids::Header {
            slid: self.lid(from) | u16::from(entry.src_path_bits & self.path_bits(from)),
            dlid: entry.lid,
            sl: entry.sl,
            // An address by LID alone is marked so.
            is_global: entry.dlid == 0,
        })
    }

    /// The port of this device to which a datagram from `from` says that it was sent. `None`: that
    /// is not true, or its source LID is not one of the agent at this address.
    pub(crate) fn port_of_lids(&self, device: u32, from: &[u8; 16], said: &lids::Header) -> Option<DevicePort> {
        // A port without a LID has LID 0.
        if !is_unicast(said.dlid) || self.remote_gid(said.slid).as_ref() != Some(from) {
            return None;
        }
        self.places().find(|place| place.device == device && self.has_lid(*place, said.dlid))
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
    fn address_index(&self, place: DevicePort) -> Option<u8> {
        u8::try_from(self.lid_word(place, port_word::LID_GID)).ok().filter(|index| *index != 0)
    }

    /// The addresses that LIDs stand for on this port, and the index of the GID in this subnet.
    fn subnet(&self, place: DevicePort) -> Option<(Subnet, u8)> {
        let index = self.address_index(place)?;
        let gid = self.gid(place.device, place.port, u32::from(index))?;
        Some((Subnet::around(&gid, self.lid_word(place, port_word::LID_HOSTS))?, index))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use abi::board::{BOARD_LEN, BOARD_MAGIC, BOARD_VERSION, remote_word, word};
    use bytemuck::Zeroable;
    use shm::region::Region;

    use super::*;

    const HERE: [u8; 16] = [1; 16];
    const THERE: [u8; 16] = [2; 16];
    const OWN: DevicePort = DevicePort { device: 1, port: 2 };

    /// Port 2 of device 1 has the LIDs 4 and 5. LID 9 is one of the agent at THERE.
    fn board() -> (Region, Board) {
        let (region, fd) = Region::create("softhca-test", BOARD_LEN).expect("memory");
        let store = |at: usize, value: u32| region.word(at).store(value, Ordering::Release);
        store(word::MAGIC, BOARD_MAGIC);
        store(word::VERSION, BOARD_VERSION);
        store(word::DEVICE_COUNT, 2);
        store(word::HAS_PATHS, 1);
        let port = board::port(OWN.device, OWN.port).expect("a port");
        store(port + port_word::LID, 4);
        store(port + port_word::LMC, 1);
        let remote = board::remote(3).expect("an entry");
        region.copy_in(remote + remote_word::GID, &THERE);
        store(remote + remote_word::LID, 9);
        let board = Board { region: Region::map_read_only(fd.as_fd(), BOARD_LEN).expect("a view") };
        (region, board)
    }

    #[test]
    fn a_datagram_to_another_agent_of_the_subnet_says_its_lids() {
        let (region, board) = board();
        let entry =
            |lid, dlid, dgid| DatagramEntry { lid, dlid, dgid, sl: 3, src_path_bits: 7, ..DatagramEntry::zeroed() };
        let said = lids::Header { slid: 5, dlid: 9, sl: 3, is_global: false };
        assert_eq!(board.lids_of_datagram(OWN, &entry(9, 9, THERE)), Some(said));
        assert_eq!(
            board.lids_of_datagram(OWN, &entry(9, 0, THERE)),
            Some(lids::Header { is_global: true, ..said }),
            "with a GRH"
        );
        assert_eq!(board.lids_of_datagram(OWN, &entry(9, 0, HERE)), None, "the GID is not the agent's");
        assert_eq!(board.lids_of_datagram(OWN, &entry(8, 8, THERE)), None, "no agent has this LID");
        region.word(word::HAS_PATHS).store(0, Ordering::Release);
        assert_eq!(board.lids_of_datagram(OWN, &entry(9, 9, THERE)), None, "there is no subnet");
    }

    #[test]
    fn what_another_agent_says_of_lids_is_checked() {
        let (_region, board) = board();
        let said = |slid, dlid| lids::Header { slid, dlid, ..lids::Header::default() };
        for dlid in [4, 5] {
            assert_eq!(board.port_of_lids(1, &THERE, &said(9, dlid)), Some(OWN));
        }
        for (device, from, slid, dlid) in [
            (1, HERE, 9, 4),
            (1, THERE, 8, 4),
            (1, THERE, 4, 4),
            (1, THERE, 0, 4),
            (1, THERE, 9, 6),
            (1, THERE, 9, 0),
            (0, THERE, 9, 4),
            (1, THERE, u16::MAX, u16::MAX),
        ] {
            assert_eq!(board.port_of_lids(device, &from, &said(slid, dlid)), None, "{device} {from:?} {slid} {dlid}");
        }
    }
}
