//! Section 4.1: which service supports which operation. An operation that the service lacks is
//! refused when it is posted.

use abi::cq::{status, wc_flags};
use abi::errno::Errno;
use abi::post::opcode;
use abi::qp::state;

use crate::common::{Fabric, Plan, QKEY, Side, connect, everywhere, start};
use engine::{SendWr, Service};

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

/// Posts `codes` on a pair of each service. A supported operation completes, and immediate data
/// arrives. An unsupported operation is EINVAL, and the queue continues to work.
fn row(fabric: &Fabric, codes: &[u32], carried: [bool; 3]) {
    for (service, carried) in SERVICES.into_iter().zip(carried) {
        for &code in codes {
            let what = format!("{service}, opcode {code}");
            let (a, b) = fabric.pair(&Plan::new(service));
            let to_b = a.ah(&b);
            let ud = (service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
            b.recv(1, 0, 200);
            let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
            let wr = SendWr { opcode: code, remote_addr, rkey, ud, imm: 0x0102_0304, ..SendWr::default() };
            let sges = a.sge(0, 8);
            let mut batch = a.qp.send_batch().expect("a batch");
            let answer = batch.push(&SendWr { sges: &sges, ..wr });
            batch.finish();
            assert_eq!(
                answer.map_err(engine::PostError::errno),
                if carried { Ok(()) } else { Err(Errno::EINVAL) },
                "{what}"
            );
            if carried {
                assert_eq!(a.sent().status, 0, "{what}");
                let immediate = matches!(code, opcode::SEND_WITH_IMM | opcode::RDMA_WRITE_WITH_IMM);
                if immediate || code == opcode::SEND {
                    let wc = b.received();
                    assert_eq!(wc.wc_flags & wc_flags::WITH_IMM != 0, immediate, "{what}");
                    assert_eq!(wc.imm_data, if immediate { 0x0102_0304 } else { 0 }, "{what}");
                }
            } else {
                a.post(&SendWr { ud, ..SendWr::default() });
                assert_eq!((a.sent().status, b.received().status), (0, 0), "{what}: it goes on");
            }
        }
    }
}

fn op_send_all_services(fabric: &Fabric) {
    row(fabric, &[opcode::SEND, opcode::SEND_WITH_IMM], [true; 3]);
}

fn op_write_connected_services(fabric: &Fabric) {
    row(fabric, &[opcode::RDMA_WRITE, opcode::RDMA_WRITE_WITH_IMM], [true, true, false]);
}

fn op_read_rc_only(fabric: &Fabric) {
    row(fabric, &[opcode::RDMA_READ], [true, false, false]);
}

fn op_atomics_rc_only(fabric: &Fabric) {
    row(fabric, &[opcode::ATOMIC_CMP_AND_SWP, opcode::ATOMIC_FETCH_AND_ADD], [true, false, false]);
}

fn op_multicast_ud_only(fabric: &Fabric) {
    let group = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    for service in SERVICES {
        let side = Side::new(&fabric.engine(), &Plan::new(service));
        let answer = side.qp.attach_mcast(&group, 0).map_err(|error| error.errno);
        assert_eq!(answer, if service == Service::Ud { Ok(()) } else { Err(Errno::EINVAL) }, "{service}");
    }
}

fn op_length_a_datagram_is_one_packet(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    let ud = Some((&*to_b, b.qp.qpn(), QKEY));
    a.post(&SendWr { ud, sges: &a.sge(0, a.mtu() + 1), ..SendWr::default() });
    assert_eq!((a.sent().status, a.qp.state()), (status::LOC_LEN_ERR, u32::from(state::SQE)));
    // Messages of connected services may have many packets.
    for plan in [Plan::rc(), Plan::uc()] {
        let (a, b) = fabric.pair(&plan);
        let len = 3 * a.mtu() + 1;
        a.memory.pattern(0, len, 2);
        b.recv(1, 0, len);
        a.post(&SendWr { sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().byte_len as usize), (0, len));
        assert!(b.memory.get(0, len) == a.memory.get(0, len), "{}", plan.service);
    }
}

fn op_peers_connected_services_have_one_and_datagrams_many(fabric: &Fabric) {
    let (a, b) = (Side::new(&fabric.engine(), &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc()));
    let third = Side::new(&b.engine, &Plan::rc().hasty());
    connect(&a, &b);
    // A QP whose configured peer QP is connected to another QP gets no answer.
    third.init();
    third.rtr(a.gid(), a.qp.qpn());
    third.rts();
    a.recv(1, 0, 8);
    third.post(&SendWr::default());
    assert_eq!(third.sent().status, status::RETRY_EXC_ERR);
    b.post(&SendWr::default());
    assert_eq!((b.sent().status, a.received().wr_id), (0, 1));
    let sides = [(); 3].map(|()| Side::new(&fabric.engine(), &Plan::ud()));
    sides.iter().for_each(start);
    for to in &sides[1..] {
        let ah = sides[0].ah(to);
        to.recv(1, 0, 100);
        sides[0].post(&SendWr { ud: Some((&ah, to.qp.qpn(), QKEY)), ..SendWr::default() });
        assert_eq!((sides[0].sent().status, to.received().src_qp), (0, sides[0].qp.qpn()));
    }
}

everywhere! {
    op_send_all_services
    op_write_connected_services
    op_read_rc_only
    op_atomics_rc_only
    op_multicast_ud_only
    op_length_a_datagram_is_one_packet
    op_peers_connected_services_have_one_and_datagrams_many
}
