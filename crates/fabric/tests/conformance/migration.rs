//! Section 8: automatic path migration. Each host has two addresses, so each connection has two
//! paths. On one host the paths are two GIDs of the device.

use abi::cq::{Wc, status};
use abi::device::cap;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::opcode;
use abi::qp::migration::{ARMED, MIGRATED, REARM};
use abi::qp::{Dest, ModifyQp, QueryQpAnswer, attr, state};

use crate::common::paths::{paths_even_with_losses, paths_everywhere};
use crate::common::wait::{event, no_event, until};
use crate::common::{Fabric, Plan, Side};
use engine::{SendWr, Service};

/// The GID index of the second address.
const SECOND: u8 = 2;
/// The cookie of every QP in this file.
const QP: u64 = 2;

fn plan() -> Plan {
    Plan { memory: 256 * 1024, timeout: 12, retry_cnt: 3, ..Plan::rc() }
}

/// As [`plan`], for tests in which no path fails: an end that the machine leaves without a
/// processor for a while must not take that for a failed path.
fn patient() -> Plan {
    Plan { timeout: 15, retry_cnt: 7, ..plan() }
}

fn second_gid(side: &Side) -> [u8; 16] {
    side.engine.query_gid(1, u32::from(SECOND)).expect("a GID")
}

/// The attributes of an alternate path to `to`.
fn alternate(to: &Side) -> ModifyQp {
    let alt_dest =
        Dest { dgid: second_gid(to), sgid_index: SECOND, is_global: 1, port_num: 1, hop_limit: 64, ..Dest::default() };
    ModifyQp { attr_mask: attr::ALT_PATH, alt_dest, alt_port_num: 1, alt_timeout: 13, ..ModifyQp::default() }
}

fn set(side: &Side, path_mig_state: u8) -> Result<(), Errno> {
    let attributes = ModifyQp { attr_mask: attr::PATH_MIG_STATE, path_mig_state, ..ModifyQp::default() };
    side.qp.modify(&attributes).map_err(|error| error.errno)
}

fn load(from: &Side, to: &Side) {
    from.qp.modify(&alternate(to)).expect("an alternate path");
}

fn told(side: &Side) -> QueryQpAnswer {
    side.qp.query(u32::MAX).expect("an answer")
}

fn migration_state(side: &Side) -> u8 {
    told(side).path_mig_state
}

/// Sends a message in each direction.
fn exchange(a: &Side, b: &Side) {
    for (from, to, len) in [(a, b, 9000), (b, a, 5)] {
        from.memory.pattern(0, len, len);
        to.memory.pattern(0, len, 1);
        to.recv(7, 0, len);
        from.post(&SendWr { sges: &from.sge(0, len), ..SendWr::default() });
        assert_eq!((from.sent().status, to.received().byte_len as usize), (0, len));
        assert!(to.memory.get(0, len) == from.memory.get(0, len));
    }
}

/// A pair in which both sides have an alternate path and are armed.
fn armed(fabric: &Fabric, plan: &Plan) -> (Side, Side) {
    let (a, b) = fabric.pair(plan);
    load(&a, &b);
    load(&b, &a);
    arm(&a, &b);
    (a, b)
}

fn arm(a: &Side, b: &Side) {
    set(a, REARM).expect("rearmed");
    set(b, REARM).expect("rearmed");
    until("both armed", || {
        exchange(a, b);
        let states = [a, b].map(migration_state);
        // Nothing would ever arm such a side again.
        assert!(!states.contains(&MIGRATED), "one side has migrated after it was rearmed: {states:?}");
        (states == [ARMED; 2]).then_some(())
    });
}

fn migrated_by_event(side: &Side) {
    let event = event(&side.engine);
    assert_eq!((event.kind, event.element), (kind::PATH_MIG, QP));
    assert_eq!(migration_state(side), MIGRATED);
}

/// Cuts the cable of a path at one of its ends.
fn cut(fabric: &Fabric, host: usize, path: usize) {
    let host = fabric.host(host).expect("a host");
    host.cut(host.addresses()[path]);
}

fn apm_capability_is_told(fabric: &Fabric) {
    let device = fabric.engine().query_device().expect("an answer");
    assert_ne!(u64::from(device.device_cap_flags) & cap::AUTO_PATH_MIG, 0);
}

fn apm_states_of_both_ends(fabric: &Fabric) {
    for plan in [patient(), Plan { service: Service::Uc, ..patient() }] {
        let (a, b) = fabric.pair(&plan);
        assert_eq!(migration_state(&a), MIGRATED);
        load(&a, &b);
        load(&b, &a);
        exchange(&a, &b);
        assert_eq!([migration_state(&a), migration_state(&b)], [MIGRATED; 2], "a path in reserve is not yet armed");
        set(&a, REARM).expect("rearmed");
        exchange(&a, &b);
        assert_eq!([migration_state(&a), migration_state(&b)], [REARM, MIGRATED], "the other end has not rearmed");
        set(&b, REARM).expect("rearmed");
        until("both armed", || {
            exchange(&a, &b);
            ([migration_state(&a), migration_state(&b)] == [ARMED; 2]).then_some(())
        });
        // New alternate paths are loaded as the first ones were.
        load(&a, &b);
        set(&a, REARM).expect("rearmed");
        assert_eq!(migration_state(&a), REARM);
        no_event(&a.engine);
        no_event(&b.engine);
    }
}

fn apm_alternate_path_is_told(fabric: &Fabric) {
    let (a, b) = (Side::new(&fabric.engine(), &plan()), Side::new(&fabric.engine(), &plan()));
    let path = alternate(&b);
    // Loads the path in the transition to RTR, as the connection manager does, and arms it in the
    // transition to RTS.
    a.init();
    let rtr = a.rtr_request(b.gid(), b.qp.qpn(), 3);
    let ModifyQp { alt_dest, alt_port_num, alt_timeout, .. } = path;
    let mask = rtr.attr_mask | attr::ALT_PATH;
    a.qp.modify(&ModifyQp { attr_mask: mask, alt_dest, alt_port_num, alt_timeout, ..rtr }).expect("RTR");
    a.rts();
    let now = told(&a);
    assert_eq!((now.alt_dest.dgid, now.alt_dest.sgid_index), (second_gid(&b), SECOND));
    assert_eq!((now.alt_port_num, now.alt_timeout, now.alt_pkey_index), (1, 13, 0));
    assert_eq!((now.dest.dgid, now.timeout), (b.gid(), 12));
    set(&a, REARM).expect("rearmed");
    a.to(state::RESET);
    let now = told(&a);
    assert_eq!((now.alt_port_num, now.alt_dest.dgid, now.path_mig_state), (0, [0; 16], MIGRATED), "forgotten");
}

fn apm_explicit_migration_takes_both_ends(fabric: &Fabric) {
    for plan in [patient(), Plan { service: Service::Uc, ..patient() }] {
        let (a, b) = armed(fabric, &plan);
        set(&a, MIGRATED).expect("migrated");
        migrated_by_event(&a);
        assert_eq!(migration_state(&b), ARMED, "nothing has told it");
        exchange(&a, &b);
        migrated_by_event(&b);
        // Migrates back.
        arm(&a, &b);
        set(&b, MIGRATED).expect("migrated");
        migrated_by_event(&b);
        exchange(&b, &a);
        migrated_by_event(&a);
        assert_eq!((told(&a).dest.dgid, told(&b).dest.dgid), (b.gid(), a.gid()));
        no_event(&a.engine);
        no_event(&b.engine);
    }
}

fn apm_swap_of_the_paths_is_told(fabric: &Fabric) {
    let (a, b) = armed(fabric, &Plan { timeout: 12, ..patient() });
    let before = told(&a);
    set(&a, MIGRATED).expect("migrated");
    let after = told(&a);
    assert_eq!((after.dest, after.alt_dest), (before.alt_dest, before.dest));
    assert_eq!((after.timeout, after.alt_timeout), (13, 12));
    assert_eq!((after.port_num, after.alt_port_num), (1, 1));
    // After the migration, a change to the alternate path concerns the new alternate path.
    let mut path = alternate(&b);
    path.alt_timeout = 14;
    a.qp.modify(&path).expect("another one");
    let now = told(&a);
    assert_eq!((now.dest, now.timeout, now.alt_timeout), (after.dest, 13, 14));
    a.to(state::ERR);
    assert_eq!(told(&a).dest, after.dest);
    drop(b);
}

fn apm_refused_changes(fabric: &Fabric) {
    let (a, b) = fabric.pair(&plan());
    let refused = |attributes: &ModifyQp| a.qp.modify(attributes).map_err(|error| error.errno);
    let good = alternate(&b);
    assert_eq!(set(&a, REARM), Err(Errno::EINVAL), "no path is loaded");
    assert_eq!(set(&a, MIGRATED), Ok(()), "it is");
    assert_eq!(set(&a, ARMED), Err(Errno::EINVAL), "only by itself");
    assert_eq!(set(&a, 3), Err(Errno::EINVAL));
    let port = |alt_port_num, port_num| ModifyQp { alt_port_num, alt_dest: Dest { port_num, ..good.alt_dest }, ..good };
    let global = |alt_dest: Dest| ModifyQp { alt_dest, ..good };
    for (bad, what) in [
        (port(0, 0), "port 0"),
        (port(2, 2), "a port that is not there"),
        (port(1, 2), "two different ports"),
        (port(2, 1), "two different ports"),
        (global(Dest { is_global: 0, ..good.alt_dest }), "no GRH"),
        (global(Dest { sgid_index: 50, ..good.alt_dest }), "an empty GID"),
        (ModifyQp { alt_pkey_index: 1, ..good }, "a P_Key index that is not there"),
        (ModifyQp { alt_timeout: 32, ..good }, "a timeout that is none"),
    ] {
        assert_eq!(refused(&bad), Err(Errno::EINVAL), "{what}");
    }
    assert_eq!(told(&a).alt_port_num, 0, "nothing has changed");
    a.qp.modify(&good).expect("loaded");
    set(&a, REARM).expect("rearmed");
    assert_eq!(set(&a, MIGRATED), Err(Errno::EINVAL), "the other end may not be armed");
    assert_eq!(migration_state(&a), REARM);
    let (ud, _peer) = fabric.pair(&Plan::ud());
    for attributes in [good, ModifyQp { attr_mask: attr::PATH_MIG_STATE, ..good }] {
        assert_eq!(
            ud.qp.modify(&attributes).map_err(|error| error.errno),
            Err(Errno::EINVAL),
            "datagrams have no path"
        );
    }
}

fn apm_failover_when_nobody_answers(fabric: &Fabric) {
    // The sender loses its own first address, or its peer's first address.
    for (host, rounds) in [(0, 6), (1, 6)] {
        let (a, b) = armed(fabric, &plan());
        let before = told(&a);
        cut(fabric, host, 0);
        b.recv(1, 0, 9000);
        a.memory.pattern(0, 9000, 3);
        let read = SendWr {
            opcode: opcode::RDMA_READ,
            remote_addr: b.memory.addr(100_000),
            rkey: b.mr.rkey(),
            ..SendWr::default()
        };
        b.memory.pattern(100_000, 20_000, 9);
        a.post_all(&[
            SendWr { wr_id: 1, sges: &a.sge(0, 9000), ..SendWr::default() },
            SendWr { wr_id: 2, sges: &a.sge(100_000, 20_000), ..read },
        ]);
        for wr_id in [1, 2] {
            let wc = a.sent();
            assert_eq!((wc.wr_id, wc.status), (wr_id, status::SUCCESS));
        }
        assert_eq!(b.received().byte_len, 9000);
        assert!(b.memory.get(0, 9000) == a.memory.get(0, 9000));
        assert!(a.memory.get(100_000, 20_000) == b.memory.get(100_000, 20_000));
        migrated_by_event(&a);
        migrated_by_event(&b);
        let after = told(&a);
        assert_eq!((after.dest.dgid, after.alt_dest.dgid), (before.alt_dest.dgid, before.dest.dgid));
        (0..rounds).for_each(|_| exchange(&a, &b));
        // The first path works again. It is armed again, and takes over when the second path fails.
        let at = fabric.host(host).expect("a host");
        at.mend(at.addresses()[0]);
        arm(&a, &b);
        cut(fabric, host, 1);
        exchange(&b, &a);
        migrated_by_event(&a);
        migrated_by_event(&b);
        at.mend(at.addresses()[1]);
        no_event(&a.engine);
        no_event(&b.engine);
    }
}

fn apm_exhausted_when_both_paths_fail(fabric: &Fabric) {
    let (a, _b) = armed(fabric, &plan());
    (0..2).for_each(|path| cut(fabric, 1, path));
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    migrated_by_event(&a);
    assert_eq!(a.qp.state(), u32::from(state::ERR));
    no_event(&a.engine);
}

/// An alternate path that is not armed does not help.
fn apm_exhausted_when_not_armed(fabric: &Fabric) {
    let (a, b) = fabric.pair(&plan());
    load(&a, &b);
    load(&b, &a);
    set(&a, REARM).expect("rearmed");
    cut(fabric, 1, 0);
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    no_event(&a.engine);
}

/// On one host no packets are lost. A peer that is gone does not answer on the other path either.
#[test]
fn apm_exhausted_when_the_peer_is_gone() {
    let fabric = Fabric::configured("addresses = ['127.0.0.1', '127.0.0.2']");
    let (a, b) = armed(&fabric, &plan());
    b.to(state::RESET);
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    migrated_by_event(&a);
    no_event(&a.engine);
}

/// A peer that is not armed, or has another alternate path, does not follow a migration.
fn apm_request_that_cannot_be_followed(fabric: &Fabric) {
    let uc = Plan { service: Service::Uc, ..plan() };
    // On UC, one side learns nothing about the other side's rearming.
    let (a, b) = fabric.pair(&uc);
    load(&a, &b);
    load(&b, &a);
    set(&a, REARM).expect("rearmed");
    set(&b, REARM).expect("rearmed");
    a.recv(1, 0, 8);
    b.post(&SendWr::default());
    assert_eq!((b.sent().status, a.received().wr_id), (0, 1));
    assert_eq!([migration_state(&a), migration_state(&b)], [ARMED, REARM]);
    set(&a, MIGRATED).expect("migrated");
    b.recv(1, 0, 8);
    (0..3).for_each(|_| a.post(&SendWr::default()));
    let event = event(&b.engine);
    assert_eq!((event.kind, event.element), (kind::PATH_MIG_ERR, QP));
    (0..3).for_each(|_| assert_eq!(a.sent().status, 0));
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
    no_event(&b.engine);
    assert_eq!(b.qp.state(), u32::from(state::RTS));

    // The peer has an alternate path, but not the one that the packets use.
    let (a, b) = fabric.pair(&plan());
    load(&a, &b);
    let mut elsewhere = alternate(&a);
    elsewhere.alt_dest.dgid[15] = 77;
    b.qp.modify(&elsewhere).expect("a path to nobody");
    arm(&a, &b);
    set(&a, MIGRATED).expect("migrated");
    a.post(&SendWr::default());
    assert_eq!(crate::common::wait::event(&b.engine).kind, kind::PATH_MIG_ERR);
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    assert_eq!(migration_state(&b), ARMED);
}

fn apm_explicit_migration_takes_a_drained_end(fabric: &Fabric) {
    let (a, b) = armed(fabric, &patient());
    b.to(state::SQD);
    set(&a, MIGRATED).expect("migrated");
    b.recv(3, 0, 8);
    a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().wr_id), (0, 3), "receiving goes on while the send queue is drained");
    assert_eq!(event(&b.engine).kind, kind::PATH_MIG);
}

paths_everywhere! {
    apm_capability_is_told
    apm_states_of_both_ends
    apm_alternate_path_is_told
    apm_explicit_migration_takes_both_ends
    apm_swap_of_the_paths_is_told
    apm_refused_changes
    apm_explicit_migration_takes_a_drained_end
}

paths_even_with_losses! {
    apm_failover_when_nobody_answers
    apm_exhausted_when_both_paths_fail
    apm_exhausted_when_not_armed
}

#[test]
fn apm_request_that_cannot_be_followed_between_hosts() {
    apm_request_that_cannot_be_followed(&Fabric::two_paths(4096, ::fabric::Faults::default()));
}
