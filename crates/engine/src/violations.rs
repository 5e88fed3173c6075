//! Packets with a P_Key or Q_Key that does not fit (IBA 10.9.3, 10.2.4): counted for their port,
//! and told to the agent, so that the port can tell its subnet manager. A switch may drop packets
//! for their P_Key, too, so the agent is also told that packets have no path.
//!
//! Any peer may send any number of such packets. All are counted, in words that the agent reads.
//! The helper thread reports at most one of each kind and port in 100 ms to the agent
//! ([`crate::untold`]). Adds to [`Engine`] and [`Qp`].

use abi::command::number as command;
use abi::private::{Violation, violation};
use protocol::Service;
use wire::grh::Network;

use crate::board::DevicePort;
use crate::cell::Packet;
use crate::engine::Engine;
use crate::qp::{Inner, Qp};
use crate::request;

impl Engine {
    /// Tells the agent of violations. Waits for the agent, so it runs on the helper thread.
    pub(crate) fn tell_violations(&self) {
        for violation in self.helper_work.violations.take(self.now()).into_iter().flatten() {
            // Without an agent there is no port.
            let _ = self.tell(&request::private(command::VIOLATION, &violation, 0));
        }
    }
}

impl Qp {
    /// Tells the agent that packets have no path. They are already counted, because the agent looks
    /// at once.
    #[cold]
    pub(crate) fn tell_no_path(&self, inner: &Inner) {
        self.tell(Violation { port: inner.attributes.port_num, kind: violation::NO_PATH, ..Violation::default() });
    }

    /// Counts a packet whose key does not fit. `kind` is one of `abi::private::violation`.
    #[cold]
    pub(crate) fn count_violation(&self, inner: &Inner, packet: &Packet, kind: u8, key: u32) {
        let (engine, attributes) = (self.engine(), &inner.attributes);
        let port = attributes.port_num;
        engine.events.violation(kind, port.into());
        if !engine.board.is_infiniband(DevicePort { device: engine.device(), port: port.into() }) {
            return;
        }
        // Packets of a connection come from its peer, and name neither LIDs nor the sender's QP.
        let is_datagram = self.service == Service::Ud;
        let peer = if is_datagram { (0, 0) } else { (attributes.dest.dlid, attributes.dest_qp_num) };
        let or = |told: u32, known: u32| if told == 0 { known } else { told };
        let (sgid, dgid) = match packet.grh.as_ref().map(Network::parse) {
            Some(Ok(network)) => network.gids(),
            _ => Default::default(),
        };
        self.tell(Violation {
            port,
            kind,
            sl: if is_datagram { packet.path.sl } else { attributes.dest.sl },
            slid: or(packet.path.slid.into(), peer.0.into()) as u16,
            dlid: packet.path.dlid,
            key,
            src_qp: or(packet.src_qp.value(), peer.1),
            dest_qp: packet.headers.dest_qp.value(),
            sgid,
            dgid,
            ..Violation::default()
        });
    }

    fn tell(&self, violation: Violation) {
        let engine = self.engine();
        if engine.helper_work.violations.keep(violation) {
            engine.waker.kick();
        }
    }
}
