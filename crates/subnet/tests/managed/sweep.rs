//! A manager discovers the fabric and brings it up; then LIDs lead everywhere.

use crate::net::{Net, SECOND, TEXT, data};
use mad::counters::Counter;
use mad::sma::NodeEvent;
use mad::topology::Topology;
use softhca_subnet::managed::Output;
use softhca_subnet::state::Logical;
use wire::mad::{CLASS_SUBN_LID, METHOD_GET};
use wire::perf::{PortCounters, PortCountersExtended};
use wire::smp::{NodeDescription, NodeInfo, PortInfo, Smp, SwitchInfo};

#[test]
fn the_manager_finds_the_nodes_and_links_of_the_file() {
    let mut net = Net::trained();
    net.manager.discover(&mut net.managed);
    let file = Topology::from_text(TEXT).unwrap();
    let found = &net.manager.found;
    assert_eq!(found.len(), file.nodes.len());
    for node in &file.nodes {
        let own = net.manager.node(node.description.as_ref().unwrap());
        assert_eq!((own.info.ports, own.info.node_type), (node.ports, node.kind as u8));
        assert_eq!(node.guid.unwrap_or(own.info.node_guid), own.info.node_guid);
        let links: Vec<(u8, String, u8)> = node.links.iter().map(|l| (l.port, l.peer.clone(), l.peer_port)).collect();
        let name =
            |at: usize| file.nodes.iter().find(|n| n.description.as_ref() == Some(&found[at].description)).unwrap();
        let seen: Vec<(u8, String, u8)> =
            own.links.iter().map(|(port, (peer, there))| (*port, name(*peer).name.clone(), *there)).collect();
        assert_eq!(seen, links);
    }
    let mut guids: Vec<u64> = found.iter().map(|node| node.info.node_guid).collect();
    guids.dedup();
    assert_eq!(guids.len(), found.len());
}

#[test]
fn trained_links_are_init_without_lids_and_have_the_rate_of_the_file() {
    let mut net = Net::trained();
    let info = net.managed.port_info(net.end("H1", 1)).unwrap();
    let link = info.link;
    assert_eq!((info.lid, link.state, link.phys_state, link.width_active), (0, 2, 5, 2));
    assert_eq!((link.speed_active, link.extended_active), (4, 0), "4X QDR");
    let link = net.managed.port_info(net.end("S1", 2)).unwrap().link;
    assert_eq!((link.speed_active, link.extended_active), (4, 2), "4X EDR");
    let link = net.managed.port_info(net.end("S1", 5)).unwrap().link;
    assert_eq!((link.state, link.phys_state), (1, 2), "no cable");
    let zero = net.manager.get::<PortInfo>(&mut net.managed, &[1], PortInfo::ATTRIBUTE, 0).unwrap();
    assert_eq!((zero.link.state, zero.link.phys_state), (4, 5), "port 0 has no link");
    let switch = net.manager.get::<SwitchInfo>(&mut net.managed, &[1], SwitchInfo::ATTRIBUTE, 0).unwrap();
    assert!(switch.port_state_change);
}

#[test]
fn node_info_names_the_port_of_arrival_and_the_guid_of_the_port() {
    let mut net = Net::trained();
    net.manager.discover(&mut net.managed);
    let path = [&net.path("leaf 2")[..], &[3]].concat();
    let info: NodeInfo = net.manager.get(&mut net.managed, &path, NodeInfo::ATTRIBUTE, 0).unwrap();
    assert_eq!((info.local_port, info.port_guid), (2, info.node_guid + 2));
}

#[test]
fn the_owner_hears_of_its_lid_and_of_the_active_link() {
    let mut net = Net::trained();
    net.manager.discover(&mut net.managed);
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let path = net.path("host 3");
    let lid = |info: &mut PortInfo| info.lid = 33;
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, lid), Some(0));
    assert_eq!(net.managed.node(end.node).unwrap().port(1).unwrap().info.lid, 33);
    let mut net = Net::trained();
    let end = net.manager.from;
    net.managed.attach(end).unwrap();
    let mut smp = Smp { base_version: 1, class: CLASS_SUBN_LID, class_version: 1, ..Smp::default() };
    let info = PortInfo { lid: 9, ..net.managed.port_info(end).unwrap() };
    let info = PortInfo { link: wire::smp::PortLink { state: 3, phys_state: 0, ..info.link }, ..info };
    (smp.method, smp.attribute, smp.modifier) = (2, PortInfo::ATTRIBUTE, 1);
    wire::layout::Layout::write(info, &mut smp.data);
    let datagram = softhca_subnet::managed::Datagram::smp(0xffff, 0xffff, 0, smp.to_mad());
    // By LID to the permissive LID: to the neighbour, which is the switch, and not to itself.
    net.managed.send(end, &datagram).unwrap();
    let outputs = net.run(SECOND / 1000);
    assert!(!outputs.contains(&Output::Changed { end, event: NodeEvent::Lid }));
    let own = Smp { class: 0x81, dr_slid: 0xffff, dr_dlid: 0xffff, ..smp };
    net.managed.send(end, &softhca_subnet::managed::Datagram::smp(0xffff, 0xffff, 0, own.to_mad())).unwrap();
    let outputs = net.run(SECOND / 1000);
    assert!(outputs.contains(&Output::Changed { end, event: NodeEvent::Lid }));
    assert!(outputs.contains(&Output::Link { end, state: Logical::Armed }));
    assert!(outputs.iter().any(|output| matches!(output, Output::Datagram(_))), "the answer");
}

#[test]
fn an_adapter_without_power_forgets_its_settings_and_gets_them_again() {
    let mut net = Net::up();
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let lid = net.lid("H3");
    net.managed.power_off(end.node);
    net.run(SECOND / 1000);
    assert_eq!(net.managed.port_info(end).map(|info| (info.lid, info.link.state)), Some((0, 1)));
    net.managed.power_on(end.node);
    net.run(SECOND);
    assert_eq!(net.managed.port_info(end).map(|info| (info.lid, info.link.state)), Some((0, 2)), "a new adapter");
    net.manager.discover(&mut net.managed);
    let path = net.path("host 3");
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, |info| info.lid = lid), Some(0));
    assert_eq!(net.managed.port_info(end).map(|info| info.lid), Some(lid));
}

#[test]
fn lids_lead_to_every_port_after_the_sweep() {
    let mut net = Net::up();
    for name in ["S1", "S2", "H2", "H3", "H4", "H1"] {
        let (class, attribute) = (CLASS_SUBN_LID, NodeDescription::ATTRIBUTE);
        let get = Smp { base_version: 1, class, class_version: 1, method: METHOD_GET, attribute, ..Smp::default() };
        let lid = net.lid(name);
        let answer = net.manager.request(&mut net.managed, lid, get).unwrap();
        let description = NodeDescription { text: answer.data }.to_string();
        assert_eq!(net.manager.node(&description).lid, lid);
        let all = net.performance::<PortCounters>(name, PortCounters::ATTRIBUTE, 255);
        assert_eq!(all.port, 255);
    }
    let from = net.end("H2", 1);
    let path = net.managed.resolve(from, net.lid("H4"), 0).unwrap();
    assert_eq!((path.hops.len(), path.end), (2, net.end("H4", 1)));
    assert_eq!(path.epoch, net.managed.epoch());
}

#[test]
fn data_goes_by_the_tables_and_is_counted_until_counters_are_cleared() {
    let mut net = Net::up();
    let (from, to) = (net.end("H2", 1), net.end("H3", 1));
    net.managed.attach(to).unwrap();
    let frame = data(net.lid("H2"), net.lid("H3"), 0xffff);
    let words = u64::from(frame.lrh.packet_len);
    (0..3).for_each(|_| net.managed.inject(from, frame.clone()).unwrap());
    let outputs = net.run(SECOND / 1000);
    let packets = outputs.iter().filter(|output| matches!(output, Output::Packet(packet) if packet.end == to));
    assert_eq!(packets.count(), 3);
    let counted = net.performance::<PortCountersExtended>("S2", PortCountersExtended::ATTRIBUTE, 1);
    assert_eq!((counted.xmit_packets, counted.xmit_data), (3, 3 * words));
    assert_eq!(net.managed.counter(to, Counter::ReceivePackets), 3);
    // Clear bits 0 and 2: data and packets sent.
    let header = wire::mad::Header { class: 4, class_version: 1, method: 2, attribute: 0x1d, ..Default::default() };
    net.ask(net.lid("S2"), header, &[(65, 1), (67, 5)]).unwrap();
    let counted = net.performance::<PortCountersExtended>("S2", PortCountersExtended::ATTRIBUTE, 1);
    assert_eq!((counted.xmit_packets, counted.xmit_data, counted.unicast_xmit_packets), (0, 0, 3));
    net.managed.inject(from, frame).unwrap();
    net.run(SECOND / 1000);
    let counted = net.performance::<PortCountersExtended>("S2", PortCountersExtended::ATTRIBUTE, 1);
    assert_eq!((counted.xmit_packets, counted.unicast_xmit_packets), (1, 4));
    assert_eq!((counted.xmit_wait, counted.qp1_dropped), (0, 0));
}

#[test]
fn linear_top_ends_the_table() {
    let mut net = Net::up();
    let path = net.path("leaf 1");
    let mut info: SwitchInfo = net.manager.get(&mut net.managed, &path, SwitchInfo::ATTRIBUTE, 0).unwrap();
    let (from, far) = (net.end("H2", 1), net.lid("H3").max(net.lid("H4")));
    assert!(net.managed.resolve(from, far, 0).is_ok());
    info.linear_top = far - 1;
    assert_eq!(net.manager.set(&mut net.managed, &path, (SwitchInfo::ATTRIBUTE, 0), info), Some(0));
    assert!(net.managed.resolve(from, far, 0).is_err());
}
