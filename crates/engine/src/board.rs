//! The agent's board, read in place: the owners of QPNs, the GID and P_Key tables, and the epochs.
//! Only the agent writes it. Principal type: [`Board`].

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use abi::ah::{SL_MAX, traffic_class};
use abi::board::{self, BOARD_LEN, BOARD_MAGIC, BOARD_VERSION, path_word, port_word, remote_word, word};
use abi::device::port_state;
use abi::errno::Errno;
use shm::region::Region;

use crate::error::{Result, by_system, refusal};

/// The board, mapped read-only.
pub(crate) struct Board {
    pub(crate) region: Region,
}

/// The device and port of a GID.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DevicePort {
    pub(crate) device: u32,
    pub(crate) port: u32,
}

impl Board {
    pub(crate) fn map(fd: &OwnedFd) -> Result<Self> {
        let region = Region::map_read_only(fd.as_fd(), BOARD_LEN).map_err(by_system)?;
        let board = Self { region };
        if board.word(word::MAGIC) != BOARD_MAGIC || board.word(word::VERSION) != BOARD_VERSION {
            const ADVICE: &str =
                "stop the agent with `softhca agent --stop`, and use a library and an agent of one release";
            return Err(refusal(Errno::EPROTO, format!("the agent's board is of another version: {ADVICE}")));
        }
        Ok(board)
    }

    #[inline]
    pub(crate) fn word(&self, offset: usize) -> u32 {
        self.region.word(offset).load(Ordering::Acquire)
    }

    /// The engine that owns the block of `qpn`; 0 if no engine does.
    #[inline]
    pub(crate) fn owner(&self, qpn: u32) -> u32 {
        self.word(board::owner(qpn))
    }

    /// The port's active MTU in bytes.
    pub(crate) fn mtu(&self, device: u32, port: u32) -> u32 {
        let code = board::port(device, port).map_or(0, |at| self.word(at + board::port_word::ACTIVE_MTU));
        u8::try_from(code).ok().and_then(abi::device::mtu_bytes).unwrap_or(1024)
    }

    /// Entry `index` of a port's P_Key table: 0 when it is empty, `None` beyond the table.
    pub(crate) fn pkey(&self, device: u32, port: u32, index: u32) -> Option<u16> {
        let length = self.word(board::port(device, port)? + board::port_word::PKEY_LEN);
        let at = board::pkey(device, port, index).filter(|_| index < length)?;
        Some(self.word(at) as u16)
    }

    pub(crate) fn gid_epoch(&self) -> u32 {
        self.word(word::GID_EPOCH)
    }

    /// Changes when a GID table changes, or the agent's sockets do.
    pub(crate) fn wire_epoch(&self) -> u32 {
        self.gid_epoch().wrapping_add(self.wire_sockets_epoch())
    }

    /// Changes when the agent's sockets change.
    pub(crate) fn wire_sockets_epoch(&self) -> u32 {
        self.word(word::WIRE_EPOCH)
    }

    /// The MTU code of a GID's network; 0 if the agent does not receive on this GID.
    pub(crate) fn gid_wire(&self, device: u32, port: u32, index: u32) -> u32 {
        board::gid_wire(device, port, index).map_or(0, |at| self.word(at))
    }

    /// The interface that carries a GID.
    pub(crate) fn gid_ifindex(&self, device: u32, port: u32, index: u32) -> u32 {
        board::gid_ifindex(device, port, index).map_or(0, |at| self.word(at))
    }

    /// The traffic class of packets that leave by a port with this service level and, in their
    /// address vector, this traffic class.
    pub(crate) fn traffic_class(&self, from: DevicePort, sl: u8, asked: u8) -> u8 {
        let sl = usize::from(sl & SL_MAX);
        let at = board::port(from.device, from.port).map(|port| port + board::port_word::DSCPS + sl / 4 * 4);
        let dscps = at.map_or(0, |at| self.word(at)).to_le_bytes();
        traffic_class(dscps[sl % 4], asked)
    }

    /// The priority of packets that leave by a port with this service level; `None`: Linux chooses.
    pub(crate) fn priority(&self, from: DevicePort, sl: u8) -> Option<u8> {
        let entry = self.nibble(from, board::port_word::PRIORITIES, sl);
        (entry & 8 != 0).then_some(entry & 7)
    }

    /// Whether the link layer of a port is InfiniBand.
    pub(crate) fn is_infiniband(&self, place: DevicePort) -> bool {
        let at = board::port(place.device, place.port).map(|at| at + board::port_word::LINK_LAYER);
        at.is_some_and(|at| self.word(at) == u32::from(abi::device::link_layer::INFINIBAND))
    }

    /// The virtual lane of a service level at a port.
    pub(crate) fn virtual_lane(&self, place: DevicePort, sl: u8) -> u8 {
        self.nibble(place, board::port_word::LANES, sl)
    }

    /// The four bits of a service level in a table of a port.
    fn nibble(&self, place: DevicePort, table: usize, sl: u8) -> u8 {
        let sl = usize::from(sl & SL_MAX);
        let at = board::port(place.device, place.port).map(|at| at + table + sl / 8 * 4);
        (at.map_or(0, |at| self.word(at)) >> (4 * (sl % 8)) & 0xf) as u8
    }

    pub(crate) fn mcast_epoch(&self) -> u32 {
        self.word(word::MCAST_EPOCH)
    }

    /// Entry `index` of a port's GID table; all zeros when it is empty.
    pub(crate) fn gid(&self, device: u32, port: u32, index: u32) -> Option<[u8; 16]> {
        let length = self.word(board::port(device, port)? + board::port_word::GID_LEN);
        let offset = board::gid(device, port, index).filter(|_| index < length)?;
        let epoch = || self.word(word::GID_EPOCH);
        // The table changes rarely: the read is repeated until the epoch has not changed meanwhile,
        // up to a limit.
        for _ in 0..1000 {
            let before = epoch();
            let gid = self.region.read(offset);
            if before % 2 == 0 && epoch() == before {
                return Some(gid);
            }
            std::hint::spin_loop();
        }
        Some(self.region.read(offset))
    }

    /// The index of `gid` in a port's table.
    pub(crate) fn index_of(&self, device: u32, port: u32, gid: &[u8; 16]) -> Option<u32> {
        (0..self.gid_len(device, port)).find(|&index| self.gid(device, port, index).as_ref() == Some(gid))
    }

    /// Number of entries in a port's GID table, also empty ones.
    fn gid_len(&self, device: u32, port: u32) -> u32 {
        board::port(device, port).map_or(0, |at| self.word(at + board::port_word::GID_LEN)).min(board::GID_MAX)
    }

    /// Whether two ports of a device have an address in common.
    pub(crate) fn have_a_gid_in_common(&self, device: u32, one: u32, other: u32) -> bool {
        let gids = (0..self.gid_len(device, one)).filter_map(|index| self.gid(device, one, index));
        gids.filter(|gid| gid != &[0; 16]).any(|gid| self.index_of(device, other, &gid).is_some())
    }

    /// Whether the port is active. No packet passes a port that is not.
    pub(crate) fn is_up(&self, device: u32, port: u32) -> bool {
        board::port(device, port)
            .is_some_and(|at| self.word(at + board::port_word::STATE) == u32::from(port_state::ACTIVE))
    }

    /// Whether packets pass only where the tables of switches lead.
    #[inline]
    pub(crate) fn has_paths(&self) -> bool {
        self.word(word::HAS_PATHS) != 0
    }

    pub(crate) fn path_epoch(&self) -> u32 {
        self.word(word::PATH_EPOCH)
    }

    /// Whether packets from a port pass to a LID of another host. Without switches they pass. With
    /// switches, the LID must be one of another agent of the subnet.
    pub(crate) fn passes_to_host(&self, from: DevicePort, dlid: u16, sl: u8, pkey_index: u16) -> bool {
        !self.has_paths()
            || self
                .remote(dlid)
                .and_then(|slot| board::remote_path((from.device, from.port), slot))
                .is_some_and(|path| self.lets_pass(path, sl, pkey_index))
    }

    /// The entry of a LID of another agent.
    fn remote(&self, lid: u16) -> Option<u32> {
        let has = |slot: &u32| board::remote(*slot).map(|at| self.word(at + remote_word::LID)) == Some(lid.into());
        (0..board::REMOTE_MAX).find(has).filter(|_| lid != 0)
    }

    /// The address of the agent that has a LID of the subnet, in GID form.
    pub(crate) fn remote_gid(&self, lid: u16) -> Option<[u8; 16]> {
        let at = board::remote(self.remote(lid)?)?;
        let gid = self.region.read(at + remote_word::GID);
        // Otherwise the entry is another LID's now.
        (self.word(at + remote_word::LID) == u32::from(lid)).then_some(gid)
    }

    fn lets_pass(&self, path: usize, sl: u8, pkey_index: u16) -> bool {
        let pkeys = path + path_word::PKEYS + usize::from(pkey_index / 32) * 4;
        self.word(path + path_word::LEVELS) >> (sl & SL_MAX) & 1 == 1
            && u32::from(pkey_index) < board::PKEY_MAX
            && self.word(pkeys) >> (pkey_index % 32) & 1 == 1
    }

    /// The first active port of this agent that has `gid`.
    pub(crate) fn find(&self, gid: &[u8; 16]) -> Option<DevicePort> {
        if gid == &[0; 16] {
            return None;
        }
        self.places().find(|place| self.has_gid(*place, gid))
    }

    /// The port that a packet to `gid` is for, if the engine that receives it has opened `device`.
    /// `found` is what [`Board::find`] has found. Devices may have the same addresses.
    #[inline]
    pub(crate) fn place_on(&self, device: u32, gid: &[u8; 16], found: DevicePort) -> DevicePort {
        if found.device == device { found } else { self.other_place(device, gid).unwrap_or(found) }
    }

    #[cold]
    fn other_place(&self, device: u32, gid: &[u8; 16]) -> Option<DevicePort> {
        self.places().filter(|place| place.device == device).find(|place| self.has_gid(*place, gid))
    }

    /// Whether a port is active and has this GID.
    fn has_gid(&self, place: DevicePort, gid: &[u8; 16]) -> bool {
        let used = board::port(place.device, place.port).map_or(0, |at| self.word(at + port_word::GIDS_USED));
        self.is_up(place.device, place.port)
            && (0..used.min(board::GID_MAX))
                .any(|index| self.gid(place.device, place.port, index).as_ref() == Some(gid))
    }

    /// The ports of all devices.
    pub(crate) fn places(&self) -> impl Iterator<Item = DevicePort> {
        let devices = self.word(word::DEVICE_COUNT).min(board::DEVICE_MAX);
        (0..devices).flat_map(|device| (1..=board::PORT_MAX).map(move |port| DevicePort { device, port }))
    }
}
