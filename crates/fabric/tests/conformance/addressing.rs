//! Section 2: GUIDs, GIDs, partitions, Q_Keys, and MTU codes.

use abi::cq::Wc;
use abi::errno::Errno;
use abi::qp::{ModifyQp, attr, state};

use crate::common::{Fabric, Plan, QKEY, Side, everywhere, start};
use engine::SendWr;

const DEFAULT_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

fn v_01_guids_are_unique(fabric: &Fabric) {
    let (near, far) = (fabric.engine(), fabric.engine());
    let devices = [&near, &far].map(|engine| engine.query_device().expect("an answer"));
    for device in &devices {
        assert_ne!((device.node_guid, device.sys_image_guid), (0, 0));
    }
    // Both sides are on one adapter, or on two.
    let same_gid = near.query_gid(1, 0).expect("a GID") == far.query_gid(1, 0).expect("a GID");
    assert_eq!(devices[0].node_guid == devices[1].node_guid, same_gid);
    assert_eq!(devices[0].sys_image_guid == devices[1].sys_image_guid, same_gid);
}

fn v_02_gid_0_is_the_prefix_and_the_guid_of_the_port(fabric: &Fabric) {
    let engine = fabric.engine();
    let gid = engine.query_gid(1, 0).expect("always valid");
    assert_eq!(gid[..8], DEFAULT_PREFIX);
    assert_ne!(gid[8..], [0; 8]);
    let entries = engine.query_port(1).expect("an answer").gid_tbl_len;
    assert!(engine.query_gid(1, entries).is_err(), "one behind the table");
}

/// A RoCE port has no LID.
fn v_03_a_port_without_a_subnet_manager_has_no_lid(fabric: &Fabric) {
    let port = fabric.engine().query_port(1).expect("an answer");
    assert_eq!((port.lid, port.sm_lid, port.lmc), (0, 0, 0));
}

fn v_04_partitions_are_named_by_index(fabric: &Fabric) {
    let engine = fabric.engine();
    assert_eq!(engine.query_pkey(1, 0).expect("the default partition"), 0xffff);
    let entries = engine.query_port(1).expect("an answer").pkey_tbl_len;
    assert!(engine.query_pkey(1, entries.into()).is_err(), "one behind the table");
    let side = Side::new(&engine, &Plan::rc());
    let to_init = |pkey_index| {
        let mask = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let wish = ModifyQp { attr_mask: mask, qp_state: state::INIT, port_num: 1, pkey_index, ..ModifyQp::default() };
        side.qp.modify(&wish).map_err(|error| error.errno)
    };
    assert_eq!(to_init(entries), Err(Errno::EINVAL));
    assert_eq!(to_init(0), Ok(()));
}

fn v_06_datagrams_need_the_key_of_the_receiver(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    let violations = || b.engine.query_port(1).expect("an answer").qkey_viol_cntr;
    let before = violations();
    b.recv(1, 0, 100);
    b.recv(2, 0, 100);
    // A wrong Q_Key, the right Q_Key, and a Q_Key with the top bit, which stands for the sender
    // QP's own Q_Key.
    for (qkey, len) in [(QKEY + 1, 1), (QKEY, 2), (0x8765_4321, 3)] {
        a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), qkey)), sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
    }
    assert_eq!([b.received().byte_len, b.received().byte_len], [42, 43]);
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
    assert_eq!(violations(), before + 1);
}

fn v_08_mtu_codes_go_from_1_to_5(fabric: &Fabric) {
    let (engine, plan) = (fabric.engine(), Plan::uc());
    let active = engine.query_port(1).expect("an answer").active_mtu;
    assert!((1..=5).contains(&active));
    for code in 0..=7 {
        let side = Side::new(&engine, &plan);
        side.init();
        let refused = side.qp.modify(&side.rtr_request(side.gid(), side.qp.qpn(), code)).map_err(|error| error.errno);
        assert_eq!(refused, if (1..=5).contains(&code) { Ok(()) } else { Err(Errno::EINVAL) }, "code {code}");
    }
    let (a, b) = (Side::new(&engine, &Plan::ud()), Side::new(&engine, &Plan::ud()));
    start(&a);
    start(&b);
    b.recv(1, 0, 40 + a.mtu());
    let to_b = a.ah(&b);
    a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, a.mtu()), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().byte_len as usize), (0, 40 + a.mtu()), "a whole packet");
}

everywhere! {
    v_01_guids_are_unique
    v_02_gid_0_is_the_prefix_and_the_guid_of_the_port
    v_03_a_port_without_a_subnet_manager_has_no_lid
    v_04_partitions_are_named_by_index
    v_06_datagrams_need_the_key_of_the_receiver
    v_08_mtu_codes_go_from_1_to_5
}
