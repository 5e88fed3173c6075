//! Collects what queue pairs have sent and received, for the counters of ports. `mads::traffic`
//! adds it when somebody asks for them. Adds to [`World`].

use std::collections::{BTreeMap, BTreeSet};

use abi::Record;
use abi::ah::SL_MAX;
use abi::device::mtu_bytes;
use abi::qp::Dest;
use abi::queue::{
    DATAGRAM_FLOW_LEN, DATAGRAM_FLOWS, DATAGRAM_ROUTE_LEN, DatagramFlow, DatagramRoute, ON_WIRE, context_page,
    qp as word,
};
use protocol::Service;

use crate::device::Port;
use crate::ids::ContextId;
use crate::objects::Qp;
use crate::objects::groups::At;
use crate::objects::paths::GlobalRoute;
use crate::objects::traffic::{Counted, Flow, Sum};
use crate::world::World;

impl World {
    /// Looks at all queue pairs. Returns what they have sent and received since the last time.
    pub(crate) fn take_traffic(&mut self) -> BTreeMap<Flow, Counted> {
        let owners: Vec<ContextId> = self.contexts.keys().copied().collect();
        for owner in owners {
            self.note_traffic_of(owner);
        }
        self.tables.traffic.take()
    }

    /// Notes what the queue pairs of a context have sent and received.
    pub(crate) fn note_traffic_of(&mut self, owner: ContextId) {
        for handle in self.tables.qps.handles(owner) {
            self.note_traffic(owner, handle);
        }
        self.note_datagrams(owner);
    }

    /// Notes what a queue pair has sent and received: it is about to be destroyed, for example. An
    /// engine may send before the agent has read the command that connects the queue pair. Until
    /// then, it is not known which ports count that.
    pub(crate) fn note_traffic(&mut self, owner: ContextId, handle: u32) {
        if !self.has_destination(owner, handle) {
            return;
        }
        let Some(counted) = self.tables.qps.find_mut(owner, handle).and_then(Qp::take_traffic) else { return };
        if let Some(flow) = self.flow_of(owner, handle) {
            self.tables.traffic.add(flow, counted);
        }
    }

    /// Whether the agent knows where the packets of a queue pair go.
    fn has_destination(&self, owner: ContextId, handle: u32) -> bool {
        let device = self.contexts.get(&owner).and_then(|context| self.devices.get(context.device));
        let (Some(device), Some(qp)) = (device, self.tables.qps.find(owner, handle)) else { return false };
        // Connections of RoCE and InfiniBand have an MTU from RTR on.
        let needs_path = qp.service != Service::Ud && !device.is_iwarp();
        qp.attributes.port_num != 0 && (qp.attributes.path_mtu != 0 || !needs_path)
    }

    /// Notes the datagrams that a context has sent: it is about to end, for example.
    pub(crate) fn note_datagrams(&mut self, owner: ContextId) {
        for (place, (flow, sum)) in self.datagram_flows(owner).into_iter().enumerate() {
            self.tables.traffic.add_datagrams((owner, place), flow, sum);
        }
    }

    /// The flows of all connections and datagrams, each once.
    pub(crate) fn flows(&self) -> BTreeSet<Flow> {
        let all = self.contexts.keys().flat_map(|owner| {
            let handles = self.tables.qps.handles(*owner).into_iter();
            let connections = handles.filter_map(|handle| self.flow_of(*owner, handle));
            connections.chain(self.datagram_flows(*owner).into_iter().map(|(flow, _)| flow))
        });
        all.filter(Flow::is_connected).map(Flow::short).collect()
    }

    /// The datagrams of a context by their destination, as its engine counts them.
    fn datagram_flows(&self, owner: ContextId) -> Vec<(Flow, Sum)> {
        let context = self.contexts.get(&owner);
        let Some((device, events)) = context.and_then(|it| Some((it.device, it.events.as_ref()?))) else {
            return Vec::new();
        };
        let places = (0..DATAGRAM_FLOWS).map_while(|place| {
            let mut bytes = [0; DATAGRAM_FLOW_LEN];
            events.page().copy_out(context_page::DATAGRAM_FLOWS + place * DATAGRAM_FLOW_LEN, &mut bytes);
            let flow = DatagramFlow::read(&bytes).filter(|flow| flow.packets != 0)?;
            let mut bytes = [0; DATAGRAM_ROUTE_LEN];
            events.page().copy_out(context_page::DATAGRAM_ROUTES + place * DATAGRAM_ROUTE_LEN, &mut bytes);
            Some((flow, DatagramRoute::read(&bytes)?))
        });
        let read = |(flow, route): (DatagramFlow, DatagramRoute)| {
            let from = (device, flow.port);
            let DatagramFlow { dlid, pkey_index, sl, lost, packets, words, .. } = flow;
            let pkey = self.pkey_at(from, pkey_index);
            let mtu = if lost == 0 { 0 } else { mtu_bytes(lost).unwrap_or(1) };
            let route = (route.dgid, route.hop_limit, route.traffic_class);
            (Flow { from, to: None, dlid, sl: sl & SL_MAX, pkey, mtu, route }, Sum { packets, words })
        };
        places.map(read).collect()
    }

    /// A key of a port's table; 0 if it has no such index.
    pub(crate) fn pkey_at(&self, (device, port): At, index: u16) -> u16 {
        let port = self.devices.get(device).and_then(|device| device.port(port.into()).ok());
        port.and_then(|port| port.pkeys.get(index.into())).unwrap_or(0)
    }

    /// Where the packets of a queue pair go.
    pub(crate) fn flow_of(&self, owner: ContextId, handle: u32) -> Option<Flow> {
        let device = self.contexts.get(&owner)?.device;
        let qp = self.tables.qps.find(owner, handle)?;
        let attributes = qp.attributes_now();
        let from = (device, attributes.port_num);
        let Dest { dlid, sl, is_global, dgid, hop_limit, traffic_class, .. } = attributes.dest;
        let on_wire = qp.block.read(word::LANE) == ON_WIRE;
        if qp.service == Service::Ud || on_wire && !self.tables.paths.matter {
            return Some(Flow::of_port(from));
        }
        let pkey = self.pkey_at(from, attributes.pkey_index);
        if on_wire {
            return Some(Flow { dlid, sl, pkey, ..Flow::of_port(from) });
        }
        let mtu = mtu_bytes(attributes.path_mtu).unwrap_or(0);
        // The address is the GID, or the LID if there is no GRH.
        let has = |port: &Port| match is_global {
            0 => port.lid.is_some_and(|lid| lid.all().contains(&dlid)),
            _ => port.gids.iter().any(|(_, entry)| entry.gid == dgid),
        };
        let own = self.devices.get(from.0).and_then(|device| device.port(from.1.into()).ok());
        let own = own.and_then(|port| port.gids.entry(0)).map(|entry| entry.gid).unwrap_or_default();
        let leaves = is_global != 0 && dgid[..8] != own[..8];
        let route = if leaves { (dgid, hop_limit, traffic_class) } else { GlobalRoute::default() };
        Some(Flow { from, to: self.devices.port_with(has), dlid, sl, pkey, mtu, route })
    }
}

#[cfg(test)]
mod tests {
    use abi::command::{extended, number};
    use abi::private::{Violation, violation};
    use abi::qp::{ModifyQp, attr, state};

    use super::*;
    use crate::config::{Config, LinkLayer};
    use crate::dispatch::dispatch;
    use crate::testing::{call, program_with_qp};

    const RTR: u32 = attr::STATE
        | attr::AV
        | attr::PATH_MTU
        | attr::DEST_QPN
        | attr::RQ_PSN
        | attr::MAX_DEST_RD_ATOMIC
        | attr::MIN_RNR_TIMER;

    #[test]
    fn traffic_counts_for_the_connection_whose_commands_come_later() {
        let config = Config::default().with_link_layer(LinkLayer::Infiniband);
        let mut world = World::new(&config, "a test").expect("a world");
        let (id, qp_handle) = program_with_qp(&mut world, 2);
        let send = |world: &World, packets: u64| {
            let qp = world.tables.qps.find(id, qp_handle).expect("it exists");
            qp.block.copy_in(word::LOST_PACKETS, &packets.to_ne_bytes());
        };
        let lost_now = |flows: Option<BTreeMap<Flow, Counted>>| -> Vec<(At, u16, u64)> {
            let flows = flows.into_iter().flatten();
            flows.map(|(flow, counted)| (flow.from, flow.dlid, counted.lost.packets)).collect()
        };
        let lost = |world: &mut World| lost_now(Some(world.take_traffic()));

        send(&world, 3);
        let tell = |world: &mut World| {
            let told = Violation { port: 1, kind: violation::NO_PATH, ..Violation::default() };
            assert_eq!(dispatch(world, id, &extended(number::VIOLATION, &told, 0, 0), Vec::new()).status, 0);
        };
        tell(&mut world);
        assert_eq!(world.tables.traffic.take_if_urgent(), None);
        let attr_mask = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let init = ModifyQp { qp_handle, attr_mask, qp_state: state::INIT, port_num: 1, ..ModifyQp::default() };
        call(&mut world, id, number::MODIFY_QP, &init, 0);
        assert_eq!(lost(&mut world), [], "it has no destination");
        let dest = Dest { dlid: 7, port_num: 1, ..Dest::default() };
        let rtr =
            ModifyQp { qp_handle, attr_mask: RTR, qp_state: state::RTR, path_mtu: 3, dest, ..ModifyQp::default() };
        call(&mut world, id, number::MODIFY_QP, &rtr, 0);
        assert_eq!(lost_now(world.tables.traffic.take_if_urgent()), [((0, 1), 7, 3)], "nobody need tell again");

        send(&world, 4);
        assert_eq!(world.tables.traffic.take_if_urgent(), None);
        tell(&mut world);
        assert_eq!(lost_now(world.tables.traffic.take_if_urgent()), [((0, 1), 7, 1)]);
        send(&world, 6);
        let reset = ModifyQp { qp_handle, attr_mask: attr::STATE, qp_state: state::RESET, ..ModifyQp::default() };
        call(&mut world, id, number::MODIFY_QP, &reset, 0);
        assert_eq!(lost(&mut world), [((0, 1), 7, 2)], "it was sent before the reset");
    }
}
