//! Captures of datagrams that the ordinary send path does not show. These are the datagrams that
//! faults drop, and the datagrams to ids of a user who may capture only their own. The owner of a
//! request is known once the request is an id. Adds to [`Manager`].

use std::time::{SystemTime, UNIX_EPOCH};

use abi::capture::{CaptureRecord, path};
use abi::reason::{Cause, DropRecord};
use protocol::cm::{Mad, Origin, Path};
use wire::Qpn;
use wire::icrc::Envelope;

use super::{LoopbackMad, Manager};
use crate::management::{Addressing, CaptureNote, ReceivedMad, SOURCE_PORT, emit, record, shown};

/// A datagram during its delivery, which a user's capture may show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    /// The time, in nanoseconds since 1970.
    time: u64,
    /// The owner, as far as it is known before the delivery.
    user: u32,
}

impl Manager {
    /// Begins the delivery of a datagram. Returns `None` if no user captures.
    pub(super) fn watch(&self, origin: &Origin, mad: &Mad) -> Option<Watched> {
        if !self.mail.outlets.watchers().have_users() {
            return None;
        }
        Some(Watched { time: now(), user: self.core.addressee(origin, mad) })
    }

    fn known_user(&self, watched: &Watched, origin: &Origin, mad: &Mad) -> u32 {
        if watched.user == 0 { self.core.addressee(origin, mad) } else { watched.user }
    }

    /// Shows a delivered datagram of another host to its owner.
    pub(super) fn show_arrived(&self, watched: Option<Watched>, origin: &Origin, arrived: &ReceivedMad) {
        let Some(watched) = watched else { return };
        let user = self.known_user(&watched, origin, &arrived.mad);
        let about = CaptureRecord { time: watched.time, ..as_it_came(arrived) };
        self.mail.outlets.watchers().show_user(user, &about, &arrived.packet(), "");
    }

    /// Shows a delivered datagram of this agent to its owner, unless the owner also sent it.
    pub(super) fn show_passed(&self, watched: Option<Watched>, passed: &LoopbackMad) {
        let Some(watched) = watched else { return };
        let user = self.known_user(&watched, &passed.origin, &passed.mad);
        if user == passed.owner {
            return;
        }
        let LoopbackMad { origin, .. } = passed;
        let link = self.link_between(&origin.source, &origin.destination, origin.sl);
        let addressing = Addressing::of(origin, link);
        let about = CaptureRecord { time: watched.time, path: path::INSIDE, ..record(&addressing, SOURCE_PORT) };
        if let Some(packet) = emit(
            &Envelope::new(&addressing.from, &addressing.to, SOURCE_PORT),
            addressing.pkey,
            passed.psn,
            &passed.mad,
        ) {
            self.mail.outlets.watchers().show_user(user, &about, shown(&about, &packet), "");
        }
    }

    /// Shows a datagram that was dropped on its way out.
    pub(super) fn show_lost(&mut self, path: &Path, mad: &Mad, told: &CaptureNote<'_>) {
        let Some(addressing) = self.addressing(path) else { return };
        let inside = self.locals.with_gid(&path.dgid).is_some();
        self.mail.outlets.show_only(if inside { path::INSIDE } else { path::WIRE_OUT }, &addressing, mad, told);
    }

    /// Shows a datagram that this rule dropped on its way in.
    pub(super) fn show_drop(&self, origin: &Origin, arrived: &ReceivedMad, rule: u32) {
        let watchers = self.mail.outlets.watchers();
        if !watchers.are_there() {
            return;
        }
        let user = self.core.addressee(origin, &arrived.mad);
        watchers.show_user(user, &CaptureRecord { time: now(), ..as_it_came(arrived) }, &arrived.packet(), "");
        let gsi = Qpn::GSI.value();
        let dropped = DropRecord {
            qpn: gsi,
            src_qp: gsi,
            dest_qp: gsi,
            psn: arrived.psn(),
            opcode: arrived.head[0].into(),
            got: rule,
            ..DropRecord::default()
        };
        watchers.show_drop(user, Cause::Fault, &dropped);
    }
}

fn as_it_came(arrived: &ReceivedMad) -> CaptureRecord {
    let ReceivedMad { from, to, from_port, id, .. } = *arrived;
    CaptureRecord { path: path::WIRE_IN, from, to, from_port, id, ..CaptureRecord::default() }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
