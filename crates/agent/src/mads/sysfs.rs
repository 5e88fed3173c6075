//! The counters of a port as sysfs shows them: those of performance management, as they are now. And
//! the samples of them. Adds to [`Mads`].

use std::time::Duration;

use super::Mads;
use super::managed::ManagedDevice;
use super::way::PortId;
use crate::mirror::counters::{AGE, COUNTERS, PortCounters};
use crate::world::World;

/// For how many times the time that a count has taken there is no other one.
const PAUSE: u32 = 3;

impl Mads {
    /// The counters of a port. `None` if there is no such port, or if the files are new enough: see
    /// [`Mads::counted`].
    pub(crate) fn port_counters(&mut self, world: &mut World, at: PortId) -> Option<PortCounters> {
        let now = self.now();
        if self.ports.get(&at)?.counted_until.is_some_and(|until| now < until) {
            return None;
        }
        self.count_traffic(world);
        let hardware = world.hw_counters(at.device, at.port.into());
        let end = self.end((at.device, at.port));
        if let (Some(fabric), Some(end)) = (&mut self.fabric, end) {
            let standard = COUNTERS.map(|(_, counter)| fabric.managed.counter(end, counter));
            return Some(PortCounters { standard, hardware });
        }
        let port = self.devices.get(at.device)?.node.port(at.port)?;
        Some(PortCounters { standard: COUNTERS.map(|(_, counter)| port.counters.value(counter)), hardware })
    }

    /// Without a topology: the nodes of devices sample their counters, if that is due.
    pub(super) fn sample(&mut self, world: &mut World) {
        let now = self.now();
        let is_due = |device: &ManagedDevice| device.node.samples.deadline().is_some_and(|deadline| deadline <= now);
        if self.devices.values().any(is_due) {
            self.count_traffic(world);
            self.devices.values_mut().for_each(|device| device.node.sample(now));
        }
    }

    /// To count, and to show what was counted, has taken a time. It is done again after three times
    /// this time, so that readers take a quarter of the agent's time at most.
    pub(crate) fn counted(&mut self, at: PortId, took: Duration) {
        let now = self.now();
        if let Some(services) = self.ports.get_mut(&at) {
            services.counted_until = Some(now + AGE.max(PAUSE * took));
        }
    }
}
