//! Section 3: which objects depend on which, and that objects of one protection domain do not work
//! in another.

use abi::cq::status;
use abi::errno::Errno;
use abi::post::{Sge, opcode};

use crate::common::{ALL_RIGHTS, Fabric, Plan, QKEY, Side, ah, cq, everywhere, make_qp, register, start};
use engine::{Channel, CqSpec, RecvWr, SendWr, SrqSpec};

fn v_10_protection_domains_do_not_mix(fabric: &Fabric) {
    let elsewhere = |side: &Side| register(&side.engine.alloc_pd().expect("a PD"), &side.memory, ALL_RIGHTS);
    // A local key of another domain.
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 8);
    a.post(&SendWr { sges: &[Sge::new(a.memory.addr(0), 8, elsewhere(&a).lkey())], ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_PROT_ERR);
    // A local key of another domain in a receive request.
    let (a, b) = fabric.pair(&Plan::rc());
    let sges = [Sge::new(b.memory.addr(0), 8, elsewhere(&b).lkey())];
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &sges }).expect("posted");
    a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (status::REM_OP_ERR, status::LOC_PROT_ERR));
    // A remote key of another domain.
    let (a, b) = fabric.pair(&Plan::rc());
    let rkey = elsewhere(&b).rkey();
    let wr = SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey, ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
    assert_eq!(a.sent().status, status::REM_ACCESS_ERR);
    // An address handle of another domain.
    let (a, b) = fabric.pair(&Plan::ud());
    let foreign = ah(&a.engine.alloc_pd().expect("a PD"), b.gid(), a.gid_index());
    a.post(&SendWr { ud: Some((&foreign, b.qp.qpn(), QKEY)), ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_QP_OP_ERR);
}

fn v_11_what_is_used_is_not_destroyed(fabric: &Fabric) {
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let channel = engine.create_channel().expect("a channel");
    let used = engine.create_cq(&CqSpec { cqe: 8, channel: Some(&channel), comp_vector: 0, cookie: 1 }).expect("a CQ");
    let busy_channel = |channel: &Channel| channel.destroy().expect_err("a CQ uses it").errno;
    assert_eq!(busy_channel(&channel), Errno::EBUSY);
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 4, max_sge: 1, cookie: 0 }).expect("an SRQ");
    let qp = make_qp(&engine, &pd, &Plan::rc(), (&used, &used), Some(&srq));
    assert_eq!(used.destroy().expect_err("the QP uses it").errno, Errno::EBUSY);
    assert_eq!(srq.destroy().expect_err("the QP uses it").errno, Errno::EBUSY);
    assert_eq!(pd.dealloc(), Err(Errno::EBUSY), "QP and SRQ");
    qp.destroy().expect("destroyed");
    assert_eq!(pd.dealloc(), Err(Errno::EBUSY), "the SRQ");
    srq.destroy().expect("destroyed");
    let memory = crate::common::Memory::new(4096);
    let mr = register(&pd, &memory, ALL_RIGHTS);
    assert_eq!(pd.dealloc(), Err(Errno::EBUSY), "the MR");
    mr.dereg().expect("deregistered");
    let gid = engine.query_gid(1, 0).expect("a GID");
    let handle = ah(&pd, gid, 0);
    assert_eq!(pd.dealloc(), Err(Errno::EBUSY), "the AH");
    handle.destroy().expect("destroyed");
    pd.dealloc().expect("nothing is left on it");
    used.destroy().expect("destroyed");
    channel.destroy().expect("destroyed");
}

fn v_14_a_device_says_the_same_each_time(fabric: &Fabric) {
    let engine = fabric.engine();
    assert_eq!(engine.query_device().expect("an answer"), engine.query_device().expect("an answer"));
    assert!(engine.query_port(0).is_err() && engine.query_port(9).is_err(), "ports count from 1");
    // Every valid GID is found again under its index.
    let entries = engine.query_port(1).expect("an answer").gid_tbl_len;
    let gids: Vec<_> =
        (0..entries).filter_map(|index| engine.query_gid(1, index).ok()).filter(|gid| *gid != [0; 16]).collect();
    assert!(!gids.is_empty());
    let twice = gids.iter().enumerate().find(|(at, gid)| gids[..*at].contains(gid));
    assert_eq!(twice, None);
}

fn v_15_an_address_handle_serves_many_queue_pairs(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let second = Side::on_cqs(&a.engine, &a.pd, &Plan::ud(), (&cq(&a.engine, 16), &cq(&a.engine, 16)), None);
    start(&second);
    let to_b = a.ah(&b);
    for (round, from) in [&a, &second, &a, &second].into_iter().enumerate() {
        b.recv(round as u64, 0, 100);
        from.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), ..SendWr::default() });
        let wc = b.received();
        assert_eq!((from.sent().status, wc.src_qp, wc.wr_id), (0, from.qp.qpn(), round as u64));
    }
}

everywhere! {
    v_10_protection_domains_do_not_mix
    v_11_what_is_used_is_not_destroyed
    v_14_a_device_says_the_same_each_time
    v_15_an_address_handle_serves_many_queue_pairs
}
