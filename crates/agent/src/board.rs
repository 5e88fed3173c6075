//! The board: state that every client may read without a command. Only the agent writes it.
//!
//! A client maps the board read-only; a seal ensures that no other process can ever map it
//! writable. For state that changes while clients read it (GID tables), an epoch is odd during the
//! change. Offsets are in `abi::board`. The principal type is [`Board`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::board::{self, BOARD_LEN, BOARD_MAGIC, BOARD_VERSION, PKEY_MAX, port_word, remote_word, word};
use abi::device::link_layer;
use shm::region::Region;

use crate::device::Device;
use crate::devices::Devices;
use crate::gids::{GID_TABLE_LEN, GidEntry};
use crate::host::Host;
use crate::numbers::Grant;
use crate::objects::groups::At;
use crate::objects::paths::Path;

/// The writable end of the board.
pub struct Board {
    region: Arc<Region>,
    fd: OwnedFd,
}

impl Board {
    /// A board that shows `devices`.
    pub fn new(host: &dyn Host, devices: &Devices) -> io::Result<Self> {
        let (region, fd) = host.published("softhca-board", BOARD_LEN)?;
        let board = Self { region: Arc::new(region), fd };
        board.show_slots(devices.slots());
        for device in devices {
            board.show_ports(device, |_| 0);
        }
        board.store(word::VERSION, BOARD_VERSION);
        board.store(word::MAGIC, BOARD_MAGIC);
        Ok(board)
    }

    /// Shows how many indices devices may have.
    pub fn show_slots(&self, slots: usize) {
        self.store(word::DEVICE_COUNT, slots as u32);
    }

    /// The memory, for reading.
    pub(crate) fn view(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// Its descriptor, to be duplicated for a client.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Shows which engine owns a block of QPNs.
    pub fn show_block(&self, grant: Grant) {
        self.store(board::owner(grant.block << 8), grant.owner.0);
    }

    /// Shows the current ports and GID tables of a device. `wire` gives the WIRE word of an entry.
    pub fn show_ports(&self, device: &Device, wire: impl Fn(GidEntry) -> u32) {
        let index = device.index as u32;
        self.bump(word::GID_EPOCH);
        for (number, port) in (1..).zip(&device.ports) {
            let Some(base) = board::port(index, number) else { continue };
            self.store(base + port_word::STATE, u32::from(port.state));
            self.store(base + port_word::ACTIVE_MTU, u32::from(port.active_mtu));
            let gids = if port.has_packets() { GID_TABLE_LEN } else { 1 };
            self.store(base + port_word::GID_LEN, gids as u32);
            let layer = if port.is_infiniband() { link_layer::INFINIBAND } else { link_layer::ETHERNET };
            self.store(base + port_word::LINK_LAYER, u32::from(layer));
            self.store(base + port_word::LID, port.lid.map_or(0, |lid| u32::from(lid.number)));
            self.store(base + port_word::LMC, port.lid.map_or(0, |lid| lid.lmc.into()));
            self.store(base + port_word::LID_GID, port.lid.map_or(0, |lid| lid.index));
            self.store(base + port_word::LID_HOSTS, port.lid.map_or(0, |lid| lid.hosts));
            for (word, four) in port.service_levels.dscp.words().enumerate() {
                self.store(base + port_word::DSCPS + 4 * word, four);
            }
            for (word, eight) in port.service_levels.priority.words().into_iter().enumerate() {
                self.store(base + port_word::PRIORITIES + 4 * word, eight);
            }
            self.store(base + port_word::PKEY_LEN, port.pkeys.length() as u32);
            for slot in 0..PKEY_MAX {
                if let Some(at) = board::pkey(index, number, slot) {
                    self.store(at, port.pkeys.get(slot).map_or(0, u32::from));
                }
            }
            let used = port.gids.iter().map(|(index, _)| index as u32 + 1).max().unwrap_or(0);
            self.store(base + port_word::GIDS_USED, used);
            for slot in 0..GID_TABLE_LEN as u32 {
                let entry = port.shown_gid(slot);
                let gid = entry.map(|entry| entry.gid).unwrap_or_default();
                let kind = entry.map_or(0, |_| port.gid_type());
                if let Some(at) = board::gid(index, number, slot) {
                    self.region.copy_in(at, &gid);
                }
                if let Some(at) = board::gid_ifindex(index, number, slot) {
                    self.store(at, entry.map_or(0, |entry| entry.ifindex));
                }
                if let Some(at) = board::gid_type(index, number, slot) {
                    self.store(at, kind);
                }
                if let Some(at) = board::gid_wire(index, number, slot) {
                    self.store(at, entry.filter(|_| port.has_packets()).map_or(0, &wire));
                }
            }
        }
        self.bump(word::GID_EPOCH);
    }

    /// Shows the virtual lane of each service level at a port.
    pub(crate) fn show_lanes(&self, (device, port): At, lane: impl Fn(u8) -> u8) {
        let Some(base) = board::port(device as u32, port.into()) else { return };
        for (at, first) in [(0, 0), (4, 8)] {
            let word = (0..8).fold(0, |word, sl| word | u32::from(lane(first + sl) & 0xf) << (4 * sl));
            self.store(base + port_word::LANES + at, word);
        }
    }

    /// Shows that packets pass only where the paths say so.
    pub(crate) fn show_that_paths_matter(&self) {
        self.store(word::HAS_PATHS, 1);
    }

    /// Shows that a path has changed.
    pub(crate) fn bump_paths(&self) {
        self.bump(word::PATH_EPOCH);
    }

    /// The epoch of paths.
    pub(crate) fn path_epoch(&self) -> u32 {
        self.region.word(word::PATH_EPOCH).load(Ordering::Relaxed)
    }

    /// Shows which packets pass from a port to a LID of another agent, by the entry of that LID.
    /// Returns true if this has changed.
    pub(crate) fn show_remote_path(&self, (device, port): At, slot: u32, path: &Path) -> bool {
        let Some(at) = board::remote_path((device as u32, port.into()), slot) else { return false };
        let levels = u32::from(path.levels) | u32::from(path.mtu) << 16;
        let words = std::iter::once(levels).chain((0..4).map(|word| (path.pkeys >> (32 * word)) as u32));
        let mut changed = false;
        for (at, value) in (at..).step_by(4).zip(words) {
            // Untouched pages of paths that do not exist stay untouched.
            if self.region.word(at).load(Ordering::Relaxed) != value {
                self.store(at, value);
                changed = true;
            }
        }
        changed
    }

    /// Shows the address of the agent that has a LID. Returns true if this has changed.
    pub(crate) fn show_remote(&self, slot: u32, lid: u16, gid: &[u8; 16]) -> bool {
        let Some(at) = board::remote(slot) else { return false };
        let known = self.region.word(at + remote_word::LID).load(Ordering::Relaxed) == u32::from(lid);
        if known && self.region.read::<[u8; 16]>(at + remote_word::GID) == *gid {
            return false;
        }
        self.store(at + remote_word::LID, 0);
        self.region.copy_in(at + remote_word::GID, gid);
        self.store(at + remote_word::LID, lid.into());
        true
    }

    /// Shows that the members of a group have changed. Returns the new epoch.
    pub fn bump_mcast(&self) -> u32 {
        self.bump(word::MCAST_EPOCH)
    }

    /// The epoch of group memberships.
    pub fn mcast_epoch(&self) -> u32 {
        self.region.word(word::MCAST_EPOCH).load(Ordering::Relaxed)
    }

    /// Shows that a receiving socket was opened or closed. Returns the new epoch.
    pub fn bump_wire(&self) -> u32 {
        self.bump(word::WIRE_EPOCH)
    }

    /// The epoch of the receiving sockets.
    pub fn wire_epoch(&self) -> u32 {
        self.region.word(word::WIRE_EPOCH).load(Ordering::Relaxed)
    }

    /// Pairs with the acquire loads of readers before and after they copy a table, so that they
    /// notice a torn copy.
    fn bump(&self, epoch: usize) -> u32 {
        self.region.word(epoch).fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    fn store(&self, at: usize, value: u32) {
        self.region.word(at).store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceConfig;
    use crate::ids::ContextId;

    #[test]
    fn a_client_sees_what_the_agent_shows_and_cannot_write() {
        let device = Device::new(0, &DeviceConfig::default(), "test");
        let board = Board::new(&crate::host::System::default(), &Devices::from_iter([device])).expect("a board");
        let fd = board.descriptor();
        assert!(Region::map(fd, BOARD_LEN).is_err(), "nobody else maps it writable");
        let view = Region::map_read_only(fd, BOARD_LEN).expect("a view");
        let read = |at: usize| view.word(at).load(Ordering::Acquire);
        assert_eq!((read(word::MAGIC), read(word::DEVICE_COUNT)), (BOARD_MAGIC, 1));
        assert_eq!(read(word::GID_EPOCH) % 2, 0);
        let base = board::port(0, 1).expect("port 1");
        assert_eq!((read(base), read(base + port_word::GID_LEN)), (4, 64));
        assert_eq!(view.read::<[u8; 16]>(base + port_word::GIDS)[..2], [0xfe, 0x80]);
        assert_eq!(read(board::owner(0x712)), 0);
        board.show_block(Grant { block: 7, owner: ContextId(3) });
        assert_eq!(read(board::owner(0x712)), 3);
    }
}
