//! The lifetime of objects: events and their acknowledgement, resizing, and the tables that inline
//! functions call through.

use super::*;
use crate::layout::{AsyncEvent, ContextOps, RecvWr, SendWr, SrqAttr, SrqInitAttr, VerbsContext};
use crate::{events, post, srq};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::time::Duration;

#[test]
fn a_cq_waits_for_its_last_acknowledgement() {
    let device = Device::open();
    let channel = channel_of(&device);
    let cq = call!(cq::create(device.context, 4, std::ptr::without_provenance_mut(77), channel, 0));
    let mut init = QpInitAttr { send_cq: cq, recv_cq: cq, ..device.init(abi::qp::kind::RC) };
    let qp = call!(qp::create(device.pd, &raw mut init));
    device.connect(qp, object::get!(qp, qp_num));
    assert_eq!(call!(cq::req_notify(cq, 0)), 0);
    let mut recv = RecvWr { ..RecvWr::zeroed() };
    assert_eq!(call!(post::recv(qp, &raw mut recv, null_mut())), 0);
    let mut send = SendWr { opcode: 2, ..SendWr::zeroed() };
    assert_eq!(call!(post::send(qp, &raw mut send, null_mut())), 0);
    let (mut from, mut context) = (null_mut(), null_mut());
    assert_eq!(call!(channel::get_cq_event(channel, &raw mut from, &raw mut context)), 0);
    assert_eq!((from, context.addr()), (cq, 77));
    assert_eq!(call!(qp::destroy(qp)), 0);
    let address = object::cookie(cq);
    let destroyer = std::thread::spawn(move || call!(cq::destroy(object::from_cookie(address))));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!destroyer.is_finished(), "the event is not acknowledged");
    call!(channel::ack_cq_events(cq, 1));
    assert_eq!(destroyer.join().expect("the destroyer ends"), 0);
    assert_eq!(call!(channel::destroy(channel)), 0);
}

#[test]
fn an_srq_limit_is_one_event() {
    let device = Device::open();
    let mut init = SrqInitAttr::zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (4, 1);
    let shared = call!(srq::create(device.pd, &raw mut init));
    assert!(init.attr.max_wr >= 4);
    let mut attr = SrqAttr { srq_limit: 2, ..SrqAttr::zeroed() };
    assert_eq!(call!(srq::modify(shared, &raw mut attr, 2)), 0);
    let mut event = AsyncEvent::zeroed();
    assert_eq!(call!(events::get_async_event(device.context, &raw mut event)), 0);
    assert_eq!((event.event_type, event.element), (abi::event::kind::SRQ_LIMIT_REACHED, shared.cast()));
    call!(events::ack_async_event(&raw mut event));
    assert_eq!(call!(srq::query(shared, &raw mut attr)), 0);
    assert_eq!(attr.srq_limit, 0, "the limit fired and is off");
    assert_eq!(call!(srq::destroy(shared)), 0);
}

#[test]
fn a_resized_cq_says_its_size() {
    let device = Device::open();
    assert_eq!(call!(cq::resize(device.cq, 100)), 0);
    assert!(object::get!(device.cq, cqe) >= 100);
    assert_eq!(call!(cq::resize(device.cq, -1)), libc::EINVAL);
    assert_eq!(call!(cq::resize(device.cq, i32::MAX)), libc::EINVAL);
}

#[test]
fn programs_of_v44_find_their_operations() {
    let device = Device::open();
    // As `verbs.h` does: the size is 8 bytes before the context, and each operation is at a fixed
    // distance from the context.
    let before = |distance: usize| call!(device.context.byte_sub(distance).cast::<usize>().read());
    assert!(before(8) >= 648, "as large as v44's struct or larger");
    assert_eq!(object::get!(device.context, abi_compat).addr(), usize::MAX);
    for (distance, name) in
        [(320, "query_port"), (120, "create_cq_ex"), (104, "query_device_ex"), (56, "create_qp_ex"), (24, "close_xrcd")]
    {
        assert_ne!(before(distance), 0, "{name}");
    }
    assert_eq!(offset_of!(VerbsContext, context) - offset_of!(VerbsContext, query_port), 320);
    assert_ne!(before(64), 0, "open_qp");
    let inline = [(offset_of!(ContextOps, poll_cq), 88), (offset_of!(ContextOps, post_send), 200)];
    assert!(inline.iter().all(|(here, there)| here == there));
}

#[test]
fn a_queried_qp_says_what_it_was_made_of() {
    let device = Device::open();
    let qp = device.loopback();
    let (mut attr, mut init) = (QpAttr::zeroed(), QpInitAttr::zeroed());
    assert_eq!(call!(qp::query(qp, &raw mut attr, -1, &raw mut init)), 0);
    assert_eq!((attr.qp_state, attr.dest_qp_num, attr.path_mtu), (3, object::get!(qp, qp_num), 3));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.port_num), (14, 7, 7, 1));
    assert_eq!((init.send_cq, init.recv_cq, init.qp_type), (device.cq, device.cq, 2));
    assert_eq!(init.cap.max_send_wr, attr.cap.max_send_wr);
    assert_eq!(call!(qp::destroy(qp)), 0);
}
