//! Adds the traffic of programs to the counters of ports: at both ends, and at each switch on the
//! path that the tables say. Adds to [`Mads`].

use mad::counters::Counter::{
    self, ReceiveData, ReceivePackets, UnicastReceivePackets, UnicastXmitPackets, XmitData, XmitPackets,
};
use subnet::Managed;
use subnet::fabric::End;

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
        let first = |end| fabric.managed.port_info(end).map_or(0, |info| info.lid);
        let (there, back) = (if flow.dlid == 0 { first(stop) } else { flow.dlid }, first(start));
        count_on_path(&mut fabric.managed, (start, there, flow.sl), *sent);
        count_on_path(&mut fabric.managed, (stop, back, flow.sl), *received);
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

/// Counts at the switches on a path, as it is now.
fn count_on_path(net: &mut Managed, (from, dlid, sl): (End, u16, u8), sum: Sum) {
    if sum == Sum::default() {
        return;
    }
    let Ok(path) = net.resolve(from, dlid, sl) else { return };
    for hop in path.hops {
        add(net, End { node: hop.node, port: hop.ingress }, RECEIVE, sum);
        add(net, End { node: hop.node, port: hop.egress }, XMIT, sum);
    }
}

fn add(net: &mut Managed, end: End, counters: [Counter; 3], sum: Sum) {
    for (counter, more) in counters.into_iter().zip([sum.words, sum.packets, sum.packets]) {
        net.add(end, counter, more);
    }
}
