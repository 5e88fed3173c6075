//! The keys of packets that a port compares with its own: where PortInfo counts the packets whose
//! key is wrong, and by which trap the port tells of them. Not who counts. IBA 14.2.5.1 and
//! 14.2.5.6. Principal type: [`Key`].

use wire::notice::Notice;
use wire::smp::PortInfo;

/// A key of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The key of the queue pair that the datagram is for.
    QKey,
    /// The partition.
    PKey,
}

impl Key {
    /// All of them, in the order of their numbers.
    pub const ALL: [Key; 2] = [Key::QKey, Key::PKey];

    /// The number of the trap by which an end port tells of a packet.
    #[must_use]
    pub const fn trap(self) -> u16 {
        match self {
            Key::PKey => Notice::BAD_PKEY,
            Key::QKey => Notice::BAD_QKEY,
        }
    }

    /// The count of PortInfo. It stops at its highest value.
    pub const fn violations(self, info: &mut PortInfo) -> &mut u16 {
        match self {
            Key::PKey => &mut info.pkey_violations,
            Key::QKey => &mut info.qkey_violations,
        }
    }
}
