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
//! PATH_MIG_ERR, once. The state is a [`Migration`] in the QP's link. Adds to [`Qp`].

use std::sync::atomic::Ordering;

use abi::event::kind;
use abi::qp::{ModifyQp, attr, migration};
use abi::queue::{QP_PATHS_SWAPPED, qp as word};

use crate::board::DevicePort;
use crate::cell::Packet;
use crate::lid::{GidRoute, NO_GRH};
use crate::network::address;
use crate::qp::{Inner, Migration, Qp, Route};
use crate::receive::Ingress;

impl Qp {
    /// Applies a change of attributes, which is merged already, to the alternate path and the
    /// migration state.
    pub(crate) fn change_paths(&self, inner: &mut Inner, new: &ModifyQp) {
        if new.attr_mask & attr::ALT_PATH != 0 {
            let mut dest = inner.attributes.alt_dest;
            self.complete_path(inner, &mut dest);
            inner.attributes.alt_dest = dest;
        }
        if new.attr_mask & attr::PATH_MIG_STATE != 0 {
            match (inner.link.migration.state, new.path_mig_state) {
                (_, migration::REARM) => self.set_migration(inner, migration::REARM),
                (migration::ARMED, migration::MIGRATED) => self.migrate(inner, &"its program asks for it"),
                _ => {}
            }
        }
    }

    fn set_migration(&self, inner: &mut Inner, state: u8) {
        let told = inner.link.migration.told && state != migration::REARM;
        inner.link.migration = Migration::new(state, told);
        let migrated = state == migration::MIGRATED;
        inner.responder.set_migrated(migrated);
        inner.requester.set_migration(migrated, state == migration::ARMED);
        if let Some(view) = &inner.view {
            // The agent clears the bit when it has exchanged the paths itself. So this update keeps
            // the bit and changes the rest of the word.
            let changed = |word: u32| Some(word & QP_PATHS_SWAPPED | u32::from(state));
            let _ = view.word(word::MIGRATION).fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
        }
    }

    /// Handles a packet of the peer whose migration bit matters. Returns false if the packet must
    /// be dropped.
    #[cold]
    pub(crate) fn on_migration_bit(&self, inner: &mut Inner, packet: &Packet, origin: Ingress<'_>) -> bool {
        if !inner.state.serves() {
            return true;
        }
        if !packet.headers.migrated {
            tracing::debug!("QP {:#x} and its peer have rearmed: path migration is armed", self.qpn());
            self.set_migration(inner, migration::ARMED);
            return true;
        }
        match origin {
            Ingress::Lane => {}
            Ingress::Host { from, to } if self.is_alternate(inner, from, to) => {}
            Ingress::Host { from, .. } => {
                self.cannot_migrate(inner, from, "the packet did not come over the alternate path");
                return false;
            }
        }
        self.migrate(inner, &"its peer has");
        true
    }

    /// A packet has arrived on another path than the current one. Returns whether that is the
    /// alternate path; then the QP has migrated to it.
    #[cold]
    pub(crate) fn comes_by_alternate(
        &self,
        inner: &mut Inner,
        packet: &Packet,
        (from, to): (&[u8; 16], &[u8; 16]),
    ) -> bool {
        if !packet.headers.migrated || !inner.state.serves() {
            return false;
        }
        if inner.link.migration.state != migration::ARMED {
            self.cannot_migrate(inner, from, "this side is not armed yet");
        } else if !self.is_alternate(inner, from, to) {
            self.cannot_migrate(inner, from, "the packet did not come over the alternate path");
        } else {
            self.migrate(inner, &"its peer has");
            return true;
        }
        false
    }

    /// Whether packets between these addresses use the alternate path.
    fn is_alternate(&self, inner: &Inner, from: &[u8; 16], to: &[u8; 16]) -> bool {
        let a = &inner.attributes;
        let (port, index) = (u32::from(a.alt_port_num), u32::from(a.alt_dest.sgid_index));
        let engine = self.engine();
        &a.alt_dest.dgid == from && engine.board.gid(engine.device(), port, index).as_ref() == Some(to)
    }

    fn cannot_migrate(&self, inner: &mut Inner, from: &[u8; 16], why: &str) {
        if !std::mem::replace(&mut inner.link.migration.told, true) {
            crate::reason!("QP {:#x} was asked to migrate by a packet from {}: {why}", self.qpn(), address(*from));
            self.raise(kind::PATH_MIG_ERR);
        }
    }

    /// All retries of the requester on this path have failed.
    #[cold]
    pub(crate) fn fail_over(&self, inner: &mut Inner) {
        if inner.link.migration.state == migration::ARMED {
            self.migrate(inner, &"nobody answers by its path");
        }
    }

    /// Migrates to the alternate path; the current path becomes the alternate one.
    fn migrate(&self, inner: &mut Inner, why: &dyn std::fmt::Display) {
        self.uncount(inner);
        let a = &mut inner.attributes;
        std::mem::swap(&mut a.dest, &mut a.alt_dest);
        std::mem::swap(&mut a.port_num, &mut a.alt_port_num);
        std::mem::swap(&mut a.pkey_index, &mut a.alt_pkey_index);
        std::mem::swap(&mut a.timeout, &mut a.alt_timeout);
        let (timeout, dgid) = (a.timeout, a.dest.dgid);
        tracing::info!("QP {:#x} migrates to the path to {}: {why}", self.qpn(), address(dgid));
        inner.requester.set_timeout(timeout);
        inner.requester.begin_path();
        self.follow_partition(inner);
        self.set_pace(inner, None);
        self.set_migration(inner, migration::MIGRATED);
        if let Some(view) = &inner.view {
            view.word(word::MIGRATION).fetch_xor(QP_PATHS_SWAPPED, Ordering::AcqRel);
        }
        if inner.link.on_wire() {
            // It was blocked on the other path.
            inner.link.blocked = false;
        }
        inner.complained = false;
        inner.link.route = Route::Unknown;
        self.find_route(inner);
        self.raise(kind::PATH_MIG);
    }

    /// Completes a path: gives it the traffic class of its service level, or without a GRH the GID
    /// of its LID. If no GID stands for the LID, the destination does not exist, as with a LID that
    /// no switch knows.
    pub(crate) fn complete_path(&self, inner: &mut Inner, dest: &mut abi::qp::Dest) {
        let from = DevicePort { device: self.engine().device(), port: u32::from(dest.port_num) };
        if dest.is_global != 0 {
            dest.traffic_class = self.engine().board.traffic_class(from, dest.sl, dest.traffic_class);
            return;
        }
        let route = self.engine().board.gid_route(from, dest.dlid);
        if route.is_none() {
            self.complain_of_lid(inner, dest.dlid);
        }
        let GidRoute { dgid, sgid_index } = route.unwrap_or_default();
        // The fields of a GRH may have any value.
        (dest.flow_label, dest.traffic_class, dest.hop_limit) = (0, 0, NO_GRH);
        (dest.dgid, dest.sgid_index) = (dgid, sgid_index);
    }
}
