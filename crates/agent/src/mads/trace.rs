//! The way of packets through the fabric as an operator sees it: between two end ports, or of a
//! connection. The answers are JSON (docs/json.md). Adds to [`Mads`].

use serde_json::{Value, json};
use subnet::Managed;
use subnet::fabric::{End, Probe};
use wire::Grh;

use super::Mads;
use super::fabric::Fabric;
use super::way::PortId;
use crate::ids::ContextId;
use crate::objects::groups::At;
use crate::objects::paths::GlobalRoute;
use crate::objects::traffic::Flow;
use crate::world::World;

impl Mads {
    /// The way of a queue pair's packets, if it is connected and there are switches.
    pub(crate) fn way_of(&self, world: &World, owner: ContextId, handle: u32) -> Option<Value> {
        let net = &self.fabric.as_ref()?.managed;
        world.tables.qps.find(owner, handle).filter(|qp| qp.state().serves())?;
        let flow = world.flow_of(owner, handle).filter(Flow::is_connected)?;
        let (start, probe) = self.probe(&flow)?;
        let to = flow.to.and_then(|to| self.end(to));
        Some(way(net, (start, to), &probe))
    }

    /// A packet of a flow, and the end port that sends it.
    pub(super) fn probe(&self, flow: &Flow) -> Option<(End, Probe)> {
        let Flow { dlid, sl, pkey, mtu, .. } = *flow;
        let first = || Some(self.fabric.as_ref()?.managed.port_info(self.end(flow.to?)?)?.lid);
        let dlid = if dlid == 0 { first()? } else { dlid };
        let start = self.end(flow.from)?;
        let fabric = self.fabric.as_ref()?;
        let grh = fabric.grh(start, &flow.route).or_else(|| self.group_grh(start, dlid));
        Some((start, Probe { dlid, sl, grh, pkey: Some(pkey), payload: mtu as usize }))
    }

    /// The GRH of packets to a group that routers forward.
    fn group_grh(&self, from: End, mlid: u16) -> Option<Grh> {
        let net = &self.fabric.as_ref()?.managed;
        let dgid = net.routed_group(from, mlid)?.to_be_bytes();
        let sgid = net.fabric().port(from)?.settings().identity.gid();
        Some(Grh { sgid, dgid, hop_limit: u8::MAX, ..Grh::default() })
    }

    /// The end port of the fabric to which a device's port is attached.
    pub(super) fn end(&self, (device, port): At) -> Option<End> {
        self.fabric.as_ref()?.ends.get(&PortId { device, port }).copied()
    }
}

impl Fabric {
    /// The GRH by which routers forward packets of an end port.
    pub(super) fn grh(&self, from: End, &(dgid, hop_limit, traffic_class): &GlobalRoute) -> Option<Grh> {
        let sgid = self.managed.fabric().port(from).map(|port| port.settings().identity.gid()).unwrap_or_default();
        (dgid != [0; 16]).then(|| Grh { sgid, dgid, hop_limit, traffic_class, ..Grh::default() })
    }
}

/// The name of a port, as `S1[3]`.
pub(super) fn name(net: &Managed, end: End) -> String {
    format!("{}[{}]", net.name(end.node).unwrap_or_default(), end.port)
}

/// The way of a packet from an end port, by the tables as they are, or where and why it ends.
pub(super) fn way(net: &Managed, (from, to): (End, Option<End>), probe: &Probe) -> Value {
    let to = to.map(|to| name(net, to));
    let mut told = json!({ "from": name(net, from), "to": to, "lid": probe.dlid, "sl": probe.sl });
    if probe.dlid == 0 {
        told["why"] = format!("{} has no LID; has a subnet manager run?", to.as_deref().unwrap_or("the port")).into();
        return told;
    }
    let (path, lost) = net.fabric().trace(from, probe);
    let hops = path.hops.iter().map(|hop| {
        let node = net.name(hop.node).unwrap_or_default();
        json!({ "node": node, "in": hop.ingress, "out": hop.egress, "vl": hop.vl })
    });
    let hops: Vec<Value> = hops.collect();
    if let Some(lost) = lost {
        told["passed"] = hops.into();
        told["ends_at"] = name(net, lost.end).into();
        told["why"] = lost.cause.to_string().into();
        return told;
    }
    told["hops"] = hops.into();
    told["vl"] = path.vl.into();
    told["mtu"] = path.mtu.bytes().into();
    told["rate"] = path.rate.to_string().into();
    told["delay_ns"] = (path.delay / 1000).into();
    told
}
