//! Extended CQs and extended posting, called in the way of the inline functions of `verbs.h`:
//! through the objects' own pointers.

use super::*;
use crate::cq_ex;
use crate::layout::{
    CqEx, CqInitAttrEx, DeviceAttrEx, Op, PollCqAttr, QpEx, QpInitAttrEx, RecvWr, SendWr, Sge, ValuesEx,
};
use crate::post;
use abi::post::send_flags::SIGNALED;
use std::ptr::null_mut;

type Start = extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int;
type Next = extern "C" fn(*mut CqEx) -> c_int;
type Read = extern "C" fn(*mut CqEx) -> u32;
type Plain = extern "C" fn(*mut QpEx);
type Imm = extern "C" fn(*mut QpEx, u32);
type OneSge = extern "C" fn(*mut QpEx, u32, u64, u32);
type InlineData = extern "C" fn(*mut QpEx, *mut std::ffi::c_void, usize);
type Complete = extern "C" fn(*mut QpEx) -> c_int;

/// The function behind an object's pointer, with its signature in `verbs.h`.
fn function<F: Copy>(op: Op) -> F {
    assert!(!op.is_null(), "the function was asked for");
    assert_eq!(size_of::<F>(), size_of::<Op>());
    // SAFETY: `F` is the function pointer type that `verbs.h` gives the slot of `op`.
    unsafe { std::mem::transmute_copy(&op) }
}

#[test]
fn a_list_is_posted_at_its_end_and_completions_come_one_by_one() {
    let mut device = Device::open();
    let mut asked = CqInitAttrEx { cqe: 16, wc_flags: 0x7, ..CqInitAttrEx::zeroed() };
    let cq = call!(cq_ex::create(device.context, &raw mut asked));
    assert!(!cq.is_null(), "errno {}", errno());
    assert!(object::get!(cq, read_sl).is_null(), "was not asked for");

    let plain = QpInitAttr { send_cq: cq.cast(), recv_cq: cq.cast(), ..device.init(abi::qp::kind::RC) };
    let mut init = QpInitAttrEx { send_cq: plain.send_cq, recv_cq: plain.recv_cq, ..QpInitAttrEx::zeroed() };
    (init.cap, init.qp_type, init.pd) = (plain.cap, plain.qp_type, device.pd);
    // PD and SEND_OPS_FLAGS; SEND and SEND with immediate data.
    (init.comp_mask, init.send_ops_flags) = (1 | 64, 0xc);
    let qp = call!(qp::create_ex(device.context, &raw mut init));
    assert!(!qp.is_null(), "errno {}", errno());
    let ex = call!(qp::to_qp_ex(qp));
    assert_eq!(ex.addr(), qp.addr());
    device.connect(qp, object::get!(qp, qp_num));

    let mut to = [device.element(64, 8), device.element(128, 8)];
    for element in &mut to {
        let mut recv = RecvWr { wr_id: 7, sg_list: std::ptr::from_mut::<Sge>(element), num_sge: 1, ..RecvWr::zeroed() };
        assert_eq!(call!(post::recv(qp, &raw mut recv, null_mut())), 0);
    }
    device.memory[0] = 42;
    function::<Plain>(object::get!(ex, wr_start))(ex);
    object::set!(ex, wr_id, 1);
    object::set!(ex, wr_flags, SIGNALED);
    function::<Plain>(object::get!(ex, wr_send))(ex);
    let from = device.element(0, 8);
    function::<OneSge>(object::get!(ex, wr_set_sge))(ex, from.lkey, from.addr, from.length);
    object::set!(ex, wr_id, 2);
    function::<Imm>(object::get!(ex, wr_send_imm))(ex, 0x0102_0304);
    let mut inline = 43u64;
    function::<InlineData>(object::get!(ex, wr_set_inline_data))(ex, (&raw mut inline).cast(), 8);
    inline = 0;
    assert_eq!(function::<Complete>(object::get!(ex, wr_complete))(ex), 0);
    assert_eq!(inline, 0);

    let mut seen = Vec::new();
    while seen.len() < 4 {
        if function::<Start>(object::get!(cq, start_poll))(cq, null_mut()) == libc::ENOENT {
            continue;
        }
        loop {
            assert_eq!(object::get!(cq, status), 0);
            seen.push((object::get!(cq, wr_id), function::<Read>(object::get!(cq, read_opcode))(cq)));
            if function::<Next>(object::get!(cq, next_poll))(cq) != 0 {
                break;
            }
        }
        function::<extern "C" fn(*mut CqEx)>(object::get!(cq, end_poll))(cq);
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, 0), (2, 0), (7, 128), (7, 128)]);
    assert_eq!((device.memory[8], device.memory[16]), (42, 43));
    assert_eq!(call!(qp::destroy(qp)), 0);
    assert_eq!(call!(cq::destroy(cq.cast())), 0);
}

/// Completions carry their time, by the device's clock and as time of day.
#[test]
fn completions_are_stamped() {
    type Read64 = extern "C" fn(*mut CqEx) -> u64;
    let device = Device::open();
    let clock = || {
        let mut values = ValuesEx { comp_mask: 3, ..ValuesEx::zeroed() };
        assert_eq!(call!(query::query_rt_values(device.context, &raw mut values)), 0);
        assert_eq!((values.comp_mask, values.raw_clock[0]), (1, 0), "what is known");
        values.raw_clock[1].cast_unsigned()
    };
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    let mut facts = DeviceAttrEx::zeroed();
    let room = size_of::<DeviceAttrEx>();
    assert_eq!(call!(query::query_device_ex(device.context, std::ptr::null(), &raw mut facts, room)), 0);
    assert_eq!((facts.completion_timestamp_mask, facts.hca_core_clock), (u64::MAX, 1_000_000), "kHz: nanoseconds");
    let mut asked = CqInitAttrEx { cqe: 16, wc_flags: 0x880, ..CqInitAttrEx::zeroed() };
    let queue = call!(cq_ex::create(device.context, &raw mut asked));
    let mut init = QpInitAttr { send_cq: queue.cast(), ..device.init(abi::qp::kind::RC) };
    let qp = call!(qp::create(device.pd, &raw mut init));
    device.connect(qp, object::get!(qp, qp_num));
    let (before, early) = (clock(), now());
    // A WRITE of zero bytes needs no key (V-75).
    let mut send = SendWr { opcode: 0, send_flags: 2, ..SendWr::zeroed() };
    assert_eq!(call!(post::send(qp, &raw mut send, std::ptr::null_mut())), 0);
    let mut attr = PollCqAttr { comp_mask: 0 };
    let start = function::<extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>(object::get!(queue, start_poll));
    let started = std::time::Instant::now();
    while start(queue, &raw mut attr) != 0 {
        assert!(started.elapsed().as_secs() < 20, "no completion came");
    }
    let came = function::<Read64>(object::get!(queue, read_completion_ts))(queue);
    let wall = u128::from(function::<Read64>(object::get!(queue, read_completion_wallclock_ns))(queue));
    function::<extern "C" fn(*mut CqEx)>(object::get!(queue, end_poll))(queue);
    assert!((before..=clock()).contains(&came), "{before} {came}");
    // The two clocks are read one after the other, so they do not agree to the nanosecond.
    let slack = 100_000_000;
    assert!(wall + slack >= early && wall <= now() + slack, "{early} {wall}");
    assert_eq!(call!(qp::destroy(qp)), 0);
    assert_eq!(call!(cq::destroy(queue.cast())), 0);
}

#[test]
fn a_list_with_a_fault_is_not_posted() {
    let device = Device::open();
    let plain = device.init(abi::qp::kind::RC);
    let mut init = QpInitAttrEx { send_cq: plain.send_cq, recv_cq: plain.recv_cq, ..QpInitAttrEx::zeroed() };
    (init.cap, init.qp_type, init.pd, init.comp_mask, init.send_ops_flags) = (plain.cap, 2, device.pd, 1 | 64, 4);
    let qp = call!(qp::create_ex(device.context, &raw mut init));
    let ex = call!(qp::to_qp_ex(qp));
    function::<Plain>(object::get!(ex, wr_start))(ex);
    function::<OneSge>(object::get!(ex, wr_set_sge))(ex, 0, 0, 0);
    assert_eq!(function::<Complete>(object::get!(ex, wr_complete))(ex), libc::EINVAL, "data before a request");
    function::<Plain>(object::get!(ex, wr_start))(ex);
    function::<Plain>(object::get!(ex, wr_abort))(ex);
    function::<Plain>(object::get!(ex, wr_start))(ex);
    assert_eq!(function::<Complete>(object::get!(ex, wr_complete))(ex), 0, "nothing to post");
    assert_eq!(call!(qp::destroy(qp)), 0);
}

#[test]
fn extensions_that_are_not_offered() {
    let device = Device::open();
    let mut asked = CqInitAttrEx { cqe: 16, wc_flags: 0x100, ..CqInitAttrEx::zeroed() };
    assert!(call!(cq_ex::create(device.context, &raw mut asked)).is_null(), "VLANs");
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let plain = device.init(abi::qp::kind::UD);
    let mut init = QpInitAttrEx { send_cq: plain.send_cq, recv_cq: plain.recv_cq, ..QpInitAttrEx::zeroed() };
    (init.cap, init.qp_type, init.pd, init.comp_mask, init.send_ops_flags) = (plain.cap, 4, device.pd, 1 | 64, 1);
    assert!(call!(qp::create_ex(device.context, &raw mut init)).is_null(), "RDMA WRITE on UD");
    assert_eq!(errno(), libc::EOPNOTSUPP);
    init.comp_mask = 1 | 32;
    assert!(call!(qp::create_ex(device.context, &raw mut init)).is_null(), "receive hashing");
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let ordinary = device.qp(abi::qp::kind::UD);
    assert!(call!(qp::to_qp_ex(ordinary)).is_null());
    assert_eq!(call!(qp::destroy(ordinary)), 0);
}
