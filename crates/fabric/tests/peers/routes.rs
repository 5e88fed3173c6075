//! Tests the routes of packets: between devices, to addresses that do not match, and without any
//! route.

use crate::common::stranger::Stranger;
use crate::common::{Fabric, Plan, QKEY, Side, ah, connect, start};
use abi::cq::status;
use abi::qp::state;
use engine::{SendWr, Service};

const TWO_DEVICES: &str = "addresses = ['127.0.0.1']\n[[devices]]\nname = \"left\"\n[[devices]]\nname = \"right\"\n";

#[test]
fn devices_of_one_agent_reach_each_other() {
    let fabric = Fabric::configured(TWO_DEVICES);
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        let (a, b) = (Side::new(&fabric.engine_of(0), &plan), Side::new(&fabric.engine_of(1), &plan));
        assert_ne!(a.gid(), b.gid());
        connect(&a, &b);
        let (to_b, to_a) = (a.ah(&b), b.ah(&a));
        for (from, to, ah) in [(&a, &b, &to_b), (&b, &a, &to_a)] {
            let ud = (plan.service == Service::Ud).then_some((&**ah, to.qp.qpn(), QKEY));
            to.recv(1, 0, 3000);
            from.post(&SendWr { ud, sges: &from.sge(0, 2000), ..SendWr::default() });
            assert_eq!((from.sent().status, to.received().wr_id), (0, 1), "{}", plan.service);
        }
    }
}

#[test]
fn a_number_of_another_device_than_the_address() {
    let fabric = Fabric::configured(TWO_DEVICES);
    let (left, right) = (fabric.engine_of(0), fabric.engine_of(1));
    let plan = Plan { retry_cnt: 1, ..Plan::rc().hasty() };
    let (a, b) = (Side::new(&left, &plan), Side::new(&right, &plan));
    for (side, gid, qpn) in [(&a, a.gid(), b.qp.qpn()), (&b, a.gid(), a.qp.qpn())] {
        side.init();
        side.rtr(gid, qpn);
        side.rts();
    }
    b.recv(1, 0, 0);
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "b is not at that address");
    let (c, d) = (Side::new(&left, &Plan::ud()), Side::new(&right, &Plan::ud()));
    start(&c);
    start(&d);
    let wrong = ah(&c.pd, c.gid(), 0);
    let right = c.ah(&d);
    d.recv(1, 0, 100);
    c.post(&SendWr { ud: Some((&wrong, d.qp.qpn(), QKEY)), sges: &c.sge(0, 1), ..SendWr::default() });
    c.post(&SendWr { ud: Some((&right, d.qp.qpn(), QKEY)), sges: &c.sge(0, 2), ..SendWr::default() });
    assert_eq!((c.sent().status, c.sent().status, d.received().byte_len), (0, 0, 42));
}

#[test]
fn a_group_spans_devices() {
    let fabric = Fabric::configured(TWO_DEVICES);
    let sides = [0, 0, 1, 1].map(|device| Side::new(&fabric.engine_of(device), &Plan::ud()));
    let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for side in &sides {
        start(side);
        side.qp.attach_mcast(&group, 0).expect("attached");
        side.recv(1, 0, 100);
    }
    let to_all = ah(&sides[0].pd, group, 0);
    sides[0].post(&SendWr { ud: Some((&to_all, 0xff_ffff, QKEY)), sges: &sides[0].sge(0, 5), ..SendWr::default() });
    assert_eq!(sides[0].sent().status, 0);
    sides.iter().for_each(|side| assert_eq!(side.received().byte_len, 45));
}

#[test]
fn a_peer_to_which_no_lane_can_be_opened() {
    let fabric = Fabric::start();
    let stranger = Stranger::without_engine(&fabric);
    let plan = Plan { retry_cnt: 1, ..Plan::rc().hasty() };
    let a = Side::new(&fabric.engine(), &plan);
    a.init();
    a.rtr(a.gid(), stranger.qpn);
    a.rts();
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    // A service that expects no response goes on to the next request.
    let b = Side::new(&a.engine, &Plan::uc());
    b.init();
    b.rtr(b.gid(), stranger.qpn);
    b.rts();
    (0..3).for_each(|_| b.post(&SendWr::default()));
    (0..3).for_each(|_| assert_eq!(b.sent().status, 0));
    let (c, d) = fabric.pair(&Plan::ud());
    let to_d = c.ah(&d);
    d.recv(1, 0, 100);
    c.post(&SendWr { ud: Some((&to_d, stranger.qpn, QKEY)), ..SendWr::default() });
    c.post(&SendWr { ud: Some((&to_d, d.qp.qpn(), QKEY)), ..SendWr::default() });
    assert_eq!((c.sent().status, c.sent().status, d.received().wr_id), (0, 0, 1));
}

#[test]
fn nothing_passes_a_port_that_is_down() {
    let fabric = Fabric::configured(
        "[[devices]]\nname = \"up\"\n[[devices]]\nname = \"down\"\n[[devices.ports]]\nstate = \"down\"\n",
    );
    let plan = Plan { retry_cnt: 1, ..Plan::rc().hasty() };
    for (from, to) in [(0, 1), (1, 0), (1, 1)] {
        let (a, b) = (Side::new(&fabric.engine_of(from), &plan), Side::new(&fabric.engine_of(to), &plan));
        connect(&a, &b);
        b.recv(1, 0, 0);
        a.post(&SendWr::default());
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "{from} to {to}");
        assert_eq!(b.qp.state(), u32::from(state::RTS));
        let (c, d) = (Side::new(&a.engine, &Plan::ud()), Side::new(&b.engine, &Plan::ud()));
        connect(&c, &d);
        d.recv(1, 0, 100);
        let to_d = c.ah(&d);
        c.post(&SendWr { ud: Some((&to_d, d.qp.qpn(), QKEY)), ..SendWr::default() });
        assert_eq!(c.sent().status, 0);
        assert_eq!(d.rcq.poll(&mut [Default::default()]), Ok(0));
    }
}

#[test]
fn the_second_port_is_as_good_as_the_first() {
    let fabric = Fabric::configured("[[devices]]\nname = \"two\"\n[[devices.ports]]\n[[devices.ports]]\n");
    let engines = [fabric.engine(), fabric.engine()];
    for plan in [Plan::rc(), Plan::ud()] {
        let (first, second) = (plan, Plan { port: 2, ..plan });
        for (from, to) in [(second, second), (first, second), (second, first)] {
            let (a, b) = (Side::new(&engines[0], &from), Side::new(&engines[1], &to));
            connect(&a, &b);
            let to_b = a.ah(&b);
            let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
            b.recv(1, 0, 200);
            a.post(&SendWr { ud, sges: &a.sge(0, 100), ..SendWr::default() });
            let wc = b.received();
            assert_eq!((a.sent().status, wc.status), (0, 0));
            if ud.is_some() {
                assert_eq!(wc.port_num, to.port);
                assert_eq!(b.memory.get(8, 32), [a.gid(), b.gid()].concat());
            }
        }
    }
}

#[test]
fn datagrams_to_who_has_ended_are_lost_in_silence() {
    let fabric = Fabric::start();
    let (ours, theirs) = (fabric.engine(), fabric.engine());
    let (a, b) = (Side::new(&ours, &Plan::rc().hasty()), Side::new(&theirs, &Plan::rc()));
    connect(&a, &b);
    let (c, d) = (Side::new(&ours, &Plan::ud()), Side::new(&theirs, &Plan::ud()));
    connect(&c, &d);
    let to_d = c.ah(&d);
    let wr = SendWr { ud: Some((&to_d, d.qp.qpn(), QKEY)), ..SendWr::default() };
    d.recv(1, 0, 100);
    c.post(&wr);
    assert_eq!((c.sent().status, d.received().status), (0, 0));
    a.post(&SendWr::default());
    theirs.close();
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    (0..100).for_each(|_| {
        c.post(&wr);
        assert_eq!(c.sent().status, 0);
    });
    let asked = format!("no engine {}:", theirs.number());
    assert!(!engine::reason::last(64).iter().any(|reason| reason.contains(&asked)), "the agent was asked again");
}
