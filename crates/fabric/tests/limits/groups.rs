//! Limits of multicast: the number of groups, the members of each, and both together.

use std::sync::Arc;

use abi::errno::Errno;
use engine::{Caps, CqSpec, Engine, Pd, Qp, QpSpec, SendWr, Service};

use super::direct::Solo;
use super::refused;
use crate::common::{Fabric, Plan, QKEY, Side, ah, start};

/// The GID of the group with this number.
fn group(number: u32) -> [u8; 16] {
    let [.., a, b] = number.to_be_bytes();
    [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, a, b]
}

fn datagrams(engine: &Arc<Engine>, pd: &Arc<Pd>, count: u32) -> Vec<Arc<Qp>> {
    let cq = engine.create_cq(&CqSpec { cqe: 1, channel: None, comp_vector: 0, cookie: 1 }).expect("a CQ");
    let caps = Caps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let spec =
        QpSpec { service: Service::Ud, send_cq: &cq, recv_cq: &cq, srq: None, caps, sq_sig_all: true, cookie: 2 };
    (0..count).map(|_| engine.create_qp(pd, &spec).expect("a QP")).collect()
}

#[test]
fn every_group_with_every_member() {
    let engine = Solo::new(&["fd00::1"]).engine();
    let limits = engine.query_device().expect("limits");
    let (groups, members) = (limits.max_mcast_grp, limits.max_mcast_qp_attach);
    assert!(groups >= 1_024);
    let pd = engine.alloc_pd().expect("a PD");
    let qps = datagrams(&engine, &pd, members + 1);
    let (one_more, qps) = qps.split_last().expect("some");
    let mut attached = 0;
    for qp in qps {
        for number in 0..groups {
            qp.attach_mcast(&group(number), 0).expect("attached");
            attached += 1;
        }
    }
    assert_eq!(attached, limits.max_total_mcast_qp_attach);
    refused(one_more.attach_mcast(&group(0), 0), Errno::ENOMEM, &["members", &members.to_string()]);
    refused(one_more.attach_mcast(&group(groups), 0), Errno::ENOMEM, &["groups", &groups.to_string()]);
    qps[0].attach_mcast(&group(0), 0).expect("twice is once");
    // Frees a place in a group, and then a whole group.
    qps[0].detach_mcast(&group(0), 0).expect("detached");
    one_more.attach_mcast(&group(0), 0).expect("room for one");
    refused(qps[0].attach_mcast(&group(0), 0), Errno::ENOMEM, &["members"]);
    qps.iter().skip(1).chain([one_more]).for_each(|qp| qp.detach_mcast(&group(0), 0).expect("detached"));
    one_more.attach_mcast(&group(groups), 0).expect("room for a group");
    engine.close();
}

#[test]
fn a_group_of_as_many_programs_as_there_may_be_members() {
    let fabric = Fabric::start();
    let plan = Plan { memory: 4096, cqe: 4, ..Plan::ud() };
    let sender = Side::new(&fabric.engine(), &plan);
    start(&sender);
    // More members than one answer about a group can name.
    let members = abi::private::MCAST_ENGINES_MAX * 2 + 10;
    let sides: Vec<Side> = (0..members).map(|_| Side::new(&fabric.engine(), &plan)).collect();
    for side in &sides {
        start(side);
        side.recv(1, 0, 100);
        side.qp.attach_mcast(&group(7), 0).expect("attached");
    }
    let to_all = ah(&sender.pd, group(7), sender.gid_index());
    sender.post(&SendWr { ud: Some((&to_all, 0xff_ffff, QKEY)), sges: &sender.sge(0, 5), ..SendWr::default() });
    assert_eq!(sender.sent().status, 0);
    for side in &sides {
        assert_eq!(side.received().byte_len, 45);
    }
}
