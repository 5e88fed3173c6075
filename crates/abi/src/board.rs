//! The board: one memory per agent that every client may read and only the agent writes, as a
//! layout of offsets.
//!
//! It holds the owners of QPN blocks, the GID tables, the paths to LIDs of other agents, and the
//! epochs. All words are 4 bytes, little endian, read with acquire ordering. A reader that needs
//! several words of one table reads the epoch before and after. If the epoch changed or is odd, it
//! tries again. The pages of devices that do not exist take no memory.

/// "SHCB" in memory order.
pub const BOARD_MAGIC: u32 = 0x4243_4853;
/// Version of the layout of the board and of lanes.
pub const BOARD_VERSION: u32 = 7;

constants! {
    /// The board's first words, byte offsets.
    pub mod word: usize {
        /// 0x42434853, the bytes "SHCB".
        MAGIC = 0,
        /// Version of the layout: 7.
        VERSION = 4,
        /// Increased when a GID table changes; odd while a table is being written.
        GID_EPOCH = 8,
        /// Increased when the membership of a multicast group changes.
        MCAST_EPOCH = 12,
        /// Increased when a port's state changes; odd while a state is being written.
        PORT_EPOCH = 16,
        /// Number of devices.
        DEVICE_COUNT = 20,
        /// Increased when the agent opens or closes a socket that receives from other hosts.
        WIRE_EPOCH = 24,
        /// 1: the ports are in a subnet with switches, and packets pass only where their tables
        /// lead (PATH_RESOLVE, and the paths to LIDs of other agents). 0: every active port reaches
        /// every other one.
        HAS_PATHS = 28,
        /// Increased when an answer to PATH_RESOLVE has changed, before the engines that have it
        /// get a push.
        PATH_EPOCH = 32,
    }

    /// A path from a port to a LID of another agent, byte offsets. Each word is valid by itself.
    pub mod path_word: usize {
        /// Service levels with which packets reach the LID, as bits; 0 if there is no path. The MTU
        /// code of the path is in bits 16 to 23.
        LEVELS = 0,
        /// Entries of the sender's P_Key table with which packets pass, as bits, in four words.
        PKEYS = 4,
    }

    /// A LID of another agent in the subnet, byte offsets.
    pub mod remote_word: usize {
        /// The LID; 0 while the entry is unused or changes.
        LID = 0,
        /// The address of that agent in GID form, network byte order.
        GID = 16,
    }

    /// A port's area, byte offsets.
    pub mod port_word: usize {
        /// State of the port, as `QueryPortAnswer::state`.
        STATE = 0,
        /// MTU code.
        ACTIVE_MTU = 4,
        /// Entries of the GID table.
        GID_LEN = 8,
        /// `QueryPortAnswer::link_layer`.
        LINK_LAYER = 12,
        /// Base LID of the port, 0 on Ethernet. GID_EPOCH covers this word, the next two, and LMC.
        LID = 16,
        /// Index of the GID with the IPv4 address whose host part is the LID; 0 if the LID stands
        /// for no address.
        LID_GID = 20,
        /// Mask of the host part of that address.
        LID_HOSTS = 24,
        /// Entries of the P_Key table.
        PKEY_LEN = 28,
        /// The port has 2^n LIDs from its base LID on.
        LMC = 32,
        /// DSCP of each service level on Ethernet: four in each of four words, the first in the
        /// lowest byte. Each word is valid by itself.
        DSCPS = 36,
        /// The GIDs from this index on are empty. GID_EPOCH covers this word.
        GIDS_USED = 52,
        /// Virtual lane of each service level on InfiniBand: eight in each of two words, the first
        /// in the lowest four bits. Each word is valid by itself.
        LANES = 56,
        /// GIDs, 16 bytes each, network byte order.
        GIDS = 64,
        /// P_Keys, one word each, host byte order; 0 for an empty entry. Each word is valid by
        /// itself, so no epoch covers them.
        PKEYS = 1088,
        /// Network interface per GID, 0 for none.
        IFINDEX = 2048,
        /// Type per GID, as `GidEntryAnswer::gid_type`.
        GID_TYPE = 2304,
        /// Wire per GID: 0 if this address cannot receive from other hosts now, else the MTU code
        /// of its network interface. GID_EPOCH covers this word.
        WIRE = 2560,
        /// Priority of each service level on Ethernet: eight in each of two words, the first in the
        /// lowest four bits: 8 plus the priority, or 0 if Linux chooses it. Each word is valid by
        /// itself.
        PRIORITIES = 2816,
    }
}

/// Where the QPN block owners begin.
pub const OWNERS: usize = 4096;
/// Number of QPN blocks.
pub const BLOCKS: u32 = 65536;
/// QPNs per block.
pub const BLOCK_LEN: u32 = 256;
/// Where the devices begin.
pub const DEVICES: usize = OWNERS + 4 * BLOCKS as usize;
/// Most devices.
pub const DEVICE_MAX: u32 = 512;
/// Bytes per device.
pub const DEVICE_LEN: usize = 8192;
/// Most ports per device.
pub const PORT_MAX: u32 = 2;
/// Bytes per port.
pub const PORT_LEN: usize = 4096;
/// Most GIDs per port.
pub const GID_MAX: u32 = 64;
/// Most P_Keys per port.
pub const PKEY_MAX: u32 = 128;
/// Where the LIDs of other agents begin.
pub const REMOTES: usize = DEVICES + DEVICE_MAX as usize * DEVICE_LEN;
/// Most LIDs of other agents.
pub const REMOTE_MAX: u32 = 256;
/// Bytes per LID of another agent.
pub const REMOTE_LEN: usize = 32;
/// Where the paths to these LIDs begin: for each sender's port, for each LID. The pages of paths
/// that do not exist take no memory.
pub const REMOTE_PATHS: usize = REMOTES + REMOTE_MAX as usize * REMOTE_LEN;
/// Bytes per path.
pub const PATH_LEN: usize = 32;
/// Length of the board in bytes.
pub const BOARD_LEN: usize = REMOTE_PATHS + (DEVICE_MAX * PORT_MAX * REMOTE_MAX) as usize * PATH_LEN;

const _: () = assert!(REMOTES == 4_460_544 && REMOTE_PATHS == 4_468_736);
const _: () = assert!(BOARD_LEN == 12_857_344 && BOARD_LEN.is_multiple_of(4096));
const _: () = assert!(path_word::PKEYS + 4 * PKEY_MAX as usize / 32 <= PATH_LEN);
const _: () = assert!(PORT_MAX as usize * PORT_LEN == DEVICE_LEN);

/// Offset of the word that names the engine which owns `qpn`, 0 if it never had an owner. A
/// returned block keeps its last owner's number until it is granted again, so that the owner's last
/// packets are still accepted.
#[must_use]
pub const fn owner(qpn: u32) -> usize {
    OWNERS + 4 * ((qpn >> 8) & 0xffff) as usize
}

/// Offset of a port's area; ports count from 1. `None` when there is no such port.
#[must_use]
pub const fn port(device: u32, port: u32) -> Option<usize> {
    if device >= DEVICE_MAX || port == 0 || port > PORT_MAX {
        return None;
    }
    Some(DEVICES + device as usize * DEVICE_LEN + (port - 1) as usize * PORT_LEN)
}

/// Offset of the entry of a LID of another agent. `None` when there is no such entry.
#[must_use]
pub const fn remote(slot: u32) -> Option<usize> {
    if slot < REMOTE_MAX { Some(REMOTES + slot as usize * REMOTE_LEN) } else { None }
}

/// Offset of a path: from a port to a LID of another agent, by the entry of that LID. `None` when
/// there is no such port or entry.
#[must_use]
pub const fn remote_path(from: (u32, u32), slot: u32) -> Option<usize> {
    if port(from.0, from.1).is_none() || slot >= REMOTE_MAX {
        return None;
    }
    let from = (from.0 * PORT_MAX + from.1 - 1) as usize;
    Some(REMOTE_PATHS + (from * REMOTE_MAX as usize + slot as usize) * PATH_LEN)
}

/// Offset of a GID (16 bytes). `None` when there is no such GID.
#[must_use]
pub const fn gid(device: u32, port_num: u32, index: u32) -> Option<usize> {
    entry(device, port_num, index, port_word::GIDS, 16)
}

/// Offset of the word with a P_Key. `None` when there is no such P_Key.
#[must_use]
pub const fn pkey(device: u32, port_num: u32, index: u32) -> Option<usize> {
    match port(device, port_num) {
        Some(base) if index < PKEY_MAX => Some(base + port_word::PKEYS + 4 * index as usize),
        _ => None,
    }
}

/// Offset of the word with a GID's network interface.
#[must_use]
pub const fn gid_ifindex(device: u32, port_num: u32, index: u32) -> Option<usize> {
    entry(device, port_num, index, port_word::IFINDEX, 4)
}

/// Offset of the word with a GID's type.
#[must_use]
pub const fn gid_type(device: u32, port_num: u32, index: u32) -> Option<usize> {
    entry(device, port_num, index, port_word::GID_TYPE, 4)
}

/// Offset of the word that shows whether a GID has the wire, and with which MTU. `None` when there
/// is no such GID.
#[must_use]
pub const fn gid_wire(device: u32, port_num: u32, index: u32) -> Option<usize> {
    entry(device, port_num, index, port_word::WIRE, 4)
}

const fn entry(device: u32, port_num: u32, index: u32, table: usize, width: usize) -> Option<usize> {
    match port(device, port_num) {
        Some(base) if index < GID_MAX => Some(base + table + width * index as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_inside() {
        assert_eq!(owner(0), 4096);
        assert_eq!(owner(0x00ff_ffff), DEVICES - 4);
        assert_eq!(port(0, 1), Some(266_240));
        assert_eq!(port(DEVICE_MAX - 1, 2).map(|base| base + PORT_LEN), Some(REMOTES));
        assert_eq!(port(0, 0), None);
        assert_eq!(port(DEVICE_MAX, 1), None);
        assert_eq!(gid(0, 1, 63).map(|at| at + 16), Some(266_240 + 1088));
        assert_eq!(pkey(0, 1, 0).map(|at| at - 16), gid(0, 1, 63));
        assert_eq!(pkey(0, 1, 127).map(|at| at + 4), Some(266_240 + 1600));
        assert_eq!(pkey(0, 1, 128), None);
        assert_eq!(gid_ifindex(0, 1, 63).map(|at| at + 4), Some(266_240 + 2304));
        assert_eq!(gid_type(0, 1, 63).map(|at| at + 4), Some(266_240 + 2560));
        assert_eq!(gid_wire(0, 1, 63).map(|at| at + 4), Some(266_240 + 2816));
        assert_eq!(gid(0, 1, 64), None);
        assert_eq!(remote(255).map(|at| at + REMOTE_LEN), remote_path((0, 1), 0));
        assert_eq!(remote_path((DEVICE_MAX - 1, 2), 255).map(|at| at + PATH_LEN), Some(BOARD_LEN));
        assert_eq!(remote(256).or(remote_path((0, 1), 256)).or(remote_path((DEVICE_MAX, 1), 0)), None);
    }
}
