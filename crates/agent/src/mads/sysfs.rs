//! The counters of a port as sysfs shows them: those of performance management, as they are now.
//! Adds to [`Mads`].

use super::Mads;
use super::way::PortId;
use crate::mirror::counters::{AGE, COUNTERS, PortCounters};
use crate::world::World;

impl Mads {
    /// The counters of a port. `None` if there is no such port, or if they were counted less than
    /// [`AGE`] ago, so that the files are new enough.
    pub(crate) fn port_counters(&mut self, world: &mut World, at: PortId) -> Option<PortCounters> {
        let now = self.now();
        let services = self.ports.get_mut(&at)?;
        if services.counted.is_some_and(|counted| now < counted + AGE) {
            return None;
        }
        services.counted = Some(now);
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
}
