//! The limits of queue lengths, and of what one request holds.

use std::sync::Arc;

use abi::cq::status;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{ModifyQp, attr, state};
use engine::{Caps, CqSpec, PostError, Qp, QpSpec, RecvWr, SendWr, Service, SrqSpec};

use super::refused;
use crate::common::wait::{event, no_event};
use crate::common::{self, Fabric, Plan, Side, connect};

const SMALL: Caps = Caps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

#[test]
fn creating_a_queue_pair_beyond_a_limit_is_refused_by_name() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let limits = engine.query_device().expect("limits");
    let (pd, cq) = (engine.alloc_pd().expect("a PD"), common::cq(&engine, 1));
    let make = |caps| {
        let spec =
            QpSpec { service: Service::Rc, send_cq: &cq, recv_cq: &cq, srq: None, caps, sq_sig_all: true, cookie: 2 };
        engine.create_qp(&pd, &spec)
    };
    let (wr, sge, inline) = (limits.max_qp_wr, limits.max_sge, 512);
    let all = Caps { max_send_wr: wr, max_recv_wr: wr, max_send_sge: sge, max_recv_sge: sge, max_inline_data: inline };
    let qp = make(all).expect("everything at once");
    let caps = qp.caps();
    assert!(
        caps.max_send_wr >= wr
            && caps.max_recv_wr >= wr
            && caps.max_send_sge >= sge
            && caps.max_recv_sge >= sge
            && caps.max_inline_data >= inline,
        "{caps:?}"
    );
    for (caps, words) in [
        (Caps { max_send_wr: wr + 1, ..SMALL }, ["max_send_wr", "16384"]),
        (Caps { max_recv_wr: wr + 1, ..SMALL }, ["max_recv_wr", "16384"]),
        (Caps { max_send_sge: sge + 1, ..SMALL }, ["max_send_sge", "30"]),
        (Caps { max_recv_sge: sge + 1, ..SMALL }, ["max_recv_sge", "30"]),
        (Caps { max_inline_data: inline + 1, ..SMALL }, ["max_inline_data", "512"]),
        (Caps { max_send_wr: u32::MAX, ..SMALL }, ["max_send_wr", "16384"]),
    ] {
        refused(make(caps), Errno::EINVAL, &words);
    }
}

#[test]
fn both_queues_hold_as_many_requests_as_there_may_be() {
    let fabric = Fabric::start();
    let most = fabric.engine().query_device().expect("limits").max_qp_wr;
    assert!(most >= 16_384);
    let caps = Caps { max_send_wr: most, max_recv_wr: most, ..SMALL };
    let (a, b) = fabric.pair(&Plan { caps, cqe: most, ..Plan::rc() });
    let mut batch = b.qp.send_batch().expect("a batch");
    for wr_id in 0..u64::from(most) {
        a.recv(wr_id, 0, 1);
        batch.push(&SendWr { wr_id, sges: &b.sge(0, 1), ..SendWr::default() }).expect("room");
    }
    assert_eq!(batch.push(&SendWr::default()).map_err(PostError::errno), Err(Errno::ENOMEM), "one more send");
    assert_eq!(
        a.qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno),
        Err(Errno::ENOMEM),
        "one more receive"
    );
    assert!(engine::reason::last(64).iter().any(|why| why.contains("queue is full: 16384")));
    batch.finish();
    for wr_id in 0..u64::from(most) {
        assert_eq!(a.received().wr_id, wr_id);
        assert_eq!(b.sent().wr_id, wr_id);
    }
}

#[test]
fn a_shared_receive_queue_holds_as_many_requests_as_there_may_be() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let limits = engine.query_device().expect("limits");
    let (most, sge) = (limits.max_srq_wr, limits.max_srq_sge);
    assert!(most >= 16_384 && sge >= 30);
    let pd = engine.alloc_pd().expect("a PD");
    for spec in
        [SrqSpec { max_wr: most + 1, max_sge: 1, cookie: 0 }, SrqSpec { max_wr: 1, max_sge: sge + 1, cookie: 0 }]
    {
        refused(engine.create_srq(&pd, &spec), Errno::EINVAL, &["an SRQ with max_", "are possible"]);
    }
    let srq = engine.create_srq(&pd, &SrqSpec { max_wr: most, max_sge: sge, cookie: 0 }).expect("an SRQ");
    refused(srq.modify(1, most + 1, 0), Errno::EINVAL, &["max_wr 16385"]);
    let parts = vec![Sge::new(0x1000, 1, 1); sge as usize];
    for wr_id in 0..u64::from(most) {
        srq.post(&RecvWr { wr_id, sges: &parts }).expect("room");
    }
    assert_eq!(srq.post(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::ENOMEM));
    let small = engine.create_srq(&pd, &SrqSpec { max_wr: 1, max_sge: sge, cookie: 0 }).expect("an SRQ");
    let parts = vec![Sge::new(0x1000, 1, 1); sge as usize + 1];
    assert_eq!(small.post(&RecvWr { wr_id: 0, sges: &parts }).map_err(PostError::errno), Err(Errno::EINVAL));
}

/// The longest scatter/gather lists, for SEND, receive, WRITE and READ; and inline data, which
/// needs no list.
#[test]
fn requests_of_as_many_elements_as_there_may_be() {
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        let fabric = Fabric::start();
        let limits = fabric.engine().query_device().expect("limits");
        let (sge, inline) = (limits.max_sge, 512);
        assert!(sge >= 30 && limits.max_sge_rd >= 30);
        let caps =
            Caps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: sge, max_recv_sge: sge, max_inline_data: inline };
        let (a, b) = fabric.pair(&Plan { caps, ..plan });
        let ah = (plan.service == Service::Ud).then(|| a.ah(&b));
        let ud = ah.as_ref().map(|ah| (&**ah, b.qp.qpn(), common::QKEY));
        let list = |side: &Side, count: u32| -> Vec<Sge> {
            // Every other range of 40 bytes, so that no two elements are adjacent.
            (0..count as usize).map(|index| side.sge(index * 80, 40)[0]).collect()
        };
        let gathered =
            |side: &Side| (0..sge as usize).flat_map(|index| side.memory.get(index * 80, 40)).collect::<Vec<u8>>();
        a.memory.pattern(0, 8_000, 1);
        let (grh, sent) = if ud.is_some() { (40, sge - 1) } else { (0, sge) };
        b.qp.post_recv(&RecvWr { wr_id: 1, sges: &list(&b, sge) }).expect("a receive");
        a.post(&SendWr { ud, sges: &list(&a, sent), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().byte_len), (0, sge * 40));
        assert!(gathered(&b)[grh..] == gathered(&a)[..sent as usize * 40], "{:?}", plan.service);
        let beyond =
            a.qp.send_batch().expect("a batch").push(&SendWr { ud, sges: &list(&a, sge + 1), ..SendWr::default() });
        assert_eq!(beyond.map_err(PostError::errno), Err(Errno::EINVAL));
        assert_eq!(
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &list(&b, sge + 1) }).map_err(PostError::errno),
            Err(Errno::EINVAL)
        );

        let at_once = |len: u32| {
            let mut batch = a.qp.send_batch().expect("a batch");
            let sges = &a.sge(0, len as usize);
            let pushed = batch.push(&SendWr { ud, send_flags: send_flags::INLINE, sges, ..SendWr::default() });
            batch.finish();
            pushed
        };
        // A caller gets more than 512 bytes of inline data only if the queue's entries have room
        // for more anyway.
        assert_eq!(at_once(a.qp.caps().max_inline_data + 1).map_err(PostError::errno), Err(Errno::EINVAL));
        b.recv(2, 0, 600);
        assert_eq!(at_once(inline), Ok(()));
        assert_eq!((a.sent().status, b.received().byte_len), (0, inline + grh as u32));
        assert!(b.memory.get(grh, 512) == a.memory.get(0, 512));
        if plan.service != Service::Rc {
            continue;
        }
        let (remote_addr, rkey) = (b.memory.addr(20_000), b.mr.rkey());
        let wr = SendWr { opcode: opcode::RDMA_WRITE, remote_addr, rkey, ..SendWr::default() };
        a.post(&SendWr { sges: &list(&a, sge), ..wr });
        assert_eq!(a.sent().status, 0);
        let wanted = gathered(&a);
        assert!(b.memory.get(20_000, wanted.len()) == wanted);
        a.memory.pattern(0, 8_000, 2);
        a.post(&SendWr { opcode: opcode::RDMA_READ, sges: &list(&a, limits.max_sge_rd), ..wr });
        assert_eq!(a.sent().status, 0);
        assert!(gathered(&a) == wanted, "read back");
    }
}

/// Brings a QP to the error state, where every request ends at once.
fn in_error(qp: Arc<Qp>) -> Arc<Qp> {
    let init = ModifyQp {
        attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS,
        qp_state: state::INIT,
        port_num: 1,
        ..ModifyQp::default()
    };
    qp.modify(&init).expect("INIT");
    qp.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() }).expect("an error");
    qp
}

#[test]
fn a_completion_queue_holds_as_many_entries_as_there_may_be() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let limits = engine.query_device().expect("limits");
    let most = limits.max_cqe;
    assert!(most >= 4_194_304);
    let spec = |cqe| CqSpec { cqe, channel: None, comp_vector: 0, cookie: 77 };
    refused(engine.create_cq(&spec(most + 1)), Errno::EINVAL, &["entries", &most.to_string()]);
    refused(engine.create_cq(&spec(0)), Errno::EINVAL, &["entries"]);
    let cq = engine.create_cq(&spec(most)).expect("a CQ");
    assert_eq!(cq.entries(), most);
    refused(cq.resize(most + 1), Errno::EINVAL, &["entries", &most.to_string()]);
    let pd = engine.alloc_pd().expect("a PD");
    let caps = Caps { max_recv_wr: limits.max_qp_wr, ..SMALL };
    // The last QP adds one completion more than the CQ can hold.
    let mut qps: Vec<_> = (0..=most / limits.max_qp_wr)
        .map(|_| {
            let spec = QpSpec {
                service: Service::Rc,
                send_cq: &cq,
                recv_cq: &cq,
                srq: None,
                caps,
                sq_sig_all: true,
                cookie: 2,
            };
            in_error(engine.create_qp(&pd, &spec).expect("a QP"))
        })
        .collect();
    let over = qps.pop().expect("the last");
    let mut wr_id = 0;
    for qp in &qps {
        for _ in 0..limits.max_qp_wr {
            qp.post_recv(&RecvWr { wr_id, sges: &[] }).expect("a receive");
            wr_id += 1;
        }
    }
    assert_eq!(wr_id, u64::from(most));
    no_event(&engine);
    over.post_recv(&RecvWr { wr_id, sges: &[] }).expect("a receive");
    let told = event(&engine);
    assert_eq!((told.kind, told.element), (kind::CQ_ERR, 77), "one more is an overrun");
    // All completions are there, in order.
    let mut wcs = [abi::cq::Wc::default(); 64];
    let mut seen = 0;
    while seen < u64::from(most) {
        let room = wcs.len().min((u64::from(most) - seen) as usize);
        let count = cq.poll(&mut wcs[..room]).expect("polled");
        for wc in &wcs[..count] {
            assert_eq!((wc.wr_id, wc.status), (seen, status::WR_FLUSH_ERR));
            seen += 1;
        }
        assert!(count > 0, "{seen} of {most}");
    }
    assert_eq!(cq.poll(&mut wcs), Ok(1));
    assert_eq!((wcs[0].wr_id, wcs[0].status), (seen, status::GENERAL_ERR), "the one that had no room");
    assert_eq!(cq.poll(&mut wcs), Ok(0));
}

#[test]
fn one_completion_beyond_the_last_entry_is_an_overrun() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let cq = engine.create_cq(&CqSpec { cqe: 16, channel: None, comp_vector: 0, cookie: 77 }).expect("a CQ");
    let pd = engine.alloc_pd().expect("a PD");
    let caps = Caps { max_recv_wr: 32, ..SMALL };
    let spec =
        QpSpec { service: Service::Rc, send_cq: &cq, recv_cq: &cq, srq: None, caps, sq_sig_all: true, cookie: 2 };
    let qp = in_error(engine.create_qp(&pd, &spec).expect("a QP"));
    for wr_id in 0..16 {
        qp.post_recv(&RecvWr { wr_id, sges: &[] }).expect("a receive");
    }
    no_event(&engine);
    qp.post_recv(&RecvWr { wr_id: 16, sges: &[] }).expect("a receive");
    let event = event(&engine);
    assert_eq!((event.kind, event.element), (kind::CQ_ERR, 77));
}

#[test]
fn reads_and_atomics_under_way() {
    let fabric = Fabric::start();
    let limits = fabric.engine().query_device().expect("limits");
    let (ours, theirs) = (limits.max_qp_init_rd_atom as u8, limits.max_qp_rd_atom as u8);
    // The same maximum as Soft-RoCE: perftest asks for the maximum, and both ends must have the
    // same one.
    assert_eq!((ours, theirs), (128, 128));
    let caps = Caps { max_send_wr: 512, ..Plan::rc().caps };
    let plan = Plan { caps, cqe: 512, max_rd_atomic: ours, max_dest_rd_atomic: theirs, ..Plan::rc() };
    let (a, b) = (Side::new(&fabric.engine(), &plan), Side::new(&fabric.engine(), &plan));
    a.init();
    let rtr = a.rtr_request(b.gid(), b.qp.qpn(), 3);
    refused(
        a.qp.modify(&ModifyQp { max_dest_rd_atomic: theirs + 1, ..rtr }),
        Errno::EINVAL,
        &["max_dest_rd_atomic", "128"],
    );
    a.rtr(b.gid(), b.qp.qpn());
    let rts = ModifyQp {
        attr_mask: attr::STATE
            | attr::SQ_PSN
            | attr::TIMEOUT
            | attr::RETRY_CNT
            | attr::RNR_RETRY
            | attr::MAX_QP_RD_ATOMIC,
        qp_state: state::RTS,
        max_rd_atomic: ours + 1,
        ..ModifyQp::default()
    };
    refused(a.qp.modify(&rts), Errno::EINVAL, &["max_rd_atomic", "128"]);
    let (a, b) = (Side::new(&a.engine, &plan), b);
    connect(&a, &b);
    // Many more than may be outstanding. The others wait.
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    let add = SendWr {
        opcode: opcode::ATOMIC_FETCH_AND_ADD,
        remote_addr,
        rkey,
        compare_add: 1,
        sges: &a.sge(8, 8),
        ..SendWr::default()
    };
    a.post_all(&vec![add; 512]);
    (0..512).for_each(|_| assert_eq!(a.sent().status, 0));
    assert_eq!(b.memory.word(0), 512);
}
