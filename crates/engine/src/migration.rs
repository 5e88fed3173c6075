//! Automatic path migration (APM): a connection with an alternate path, and how it migrates to that
//! path. IBA 17.2.8.
//!
//! ```text
//!   MIGRATED ──modify loads an alternate path──▶ REARM ──the peer has rearmed──▶ ARMED
//!      ▲                                                                           │
//!      └─── all retries have failed, the program asks, or the peer has migrated ◀──┘
//! ```
//! The peer's state is a bit in each packet: set in MIGRATED, clear otherwise. A QP checks it only
//! where a change matters, so that a packet costs one comparison. A migration exchanges the two
//! paths and raises the event PATH_MIG. If the QP cannot follow a request to migrate, it raises
//! PATH_MIG_ERR, once. Principal type: [`Migration`].

mod paths;

use abi::qp::migration;

/// The migration bit that a QP waits for: none, "rearmed", "migrated".
const NOTHING: u8 = 2;
const REARMED: u8 = 0;
const MIGRATED: u8 = 1;

/// The migration state of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Migration {
    state: u8,
    /// The migration bit of packets that matter.
    heeds: u8,
    /// PATH_MIG_ERR has been raised.
    told: bool,
}

impl Default for Migration {
    fn default() -> Self {
        Self { state: migration::MIGRATED, heeds: NOTHING, told: false }
    }
}

impl Migration {
    /// Whether a packet with this migration bit is to be passed to `Qp::on_migration_bit`.
    #[inline]
    pub(crate) fn heeds(&self, migrated: bool) -> bool {
        self.heeds == u8::from(migrated)
    }

    /// Whether packets may come by an alternate path.
    pub(crate) fn has_spare(&self) -> bool {
        self.state != migration::MIGRATED
    }

    /// The migration bit of this QP's packets.
    pub(crate) fn is_migrated(&self) -> bool {
        self.state == migration::MIGRATED
    }
}
