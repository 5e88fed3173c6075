//! What agents do not serve, and combined routes.

use crate::net::{Net, SECOND};
use softhca_subnet::managed::{Datagram, Output, Unsent};
use wire::mad::{
    CLASS_SA, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, Header, METHOD_GET, METHOD_SEND, STATUS_METHOD_ATTRIBUTE,
};
use wire::smp::{NodeDescription, PERMISSIVE_LID, SmInfo, Smp};

fn get(class: u8, attribute: u16) -> Smp {
    let (dr_slid, dr_dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
    Smp { base_version: 1, class, class_version: 1, method: METHOD_GET, attribute, dr_slid, dr_dlid, ..Smp::default() }
}

#[test]
fn classes_that_nobody_serves_get_status_0x0c() {
    let mut net = Net::up();
    for class in [0x05, 0x06, 0x09, 0x21, 0x32] {
        for name in ["S2", "H3"] {
            let header = Header { class, class_version: 1, method: METHOD_GET, attribute: 1, ..Header::default() };
            let mad = net.ask(net.lid(name), header, &[]).unwrap();
            assert_eq!(Header::of(&mad).status, STATUS_METHOD_ATTRIBUTE);
        }
    }
    let cm = Header { class: 7, class_version: 2, method: METHOD_SEND, attribute: 0x10, ..Header::default() };
    assert_eq!(net.ask(net.lid("H3"), cm, &[]), None, "a Send is no request");
}

#[test]
fn what_an_attached_port_does_not_serve_comes_out_and_may_be_refused() {
    let mut net = Net::up();
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let header = Header {
        base_version: 1,
        class: CLASS_SA,
        class_version: 2,
        method: METHOD_GET,
        attribute: 0x35,
        ..Header::default()
    };
    let mut mad = [0; 256];
    header.emit_to(&mut mad);
    let (own, lid) = (net.lid("H1"), net.lid("H3"));
    net.managed.send(net.manager.from, &Datagram::gmp(own, lid, 0, mad)).unwrap();
    let outputs = net.run(SECOND / 2);
    let [Output::Datagram(delivered)] = &outputs[..] else { panic!("{outputs:?}") };
    let datagram = &delivered.datagram;
    assert_eq!((delivered.end, datagram.dest_qp, datagram.slid, datagram.dlid), (end, 1, own, lid));
    net.managed.refuse(delivered);
    let outputs = net.run(SECOND / 2);
    let [Output::Datagram(answer)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((answer.end, Header::of(&answer.datagram.mad).status), (net.manager.from, STATUS_METHOD_ATTRIBUTE));
}

#[test]
fn sm_info_of_a_port_without_manager_is_refused_here_and_handed_out_at_an_attached_port() {
    let mut net = Net::up();
    let path = net.path("host 3");
    let ask = |net: &mut Net| net.manager.ask(&mut net.managed, &path, (METHOD_GET, 0x20, 0), SmInfo::default());
    assert_eq!(ask(&mut net).unwrap().status, STATUS_METHOD_ATTRIBUTE);
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let mut smp = get(CLASS_SUBN_DIRECTED, SmInfo::ATTRIBUTE);
    smp.hop_count = u8::try_from(path.len()).unwrap();
    smp.initial_path[1..=path.len()].copy_from_slice(&path);
    net.managed.send(net.manager.from, &Datagram::smp(0xffff, 0xffff, 0, smp.to_mad())).unwrap();
    let outputs = net.run(SECOND / 2);
    let [Output::Datagram(delivered)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((delivered.end, delivered.ingress), (end, 1));
    // A manager at the port answers by the same route back.
    let request = Smp::parse(&delivered.datagram.mad);
    let answer = Smp { method: 0x81, returning: true, ..request };
    net.managed.send(end, &Datagram::smp(0xffff, 0xffff, 0, answer.to_mad())).unwrap();
    let outputs = net.run(SECOND / 2);
    let [Output::Datagram(answer)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((answer.end, Smp::parse(&answer.datagram.mad).method), (net.manager.from, 0x81));
    // The owner without a manager refuses.
    net.managed.refuse(delivered);
    let outputs = net.run(SECOND / 2);
    let [Output::Datagram(answer)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(Smp::parse(&answer.datagram.mad).status, STATUS_METHOD_ATTRIBUTE);
}

#[test]
fn a_route_may_begin_and_end_with_a_lid_routed_part() {
    let mut net = Net::up();
    let (own, leaf1, leaf2) = (net.lid("H1"), net.lid("S1"), net.lid("S2"));
    // By LID to leaf 1, by port 7 to leaf 2; then by LID to host 4.
    for (hops, dr_dlid, expected) in [
        (&[7][..], PERMISSIVE_LID, "leaf 2"),
        (&[7], net.lid("H4"), "host 4"),
        (&[2], PERMISSIVE_LID, "host 2"),
        (&[], net.lid("H4"), "host 4"),
    ] {
        let mut smp = get(CLASS_SUBN_DIRECTED, NodeDescription::ATTRIBUTE);
        smp.initial_path[1..=hops.len()].copy_from_slice(hops);
        (smp.hop_count, smp.dr_slid, smp.dr_dlid) = (u8::try_from(hops.len()).unwrap(), own, dr_dlid);
        let answer = net.manager.request(&mut net.managed, leaf1, smp).expect(expected);
        assert_eq!(NodeDescription { text: answer.data }.to_string(), expected);
    }
    // The directed part first, then a LID-routed part.
    let mut smp = get(CLASS_SUBN_DIRECTED, NodeDescription::ATTRIBUTE);
    (smp.hop_count, smp.initial_path[1], smp.dr_dlid) = (1, 1, leaf2);
    let answer = net.manager.request(&mut net.managed, PERMISSIVE_LID, smp).unwrap();
    assert_eq!(NodeDescription { text: answer.data }.to_string(), "leaf 2");
}

#[test]
fn nothing_is_sent_from_a_port_that_is_no_end_port_or_by_another_port() {
    let mut net = Net::up();
    let smp = get(CLASS_SUBN_LID, NodeDescription::ATTRIBUTE).to_mad();
    let inner = net.end("S1", 1);
    assert_eq!(net.managed.send(inner, &Datagram::smp(1, 2, 0, smp)), Err(Unsent::NoEnd(inner)));
    assert!(net.managed.attach(net.end("H1", 0)).is_err());
    let mut wrong = get(CLASS_SUBN_DIRECTED, NodeDescription::ATTRIBUTE);
    (wrong.hop_count, wrong.initial_path[1]) = (1, 2);
    let datagram = Datagram::smp(0xffff, 0xffff, 0, wrong.to_mad());
    assert_eq!(net.managed.send(net.end("H4", 1), &datagram), Err(Unsent::Route));
}
