//! The counters of a port as sysfs shows them: those of performance management, as they are now.
//! Adds to [`Mads`].

use super::Mads;
use super::way::PortId;
use crate::mirror::counters::{AGE, COUNTERS, PortCounters};
use crate::world::World;

/// The longest name that is remembered, in bytes, and how many: more than a port has counters.
const NAME_MAX: usize = 48;
const OPENED_MAX: usize = 64;

impl Mads {
    /// The counters of a port, before a program opens the file `name`. `None` if there is no such
    /// port, or if the files are new enough: they were counted less than [`AGE`] ago, and this one
    /// has not been opened since.
    pub(crate) fn port_counters(&mut self, world: &mut World, at: PortId, name: &str) -> Option<PortCounters> {
        let now = self.now();
        let services = self.ports.get_mut(&at)?;
        let is_known = name.len() <= NAME_MAX && services.opened.len() < OPENED_MAX;
        if services.counted.is_some_and(|counted| now < counted + AGE)
            && is_known
            && services.opened.insert(name.to_owned())
        {
            return None;
        }
        services.counted = Some(now);
        services.opened.clear();
        if name.len() <= NAME_MAX {
            services.opened.insert(name.to_owned());
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
}
