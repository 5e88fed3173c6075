//! Partitions (IBA 10.9): queue pairs of different partitions do not hear each other, and two
//! limited members of one partition do not either.

use abi::cq::status;
use abi::event::kind;
use abi::qp::{ModifyQp, attr};
use abi::reason::Cause;

use crate::common::wait::{dropped, event, no_event, until};
use crate::common::{Fabric, Plan, QKEY, Side, connect};
use engine::SendWr;

/// Full and limited members of two partitions.
const TABLE: &str = "[0xffff, 0x8001, 0x0001, 0x8002]";
const DEFAULT: u16 = 0;
const FULL: u16 = 1;
const LIMITED: u16 = 2;
const OTHER: u16 = 3;

fn everywhere(test: fn(&Fabric)) {
    for hosts in [false, true] {
        test(&Fabric::partitions(hosts, TABLE));
    }
}

fn sides(fabric: &Fabric, plan: &Plan, indexes: [u16; 2]) -> (Side, Side) {
    let [a, b] = indexes.map(|pkey_index| Side::new(&fabric.engine(), &Plan { pkey_index, ..*plan }));
    connect(&a, &b);
    (a, b)
}

/// The P_Key violations that the port of this side has counted.
fn violations(side: &Side) -> u32 {
    side.engine.query_port(1).expect("an answer").bad_pkey_cntr
}

#[test]
fn v_04_members_of_one_partition_communicate() {
    everywhere(|fabric| {
        for indexes in [[DEFAULT, DEFAULT], [FULL, FULL], [FULL, LIMITED], [LIMITED, FULL], [OTHER, OTHER]] {
            let (a, b) = sides(fabric, &Plan::rc(), indexes);
            for round in 0..20 {
                b.recv(round, 0, 8);
                a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
                assert_eq!((a.sent().status, b.received().wr_id), (0, round), "{indexes:?}");
            }
            assert_eq!((violations(&a), violations(&b)), (0, 0), "{indexes:?}");
            [a, b].into_iter().for_each(Side::destroy);
        }
    });
}

#[test]
fn v_05_queue_pairs_of_different_partitions_do_not_hear_each_other() {
    everywhere(|fabric| {
        for indexes in [[DEFAULT, FULL], [FULL, OTHER], [LIMITED, LIMITED], [LIMITED, OTHER]] {
            let (a, b) = sides(fabric, &Plan { retry_cnt: 1, ..Plan::rc().hasty() }, indexes);
            let before = violations(&b);
            b.recv(1, 0, 8);
            a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
            assert_eq!(a.sent().status, status::RETRY_EXC_ERR, "{indexes:?}");
            assert!(violations(&b) > before, "{indexes:?}");
            dropped(&b, Cause::PKey);
            [a, b].into_iter().for_each(Side::destroy);
        }
    });
}

#[test]
fn v_05_a_datagram_of_another_partition_is_dropped_and_counted() {
    everywhere(|fabric| {
        let (a, b) = sides(fabric, &Plan::ud(), [FULL, FULL]);
        let c = Side::new(&a.engine, &Plan { pkey_index: OTHER, ..Plan::ud() });
        crate::common::start(&c);
        b.recv(1, 0, 100);
        let send = |from: &Side| {
            let ah = from.ah(&b);
            from.post(&SendWr { ud: Some((&ah, b.qp.qpn(), QKEY)), sges: &from.sge(0, 8), ..SendWr::default() });
            assert_eq!(from.sent().status, status::SUCCESS, "nobody tells the sender of a datagram");
        };
        send(&c);
        until("the violation", || (violations(&b) == 1).then_some(()));
        send(&a);
        assert_eq!(b.received().src_qp, a.qp.qpn());
    });
}

#[test]
fn event_pkey_change_moves_queue_pairs_to_the_new_partitions() {
    everywhere(|fabric| {
        let (a, b) = sides(fabric, &Plan { timeout: 12, ..Plan::rc() }, [FULL, FULL]);
        let (c, d) = sides(fabric, &Plan { retry_cnt: 1, ..Plan::rc().hasty() }, [FULL, OTHER]);
        // The second pair finds itself in one partition when its first packet is sent again.
        fabric.set_pkeys(&[0xffff, 0x8003, 0x0001, 0x0003]);
        for engine in [&a.engine, &b.engine, &c.engine, &d.engine] {
            let event = event(engine);
            assert_eq!((event.kind, event.element), (kind::PKEY_CHANGE, 1));
            assert_eq!(engine.query_pkey(1, 1), Ok(0x8003));
        }
        for (from, to) in [(&a, &b), (&c, &d)] {
            to.recv(7, 0, 8);
            from.post(&SendWr { sges: &from.sge(0, 8), ..SendWr::default() });
            assert_eq!((from.sent().status, to.received().wr_id), (0, 7));
        }
        // A table that stays as it is raises no event.
        fabric.set_pkeys(&[0xffff, 0x8003, 0x0001, 0x0003]);
        [&a, &b].iter().for_each(|side| no_event(&side.engine));
        // One that leaves the entry empty ends the connection.
        fabric.set_pkeys(&[0xffff]);
        [&c, &d].iter().for_each(|side| assert_eq!(event(&side.engine).kind, kind::PKEY_CHANGE));
        let status = until("the end of it", || {
            c.post(&SendWr { sges: &c.sge(0, 8), ..SendWr::default() });
            d.recv(0, 0, 8);
            let status = c.sent().status;
            (status != status::SUCCESS).then_some(status)
        });
        assert_eq!(status, status::RETRY_EXC_ERR);
    });
}

#[test]
fn v_04_the_index_of_a_stopped_queue_pair_can_change() {
    everywhere(|fabric| {
        let (a, b) = sides(fabric, &Plan::rc(), [FULL, FULL]);
        for side in [&a, &b] {
            side.to(abi::qp::state::SQD);
            let mask = attr::PKEY_INDEX | attr::STATE;
            let wish =
                ModifyQp { attr_mask: mask, qp_state: abi::qp::state::SQD, pkey_index: OTHER, ..ModifyQp::default() };
            side.modify(&wish);
            side.to(abi::qp::state::RTS);
        }
        b.recv(1, 0, 8);
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().wr_id), (0, 1));
    });
}
