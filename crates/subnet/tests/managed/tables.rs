//! Tables and settings that a manager sets are those of the model.

use crate::manager::Manager;
use crate::net::{Net, SECOND, TEXT, data};
use mad::topology::Topology;
use softhca_subnet::fabric::TRAINING;
use softhca_subnet::managed::{Managed, Output};
use softhca_subnet::{Cause, End, Mtu};
use wire::smp::{LinkState, MulticastTable, NodeInfo, PortInfo, SlToVl, SwitchInfo, VlArbitration, VlWeight};

/// Who has received a packet.
fn receivers(outputs: &[Output]) -> Vec<End> {
    let packets = outputs.iter().filter_map(|output| match output {
        Output::Packet(packet) => Some(packet.end),
        _ => None,
    });
    let mut ends: Vec<End> = packets.collect();
    ends.sort_unstable();
    ends
}

#[test]
fn multicast_tables_and_default_ports_lead_to_the_members() {
    let mut net = Net::up();
    let members = [net.end("H2", 1), net.end("H3", 1)];
    members.into_iter().chain([net.end("H4", 1)]).for_each(|end| net.managed.attach(end).unwrap());
    for (description, ports) in [("leaf 1", 1 << 2 | 1 << 7), ("leaf 2", 1 << 1 | 1 << 8)] {
        let path = net.path(description);
        let mut table = MulticastTable::default();
        table.masks[3] = ports;
        assert_eq!(net.manager.set(&mut net.managed, &path, (MulticastTable::ATTRIBUTE, 1), table), Some(0));
    }
    let own = net.lid("H1");
    let send = |net: &mut Net, mlid| {
        net.managed.inject(net.manager.from, data(own, mlid, 0xffff)).unwrap();
        receivers(&net.run(SECOND / 1000))
    };
    assert_eq!(send(&mut net, 0xc000 + 35), members);
    assert_eq!(send(&mut net, 0xc000 + 36), []);
    let path = net.path("leaf 1");
    let mut info: SwitchInfo = net.manager.get(&mut net.managed, &path, SwitchInfo::ATTRIBUTE, 0).unwrap();
    info.default_multicast_primary = 2;
    assert_eq!(net.manager.set(&mut net.managed, &path, (SwitchInfo::ATTRIBUTE, 0), info), Some(0));
    assert_eq!(send(&mut net, 0xc000 + 36), [net.end("H2", 1)]);
}

#[test]
fn port_info_sets_mtu_lanes_and_times_of_the_model() {
    let mut net = Net::up();
    let (path, end) = (net.path("leaf 2"), net.end("S2", 1));
    let change = |info: &mut PortInfo| {
        (info.link.neighbor_mtu, info.vls.operational, info.vls.head_of_queue_life) = (1, 3, 16);
        info.vls.high_limit = 7;
    };
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, change), Some(0));
    let settings = net.managed.fabric().port(end).unwrap().settings();
    assert_eq!((settings.mtu, settings.vls, settings.hoq_life, settings.arbitration.limit), (Mtu::B256, 4, 16, 7));
    net.managed.inject(net.manager.from, data(net.lid("H1"), net.lid("H3"), 0xffff)).unwrap();
    net.run(SECOND / 1000);
    assert_eq!(net.managed.fabric().port(end).unwrap().counters().dropped(Cause::TooLong), 1);
}

#[test]
fn lanes_that_come_into_operation_later_carry_data() {
    let mut net = Net::up();
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let (path, host) = (net.path("leaf 2"), net.path("host 3"));
    let lane = SlToVl { vls: [6; 16] };
    for ingress in 0..=8 {
        let modifier = ingress << 8 | 1;
        assert_eq!(net.manager.set(&mut net.managed, &path, (SlToVl::ATTRIBUTE, modifier), lane), Some(0));
    }
    let send = |net: &mut Net| {
        net.managed.inject(net.manager.from, data(net.lid("H1"), net.lid("H3"), 0xffff)).unwrap();
        receivers(&net.run(SECOND / 1000)).len()
    };
    for (code, received) in [(1, 0), (4, 1)] {
        let set = |info: &mut PortInfo| info.vls.operational = code;
        assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, set), Some(0));
        assert_eq!(net.manager.change_port(&mut net.managed, &host, 1, set), Some(0));
        if code == 1 {
            // The link trains with one lane.
            let down = |info: &mut PortInfo| info.link.state = 1;
            assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, down), Some(0));
            net.run(SECOND);
        }
        for state in [LinkState::Armed, LinkState::Active].into_iter().filter(|_| code == 1) {
            for path in [&path, &host] {
                let set = |info: &mut PortInfo| info.link.state = state as u8;
                assert_eq!(net.manager.change_port(&mut net.managed, path, 1, set), Some(0));
            }
        }
        assert_eq!(send(&mut net), received, "code {code}");
    }
}

#[test]
fn service_levels_and_arbitration_are_those_of_the_tables() {
    let mut net = Net::up();
    let (host, leaf) = (net.path("host 3"), net.path("leaf 2"));
    let lanes = SlToVl { vls: std::array::from_fn(|sl| sl as u8 % 3) };
    assert_eq!(net.manager.set(&mut net.managed, &host, (SlToVl::ATTRIBUTE, 0), lanes), Some(0));
    assert_eq!(net.manager.set(&mut net.managed, &leaf, (SlToVl::ATTRIBUTE, 0x0801), lanes), Some(0));
    let mut low = VlArbitration::default();
    low.entries[0] = VlWeight { vl: 1, weight: 9 };
    assert_eq!(net.manager.set(&mut net.managed, &host, (VlArbitration::ATTRIBUTE, 1 << 16), low), Some(0));
    let settings = net.managed.fabric().port(net.end("H3", 1)).unwrap().settings();
    assert_eq!([4, 5, 15].map(|sl| settings.sl_to_vl.vl(sl)), [Some(1), Some(2), Some(0)]);
    let arbitration = &settings.arbitration;
    assert_eq!((arbitration.low.len(), arbitration.low[0].vl, arbitration.low[0].weight), (8, 1, 9));
    let path = net.managed.resolve(net.end("H2", 1), net.lid("H3"), 2).unwrap();
    assert_eq!(path.hops[1].vl, if path.hops[1].ingress == 8 { 2 } else { 0 });
}

#[test]
fn a_manager_at_port_0_of_a_switch_brings_the_fabric_up() {
    let mut managed = Managed::new(&Topology::from_text(TEXT).unwrap()).unwrap();
    managed.advance(2 * TRAINING);
    let from = End { node: managed.id("S1").unwrap(), port: 0 };
    let mut manager = Manager::new(&mut managed, from);
    manager.discover(&mut managed);
    manager.configure(&mut managed);
    assert_eq!(manager.found.len(), 6);
    let lid = manager.node("host 3").lid;
    assert!(managed.resolve(End { node: managed.id("H1").unwrap(), port: 1 }, lid, 0).is_ok());
}

#[test]
fn a_router_and_a_node_of_254_ports_answer() {
    let text = "Switch 254 \"S\"\n[1] \"H\"\n[254] \"R\"[2]\n\nHca 1 \"H\"\n\nRt 2 \"R\" # \"a router\"\n";
    let mut managed = Managed::new(&Topology::from_text(text).unwrap()).unwrap();
    assert_eq!(managed.ends().count(), 4);
    managed.advance(2 * TRAINING);
    let from = End { node: managed.id("H").unwrap(), port: 1 };
    let mut manager = Manager::new(&mut managed, from);
    let info: NodeInfo = manager.get(&mut managed, &[1, 254], NodeInfo::ATTRIBUTE, 0).unwrap();
    assert_eq!((info.node_type, info.local_port, info.port_guid), (3, 2, info.node_guid + 2));
}
