//! What captures see of datagrams that are not simply sent: those that faults have taken, and, for users who see their own only, those that were
//! for one of their ids. Whose a request is, is known when it has become an id. Adds to [`Manager`].

use std::time::{SystemTime, UNIX_EPOCH};

use abi::capture::{CaptureRecord, path};
use abi::reason::{Cause, DropRecord};
use protocol::cm::{Mad, Origin, Path};
use wire::Qpn;
use wire::icrc::Envelope;

use super::{Manager, Passed};
use crate::management::{Arrived, SOURCE_PORT, Told, Way, emit, record};

/// A datagram is being delivered, and a user perhaps wants to see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    /// When, in nanoseconds since 1970.
    time: u64,
    /// Whose it is, as far as that is known yet.
    user: u32,
}

impl Manager {
    /// A datagram is about to be delivered. None: no user wants to know.
    pub(super) fn watch(&self, origin: &Origin, mad: &Mad) -> Option<Watched> {
        if !self.outlets.watchers().have_users() {
            return None;
        }
        Some(Watched { time: now(), user: self.core.addressee(origin, mad) })
    }

    fn known_user(&self, watched: &Watched, origin: &Origin, mad: &Mad) -> u32 {
        if watched.user == 0 { self.core.addressee(origin, mad) } else { watched.user }
    }

    /// A datagram of another host has been delivered: the user whose it is sees it.
    pub(super) fn show_arrived(&self, watched: Option<Watched>, origin: &Origin, arrived: &Arrived) {
        let Some(watched) = watched else { return };
        let user = self.known_user(&watched, origin, &arrived.mad);
        let about = CaptureRecord { time: watched.time, ..as_it_came(arrived) };
        self.outlets.watchers().show_user(user, &about, &arrived.packet(), "");
    }

    /// A datagram of our own has been delivered: the user whose it is sees it, unless it is the one who has sent it.
    pub(super) fn show_passed(&self, watched: Option<Watched>, passed: &Passed) {
        let Some(watched) = watched else { return };
        let user = self.known_user(&watched, &passed.origin, &passed.mad);
        if user == passed.owner {
            return;
        }
        let way = Way::of(&passed.origin);
        let about = CaptureRecord { time: watched.time, path: path::INSIDE, ..record(&way, SOURCE_PORT) };
        if let Some(packet) = emit(&Envelope::new(&way.from, &way.to, SOURCE_PORT), passed.psn, &passed.mad) {
            self.outlets.watchers().show_user(user, &about, &packet, "");
        }
    }

    /// A datagram is lost where it would have left.
    pub(super) fn show_lost(&mut self, path: &Path, mad: &Mad, told: &Told<'_>) {
        let Some(way) = self.way(path) else { return };
        let inside = self.locals.with_gid(&path.dgid).is_some();
        self.outlets.show_only(if inside { path::INSIDE } else { path::WIRE_OUT }, &way, mad, told);
    }

    /// A datagram is lost where it came in, by this rule.
    pub(super) fn show_drop(&self, origin: &Origin, arrived: &Arrived, rule: u32) {
        let watchers = self.outlets.watchers();
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

fn as_it_came(arrived: &Arrived) -> CaptureRecord {
    let Arrived { from, to, from_port, id, .. } = *arrived;
    CaptureRecord { path: path::WIRE_IN, from, to, from_port, id, ..CaptureRecord::default() }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
