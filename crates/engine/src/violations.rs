//! Packets with a P_Key or Q_Key that does not fit (IBA 10.9.3, 10.2.4): counted for their port,
//! and told to the agent, so that the port can tell its subnet manager. A switch may drop packets
//! for their P_Key, too, so the agent is also told that packets have no path.
//!
//! Any peer may send any number of such packets. All are counted, in words that the agent reads.
//! The agent is told of one of each kind in [`PAUSE`], by the helper thread. Principal type:
//! [`Untold`].

use abi::command::number as command;
use abi::private::{Violation, violation};
use protocol::{Service, Time};
use wire::grh::Network;

use crate::board::DevicePort;
use crate::cell::Packet;
use crate::engine::Engine;
use crate::lock::Mutex;
use crate::qp::{Inner, Qp};
use crate::request;

/// The shortest time between two violations of a kind of which the agent is told, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// The violations of which the agent has not been told yet, by their kind.
#[derive(Default)]
pub(crate) struct Untold(Mutex<[Last; 3]>);

/// The last violation of a kind that the agent was told of.
#[derive(Clone, Copy, Default)]
struct Last {
    /// It, while it waits for the helper thread.
    waiting: Option<Violation>,
    /// When it happened.
    at: Option<Time>,
}

impl Untold {
    /// Keeps a violation for the agent, unless it was told of another one a short time ago. Returns
    /// false if so.
    fn keep(&self, violation: Violation, now: Time) -> bool {
        let mut all = self.0.lock();
        let Some(last) = all.get_mut(usize::from(violation.kind)) else { return false };
        let is_due = last.at.is_none_or(|at| now.0.saturating_sub(at.0) >= PAUSE);
        if is_due {
            *last = Last { waiting: Some(violation), at: Some(now) };
        }
        is_due
    }

    /// Whether the agent has to be told of one.
    pub(crate) fn is_some(&self) -> bool {
        self.0.lock().iter().any(|last| last.waiting.is_some())
    }

    fn take(&self) -> [Option<Violation>; 3] {
        self.0.lock().each_mut().map(|last| last.waiting.take())
    }
}

impl Engine {
    /// Tells the agent of violations. Waits for the agent, so it runs on the helper thread.
    pub(crate) fn tell_violations(&self) {
        for violation in self.helper_work.violations.take().into_iter().flatten() {
            // Without an agent there is no port.
            let _ = self.tell(&request::private(command::VIOLATION, &violation, 0));
        }
    }
}

impl Qp {
    /// Tells the agent that packets have no path, which the engine counts elsewhere.
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
        if engine.helper_work.violations.keep(violation, engine.now()) {
            engine.waker.kick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::private::violation::{NO_PATH, PKEY, QKEY};

    #[test]
    fn the_agent_is_told_of_one_violation_of_each_kind_in_a_pause() {
        let untold = Untold::default();
        let keep = |kind, key, at| untold.keep(Violation { kind, key, ..Violation::default() }, Time(at));
        let told = || untold.take().map(|told| told.map(|violation| violation.key));
        assert!(keep(QKEY, 1, 5) && keep(PKEY, 2, 5));
        assert!((0..1000).all(|at| !keep(QKEY, 3, 5 + at)) && untold.is_some());
        assert_eq!((told(), told(), untold.is_some()), ([Some(1), Some(2), None], [None; 3], false));
        assert!(!keep(QKEY, 4, 4 + PAUSE) && keep(QKEY, 5, 5 + PAUSE));
        assert!(keep(NO_PATH, 7, 0));
        assert_eq!(told(), [Some(5), None, Some(7)]);
        assert!(!keep(7, 6, 10 * PAUSE), "no such kind");
    }
}
