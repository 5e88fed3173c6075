//! Section 9, events that belong to no object: ports that go down and come up.

use std::sync::Arc;

use abi::cq::status;
use abi::device::port_state;
use abi::event::kind;
use abi::qp::migration::{ARMED, MIGRATED, REARM};
use abi::qp::{Dest, ModifyQp, attr};

use crate::common::wait::{event, no_event, until};
use crate::common::{Fabric, Plan, Side, connect, everywhere};
use engine::{Engine, SendWr};

/// Checks that every context gets the event, with the port's number.
fn told(engines: &[&Arc<Engine>], expected: u32) {
    for engine in engines {
        let event = event(engine);
        assert_eq!((event.kind, event.element), (expected, 1));
    }
}

fn event_port_err_and_active_reach_every_context(fabric: &Fabric) {
    let engines = [fabric.engine(), fabric.engine(), fabric.engine()];
    let engines: Vec<_> = engines.iter().collect();
    let state = || engines[0].query_port(1).map(|port| (port.state, port.phys_state)).expect("an answer");
    assert_eq!(state(), (port_state::ACTIVE, 5));
    fabric.set_port(1, false);
    told(&engines, kind::PORT_ERR);
    assert_eq!(state(), (port_state::DOWN, 3));
    fabric.set_port(1, false);
    fabric.set_port(1, true);
    told(&engines, kind::PORT_ACTIVE);
    assert_eq!(state(), (port_state::ACTIVE, 5));
    // No change means no event.
    engines.iter().for_each(|engine| no_event(engine));
}

fn event_port_err_stops_what_passes_until_the_port_is_active(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { timeout: 17, ..Plan::rc() });
    let both = [&a.engine, &b.engine];
    for round in 0..3 {
        fabric.set_port(1, false);
        told(&both, kind::PORT_ERR);
        b.recv(round, 0, 8);
        // Once the engines have learned about the change, no packets arrive. Packets sent before it
        // have arrived.
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        fabric.set_port(1, true);
        told(&both, kind::PORT_ACTIVE);
        assert_eq!((a.sent().status, b.received().wr_id), (0, round), "it only took longer");
    }
    // A peer whose port stays down does not answer.
    let plan = Plan { retry_cnt: 1, ..Plan::rc().hasty() };
    let (c, d) = (Side::new(&a.engine, &plan), Side::new(&b.engine, &plan));
    connect(&c, &d);
    fabric.set_port(1, false);
    told(&both, kind::PORT_ERR);
    // Messages pass until the engines learn about the change.
    let status = until("the end of it", || {
        d.recv(0, 0, 8);
        c.post(&SendWr { sges: &c.sge(0, 8), ..SendWr::default() });
        let status = c.sent().status;
        (status != status::SUCCESS || d.received().status != status::SUCCESS).then_some(status)
    });
    assert_eq!(status, status::RETRY_EXC_ERR);
}

everywhere! {
    event_port_err_and_active_reach_every_context
    event_port_err_stops_what_passes_until_the_port_is_active
}

/// Within a host a path fails with its port, and the path through the other port takes over.
fn fail_over_to_the_other_port(layer: &str, alt_dest: impl Fn(&Arc<Engine>) -> Dest) {
    let port = format!("[[devices.ports]]\ninterfaces = []\nlink_layer = '{layer}'\n");
    let fabric = Fabric::configured(&format!("[[devices]]\n{port}{port}"));
    let plan = Plan { timeout: 12, retry_cnt: 3, ..Plan::rc() };
    let (a, b) = fabric.pair(&plan);
    let alt_dest = alt_dest(&b.engine);
    for side in [&a, &b] {
        side.qp
            .modify(&ModifyQp {
                attr_mask: attr::ALT_PATH | attr::PATH_MIG_STATE,
                alt_dest,
                alt_port_num: 2,
                alt_timeout: 12,
                path_mig_state: REARM,
                ..ModifyQp::default()
            })
            .expect("a path in reserve");
    }
    let exchange = || {
        b.recv(1, 0, 8);
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().wr_id), (0, 1));
    };
    let states = || [&a, &b].map(|side| side.qp.query(u32::MAX).expect("an answer").path_mig_state);
    until("both armed", || {
        exchange();
        (states() == [ARMED; 2]).then_some(())
    });
    fabric.set_port(1, false);
    told(&[&a.engine, &b.engine], kind::PORT_ERR);
    until("both have migrated", || {
        exchange();
        (states() == [MIGRATED; 2]).then_some(())
    });
    for side in [&a, &b] {
        assert_eq!(event(&side.engine).kind, kind::PATH_MIG);
        let now = side.qp.query(u32::MAX).expect("an answer");
        assert_eq!((now.port_num, now.alt_port_num, now.dest), (2, 1, alt_dest));
        no_event(&side.engine);
    }
}

#[test]
fn apm_failover_to_another_port_of_the_host() {
    fail_over_to_the_other_port("ethernet", |engine| Dest {
        dgid: engine.query_gid(2, 0).expect("a GID"),
        is_global: 1,
        port_num: 2,
        hop_limit: 64,
        ..Dest::default()
    });
}

#[test]
fn apm_failover_to_another_port_by_lid() {
    fail_over_to_the_other_port("infiniband", |engine| {
        let dlid = engine.query_port(2).expect("a port").lid;
        assert_ne!(dlid, 0);
        Dest { dlid, port_num: 2, ..Dest::default() }
    });
}
