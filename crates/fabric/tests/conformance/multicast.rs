//! Section 11: multicast groups.

use abi::cq::{Wc, wc_flags};
use abi::errno::Errno;

use crate::common::{Fabric, Plan, QKEY, Side, ah, everywhere, start};
use engine::{Ah, SendWr};

/// A group of the same address family as the side's address.
fn group(side: &Side, last: u8) -> [u8; 16] {
    if side.gid()[12] == 10 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 7, last]
    } else {
        [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, last]
    }
}

fn send(from: &Side, ah: &Ah, to: u32, qkey: u32, len: usize) {
    from.post(&SendWr { ud: Some((ah, to, qkey)), sges: &from.sge(0, len), ..SendWr::default() });
    assert_eq!(from.sent().status, 0);
}

/// Sends a datagram to one side. It arrives after earlier datagrams to the group. If it is the
/// first to arrive, the side got no datagram of the group.
fn next_is_for_it_alone(from: &Side, to: &Side) {
    send(from, &from.ah(to), to.qp.qpn(), QKEY, 1);
    assert_eq!(to.received().byte_len, 41);
}

fn mcast_each_member_gets_one_copy(fabric: &Fabric) {
    let (near, far) = (fabric.engine(), fabric.engine());
    let a = Side::new(&near, &Plan::ud());
    let members = [Side::new(&near, &Plan::ud()), Side::new(&far, &Plan::ud())];
    let outsider = Side::new(&far, &Plan::ud());
    let all: Vec<_> = members.iter().chain([&a, &outsider]).collect();
    all.iter().for_each(|side| {
        start(side);
        (0..4).for_each(|wr_id| side.recv(wr_id, 0, 100));
    });
    let gid = group(&a, 1);
    members.iter().chain([&a]).for_each(|side| side.qp.attach_mcast(&gid, 0).expect("attached"));
    members[1].qp.attach_mcast(&gid, 0).expect("twice is once");
    let to_all = ah(&a.pd, gid, a.gid_index());
    send(&a, &to_all, 0xff_ffff, QKEY, 5);
    for side in members.iter().chain([&a]) {
        let wc = side.received();
        assert_eq!((wc.byte_len, wc.src_qp, wc.wc_flags), (45, a.qp.qpn(), wc_flags::GRH), "the sender, too");
        next_is_for_it_alone(&a, side);
    }
    next_is_for_it_alone(&a, &outsider);
}

fn mcast_members_need_the_key(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let gid = group(&a, 2);
    b.qp.attach_mcast(&gid, 0).expect("attached");
    (0..3).for_each(|wr_id| b.recv(wr_id, 0, 100));
    let to_all = ah(&a.pd, gid, a.gid_index());
    send(&a, &to_all, 0xff_ffff, QKEY + 1, 5);
    next_is_for_it_alone(&a, &b);
    send(&a, &to_all, 0xff_ffff, QKEY, 5);
    assert_eq!(b.received().byte_len, 45);
}

fn mcast_who_leaves_gets_no_more(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let gid = group(&a, 3);
    assert_eq!(b.qp.detach_mcast(&gid, 0).expect_err("no member").errno, Errno::EINVAL);
    b.qp.attach_mcast(&gid, 0).expect("attached");
    assert_eq!(b.qp.destroy().expect_err("a member").errno, Errno::EBUSY);
    b.qp.detach_mcast(&gid, 0).expect("detached");
    (0..3).for_each(|wr_id| b.recv(wr_id, 0, 100));
    send(&a, &ah(&a.pd, gid, a.gid_index()), 0xff_ffff, QKEY, 5);
    next_is_for_it_alone(&a, &b);
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
    b.qp.destroy().expect("destroyed");
}

fn mcast_only_datagram_queue_pairs_and_groups(fabric: &Fabric) {
    let engine = fabric.engine();
    let (rc, uc, ud) = (Plan::rc(), Plan::uc(), Plan::ud());
    let [rc, uc, ud] = [rc, uc, ud].map(|plan| Side::new(&engine, &plan));
    for side in [&rc, &uc] {
        assert_eq!(side.qp.attach_mcast(&group(side, 4), 0).expect_err("connected").errno, Errno::EINVAL);
    }
    assert_eq!(ud.qp.attach_mcast(&ud.gid(), 0).expect_err("no group").errno, Errno::EINVAL);
}

fn mcast_as_many_groups_as_are_told(fabric: &Fabric) {
    let engine = fabric.engine();
    let most = engine.query_device().expect("an answer").max_mcast_grp;
    assert!(most >= 1024);
    let side = Side::new(&engine, &Plan::ud());
    let gid = |number: u32| {
        let [_, _, high, low] = number.to_be_bytes();
        [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, high, low]
    };
    (0..most).for_each(|number| side.qp.attach_mcast(&gid(number), 0).expect("room"));
    assert_eq!(side.qp.attach_mcast(&gid(most), 0).expect_err("one more").errno, Errno::ENOMEM);
    (0..most).for_each(|number| side.qp.detach_mcast(&gid(number), 0).expect("a member"));
}

everywhere! {
    mcast_each_member_gets_one_copy
    mcast_members_need_the_key
    mcast_who_leaves_gets_no_more
    mcast_only_datagram_queue_pairs_and_groups
    mcast_as_many_groups_as_are_told
}
