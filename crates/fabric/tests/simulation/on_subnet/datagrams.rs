//! Datagrams and addresses by LID on a subnet, as the requirements L-14, L-17, L-23 and L-24 say.

use std::sync::Arc;
use std::time::Duration;

use super::net::{Net, connect_by_lid, end, handle, start};
use crate::common::{Plan, QKEY, Side};
use abi::ah::AhAttr;
use abi::cq::{Wc, status, wc_flags};
use engine::{Ah, SendWr};
use subnet::switch::Ports;
use wire::grh::Network;
use wire::lrh::Next;

/// Three hosts at one switch. H`n` is at port n.
const STAR: &str =
    "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"H3\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n";
/// Longer than a packet needs on its way.
const A_WHILE: Duration = Duration::from_millis(5);
/// The length of a datagram, and of what is before it in the receiver's memory.
const LEN: usize = 24;
const GRH: usize = 40;
/// A group whose address is of the family of the hosts' addresses.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 7, 9];

fn star() -> Net {
    Net::by_hand(1, STAR, 3, |_, lid| lid as u8)
}

/// Sides in RTS with room for datagrams, one on each of these hosts.
fn sides<const N: usize>(net: &mut Net, hosts: [usize; N]) -> [Side; N] {
    let sides = hosts.map(|host| net.side(host, &Plan::ud()));
    for side in &sides {
        start(side);
        side.memory.pattern(1000, 1000, 7);
        (0..4).for_each(|at| side.recv(at, 1000 + 100 * at as usize, GRH + LEN));
    }
    sides
}

/// Lets time pass. Returns what a side has received meanwhile.
fn heard(net: &mut Net, side: &Side) -> Vec<Wc> {
    net.simulation.run_for(A_WHILE);
    let mut wcs = [Wc::default(); 8];
    let count = side.rcq.poll(&mut wcs).expect("a device");
    assert!(wcs[..count].iter().all(|wc| wc.status == status::SUCCESS));
    wcs[..count].to_vec()
}

fn send(from: &Side, ah: &Ah, qpn: u32, qkey: u32) {
    from.memory.pattern(0, LEN, 3);
    from.post(&SendWr { ud: Some((ah, qpn, qkey)), sges: &from.sge(0, LEN), ..SendWr::default() });
}

/// The group at the switch, with these members. In a simulation, the LID of a group follows from its
/// address, so a switch that knows the group by another LID delivers nothing.
fn set_group(net: &mut Net, members: &[u8]) -> u16 {
    let mlid = abi::lid::of_group(&GROUP);
    net.model(|model| {
        let node = end(model, "S1", 0).node;
        let switch = model.fabric_mut().switch_mut(node).expect("a switch");
        switch.multicast.insert(mlid, Ports::of(members.iter().copied()));
    });
    mlid
}

fn group_handle(side: &Side, dlid: u16) -> Arc<Ah> {
    let vector = AhAttr {
        dlid,
        dgid: GROUP,
        sgid_index: side.gid_index(),
        is_global: 1,
        port_num: 1,
        hop_limit: 1,
        ..AhAttr::default()
    };
    side.pd.create_ah(&vector).expect("a handle")
}

#[test]
fn l14_a_queue_pair_takes_datagrams_with_its_own_qkey_only() {
    let mut net = star();
    let [a, b] = sides(&mut net, [1, 2]);
    let mlid = set_group(&mut net, &[1, 2]);
    b.qp.attach_mcast(&GROUP, mlid).expect("attached");
    let to_port = handle(&a, net.lid(2), 0);
    let to_group = group_handle(&a, mlid);
    for (ah, qpn) in [(&to_port, b.qp.qpn()), (&to_group, 0xff_ffff)] {
        send(&a, ah, qpn, QKEY + 1);
        assert_eq!(heard(&mut net, &b).len(), 0, "{qpn:#x}");
        send(&a, ah, qpn, QKEY);
        assert_eq!(heard(&mut net, &b).len(), 1, "{qpn:#x}");
    }
}

#[test]
fn l17_an_address_by_lid_alone_has_no_grh_and_the_lids_are_all_that_the_link_needs() {
    let mut net = star();
    let (a, b) = (net.side(1, &Plan::rc()), net.side(2, &Plan::rc()));
    connect_by_lid([(&a, net.lid(1)), (&b, net.lid(2))], 3);
    b.recv(1, 1000, LEN);
    net.model(|model| model.capture(end(model, "H1", 1), true));
    a.memory.pattern(0, LEN, 3);
    a.post(&SendWr { sges: &a.sge(0, LEN), ..SendWr::default() });
    assert_eq!(heard(&mut net, &b).len(), 1);
    assert_eq!(b.memory.get(1000, LEN), a.memory.get(0, LEN));
    let seen = net.model(|model| model.captured());
    let heads: Vec<_> = seen.iter().map(|copy| (copy.frame.lrh, copy.frame.grh().is_some())).collect();
    let [(lrh, false)] = heads[..] else { panic!("{heads:?}") };
    assert_eq!((lrh.next, lrh.slid, lrh.dlid, lrh.sl), (Next::Bth, net.lid(1), net.lid(2), 3));
}

#[test]
fn l23_a_datagram_is_behind_40_bytes_that_only_a_grh_fills() {
    let mut net = star();
    let [a, b] = sides(&mut net, [1, 2]);
    let untouched = b.memory.get(1000, GRH);
    send(&a, &handle(&a, net.lid(2), 0), b.qp.qpn(), QKEY);
    let [local] = heard(&mut net, &b)[..] else { panic!("it does not arrive") };
    assert_eq!((local.byte_len as usize, local.wc_flags & wc_flags::GRH, local.slid), (GRH + LEN, 0, net.lid(1)));
    assert_eq!(b.memory.get(1000, GRH), untouched);
    assert_eq!(b.memory.get(1000 + GRH, LEN), a.memory.get(0, LEN));
    send(&a, &a.ah(&b), b.qp.qpn(), QKEY);
    let [global] = heard(&mut net, &b)[..] else { panic!("it does not arrive") };
    assert_eq!((global.byte_len as usize, global.wc_flags & wc_flags::GRH), (GRH + LEN, wc_flags::GRH));
    let grh = b.memory.get(1100, GRH);
    let network = grh.try_into().ok().and_then(|grh: [u8; GRH]| Network::parse(&grh).ok()).expect("a header");
    assert_eq!(network.gids(), (a.gid(), b.gid()));
    assert_eq!(b.memory.get(1100 + GRH, LEN), a.memory.get(0, LEN));
}

#[test]
fn l24_a_group_reaches_each_attached_queue_pair_once_behind_the_ports_of_its_tree() {
    let mut net = star();
    let [a, first, second, alone, outside] = sides(&mut net, [1, 2, 2, 2, 3]);
    let mlid = set_group(&mut net, &[1, 2]);
    for member in [&first, &second, &outside] {
        member.qp.attach_mcast(&GROUP, mlid).expect("attached");
    }
    net.model(|model| (1..=3).for_each(|port| model.capture(end(model, "S1", port), true)));
    send(&a, &group_handle(&a, mlid), 0xff_ffff, QKEY);
    for member in [&first, &second] {
        let [wc] = heard(&mut net, member)[..] else { panic!("one copy for each") };
        assert_eq!(
            (wc.byte_len as usize, wc.src_qp, wc.wc_flags & wc_flags::GRH),
            (GRH + LEN, a.qp.qpn(), wc_flags::GRH)
        );
        assert_eq!(member.memory.get(1000 + GRH, LEN), a.memory.get(0, LEN));
    }
    assert_eq!((heard(&mut net, &alone).len(), heard(&mut net, &outside).len()), (0, 0));
    let ports: Vec<u8> = net.model(|model| model.captured()).iter().map(|copy| copy.end.port).collect();
    assert_eq!(ports, [2], "one copy on the link, and none back or to port 3");
}
