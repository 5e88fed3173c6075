//! Adds the traffic of programs to the counters of ports: at both ends, and at each switch on the
//! path that the tables say. Adds to [`Mads`].

use mad::counters::Counter::{
    self, ReceiveData, ReceivePackets, UnicastReceivePackets, UnicastXmitPackets, XmitData, XmitPackets,
};
use subnet::Managed;
use subnet::fabric::{End, Hop, Path, Target};
use wire::Grh;

use super::Mads;
use super::way::PortId;
use crate::objects::groups::At;
use crate::objects::traffic::{Counted, Flow, Sum};
use crate::world::World;

/// The counters of what a port sends, and of what it receives: data, packets, unicast packets.
const XMIT: [Counter; 3] = [XmitData, XmitPackets, UnicastXmitPackets];
const RECEIVE: [Counter; 3] = [ReceiveData, ReceivePackets, UnicastReceivePackets];

impl Mads {
    /// Adds what programs have sent and received since the last time.
    pub(super) fn count_traffic(&mut self, world: &mut World) {
        for (flow, counted) in world.take_traffic() {
            self.count(&flow, &counted);
        }
    }

    fn count(&mut self, flow: &Flow, Counted { sent, received }: &Counted) {
        self.count_at(flow.from, XMIT, *sent);
        self.count_at(flow.from, RECEIVE, *received);
        let Some(to) = flow.to else { return };
        self.count_at(to, RECEIVE, *sent);
        self.count_at(to, XMIT, *received);
        let Some(fabric) = &mut self.fabric else { return };
        let end = |at: At| fabric.ends.get(&PortId { device: at.0, port: at.1 }).copied();
        let (Some(start), Some(stop)) = (end(flow.from), end(to)) else { return };
        let net = &mut fabric.managed;
        let first = |end| net.port_info(end).map_or(0, |info| info.lid);
        let (there, back) = (if flow.dlid == 0 { first(stop) } else { flow.dlid }, first(start));
        let way = path(net, start, stop, there, flow.sl);
        // The answers of another subnet pass the same routers.
        let is_routed = way.as_ref().is_some_and(|way| way.own_hops < way.hops.len());
        let return_hops = match &way {
            Some(way) if is_routed => turned(&way.hops),
            _ => path(net, stop, start, back, flow.sl).map(|way| way.hops).unwrap_or_default(),
        };
        count_at_hops(net, &way.map(|way| way.hops).unwrap_or_default(), *sent);
        count_at_hops(net, &return_hops, *received);
    }

    fn count_at(&mut self, (device, port): At, counters: [Counter; 3], sum: Sum) {
        if let Some(fabric) = &mut self.fabric
            && let Some(end) = fabric.ends.get(&PortId { device, port })
        {
            return add(&mut fabric.managed, *end, counters, sum);
        }
        let port = self.devices.get_mut(device).and_then(|device| device.node.port_mut(port));
        if let Some(port) = port {
            for (counter, more) in counters.into_iter().zip([sum.words, sum.packets, sum.packets]) {
                port.counters.add(counter, more);
            }
        }
    }
}

/// The path to a LID of a port as it is now, if need be through a router that has the LID.
fn path(net: &Managed, from: End, to: End, dlid: u16, sl: u8) -> Option<Path> {
    let local = Target { dlid, sl, grh: None };
    let gid = net.fabric().port(to).map(|port| port.settings().identity.gid()).unwrap_or_default();
    let sgid = net.fabric().port(from).map(|port| port.settings().identity.gid()).unwrap_or_default();
    let grh = Grh { sgid, dgid: gid, hop_limit: u8::MAX, ..Grh::default() };
    let targets = [local, Target { grh: Some(grh), ..local }];
    targets.iter().find_map(|target| net.resolve_to(from, target).ok().filter(|path| path.end == to))
}

/// The hops of the other direction.
fn turned(hops: &[Hop]) -> Vec<Hop> {
    hops.iter().map(|hop| Hop { ingress: hop.egress, egress: hop.ingress, ..*hop }).collect()
}

fn count_at_hops(net: &mut Managed, hops: &[Hop], sum: Sum) {
    for hop in hops.iter().filter(|_| sum != Sum::default()) {
        add(net, End { node: hop.node, port: hop.ingress }, RECEIVE, sum);
        add(net, End { node: hop.node, port: hop.egress }, XMIT, sum);
    }
}

fn add(net: &mut Managed, end: End, counters: [Counter; 3], sum: Sum) {
    for (counter, more) in counters.into_iter().zip([sum.words, sum.packets, sum.packets]) {
        net.add(end, counter, more);
    }
}
