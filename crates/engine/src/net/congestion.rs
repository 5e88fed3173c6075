//! Congestion control by ECN: CE marks and CNPs, which report congestion before packets are lost.
//!
//! Connections send packets as ECN-capable. A switch with a growing queue marks packets (CE)
//! instead of dropping them. A receiver here does so too when more than half of its own buffer is
//! full. The receiver of a marked packet sends a CNP to the packet's sender, as adapters do, at
//! most one CNP per host in 50 µs. The sender then narrows the window for that host
//! ([`crate::net::window`]). Responses to READs are paced by the window of the requester, so the
//! requester narrows its own window as well. The window itself is not here; the bits are in
//! `datagrams.rs`. Adds to [`Qp`].

use abi::queue::hw_counter;
use protocol::Service;
use wire::cnp::{self, Cnp};
use wire::{Opcode, Operation, Qpn};

use crate::net::batch::Destination;
use crate::qp::{Flow, Inner, Qp, Route};

impl Qp {
    /// A marked packet has arrived.
    #[cold]
    pub(crate) fn note_mark(&self, inner: &Inner, opcode: Opcode) {
        let Route::Wire(flow) = &inner.link.route else { return };
        if self.service == Service::Ud || opcode.operation == Operation::Acknowledge {
            return;
        }
        let (events, port) = (&self.engine().events, inner.attributes.port_num);
        events.count(hw_counter::NP_ECN_MARKED_ROCE_PACKETS, port, 1);
        if opcode.is_read_response() {
            flow.peer.window.mark();
        }
        if flow.peer.last_cnp.should_send(self.engine().about_now()) {
            self.send_cnp(inner, flow);
            events.count(hw_counter::NP_CNP_SENT, port, 1);
        }
    }

    fn send_cnp(&self, inner: &Inner, flow: &Flow) {
        let cnp = Cnp { pkey: inner.responder.pkey(), dest_qp: Qpn::new(inner.attributes.dest_qp_num) };
        let mut bytes = [0; cnp::LEN];
        cnp.emit(&mut bytes);
        let target = Destination { traffic_class: cnp::TRAFFIC_CLASS, ..flow.target };
        let mut batch = flow.port.batch.lock();
        let put = batch.put_bytes(&*flow.port.outlet, (&target, &flow.envelope), &bytes);
        if let Err(error) = put.and(batch.flush(&*flow.port.outlet)) {
            flow.complain(&error);
        }
        tracing::trace!("to {}: {cnp}", flow.target.to.ip());
    }

    /// A CNP for this QP has arrived from the host `from`. It counts only if the QP is connected to
    /// that host.
    #[cold]
    pub(crate) fn on_cnp(&self, from: &[u8; 16]) {
        let inner = self.lock();
        if let Route::Wire(flow) = &inner.link.route
            && self.service != Service::Ud
            && &inner.attributes.dest.dgid == from
        {
            flow.peer.window.mark();
            self.engine().events.count(hw_counter::RP_CNP_HANDLED, inner.attributes.port_num, 1);
        }
    }
}
