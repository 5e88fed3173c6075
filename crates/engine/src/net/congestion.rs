//! Congestion control by ECN: CE marks and CNPs, which report congestion before packets are lost.
//!
//! Connections send packets as ECN-capable. A switch with a growing queue marks packets (CE)
//! instead of dropping them. A receiver here does so too when more than half of its own buffer is
//! full. The receiver of a marked packet sends a CNP to the packet's sender, as adapters do, at
//! most one per host in each [`PAUSE`]. The sender then narrows the window for that host
//! ([`crate::net::window`]). Responses to READs are paced by the window of the requester, so the
//! requester narrows its own window as well. The window itself is not here. Principal type:
//! [`Told`].

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::{Service, Time};
use wire::cnp::{self, Cnp};
use wire::{Opcode, Operation, Qpn};

use crate::net::batch::Target;
use crate::net::deliver::Datagrams;
use crate::net::flow::Flow;
use crate::qp::{Inner, Qp, Route};

/// The ECN bits of a traffic class.
const ECN: u8 = 3;
/// Congestion Experienced: the packet was marked on its way.
const CE: u8 = 3;
/// ECN-capable: the sender reacts to marks.
const CAPABLE: u8 = 2;
/// Nanoseconds between two CNPs to one host, as adapters do.
const PAUSE: u64 = 50_000;
/// After this many datagrams in a row without an empty receive, the engine checks how full the
/// socket's buffer is.
pub(crate) const STREAK: u32 = 16;

/// The traffic class of a connection: the program's, made ECN-capable if the program leaves the ECN
/// bits 0.
pub(crate) const fn capable(traffic_class: u8) -> u8 {
    if traffic_class & ECN == 0 { traffic_class | CAPABLE } else { traffic_class }
}

/// The traffic class of a datagram that came when its buffer was `used` out of `room` bytes.
pub(crate) const fn marked(traffic_class: u8, (used, room): (usize, usize)) -> u8 {
    if traffic_class & ECN != 0 && used > room / 2 { traffic_class | CE } else { traffic_class }
}

/// When a host last got a CNP.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU64);

impl Told {
    /// Whether to send a CNP now.
    fn tells(&self, now: Time) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let tells = last == 0 || now.0 >= last + PAUSE;
        if tells {
            self.0.store(now.0.max(1), Ordering::Relaxed);
        }
        tells
    }
}

impl Datagrams {
    /// Whether the datagrams were marked on their way.
    pub(crate) fn are_marked(&self) -> bool {
        self.traffic_class & ECN == CE
    }
}

impl Qp {
    /// A marked packet came.
    #[cold]
    pub(crate) fn note_mark(&self, inner: &Inner, opcode: Opcode) {
        let Route::Wire(flow) = &inner.route else { return };
        if self.service == Service::Ud || opcode.operation == Operation::Acknowledge {
            return;
        }
        if opcode.is_read_response() {
            flow.peer.window.mark();
        }
        if flow.peer.told.tells(self.engine().about_now()) {
            self.tell_mark(inner, flow);
        }
    }

    fn tell_mark(&self, inner: &Inner, flow: &Flow) {
        let cnp = Cnp { pkey: inner.responder.pkey(), dest_qp: Qpn::new(inner.attributes.dest_qp_num) };
        let mut bytes = [0; cnp::LEN];
        cnp.emit(&mut bytes);
        let target = Target { traffic_class: cnp::TRAFFIC_CLASS, ..flow.target };
        let mut batch = flow.port.batch.lock();
        let put = batch.put_bytes(&*flow.port.outlet, (&target, &flow.envelope), &bytes);
        if let Err(error) = put.and(batch.flush(&*flow.port.outlet)) {
            flow.complain(&error);
        }
        tracing::trace!("to {}: {cnp}", flow.target.to.ip());
    }

    /// A CNP came for this QP from the host `from`. It counts only if the QP is connected to that
    /// host.
    #[cold]
    pub(crate) fn hear_mark(&self, from: &[u8; 16]) {
        let inner = self.lock();
        if let Route::Wire(flow) = &inner.route
            && self.service != Service::Ud
            && &inner.attributes.dest.dgid == from
        {
            flow.peer.window.mark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_wants_something_of_ecn_gets_it() {
        assert_eq!([0, 0x68, 1, 2, 3, 0xfd].map(capable), [2, 0x6a, 1, 2, 3, 0xfd]);
    }

    #[test]
    fn a_buffer_that_is_half_full_marks_what_heeds_marks() {
        assert_eq!(marked(0x6a, (51, 100)), 0x6b);
        assert_eq!(marked(0x6a, (50, 100)), 0x6a);
        assert_eq!(marked(0x68, (99, 100)), 0x68);
    }

    #[test]
    fn a_host_is_told_once_in_a_while() {
        let told = Told::default();
        assert!(told.tells(Time(0)) && told.tells(Time(PAUSE + 1)));
        assert!(!told.tells(Time(PAUSE + 2)) && !told.tells(Time(2 * PAUSE)) && told.tells(Time(2 * PAUSE + 1)));
    }
}
