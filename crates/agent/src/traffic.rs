//! Collects what queue pairs have sent and received, for the counters of ports. `mads::traffic`
//! adds it when somebody asks for them. Adds to [`World`].

use std::collections::BTreeMap;

use abi::qp::Dest;
use abi::queue::{ON_WIRE, qp as word};
use protocol::Service;

use crate::devices::Devices;
use crate::ids::ContextId;
use crate::objects::groups::At;
use crate::objects::traffic::{Counted, Flow};
use crate::world::World;

impl World {
    /// Looks at all queue pairs. Returns what they have sent and received since the last time.
    pub(crate) fn take_traffic(&mut self) -> BTreeMap<Flow, Counted> {
        let owners: Vec<ContextId> = self.contexts.keys().copied().collect();
        for owner in owners {
            for handle in self.tables.qps.handles(owner) {
                self.note_traffic(owner, handle);
            }
        }
        self.tables.traffic.take()
    }

    /// Notes what a queue pair has sent and received: it is about to be destroyed, for example.
    pub(crate) fn note_traffic(&mut self, owner: ContextId, handle: u32) {
        let Some(device) = self.contexts.get(&owner).map(|context| context.device) else { return };
        let Some(qp) = self.tables.qps.find_mut(owner, handle) else { return };
        let Some(counted) = qp.take_traffic() else { return };
        let attributes = &qp.attributes;
        let lane = qp.service != Service::Ud && !matches!(qp.block.read(word::LANE), 0 | ON_WIRE);
        let to = if lane { port_of(&self.devices, &attributes.dest) } else { None };
        let Dest { dlid, sl, .. } = attributes.dest;
        let flow = Flow { from: (device, attributes.port_num), to, dlid, sl };
        self.tables.traffic.add(flow, counted);
    }
}

/// The port of this agent that has the address: the GID, or the LID if there is no GRH.
fn port_of(devices: &Devices, dest: &Dest) -> Option<At> {
    devices.iter().find_map(|device| {
        let has = |port: &crate::device::Port| match dest.is_global {
            0 => port.lid.is_some_and(|lid| lid.all().contains(&dest.dlid)),
            _ => port.gids.iter().any(|(_, entry)| entry.gid == dest.dgid),
        };
        device.ports.iter().position(has).map(|index| (device.index, index as u8 + 1))
    })
}
