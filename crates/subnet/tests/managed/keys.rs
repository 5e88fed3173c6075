//! Partitions and the management key.

use crate::net::{Net, SECOND, data, traps};
use mad::counters::Counter;
use mad::key::Key;
use mad::sma::NodeEvent;
use softhca_subnet::Cause;
use softhca_subnet::fabric::Probe;
use softhca_subnet::managed::{Datagram, Output};
use wire::mad::{CLASS_PM, Header, METHOD_GET};
use wire::notice::{KeyNotice, MKeyNotice, Notice, SwitchPKeyNotice};
use wire::smp::{NodeInfo, PKeyTable, PortInfo};

fn table(first: &[u16]) -> PKeyTable {
    let mut table = PKeyTable::default();
    table.pkeys[..first.len()].copy_from_slice(first);
    table
}

#[test]
fn a_port_drops_a_foreign_partition_counts_it_and_tells_the_manager() {
    let mut net = Net::up();
    let to = net.end("H3", 1);
    net.managed.attach(to).unwrap();
    let path = net.path("host 3");
    assert_eq!(net.manager.set(&mut net.managed, &path, (PKeyTable::ATTRIBUTE, 0), table(&[0x8005])), Some(0));
    let (own, lid) = (net.lid("H1"), net.lid("H3"));
    net.managed.inject(net.manager.from, data(own, lid, 0xffff)).unwrap();
    net.managed.inject(net.manager.from, data(own, lid, 0x8005)).unwrap();
    let outputs = net.run(SECOND / 2);
    assert_eq!(outputs.iter().filter(|output| matches!(output, Output::Packet(_))).count(), 1);
    assert!(outputs.contains(&Output::Violation { end: to, key: Key::PKey }));
    let found = traps(&outputs);
    let details: KeyNotice = found[0].1.details();
    assert_eq!((found[0].1.number, details.key, details.qp1, details.qp2), (Notice::BAD_PKEY, 0xffff, 78, 77));
    assert_eq!((details.lid1, details.lid2, found[0].1.issuer_lid), (own, lid, lid));
    assert_eq!(net.managed.node(to.node).unwrap().port(1).unwrap().info.pkey_violations, 1);
    // A Set of zero clears the count and raises an event. Other values do neither.
    let mut cleared = |count| {
        let info: PortInfo = net.manager.get(&mut net.managed, &path, PortInfo::ATTRIBUTE, 0).unwrap();
        let mut wanted = PortInfo { pkey_violations: count, ..info };
        (wanted.link.state, wanted.link.phys_state) = (0, 0);
        let mut smp = wire::smp::Smp { base_version: 1, class: 1, class_version: 1, method: 2, ..Default::default() };
        smp.attribute = PortInfo::ATTRIBUTE;
        wire::layout::Layout::write(wanted, &mut smp.data);
        net.managed.send(net.manager.from, &Datagram::smp(own, lid, 0, smp.to_mad())).unwrap();
        net.run(SECOND).contains(&Output::Changed { end: to, event: NodeEvent::Cleared(Key::PKey) })
    };
    assert!(!cleared(7) && cleared(0) && !cleared(0));
}

#[test]
fn a_limited_member_gets_the_answer_of_a_full_member() {
    let mut net = Net::up();
    assert_eq!(net.manager.set(&mut net.managed, &[], (PKeyTable::ATTRIBUTE, 0), table(&[0x7fff])), Some(0));
    let mut mad = [0; 256];
    let header = Header {
        base_version: 1,
        class: CLASS_PM,
        class_version: 1,
        method: METHOD_GET,
        attribute: 1,
        ..Header::default()
    };
    header.emit_to(&mut mad);
    let datagram = Datagram { pkey: 0x7fff, ..Datagram::gmp(net.lid("H1"), net.lid("H3"), 0, mad) };
    net.managed.send(net.manager.from, &datagram).unwrap();
    let outputs = net.run(SECOND / 2);
    let [Output::Datagram(answer)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(answer.datagram.pkey, 0xffff);
}

#[test]
fn the_owner_hears_of_its_partitions() {
    let mut net = Net::up();
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let path = net.path("host 3");
    let mut smp = wire::smp::Smp { base_version: 1, class: 1, class_version: 1, method: 2, ..Default::default() };
    smp.attribute = PKeyTable::ATTRIBUTE;
    wire::layout::Layout::write(table(&[0x8005]), &mut smp.data);
    let datagram = Datagram::smp(net.lid("H1"), net.lid("H3"), 0, smp.to_mad());
    net.managed.send(net.manager.from, &datagram).unwrap();
    assert!(net.run(SECOND).contains(&Output::Changed { end, event: NodeEvent::PKeys }));
    let shown: PKeyTable = net.manager.get(&mut net.managed, &path, PKeyTable::ATTRIBUTE, 0).unwrap();
    assert_eq!(shown, table(&[0x8005]));
}

#[test]
fn a_switch_enforces_partitions_where_the_manager_says_so() {
    let mut net = Net::up();
    let path = net.path("leaf 2");
    let modifier = 1 << 16;
    assert_eq!(net.manager.set(&mut net.managed, &path, (PKeyTable::ATTRIBUTE, modifier), table(&[0x8005])), Some(0));
    let (own, lid, port) = (net.lid("H1"), net.lid("H3"), net.end("S2", 1));
    let send = |net: &mut Net| {
        net.managed.inject(net.manager.from, data(own, lid, 0xffff)).unwrap();
        let outputs = net.run(SECOND / 2);
        let dropped = net.managed.fabric().port(port).unwrap().counters().dropped(Cause::PartitionOut);
        (dropped, traps(&outputs))
    };
    assert_eq!(send(&mut net), (0, vec![]), "the table alone does nothing");
    let enforce = |info: &mut PortInfo| info.vls.enforce_outbound = true;
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, enforce), Some(0));
    let (dropped, found) = send(&mut net);
    let details: SwitchPKeyNotice = found[0].1.details();
    assert_eq!((dropped, found[0].1.number), (1, Notice::SWITCH_BAD_PKEY));
    assert_eq!((details.pkey, details.switch_lid, details.port), (0xffff, net.lid("S2"), 1));
    assert_eq!(details.valid, 0xfc00, "it has no GRH");
    assert_eq!(net.managed.counter(port, Counter::XmitConstraintErrors), 1);
    // Packets that the owner carries by itself are told in the same way.
    let probe = Probe { dlid: lid, sl: 3, pkey: Some(0x7fff), ..Probe::default() };
    net.managed.drop_for_partition(port, net.manager.from, &probe, 5);
    let mut told = traps(&net.run(5 * SECOND)).into_iter().map(|(_, notice)| notice.details::<SwitchPKeyNotice>());
    let told = told.find(|details| details.pkey == 0x7fff).expect("a trap");
    assert_eq!((told.lid1, told.lid2, told.sl, told.qp2, told.port, told.valid), (own, lid, 3, 0, 1, 0xf000));
    assert_eq!(net.managed.node(port.node).unwrap().port(1).unwrap().info.pkey_violations, 6);
}

#[test]
fn a_wrong_management_key_gets_a_trap_and_no_answer() {
    let mut net = Net::up();
    let path = net.path("host 3");
    let protect = |info: &mut PortInfo| (info.mkey, info.mkey_protect) = (77, 2);
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, protect), Some(0));
    let datagram = {
        let (class, method, attribute) = (1, METHOD_GET, NodeInfo::ATTRIBUTE);
        let smp = wire::smp::Smp { base_version: 1, class, class_version: 1, method, attribute, ..Default::default() };
        Datagram::smp(net.lid("H1"), net.lid("H3"), 0, smp.to_mad())
    };
    net.managed.send(net.manager.from, &datagram).unwrap();
    let outputs = net.run(SECOND / 2);
    let found = traps(&outputs);
    assert_eq!((outputs.len(), found[0].1.number), (1, Notice::BAD_MKEY));
    assert_eq!(found[0].1.details::<MKeyNotice>().attribute, NodeInfo::ATTRIBUTE);
    net.manager.mkey = 77;
    assert!(net.manager.get::<NodeInfo>(&mut net.managed, &path, NodeInfo::ATTRIBUTE, 0).is_some());
}

#[test]
fn a_wrong_qkey_is_dropped_and_told() {
    let mut net = Net::up();
    let mut mad = [0; 256];
    let header =
        Header { base_version: 1, class: CLASS_PM, class_version: 1, method: 1, attribute: 1, ..Header::default() };
    header.emit_to(&mut mad);
    let datagram = Datagram { qkey: 3, ..Datagram::gmp(net.lid("H1"), net.lid("H3"), 0, mad) };
    net.managed.send(net.manager.from, &datagram).unwrap();
    let outputs = net.run(SECOND / 2);
    assert_eq!((outputs.len(), traps(&outputs)[0].1.number), (1, Notice::BAD_QKEY));
}

/// The owner of a port counts the packets that it carries by itself, when somebody asks.
#[test]
fn only_the_owner_of_the_port_that_is_asked_for_counts_wrong_keys() {
    let mut net = Net::up();
    let ends = ["H3", "H4"].map(|name| net.end(name, 1));
    ends.into_iter().for_each(|end| net.managed.attach(end).unwrap());
    let smp = |attribute| wire::smp::Smp {
        base_version: 1,
        class: 1,
        class_version: 1,
        method: METHOD_GET,
        attribute,
        ..Default::default()
    };
    for (attribute, asked) in [(NodeInfo::ATTRIBUTE, vec![]), (PortInfo::ATTRIBUTE, vec![ends[0]])] {
        let datagram = Datagram::smp(net.lid("H1"), net.lid("H3"), 0, smp(attribute).to_mad());
        net.managed.send(net.manager.from, &datagram).unwrap();
        let (mut heard, mut counts) = (Vec::new(), Vec::new());
        let end = net.managed.now() + SECOND / 2;
        while let Some(next) = net.managed.next_event().filter(|next| *next < end) {
            for output in net.managed.advance(next) {
                match output {
                    Output::Asked { end } => {
                        heard.push(end);
                        net.managed.set_violations(end, Key::QKey, 9);
                    }
                    Output::Datagram(answer) => {
                        let info: PortInfo = wire::layout::Layout::read(&answer.datagram.mad[64..]).unwrap();
                        counts.push(info.qkey_violations);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!((heard, counts.len()), (asked.clone(), 1));
        assert!(asked.is_empty() || counts == [9], "the answer has the new count");
    }
}
