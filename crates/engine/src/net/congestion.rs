//! Congestion: CE marks and CNPs, by which congestion is told before anything is lost.
//!
//! Packets of connections leave as capable of ECN. A switch whose queue grows marks them (CE) instead of dropping them, and so does a
//! receiver here that finds more than half of its own buffer full. Who receives a marked packet tells its sender by a CNP, as adapters do, once in
//! a while for each host; the sender narrows the window for that host ([`crate::net::window`]). Answers to READs are paced by the window of who
//! asks, so he narrows his own as well. Not here: what a window is. Principal type: [`Told`].

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::{Service, Time};
use wire::cnp::{self, Cnp};
use wire::{Opcode, Operation, Qpn};

use crate::net::batch::Target;
use crate::net::deliver::Datagrams;
use crate::net::flow::Flow;
use crate::qp::{Inner, Qp, Route};

/// The bits of ECN in a traffic class.
const ECN: u8 = 3;
/// The packet was marked on its way.
const CE: u8 = 3;
/// The sender heeds marks.
const CAPABLE: u8 = 2;
/// A host is told once in so many nanoseconds, as adapters do.
const PAUSE: u64 = 50_000;
/// So many datagrams in a row without an end, and the buffer that they come from is looked at.
pub(crate) const STREAK: u32 = 16;

/// The traffic class of a connection: as the program wants it, but capable of ECN where it wants nothing about that.
pub(crate) const fn capable(traffic_class: u8) -> u8 {
    if traffic_class & ECN == 0 { traffic_class | CAPABLE } else { traffic_class }
}

/// The same of a datagram that came when its buffer was `used` out of `room` bytes.
pub(crate) const fn marked(traffic_class: u8, (used, room): (usize, usize)) -> u8 {
    if traffic_class & ECN != 0 && used > room / 2 { traffic_class | CE } else { traffic_class }
}

/// When a host was told of marks last.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU64);

impl Told {
    /// Whether it is to be told now.
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
    /// Whether they were marked on their way.
    pub(crate) fn are_marked(&self) -> bool {
        self.traffic_class & ECN == CE
    }
}

impl Qp {
    /// A packet came marked.
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
        let cnp = Cnp { pkey: 0xffff, dest_qp: Qpn::new(inner.attributes.dest_qp_num) };
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

    /// A CNP came for this QP, from the host `from`. Believed of the host that it is connected to.
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
