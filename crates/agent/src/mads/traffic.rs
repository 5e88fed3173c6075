//! Adds the traffic of programs to the counters of ports: at both ends, and at each switch on the
//! path that the tables say. What had no path counts where the switches drop it. Adds to [`Mads`].

use std::collections::BTreeMap;

use mad::counters::Counter::{
    self, DiscardsInactive, MulticastReceivePackets, MulticastXmitPackets, ReceiveData, ReceivePackets,
    UnicastReceivePackets, UnicastXmitPackets, XmitData, XmitDiscards, XmitPackets,
};
use subnet::fabric::tree::Tree;
use subnet::fabric::{End, Hop, NoPath, Path, Probe};
use subnet::tunnel::passed::Passed;
use subnet::{Cause, Managed};

use super::Mads;
use super::bad_links::count_errors;
use super::fabric::Fabric;
use super::way::PortId;
use crate::objects::groups::At;
use crate::objects::paths::{TreeQuestion, is_of_partition};
use crate::objects::traffic::{Counted, FLOWS, Flow, MOST, Sum};
use crate::world::World;

/// The counters of what a port sends, and of what it receives: data, packets, unicast packets.
const XMIT: [Counter; 3] = [XmitData, XmitPackets, UnicastXmitPackets];
const RECEIVE: [Counter; 3] = [ReceiveData, ReceivePackets, UnicastReceivePackets];

/// The same for multicast packets.
const XMIT_COPIES: [Counter; 3] = [XmitData, XmitPackets, MulticastXmitPackets];
const RECEIVE_COPIES: [Counter; 3] = [ReceiveData, ReceivePackets, MulticastReceivePackets];

impl Mads {
    /// Adds what programs have sent and received since the last time.
    pub(super) fn count_traffic(&mut self, world: &mut World) {
        let traffic = world.take_traffic();
        self.count_flows(world, traffic);
    }

    /// Adds what was collected.
    pub(super) fn count_flows(&mut self, world: &mut World, traffic: BTreeMap<Flow, Counted>) {
        for (flow, counted) in traffic {
            self.count(&flow, &counted);
            if counted.datagrams != Sum::default() {
                self.count_datagrams(world, &flow, counted.datagrams);
            }
            if counted.lost != Sum::default() {
                self.count_lost(world, &flow, counted.lost);
            }
        }
        if let Some(fabric) = &mut self.fabric {
            fabric.managed.tell_passed();
        }
    }

    /// Packets of programs have come in past the tunnel of a link: counts them at the ports of
    /// switches. The port that receives them counts them by itself.
    pub(super) fn count_passed(&mut self, far: End, passed: &[Passed]) {
        let Some(net) = self.fabric.as_mut().map(|fabric| &mut fabric.managed) else { return };
        for one in passed {
            let sum = Sum { packets: one.packets.min(MOST), words: one.words.min(MOST) };
            let probe = Probe { dlid: one.dlid, sl: one.sl, ..Probe::default() };
            let (path, lost) = net.fabric().trace(far, &probe);
            count_at_hops(net, &path.hops, sum);
            match lost {
                Some(NoPath { end, cause }) => net.add_drops(end, cause, sum.packets),
                None => pass(net, &path, &probe, (sum, one.tunnels.saturating_add(1))),
            }
        }
        net.tell_passed();
    }

    /// The paths of devices have changed: adds what was lost before, and looks what is lost from
    /// now on.
    pub(super) fn follow_paths(&mut self, world: &mut World) {
        self.count_traffic(world);
        let flows = world.flows();
        let blocked = flows.into_iter().filter_map(|flow| {
            let (start, probe) = self.probe(&flow)?;
            let (path, lost) = self.fabric.as_ref()?.managed.fabric().trace(start, &probe);
            Some((flow, (path, lost?)))
        });
        self.blocked = blocked.take(FLOWS).collect();
    }

    fn count(&mut self, flow: &Flow, Counted { sent, received, .. }: &Counted) {
        self.count_at(flow.from, XMIT, *sent);
        self.count_at(flow.from, RECEIVE, *received);
        let Some(to) = flow.to else { return self.count_to_host(flow, *sent) };
        self.count_at(to, RECEIVE, *sent);
        self.count_at(to, XMIT, *received);
        let (Some((start, there)), Some(stop)) = (self.probe(flow), self.end(to)) else { return };
        let Some(net) = self.fabric.as_mut().map(|fabric| &mut fabric.managed) else { return };
        let hops = |from, probe: &Probe| net.resolve_to(from, probe).map(|path| path.hops).unwrap_or_default();
        let way = hops(start, &Probe { payload: 0, ..there });
        let way_back = match there.grh {
            // The answers of another subnet pass the same routers.
            Some(_) => turned(&way),
            None => {
                let dlid = net.port_info(start).map_or(0, |info| info.lid);
                hops(stop, &Probe { dlid, sl: flow.sl, ..Probe::default() })
            }
        };
        count_at_hops(net, &way, *sent);
        count_at_hops(net, &way_back, *received);
    }

    /// Counts packets of a connection to another agent of the subnet.
    fn count_to_host(&mut self, flow: &Flow, sum: Sum) {
        let Some((start, probe)) = self.probe(flow).filter(|_| flow.dlid != 0) else { return };
        let Some(net) = self.fabric.as_mut().map(|fabric| &mut fabric.managed) else { return };
        if let Ok(path) = net.resolve_to(start, &probe) {
            count_at_hops(net, &path.hops, sum);
            pass(net, &path, &probe, (sum, 0));
        }
    }

    /// Counts packets without a path at the ports that they pass, and where they are dropped.
    fn count_lost(&mut self, world: &World, flow: &Flow, sum: Sum) {
        let Some((start, probe)) = self.probe(flow) else { return self.count_lost_at_port(world, flow.from, sum) };
        let known = self.blocked.get(&flow.short()).cloned();
        let Some(Fabric { managed: net, bad_links, .. }) = &mut self.fabric else { return };
        if probe.is_multicast() {
            let copies = net.fabric().trace_multicast(start, &probe);
            return count_copies(net, (start, &probe), copies, sum);
        }
        let (path, lost) = known.map_or_else(|| net.fabric().trace(start, &probe), |(path, lost)| (path, Some(lost)));
        // What the tables let pass, a bad link has lost.
        if lost.is_none()
            && let Some((before, harm)) = bad_links.first_lossy(net.fabric(), start, &path)
        {
            let hops = path.hops.get(..before).unwrap_or_default();
            add(net, start, XMIT, sum);
            count_at_hops(net, hops, sum);
            return count_errors(net, start, hops, (harm, sum.packets));
        }
        count_way(net, start, (&path, lost), sum);
        if let Some(NoPath { end, .. }) = lost.filter(|lost| is_of_partition(lost.cause)) {
            net.drop_for_partition(end, start, &probe, sum.packets);
        }
    }

    /// Counts datagrams at all ports on their way.
    fn count_datagrams(&mut self, world: &World, flow: &Flow, sum: Sum) {
        let Some((start, probe)) = self.probe(flow) else { return self.count_at(flow.from, XMIT, sum) };
        let Some(fabric) = &mut self.fabric else { return };
        if probe.is_multicast() {
            // The tables may have changed since, for example because the group is gone.
            let (from, mlid, route) = (flow.from, probe.dlid, ([0; 16], 0));
            let first = TreeQuestion { from, mlid, sl: probe.sl, pkey: flow.pkey, route };
            let last = TreeQuestion { route: ([u8::MAX; 16], u8::MAX), ..first };
            let mut known = world.tables.paths.trees.range(first..=last).map(|(_, known)| known);
            let before = known.rfind(|known| fabric.is_stale(known)).map(|known| known.answer.copies.clone());
            let copies = before.unwrap_or_else(|| fabric.managed.fabric().trace_multicast(start, &probe));
            return count_copies(&mut fabric.managed, (start, &probe), copies, sum);
        }
        let net = &mut fabric.managed;
        match net.fabric().trace(start, &probe) {
            (path, None) => {
                count_way(net, start, (&path, None), sum);
                pass(net, &path, &probe, (sum, 0));
            }
            // Their path is gone by now.
            (_, Some(_)) => add(net, start, XMIT, sum),
        }
    }

    /// Without switches, packets leave a port that is up, and nobody receives them.
    fn count_lost_at_port(&mut self, world: &World, at: At, sum: Sum) {
        if super::managed::is_up(world, at.0, at.1) {
            return self.count_at(at, XMIT, sum);
        }
        if let Some(port) = self.devices.get_mut(at.0).and_then(|device| device.node.port_mut(at.1)) {
            port.counters.add(XmitDiscards, sum.packets);
            port.counters.add(DiscardsInactive, sum.packets);
        }
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

/// The hops of the other direction.
pub(super) fn turned(hops: &[Hop]) -> Vec<Hop> {
    hops.iter().map(|hop| Hop { ingress: hop.egress, egress: hop.ingress, ..*hop }).collect()
}

fn count_at_hops(net: &mut Managed, hops: &[Hop], sum: Sum) {
    for hop in hops.iter().filter(|_| sum != Sum::default()) {
        add(net, End { node: hop.node, port: hop.ingress }, RECEIVE, sum);
        add(net, End { node: hop.node, port: hop.egress }, XMIT, sum);
    }
}

/// Counts packets at all ports that they pass, and the drop. Without a drop, no queue pair takes
/// them at the end of their path.
fn count_way(net: &mut Managed, start: End, (path, lost): (&Path, Option<NoPath>), sum: Sum) {
    if let Some(NoPath { end, cause }) = lost {
        net.add_drops(end, cause, sum.packets);
    }
    if lost.is_none_or(|lost| lost.end != start) {
        add(net, start, XMIT, sum);
        count_at_hops(net, &path.hops, sum);
        if path.end == start {
            return add(net, start, RECEIVE, sum);
        }
        let last = path.hops.last().map_or(start, |hop| End { node: hop.node, port: hop.egress });
        if let Some(peer) = net.fabric().peer(last).filter(|_| lost.map(|lost| lost.cause) != Some(Cause::NotReceiving))
        {
            add(net, peer, RECEIVE, sum);
        }
    }
}

/// The packets of a path may leave by a link to another agent, which then counts them, too. They
/// have passed `tunnels` such links before.
fn pass(net: &mut Managed, path: &Path, probe: &Probe, (sum, tunnels): (Sum, u8)) {
    if sum != Sum::default() {
        let (Probe { dlid, sl, .. }, Sum { packets, words }) = (*probe, sum);
        net.pass(path.end, Passed { dlid, sl, tunnels, packets, words });
    }
}

/// Counts multicast packets of a port: one copy for each link of the tree.
fn count_copies(net: &mut Managed, (start, probe): (End, &Probe), copies: Tree, sum: Sum) {
    for (egress, ingress) in copies.links {
        add(net, egress, XMIT_COPIES, sum);
        add(net, ingress, RECEIVE_COPIES, sum);
    }
    for NoPath { end, cause } in copies.lost {
        net.add_drops(end, cause, sum.packets);
        if is_of_partition(cause) {
            net.drop_for_partition(end, start, probe, sum.packets);
        }
    }
}

fn add(net: &mut Managed, end: End, counters: [Counter; 3], sum: Sum) {
    for (counter, more) in counters.into_iter().zip([sum.words, sum.packets, sum.packets]) {
        net.add(end, counter, more);
    }
}
