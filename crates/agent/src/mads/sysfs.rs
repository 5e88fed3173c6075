//! The counters of a port as sysfs shows them: those of performance management, as they are now.
//! Adds to [`Mads`].

use std::time::Duration;

use super::Mads;
use super::way::PortId;
use crate::mirror::counters::COUNTERS;
use crate::world::World;

/// The most that values are old. Programs that read all counters of a port open many files, and
/// looking at all queue pairs is work.
const AGE: Duration = Duration::from_millis(50);

impl Mads {
    /// The counters of a port in the order of [`COUNTERS`]. `None` if there is no such port, or
    /// if they were counted less than [`AGE`] ago, so that the files are new enough.
    pub(crate) fn port_counters(&mut self, world: &mut World, at: PortId) -> Option<[u64; COUNTERS.len()]> {
        let now = self.now();
        let services = self.ports.get_mut(&at)?;
        if services.counted.is_some_and(|counted| now < counted + AGE) {
            return None;
        }
        services.counted = Some(now);
        self.count_traffic(world);
        let end = self.end((at.device, at.port));
        if let (Some(fabric), Some(end)) = (&mut self.fabric, end) {
            return Some(COUNTERS.map(|(_, counter)| fabric.managed.counter(end, counter)));
        }
        let port = self.devices.get(at.device)?.node.port(at.port)?;
        Some(COUNTERS.map(|(_, counter)| port.counters.value(counter)))
    }
}
