//! Peers that never answer, and packets for another port: a requester gets no answer, and its
//! request fails after its retries. This also holds between programs of one host, where no timer
//! runs before a loss is known.

use std::sync::Arc;

use abi::cq::{Wc, status};
use abi::event::kind;
use abi::post::opcode;
use abi::qp::state;
use abi::reason::{Cause, DropRecord};

use crate::common::wait::{event, until};
use crate::common::xrc::{self, Asker};
use crate::common::{Fabric, Plan, QKEY, Side, ah, connect, everywhere, start};
use engine::{Engine, Feth, Flush, SendWr};

/// Makes a QP of the peer that does not take packets from a stranger's connection. The caller keeps
/// the QP alive during the test.
type Silent = fn(&Arc<Engine>, &Side) -> Side;

fn ready(side: &Side, to: &Side) {
    side.init();
    side.rtr(to.gid(), to.qp.qpn());
    side.rts();
}

/// Each kind of request to this QP number fails in time.
fn ends(a: impl Fn() -> Side, gid: [u8; 16], qpn: u32, what: &str) {
    let flush = Flush { length: 8, feth: Feth { placement: 1, selectivity: 0 } };
    for code in [
        opcode::SEND,
        opcode::SEND_WITH_INV,
        opcode::RDMA_WRITE,
        opcode::ATOMIC_WRITE,
        opcode::RDMA_READ,
        opcode::ATOMIC_FETCH_AND_ADD,
        opcode::FLUSH,
    ] {
        let a = a();
        a.init();
        a.rtr(gid, qpn);
        a.rts();
        // A FLUSH carries no data.
        let data = if code == opcode::FLUSH { Vec::new() } else { a.sge(0, 8).to_vec() };
        let wr = SendWr { opcode: code, sges: &data, remote_addr: 4096, rkey: 1, ..SendWr::default() };
        a.post(&SendWr { imm: 1, flush, ..wr });
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "{what}, opcode {code}");
        assert_eq!(a.qp.state(), u32::from(state::ERR), "{what}");
    }
}

fn retry_silence_of_whoever_is_not_connected(fabric: &Fabric) {
    let (near, far) = (fabric.engine(), fabric.engine());
    let plan = Plan::rc().hasty();
    let cases: [(&str, Silent); 8] = [
        ("a datagram QP", |far, _| {
            let side = Side::new(far, &Plan::ud());
            start(&side);
            side.recv(1, 0, 100);
            side
        }),
        ("an unreliable connection with the sender", |far, a| {
            let side = Side::new(far, &Plan::uc());
            ready(&side, a);
            side.recv(1, 0, 100);
            side
        }),
        ("an unreliable connection with somebody else", |far, _| {
            let side = Side::new(far, &Plan::uc());
            ready(&side, &side);
            side
        }),
        ("a reliable connection with somebody else", |far, _| {
            let side = Side::new(far, &Plan::rc());
            ready(&side, &side);
            side.recv(1, 0, 100);
            side
        }),
        ("one in RESET", |far, _| Side::new(far, &Plan::rc())),
        ("one in INIT", |far, _| {
            let side = Side::new(far, &Plan::rc());
            side.init();
            side
        }),
        ("one in ERR", |far, a| {
            let side = Side::new(far, &Plan::rc());
            ready(&side, a);
            side.to(state::ERR);
            side
        }),
        ("one that is destroyed", |far, _| {
            let side = Side::new(far, &Plan::rc());
            side.qp.destroy().expect("destroyed");
            side
        }),
    ];
    for (what, make) in cases {
        let a = Side::new(&near, &plan);
        let b = make(&far, &a);
        let mut first = Some(a);
        let first = std::cell::RefCell::new(&mut first);
        ends(|| first.borrow_mut().take().unwrap_or_else(|| Side::new(&near, &plan)), b.gid(), b.qp.qpn(), what);
        assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0), "{what}");
    }
    let gid = Side::new(&far, &plan).gid();
    for qpn in [0, 1, 0xff_ffff, 0xab_cdef] {
        ends(|| Side::new(&near, &plan), gid, qpn, &format!("QP {qpn:#x}"));
    }
}

/// Two XRC initiators that are connected with each other: neither takes requests.
fn retry_silence_of_initiators(fabric: &Fabric) {
    let askers = [Asker::new(fabric.engine()), Asker::new(fabric.engine())];
    for (asker, other) in [(&askers[0], &askers[1]), (&askers[1], &askers[0])] {
        xrc::connect(&asker.initiator, &asker.engine, xrc::gid(&other.engine).0, other.initiator.qpn(), 7);
    }
    let wr = SendWr { sges: &askers[0].sge(0, 8), ..SendWr::default() };
    assert_eq!(askers[0].outcome(1, &wr), status::RETRY_EXC_ERR);
}

/// The request has arrived and waits for a receive request. The receiver ends before it has sent an
/// answer.
fn retry_silence_of_who_goes_before_it_has_answered(fabric: &Fabric) {
    let plan = Plan::rc().hasty();
    let ends: [fn(&Side); 3] = [|b| b.to(state::ERR), |b| b.to(state::RESET), |b| assert!(b.qp.destroy().is_ok())];
    for end in ends {
        let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
        ready(&a, &b);
        b.init();
        b.rtr(a.gid(), a.qp.qpn());
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!(event(&b.engine).kind, kind::COMM_EST);
        end(&b);
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    }
}

everywhere! {
    retry_silence_of_initiators
    retry_silence_of_who_goes_before_it_has_answered
    retry_silence_of_whoever_is_not_connected
}

/// The drop record of a packet that the QP did not take because it was for another port.
fn port_drop(side: &Side) -> Option<DropRecord> {
    let is_it = |record: &DropRecord| record.cause == Cause::Port as u32 && record.dest_qp == side.qp.qpn();
    side.engine.drops().into_iter().find(is_it)
}

/// On a host with two ports: requests to the other port, or responses to it.
#[test]
fn retry_silence_between_ports_of_a_host() {
    let fabric = Fabric::two_ports(false);
    let (near, far) = (fabric.engine(), fabric.engine());
    let other = near.query_gid(2, 0).expect("the other port's GID");
    let plan = Plan { port: 1, ..Plan::rc().hasty() };
    // Responses to a port that is not the requester's: the message has arrived, and its sender does
    // not learn this.
    for code in [opcode::SEND, opcode::RDMA_READ] {
        let (a, b) = (Side::new(&near, &plan), Side::new(&far, &plan));
        ready(&a, &b);
        b.init();
        b.rtr(other, a.qp.qpn());
        b.recv(1, 0, 8);
        let wr = SendWr { opcode: code, sges: &a.sge(0, 8), ..SendWr::default() };
        a.post(&SendWr { remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..wr });
        assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "opcode {code}");
    }
    // Requests to a port that is not the responder's.
    for service in [engine::Service::Rc, engine::Service::Uc] {
        let plan = Plan { service, ..plan };
        let (a, b) = (Side::new(&near, &plan), Side::new(&far, &plan));
        a.init();
        a.rtr(other, b.qp.qpn());
        a.rts();
        ready(&b, &a);
        b.recv(1, 0, 8);
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        let expected = if service == engine::Service::Rc { status::RETRY_EXC_ERR } else { status::SUCCESS };
        assert_eq!(a.sent().status, expected);
        until("the packet", || {
            assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0), "{service}: it was not sent to its port");
            port_drop(&b)
        });
    }
    // Responses by a path that is gone: their destination port is down, and the requester is on the
    // other port.
    let (a, b) = (Side::new(&near, &plan), Side::new(&far, &plan));
    ready(&a, &b);
    b.init();
    b.rtr(other, a.qp.qpn());
    fabric.set_port(2, false);
    for engine in [&near, &far] {
        until("the port", || Some(event(engine)).filter(|event| event.kind == kind::PORT_ERR));
    }
    b.recv(1, 0, 8);
    a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
}

/// A datagram to an address of port 1 is not for a QP on port 2, on one host or between hosts. A
/// multicast datagram is for both.
fn a_datagram_is_for_the_port_that_has_its_address(hosts: bool) {
    let fabric = Fabric::two_ports(hosts);
    let (near, far) = (fabric.engine(), fabric.engine());
    let a = Side::new(&near, &Plan::ud());
    let on_1 = Side::new(&far, &Plan::ud());
    let on_2 = Side::new(&far, &Plan { port: 2, ..Plan::ud() });
    for side in [&a, &on_1, &on_2] {
        start(side);
        (0..4).for_each(|wr_id| side.recv(wr_id, 0, 100));
    }
    let to_1 = ah(&a.pd, on_1.gid(), a.gid_index());
    let send = |to: &Side, len| {
        a.post(&SendWr { ud: Some((&to_1, to.qp.qpn(), QKEY)), sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
    };
    send(&on_2, 7);
    let record = until("the datagram", || {
        assert_eq!(on_2.rcq.poll(&mut [Wc::default()]), Ok(0));
        port_drop(&on_2)
    });
    assert_eq!((record.dest_qp, record.expected), (on_2.qp.qpn(), 2));
    send(&on_1, 5);
    assert_eq!(on_1.received().byte_len, 45);
    if !hosts {
        let to_2 = ah(&a.pd, on_2.gid(), a.gid_index());
        a.post(&SendWr { ud: Some((&to_2, on_2.qp.qpn(), QKEY)), sges: &a.sge(0, 3), ..SendWr::default() });
        assert_eq!((a.sent().status, on_2.received().byte_len), (0, 43));
    }
    // A multicast group has no port.
    let group = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 9, 1];
    for side in [&on_1, &on_2] {
        side.qp.attach_mcast(&group, 0).expect("attached");
    }
    let to_all = ah(&a.pd, group, a.gid_index());
    a.post(&SendWr { ud: Some((&to_all, 0xff_ffff, QKEY)), sges: &a.sge(0, 9), ..SendWr::default() });
    assert_eq!(a.sent().status, 0);
    assert_eq!([on_1.received().byte_len, on_2.received().byte_len], [49, 49]);
}

#[test]
fn port_address_on_one_host() {
    a_datagram_is_for_the_port_that_has_its_address(false);
}

#[test]
fn port_address_between_hosts() {
    a_datagram_is_for_the_port_that_has_its_address(true);
}

/// Two ports may have the same interfaces. Packets to their shared address are then for both ports.
#[test]
fn port_address_that_two_ports_have() {
    let fabric = Fabric::configured("addresses = ['127.0.0.1']\n[[devices]]\n[[devices.ports]]\n[[devices.ports]]\n");
    // The address, not the GID of index 0.
    let plan = |port: u8, plan: Plan| Plan { port, gid_index: Some(1), ..plan };
    for service in [engine::Service::Rc, engine::Service::Uc] {
        let (a, b) = (
            Side::new(&fabric.engine(), &plan(1, Plan::new(service))),
            Side::new(&fabric.engine(), &plan(2, Plan::new(service))),
        );
        assert_eq!(a.gid(), b.gid());
        for (side, peer) in [(&a, &b), (&b, &a)] {
            side.init();
            side.rtr(peer.gid(), peer.qp.qpn());
            side.rts();
        }
        for wr_id in 0..3 {
            b.recv(wr_id, 0, 8);
            a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
            assert_eq!((a.sent().status, b.received().wr_id), (0, wr_id));
        }
    }
    let (a, b) = (Side::new(&fabric.engine(), &plan(1, Plan::ud())), Side::new(&fabric.engine(), &plan(2, Plan::ud())));
    connect(&a, &b);
    b.recv(1, 0, 100);
    let to_b = ah(&a.pd, b.gid(), 1);
    a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().byte_len), (0, 48));
}
