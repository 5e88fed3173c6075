//! Tests InfiniBand ports: connections and datagrams by LID, on one host and between hosts, and
//! packets to LIDs that no port has.

use std::sync::Arc;

use crate::common::{Plan, QKEY, Side, ah};
use abi::ah::AhAttr;
use abi::cq::{status, wc_flags};
use abi::errno::Errno;
use abi::qp::{Dest, ModifyQp, attr, state};
use agent::Config;
use agent::config::LinkLayer;
use engine::{Ah, Engine, SendWr, Service};
use fabric::{Fabric, Faults};
use wire::grh::{Grh, NEXT_HEADER_IBA};

/// Hosts with InfiniBand ports, and their engines.
struct Subnet {
    fabric: Fabric,
    engines: Vec<Arc<Engine>>,
}

impl Subnet {
    fn of(addresses: &[&str], faults: Faults) -> Self {
        Self::with(Config::default(), addresses, faults)
    }

    fn with(config: Config, addresses: &[&str], faults: Faults) -> Self {
        let builder = Fabric::builder().config(config.with_link_layer(LinkLayer::Infiniband)).faults(faults);
        let builder = addresses.iter().fold(builder, |builder, address| builder.host(*address));
        Self { fabric: builder.build().expect("hosts"), engines: Vec::new() }
    }

    fn side(&mut self, host: usize, plan: &Plan) -> Side {
        self.side_of(host, 0, plan)
    }

    fn side_of(&mut self, host: usize, device: usize, plan: &Plan) -> Side {
        let engine = self.fabric.host(host).connect_to(device).expect("a context");
        self.engines.push(Arc::clone(&engine));
        Side::new(&engine, plan)
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        self.engines.iter().for_each(Engine::close);
    }
}

fn lid(side: &Side) -> u16 {
    side.engine.query_port(side.plan.port).expect("a port").lid
}

/// Brings a side to RTR without a GRH. The GRH's fields have meaningless values.
fn rtr(side: &Side, dlid: u16, qpn: u32) {
    let reliable = if side.plan.service == Service::Rc { attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER } else { 0 };
    let dest =
        Dest { dlid, dgid: [7; 16], sgid_index: 60, hop_limit: 1, traffic_class: 9, port_num: 1, ..Dest::default() };
    let attributes = ModifyQp {
        attr_mask: attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | reliable,
        qp_state: state::RTR,
        dest,
        path_mtu: 5,
        dest_qp_num: qpn,
        rq_psn: 7,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..ModifyQp::default()
    };
    side.qp.modify(&attributes).expect("RTR");
}

fn connect(a: &Side, b: &Side) {
    for (side, peer) in [(a, b), (b, a)] {
        side.init();
        rtr(side, lid(peer), peer.qp.qpn());
    }
    a.rts();
    b.rts();
}

fn handle(side: &Side, dlid: u16) -> Arc<Ah> {
    side.pd.create_ah(&AhAttr { dlid, sl: 3, port_num: 1, dgid: [7; 16], ..AhAttr::default() }).expect("a handle")
}

fn a_message_arrives(a: &Side, b: &Side) {
    for len in [0, 1, 3000, 20_000] {
        a.memory.pattern(0, len, len);
        b.memory.pattern(0, len, 1);
        b.recv(5, 0, len);
        a.post(&SendWr { sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().byte_len as usize), (0, len));
        assert!(b.memory.get(0, len) == a.memory.get(0, len), "{len}");
    }
}

#[test]
fn connections_by_lid() {
    let one_host = (vec!["10.0.0.1"], [0, 0], Faults::default());
    let two_hosts = (vec!["10.0.0.1", "10.0.0.2"], [0, 1], Faults::default());
    let lossy = (vec!["10.0.0.1", "10.0.0.2"], [0, 1], Faults::all(0.01, 4));
    for (addresses, at, faults) in [one_host, two_hosts, lossy] {
        let lost = faults != Faults::default();
        let mut subnet = Subnet::of(&addresses, faults);
        for plan in [Plan::rc(), Plan::uc()].into_iter().take(if lost { 1 } else { 2 }) {
            let (a, b) = (subnet.side(at[0], &plan), subnet.side(at[1], &plan));
            assert_eq!([lid(&a), lid(&b)], at.map(|host| host as u16 + 1));
            connect(&a, &b);
            a_message_arrives(&a, &b);
            a_message_arrives(&b, &a);
        }
    }
}

#[test]
fn one_side_by_lid_and_the_other_by_gid() {
    let mut subnet = Subnet::of(&["10.0.0.1", "10.0.0.2"], Faults::default());
    let (a, b) = (subnet.side(0, &Plan::rc()), subnet.side(1, &Plan::rc()));
    a.init();
    rtr(&a, lid(&b), b.qp.qpn());
    b.init();
    b.rtr(a.gid(), a.qp.qpn());
    a.rts();
    b.rts();
    a_message_arrives(&a, &b);
    a_message_arrives(&b, &a);
}

#[test]
fn a_port_with_several_lids_has_paths_to_and_from_each_of_them() {
    let text = "[[devices]]\n[[devices.ports]]\nlink_layer = 'infiniband'\nsubnet = { lid = 8, lmc = 2 }\n";
    let mut subnet = Subnet::with(Config::parse(text).expect("valid"), &["10.0.0.1"], Faults::default());
    let (a, b) = (subnet.side(0, &Plan::ud()), subnet.side(0, &Plan::ud()));
    [&a, &b].into_iter().for_each(crate::common::start);
    for (dlid, src_path_bits) in [(8, 0), (10, 1), (11, 3)] {
        let vector = AhAttr { dlid, src_path_bits, port_num: 1, ..AhAttr::default() };
        let to_b = a.pd.create_ah(&vector).expect("a handle");
        b.recv(9, 0, 100);
        a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, 10), ..SendWr::default() });
        let wc = b.received();
        assert_eq!((a.sent().status, wc.slid), (0, 8 + u16::from(src_path_bits)));
        assert_eq!(u16::from(wc.dlid_path_bits), dlid - 8);
    }
    let (a, b) = (subnet.side(0, &Plan::rc()), subnet.side(0, &Plan::rc()));
    for (side, qpn, dlid) in [(&a, b.qp.qpn(), 11), (&b, a.qp.qpn(), 9)] {
        side.init();
        rtr(side, dlid, qpn);
    }
    a.rts();
    b.rts();
    a_message_arrives(&a, &b);
    a_message_arrives(&b, &a);
}

#[test]
fn datagrams_without_a_grh_leave_its_place_alone() {
    for (addresses, at) in [(vec!["10.0.0.1"], [0, 0]), (vec!["10.0.0.1", "10.0.0.2"], [0, 1])] {
        let mut subnet = Subnet::of(&addresses, Faults::default());
        let (a, b) = (subnet.side(at[0], &Plan::ud()), subnet.side(at[1], &Plan::ud()));
        [&a, &b].into_iter().for_each(crate::common::start);
        let to_b = handle(&a, lid(&b));
        a.memory.pattern(0, 300, 2);
        b.memory.put(0, &[0xee; 400]);
        b.recv(9, 0, 400);
        a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, 300), ..SendWr::default() });
        let wc = b.received();
        assert_eq!((a.sent().status, wc.status, wc.byte_len), (0, 0, 340));
        assert_eq!((wc.src_qp, wc.slid, wc.dlid_path_bits), (a.qp.qpn(), lid(&a), 0));
        assert_eq!(wc.wc_flags & wc_flags::GRH, 0);
        assert_eq!(b.memory.get(0, 40), [0xee; 40], "reserved, and not written");
        assert_eq!(b.memory.get(40, 300), a.memory.get(0, 300));
        // The reply uses the address in the completion.
        let back = handle(&b, wc.slid);
        a.recv(1, 1000, 100);
        b.post(&SendWr { ud: Some((&back, wc.src_qp, QKEY)), sges: &b.sge(0, 1), ..SendWr::default() });
        assert_eq!((b.sent().status, a.received().slid), (0, lid(&b)));
        // A datagram with a GRH arrives, and its completion has the LID too.
        let global = ah(&a.pd, b.gid(), a.gid_index());
        b.recv(9, 0, 400);
        a.post(&SendWr { ud: Some((&global, b.qp.qpn(), QKEY)), sges: &a.sge(0, 3), ..SendWr::default() });
        let wc = b.received();
        assert_eq!((a.sent().status, wc.slid), (0, lid(&a)));
        assert_ne!(wc.wc_flags & wc_flags::GRH, 0);
        // Behind the GRH: BTH, DETH, 3 bytes and a pad byte, ICRC. IPv4 addresses change nothing.
        let grh: [u8; 40] = b.memory.get(0, 40).try_into().expect("40 bytes");
        let grh = Grh::parse(&grh).expect("a GRH");
        assert_eq!((grh.next_header, grh.payload_len), (NEXT_HEADER_IBA, 12 + 8 + 4 + 4));
        assert_eq!((grh.sgid, grh.dgid), (a.gid(), b.gid()));
    }
}

#[test]
fn ports_of_one_host_have_lids_of_their_own() {
    let config = Config::parse("[[devices]]\nname = 'left'\n[[devices]]\nname = 'right'").expect("a configuration");
    let mut subnet = Subnet::with(config, &["10.0.0.1"], Faults::default());
    let (a, b) = (subnet.side_of(0, 0, &Plan::rc()), subnet.side_of(0, 1, &Plan::rc()));
    assert_eq!((lid(&a), lid(&b)), (1, 0xbfff));
    connect(&a, &b);
    a_message_arrives(&a, &b);
    a_message_arrives(&b, &a);
}

#[test]
fn at_a_lid_without_a_port_nobody_answers() {
    // LID 9 belongs to a host that does not exist, 300 to no host of the subnet, and 0xbfff is
    // never given out.
    for dlid in [9, 300, 0xbfff] {
        let mut subnet = Subnet::of(&["10.0.0.1", "10.0.0.2"], Faults::default());
        let plan = Plan { retry_cnt: 1, ..Plan::rc().hasty() };
        let a = subnet.side(0, &plan);
        a.init();
        rtr(&a, dlid, 0x123);
        a.rts();
        a.post(&SendWr::default());
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "{dlid}");
        let (c, d) = (subnet.side(0, &Plan::ud()), subnet.side(1, &Plan::ud()));
        [&c, &d].into_iter().for_each(crate::common::start);
        d.recv(1, 0, 100);
        for dlid in [dlid, lid(&d)] {
            let to = handle(&c, dlid);
            c.post(&SendWr { ud: Some((&to, d.qp.qpn(), QKEY)), sges: &c.sge(0, 1), ..SendWr::default() });
            assert_eq!(c.sent().status, 0, "a datagram that nobody gets was sent all the same");
        }
        assert_eq!(d.received().slid, lid(&c));
    }
}

#[test]
fn create_ah_refuses_invalid_lids_and_any_lid_on_ethernet() {
    let mut subnet = Subnet::of(&["10.0.0.1"], Faults::default());
    let a = subnet.side(0, &Plan::rc());
    for dlid in [0, 0xc000, 0xffff] {
        let refused = a.pd.create_ah(&AhAttr { dlid, port_num: 1, ..AhAttr::default() });
        assert_eq!(refused.err().map(|error| error.errno), Some(Errno::EINVAL), "{dlid}");
    }
    let ethernet = crate::common::Fabric::start();
    let b = Side::new(&ethernet.engine(), &Plan::rc());
    let refused = b.pd.create_ah(&AhAttr { dlid: 1, port_num: 1, ..AhAttr::default() });
    assert_eq!(refused.err().map(|error| error.errno), Some(Errno::EINVAL));
    b.init();
    let dest = Dest { dlid: 1, port_num: 1, ..Dest::default() };
    let mask = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC;
    let attributes = ModifyQp {
        attr_mask: attr::STATE | mask | attr::MIN_RNR_TIMER,
        qp_state: state::RTR,
        dest,
        path_mtu: 3,
        ..ModifyQp::default()
    };
    assert_eq!(b.qp.modify(&attributes).map_err(|error| error.errno), Err(Errno::EINVAL));
    assert_eq!(b.qp.state(), u32::from(state::INIT), "nothing has changed");
}
