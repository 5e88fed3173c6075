//! The counters of the model as those of performance management. The agent owns its numbers, which
//! a Set may clear. What the model has counted since the last time is added to them when someone
//! asks.

use super::Managed;
use crate::counters::{Cause, Counters};
use crate::fabric::{End, NodeId};
use crate::rate::Time;
use mad::counters::Counter;
use wire::perf::ALL_PORTS;

impl Managed {
    /// Brings the counters of a port, or of all ports of a node, up to date.
    pub(super) fn count(&mut self, node: NodeId, port: u8) {
        let last = self.shape(node).1;
        let ports = if port == ALL_PORTS { 0..=last } else { port..=port };
        ports.for_each(|port| self.count_port(End { node, port }));
    }

    fn count_port(&mut self, end: End) {
        self.fabric.count_wait(end);
        let Some(port) = self.fabric.port(end) else { return };
        let (now, tick) = (port.counters(), port.rate().symbol());
        let before = self.counted.get(&end);
        let more: Vec<(Counter, u64)> = match before {
            Some(before) => {
                let pairs = values(now, tick).into_iter().zip(values(before, tick));
                pairs.map(|((counter, now), (_, before))| (counter, now.saturating_sub(before))).collect()
            }
            None => values(now, tick).into(),
        };
        if more.iter().all(|(_, more)| *more == 0) {
            return;
        }
        let now = now.clone();
        self.counted.insert(end, now);
        if let Some(port) = self.port_mut(end) {
            more.into_iter().for_each(|(counter, more)| port.counters.add(counter, more));
        }
    }
}

/// The counters of the IBA that the model counts. A tick is a time in the model.
fn values(counters: &Counters, tick: Time) -> [(Counter, u64); 26] {
    let dropped = |causes: &[Cause]| causes.iter().map(|cause| counters.dropped(*cause)).sum();
    let error = |error| counters.error(error);
    use crate::counters::PortError as E;
    let (sent, received) = (counters.sent, counters.received);
    [
        (Counter::XmitData, sent.words),
        (Counter::ReceiveData, received.words),
        (Counter::XmitPackets, sent.packets),
        (Counter::ReceivePackets, received.packets),
        (Counter::UnicastXmitPackets, sent.packets - sent.multicast),
        (Counter::UnicastReceivePackets, received.packets - received.multicast),
        (Counter::MulticastXmitPackets, sent.multicast),
        (Counter::MulticastReceivePackets, received.multicast),
        (Counter::XmitWait, counters.waited / tick.max(1)),
        (Counter::LinkRecoveries, counters.recovered.into()),
        (Counter::LinkDowned, counters.downed.into()),
        (Counter::ReceiveErrors, error(E::PortRcvErrors)),
        (Counter::SwitchRelayErrors, error(E::PortRcvSwitchRelayErrors)),
        (Counter::XmitDiscards, error(E::PortXmitDiscards)),
        (Counter::XmitConstraintErrors, error(E::PortXmitConstraintErrors)),
        (Counter::ReceiveConstraintErrors, error(E::PortRcvConstraintErrors)),
        (Counter::BufferOverruns, error(E::ExcessiveBufferOverrunErrors)),
        (Counter::Vl15Dropped, error(E::Vl15Dropped)),
        (Counter::DiscardsInactive, dropped(&[Cause::EgressDown])),
        (Counter::DiscardsMtu, dropped(&[Cause::TooLong])),
        (Counter::DiscardsSwitchLifeTime, dropped(&[Cause::LifeTime])),
        (Counter::DiscardsHeadOfQueue, dropped(&[Cause::HeadOfQueue])),
        (Counter::ReceivedLocalPhysical, dropped(&[Cause::Damaged])),
        (Counter::ReceivedMalformed, dropped(&[Cause::NotReceiving, Cause::NotMine])),
        (Counter::ReceivedDlidMapping, dropped(&[Cause::BadLid, Cause::NoRoute])),
        (Counter::ReceivedLooping, dropped(&[Cause::BackToSource])),
    ]
}
