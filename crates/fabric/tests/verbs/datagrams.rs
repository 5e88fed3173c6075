//! UD: address handles, the GRH in receive buffers, Q_Keys, lengths and multicast.

use std::sync::Arc;

use crate::common::{Fabric, Plan, QKEY, Side, ah};
use abi::ah::AhAttr;
use abi::cq::{opcode as wc_opcode, status, wc_flags};
use abi::errno::Errno;
use abi::post::opcode;
use abi::qp::state;
use engine::{Ah, SendWr};

fn send(from: &Side, ah: &Ah, to: u32, qkey: u32, len: usize) {
    from.post(&SendWr { wr_id: 3, ud: Some((ah, to, qkey)), sges: &from.sge(0, len), ..SendWr::default() });
    let wc = from.sent();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, 0, wc_opcode::SEND));
}

/// The fields in the first 40 bytes: IP version, next header, hop limit, source and destination.
fn header(side: &Side) -> (u8, u8, u8, [u8; 16], [u8; 16]) {
    let bytes = side.memory.get(0, 40);
    let gid = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("sixteen");
    if bytes[0] >> 4 == 6 {
        return (6, bytes[6], bytes[7], gid(8), gid(24));
    }
    let mapped = |at: usize| [&[0; 10][..], &[0xff; 2], &bytes[at..at + 4]].concat().try_into().expect("sixteen");
    (bytes[20] >> 4, bytes[29], bytes[28], mapped(32), mapped(36))
}

/// The first bytes of the GID of an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

fn a_datagram_comes_with_its_header(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    for len in [0usize, 1, 100, 300, 1024, 4096].into_iter().filter(|len| *len <= a.mtu()) {
        a.memory.pattern(0, len, len);
        b.memory.pattern(0, len + 50, 1);
        b.recv(9, 0, len + 40);
        send(&a, &to_b, b.qp.qpn(), QKEY, len);
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize), (9, 0, wc_opcode::RECV, len + 40));
        assert_eq!((wc.src_qp, wc.wc_flags, wc.port_num), (a.qp.qpn(), wc_flags::GRH, 1));
        assert_eq!(b.memory.get(40, len), a.memory.get(0, len));
        // With an IPv6 address, any byte may have any value.
        let version = if a.gid()[..12] == MAPPED { 4 } else { 6 };
        assert_eq!(header(&b), (version, 17, 64, a.gid(), b.gid()));
    }
    // The reply uses the received header.
    let back = ah(&b.pd, header(&b).3, b.gid_index());
    a.recv(1, 100, 100);
    b.post(&SendWr { opcode: opcode::SEND_WITH_IMM, imm: 7, ud: Some((&back, a.qp.qpn(), QKEY)), ..SendWr::default() });
    let wc = a.received();
    assert_eq!((wc.byte_len, wc.imm_data, wc.wc_flags), (40, 7, wc_flags::GRH | wc_flags::WITH_IMM));
    assert_eq!((wc.src_qp, b.sent().status), (b.qp.qpn(), 0));
}

#[test]
fn between_ipv4_addresses_the_header_is_ipv4s() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::ud());
    let mapped = |side: &Side| {
        let gids = (0..64).filter_map(|index| Some((index, side.engine.query_gid(1, index).ok()?)));
        gids.into_iter().find(|(_, gid)| gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127]))
    };
    let (index, gid) = mapped(&a).expect("every host has 127.0.0.1");
    let to_b = ah(&a.pd, gid, index as u8);
    b.memory.put(0, &[0xee; 40]);
    b.recv(1, 0, 200);
    a.memory.pattern(0, 33, 3);
    send(&a, &to_b, b.qp.qpn(), QKEY, 33);
    let wc = b.received();
    assert_eq!((wc.byte_len, wc.wc_flags), (73, wc_flags::GRH));
    let header = b.memory.get(20, 20);
    assert_eq!((header[0], header[8], header[9]), (0x45, 64, 17), "version and length, time to live, UDP");
    assert_eq!((&header[12..16], &header[16..20]), (&gid[12..], &gid[12..]));
    assert_eq!(b.memory.get(40, 33), a.memory.get(0, 33));
}

/// The receiver sees the traffic class of the service level, the same on one host and between
/// hosts.
#[test]
fn a_service_level_has_the_traffic_class_of_the_table() {
    for hosts in [false, true] {
        let fabric = Fabric::with_port(hosts, "dscp = [0, 10, 46]");
        let (a, b) = fabric.pair(&Plan::ud());
        for (sl, asked, seen) in [(0, 0, 0), (1, 0, 10 << 2), (2, 1, 46 << 2 | 1), (2, 8 << 2, 8 << 2), (15, 0, 0)] {
            let vector = AhAttr { sl, traffic_class: asked, ..*a.ah(&b).vector() };
            let to_b = a.pd.create_ah(&vector).expect("an address handle");
            assert_eq!(to_b.vector().traffic_class, asked, "the program's own value stays");
            b.recv(1, 0, 100);
            send(&a, &to_b, b.qp.qpn(), QKEY, 5);
            assert_eq!(b.received().byte_len, 45);
            let bytes = b.memory.get(0, 40);
            let class = if a.gid()[..12] == MAPPED { bytes[21] } else { bytes[0] << 4 | bytes[1] >> 4 };
            assert_eq!(class, seen, "service level {sl}, between hosts: {hosts}");
        }
    }
}

fn only_those_who_show_the_key_are_heard(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    b.recv(1, 0, 100);
    b.recv(2, 0, 100);
    send(&a, &to_b, b.qp.qpn(), QKEY + 1, 1);
    send(&a, &to_b, b.qp.qpn(), QKEY, 2);
    assert_eq!(b.received().byte_len, 42, "the first was dropped (V-06)");
    // A Q_Key with the top bit set stands for the sender QP's own Q_Key.
    send(&a, &to_b, b.qp.qpn(), 0x8123_4567, 3);
    assert_eq!(b.received().byte_len, 43);
}

fn datagrams_to_a_missing_qp_complete_successfully(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    let mut unknown = b.gid();
    unknown[15] ^= 0x55;
    let nowhere = ah(&a.pd, unknown, a.gid_index());
    send(&a, &to_b, 0xff_fff0, QKEY, 1);
    send(&a, &nowhere, b.qp.qpn(), QKEY, 1);
    // Without a receive request the message is dropped. A later receive request gets the later
    // message.
    send(&a, &to_b, b.qp.qpn(), QKEY, 1);
    // A message in the other direction shows that `b` has handled all earlier messages of `a`.
    let to_a = b.ah(&a);
    a.recv(1, 100, 100);
    send(&b, &to_a, a.qp.qpn(), QKEY, 0);
    assert_eq!(a.received().status, 0);
    let gone = Side::new(&b.engine, &Plan::ud());
    send(&a, &to_b, gone.qp.qpn(), QKEY, 1);
    assert_eq!(a.qp.state(), u32::from(state::RTS));
}

fn too_long_to_send_and_too_long_to_take(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    // V-70: the 40 bytes of the GRH count.
    b.recv(1, 0, 139);
    b.recv(2, 0, 200);
    send(&a, &to_b, b.qp.qpn(), QKEY, 100);
    // The receive request serves the next message.
    send(&a, &to_b, b.qp.qpn(), QKEY, 99);
    send(&a, &to_b, b.qp.qpn(), QKEY, 160);
    let (first, second) = (b.received(), b.received());
    assert_eq!((first.wr_id, first.status, first.byte_len), (1, 0, 139));
    assert_eq!((second.wr_id, second.status, second.byte_len), (2, 0, 200));
    assert_eq!(b.qp.state(), u32::from(state::RTS));

    a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, a.mtu() + 1), ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_LEN_ERR);
    assert_eq!(a.qp.state(), u32::from(state::SQE));
}

fn an_address_handle_of_another_domain_is_a_local_error(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let other = a.engine.alloc_pd().expect("a PD");
    let foreign = ah(&other, b.gid(), a.gid_index());
    a.post(&SendWr { ud: Some((&foreign, b.qp.qpn(), QKEY)), ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_QP_OP_ERR);
    assert_eq!(a.qp.state(), u32::from(state::SQE));
    assert_eq!(other.dealloc(), Err(Errno::EBUSY), "the handle stands on it");
    foreign.destroy().expect("destroyed");
    other.dealloc().expect("deallocated");
    let none = a.qp.send_batch().expect("a batch").push(&SendWr::default());
    assert_eq!(none.map_err(engine::PostError::errno), Err(Errno::EINVAL), "a datagram without an address");
}

const GROUP: [u8; 16] = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];

/// A group of the same address family as the side's address.
fn group(side: &Side) -> [u8; 16] {
    let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
    if side.gid()[12] == 10 { v4 } else { GROUP }
}

fn group_ah(side: &Side) -> Arc<Ah> {
    ah(&side.pd, group(side), side.gid_index())
}

fn every_member_of_a_group_gets_one_copy(fabric: &Fabric) {
    let plan = Plan::ud();
    let (near, far) = (fabric.engine(), fabric.engine());
    let a = Side::new(&near, &plan);
    let gid = group(&a);
    let members = [Side::new(&near, &plan), Side::new(&far, &plan), Side::new(&far, &plan)];
    let outsider = Side::new(&far, &plan);
    for side in members.iter().chain([&a, &outsider]) {
        crate::common::start(side);
    }
    members.iter().chain([&a]).for_each(|side| side.qp.attach_mcast(&gid, 0).expect("attached"));
    members[2].qp.attach_mcast(&gid, 0).expect("a second time is no error");
    let everybody: Vec<_> = members.iter().chain([&a]).collect();
    everybody.iter().chain([&&outsider]).for_each(|side| (0..4).for_each(|wr_id| side.recv(wr_id, 0, 200)));
    a.memory.pattern(1000, 100, 6);
    let group = group_ah(&a);
    let wr = SendWr { ud: Some((&group, 0xff_ffff, QKEY)), ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(1000, 100), ..wr });
    assert_eq!(a.sent().status, 0);
    for side in &everybody {
        let wc = side.received();
        assert_eq!((wc.wr_id, wc.byte_len, wc.src_qp, wc.wc_flags), (0, 140, a.qp.qpn(), wc_flags::GRH));
        assert_eq!(side.memory.get(40, 100), a.memory.get(1000, 100));
        assert_eq!(header(side).4, gid);
    }
    // Members with another Q_Key, and former members, get no message of the group. They get only
    // later messages to them alone.
    a.post(&SendWr { ud: Some((&group, 0xff_ffff, QKEY + 1)), ..SendWr::default() });
    assert_eq!(members[1].qp.destroy().expect_err("it is a member").errno, Errno::EBUSY);
    everybody.iter().for_each(|side| side.qp.detach_mcast(&gid, 0).expect("detached"));
    assert_eq!(a.qp.detach_mcast(&gid, 0).expect_err("not a member any more").errno, Errno::EINVAL);
    a.post(&wr);
    (0..2).for_each(|_| assert_eq!(a.sent().status, 0));
    for side in everybody.iter().chain([&&outsider]) {
        let alone = ah(&a.pd, side.gid(), a.gid_index());
        a.post(&SendWr { ud: Some((&alone, side.qp.qpn(), QKEY)), sges: &a.sge(0, 1), ..SendWr::default() });
        assert_eq!((side.received().byte_len, a.sent().status), (41, 0));
    }
}

#[test]
fn only_datagram_queues_join_groups() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let (rc, ud) = (Side::new(&engine, &Plan::rc()), Side::new(&engine, &Plan::ud()));
    assert_eq!(rc.qp.attach_mcast(&GROUP, 0).expect_err("RC").errno, Errno::EINVAL);
    assert_eq!(ud.qp.attach_mcast(&ud.gid(), 0).expect_err("no group").errno, Errno::EINVAL);
    assert_eq!(ud.qp.detach_mcast(&GROUP, 0).expect_err("no member").errno, Errno::EINVAL);
}

crate::common::everywhere! {
    a_datagram_comes_with_its_header
    only_those_who_show_the_key_are_heard
    datagrams_to_a_missing_qp_complete_successfully
    too_long_to_send_and_too_long_to_take
    an_address_handle_of_another_domain_is_a_local_error
    every_member_of_a_group_gets_one_copy
}
