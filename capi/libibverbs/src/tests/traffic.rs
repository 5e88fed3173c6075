//! Requests and their completions on one QP that is connected to itself, and datagrams that are
//! answered to their sender.

use super::*;
use crate::layout::{AhAttr, RecvWr, SendWr, WrRdma, WrTarget, WrUd};
use crate::{address, post};
use abi::post::send_flags::{INLINE, SIGNALED};
use std::ptr::null_mut;

#[test]
fn a_send_arrives_and_both_sides_complete() {
    let mut device = Device::open();
    let qp = device.loopback();
    device.memory[0] = 0x1122_3344;
    let mut to = device.element(64, 16);
    let mut recv = RecvWr { wr_id: 5, sg_list: &raw mut to, num_sge: 1, ..RecvWr::zeroed() };
    assert_eq!(call!(post::recv(qp, &raw mut recv, null_mut())), 0);
    let mut from = device.element(0, 8);
    let mut send = SendWr { wr_id: 6, sg_list: &raw mut from, num_sge: 1, opcode: 3, ..SendWr::zeroed() };
    (send.send_flags, send.imm_data) = (SIGNALED | INLINE, 0x0403_0201);
    assert_eq!(call!(post::send(qp, &raw mut send, null_mut())), 0);
    let mut completions = device.completions(2);
    completions.sort_by_key(|wc| wc.wr_id);
    let [received, sent] = completions[..] else { panic!("two completions") };
    assert_eq!((received.wr_id, received.status, received.opcode, received.byte_len), (5, 0, 128, 8));
    assert_eq!((received.wc_flags & 2, received.imm_data), (2, 0x0403_0201));
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (6, 0, 0));
    assert_eq!(device.memory[8], 0x1122_3344);
    assert_eq!(call!(qp::destroy(qp)), 0);
}

#[test]
fn a_wrong_key_is_a_completion_and_the_rest_is_flushed() {
    let mut device = Device::open();
    // Two QPs, because the responder's QP goes to the error state as well.
    let (qp, peer) = (device.qp(abi::qp::kind::RC), device.qp(abi::qp::kind::RC));
    device.connect(qp, object::get!(peer, qp_num));
    device.connect(peer, object::get!(qp, qp_num));
    let mut from = device.element(0, 8);
    let remote_addr = device.element(128, 8).addr;
    let mut good = SendWr { wr_id: 1, sg_list: &raw mut from, num_sge: 1, opcode: 0, ..SendWr::zeroed() };
    good.send_flags = SIGNALED;
    good.wr = WrTarget { rdma: WrRdma { remote_addr, rkey: object::get!(device.mr, rkey) } };
    let mut wrong = SendWr { wr_id: 2, ..good };
    wrong.wr = WrTarget { rdma: WrRdma { remote_addr, rkey: 0x7777_7777 } };
    let mut last = SendWr { wr_id: 3, ..good };
    wrong.next = &raw mut last;
    good.next = &raw mut wrong;
    device.memory[0] = 9;
    assert_eq!(call!(post::send(qp, &raw mut good, null_mut())), 0);
    let completions: Vec<(u64, u32)> = device.completions(3).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(completions, [(1, 0), (2, 10), (3, 5)], "done, REM_ACCESS_ERR, WR_FLUSH_ERR");
    assert_eq!(device.memory[16], 9);
    for qp in [qp, peer] {
        assert_eq!(call!(qp::destroy(qp)), 0);
    }
}

#[test]
fn a_datagram_leads_back_to_its_sender() {
    let device = Device::open();
    let qp = device.qp(abi::qp::kind::UD);
    let mut attr = QpAttr { port_num: 1, qkey: 0x1111, ..QpAttr::zeroed() };
    let masks = [(1, attr::PKEY_INDEX | attr::PORT | attr::QKEY), (2, 0), (3, attr::SQ_PSN)];
    for (state, mask) in masks {
        attr.qp_state = state;
        assert_eq!(call!(qp::modify(qp, &raw mut attr, (mask | attr::STATE).cast_signed())), 0, "to state {state}");
    }
    let mut way = AhAttr { is_global: 1, port_num: 1, ..AhAttr::zeroed() };
    way.grh.dgid = device.gid();
    (way.grh.hop_limit, way.grh.traffic_class, way.grh.flow_label) = (64, 4, 0x12345);
    let ah = call!(address::create(device.pd, &raw mut way));
    assert!(!ah.is_null(), "errno {}", errno());

    let mut to = device.element(0, 64);
    let mut recv = RecvWr { sg_list: &raw mut to, num_sge: 1, ..RecvWr::zeroed() };
    assert_eq!(call!(post::recv(qp, &raw mut recv, null_mut())), 0);
    let mut from = device.element(256, 24);
    let mut send = SendWr { sg_list: &raw mut from, num_sge: 1, opcode: 2, ..SendWr::zeroed() };
    send.wr = WrTarget { ud: WrUd { ah, remote_qpn: object::get!(qp, qp_num), remote_qkey: 0x1111 } };
    assert_eq!(call!(post::send(qp, &raw mut send, null_mut())), 0);
    let mut wc = device.completions(1)[0];
    assert_eq!((wc.status, wc.byte_len, wc.wc_flags & 1, wc.src_qp), (0, 64, 1, object::get!(qp, qp_num)));

    let mut back = AhAttr::zeroed();
    let grh = device.memory.as_ptr().cast_mut().cast();
    assert_eq!(call!(address::init_from_wc(device.context, 1, &raw mut wc, grh, &raw mut back)), 0);
    assert_eq!((back.grh.dgid, back.grh.sgid_index, back.is_global, back.port_num), (device.gid(), 0, 1, 1));
    let again = call!(address::create_from_wc(device.pd, &raw mut wc, grh, 1));
    assert!(!again.is_null(), "errno {}", errno());
    send.wr = WrTarget { ud: WrUd { ah: null_mut(), remote_qpn: 1, remote_qkey: 0 } };
    assert_eq!(call!(post::send(qp, &raw mut send, null_mut())), libc::EINVAL, "no address handle");
    for ah in [ah, again] {
        assert_eq!(call!(address::destroy(ah)), 0);
    }
    assert_eq!(call!(qp::destroy(qp)), 0);
}
