//! Collects what queue pairs have sent and received, for the counters of ports. `mads::traffic` adds
//! it when somebody asks for them. Adds to [`World`].

use std::collections::{BTreeMap, BTreeSet};

use abi::qp::Dest;
use abi::queue::{ON_WIRE, qp as word};
use protocol::Service;

use crate::device::Port;
use crate::ids::ContextId;
use crate::objects::Qp;
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
        let Some(counted) = self.tables.qps.find_mut(owner, handle).and_then(Qp::take_traffic) else { return };
        if let Some(flow) = self.flow_of(owner, handle) {
            self.tables.traffic.add(flow, counted);
        }
    }

    /// The flows of all connections to ports of this agent, each once.
    pub(crate) fn flows(&self) -> BTreeSet<Flow> {
        let all = self.contexts.keys().flat_map(|owner| {
            let handles = self.tables.qps.handles(*owner).into_iter();
            handles.filter_map(|handle| self.flow_of(*owner, handle))
        });
        all.filter(|flow| flow.is_connected()).collect()
    }

    /// Where the packets of a queue pair go.
    pub(crate) fn flow_of(&self, owner: ContextId, handle: u32) -> Option<Flow> {
        let device = self.contexts.get(&owner)?.device;
        let qp = self.tables.qps.find(owner, handle)?;
        let attributes = qp.attributes_now();
        let from = (device, attributes.port_num);
        if qp.service == Service::Ud || qp.block.read(word::LANE) == ON_WIRE {
            return Some(Flow::of_port(from));
        }
        let port = self.devices.get(device).and_then(|device| device.port(from.1.into()).ok());
        let pkey = port.and_then(|port| port.pkeys.get(attributes.pkey_index.into())).unwrap_or(0);
        let Dest { dlid, sl, is_global, dgid, .. } = attributes.dest;
        // The address is the GID, or the LID if there is no GRH.
        let has = |port: &Port| match is_global {
            0 => port.lid.is_some_and(|lid| lid.all().contains(&dlid)),
            _ => port.gids.iter().any(|(_, entry)| entry.gid == dgid),
        };
        Some(Flow { from, to: self.devices.port_with(has), dlid, sl, pkey })
    }
}
