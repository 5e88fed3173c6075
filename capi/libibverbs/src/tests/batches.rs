//! Lists of extended posting: a list is posted whole or not at all, and every mistake is reported
//! at the end of the list.

use super::*;
use crate::layout::{Op, QpEx, QpInitAttrEx, Sge};
use abi::cq::opcode as wc_opcode;
use abi::qp::kind;
use libc::{EINVAL, ENOMEM, EOPNOTSUPP};
use std::ffi::c_void;

type Plain = extern "C" fn(*mut QpEx);
type To = extern "C" fn(*mut QpEx, u32, u64);
type Atomic = extern "C" fn(*mut QpEx, u32, u64, u64);
type WriteWord = extern "C" fn(*mut QpEx, u32, u64, *const c_void);
type Flush = extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8);
type OneSge = extern "C" fn(*mut QpEx, u32, u64, u32);
type Sges = extern "C" fn(*mut QpEx, usize, *const Sge);
type InlineData = extern "C" fn(*mut QpEx, *mut c_void, usize);
type Complete = extern "C" fn(*mut QpEx) -> c_int;

/// All operations that RC and UC have. Bit 11 is `IBV_QP_EX_WITH_FLUSH`, bit 12
/// `IBV_QP_EX_WITH_ATOMIC_WRITE`; bit 10 is TSO.
const RC: u64 = 0x1bff;
const UC: u64 = 0x18f;

fn function<F: Copy>(op: Op) -> F {
    assert!(!op.is_null(), "every slot is callable");
    assert_eq!(size_of::<F>(), size_of::<Op>());
    // SAFETY: `F` is the function pointer type that `verbs.h` gives the slot of `op`.
    unsafe { std::mem::transmute_copy(&op) }
}

/// A QP for extended posting with these operations, or the errno.
fn make(device: &Device, qp_type: u8, operations: u64) -> Result<*mut QpEx, c_int> {
    let plain = device.init(qp_type);
    let mut init = QpInitAttrEx { send_cq: plain.send_cq, recv_cq: plain.recv_cq, ..QpInitAttrEx::zeroed() };
    (init.cap, init.qp_type, init.pd) = (plain.cap, plain.qp_type, device.pd);
    (init.comp_mask, init.send_ops_flags) = (1 | 64, operations);
    let qp = call!(qp::create_ex(device.context, &raw mut init));
    if qp.is_null() { Err(errno()) } else { Ok(call!(qp::to_qp_ex(qp))) }
}

/// The list calls on one QP that is connected to itself.
struct Lists {
    device: Device,
    ex: *mut QpEx,
}

macro_rules! slot {
    ($lists:expr, $name:ident as $kind:ty) => {
        function::<$kind>(object::get!($lists.ex, $name))
    };
}

impl Lists {
    fn new(operations: u64) -> Self {
        let device = Device::open();
        let ex = make(&device, kind::RC, operations).expect("a QP");
        device.connect(ex.cast(), object::get!(ex.cast::<Qp>(), qp_num));
        Self { device, ex }
    }

    fn rkey(&self) -> u32 {
        object::get!(self.device.mr, rkey)
    }

    fn addr(&self, at: usize) -> u64 {
        self.device.element(at, 8).addr
    }

    fn start(&self) {
        slot!(self, wr_start as Plain)(self.ex);
        object::set!(self.ex, wr_flags, abi::post::send_flags::SIGNALED);
    }

    fn complete(&self) -> c_int {
        slot!(self, wr_complete as Complete)(self.ex)
    }

    fn sge(&self, at: usize, length: u32) {
        let Sge { addr, lkey, .. } = self.device.element(at, length);
        slot!(self, wr_set_sge as OneSge)(self.ex, lkey, addr, length);
    }

    /// A WRITE of eight bytes, from `from` to `to`.
    fn write(&self, from: usize, to: usize) {
        slot!(self, wr_rdma_write as To)(self.ex, self.rkey(), self.addr(to));
        self.sge(from, 8);
    }

    /// The result of completing `list`, which follows a WRITE that would be visible.
    fn refused(&self, list: impl FnOnce(&Self)) -> c_int {
        self.start();
        self.write(0, 64);
        list(self);
        self.complete()
    }

    fn end(self) {
        assert_eq!(call!(qp::destroy(self.ex.cast())), 0);
    }
}

#[test]
fn every_slot_is_callable_and_every_type_has_its_operations() {
    let device = Device::open();
    for (qp_type, has) in [(kind::RC, RC), (kind::UC, UC), (kind::UD, 0x0c)] {
        for bit in 0..16 {
            let made = make(&device, qp_type, 1 << bit);
            assert_eq!(made.is_ok(), has >> bit & 1 != 0, "bit {bit} of type {qp_type}");
            match made {
                Ok(ex) => assert_eq!(call!(qp::destroy(ex.cast())), 0),
                Err(errno) => assert_eq!(errno, EOPNOTSUPP),
            }
        }
    }
}

#[test]
fn an_atomic_write_and_a_flush() {
    let mut lists = Lists::new(RC);
    lists.device.memory[0] = 7;
    lists.start();
    lists.write(0, 64);
    let mut word = 0x0102_0304_0506_0708u64;
    slot!(lists, wr_atomic_write as WriteWord)(lists.ex, lists.rkey(), lists.addr(128), (&raw const word).cast());
    word = 0;
    let global_range = (1, 0);
    slot!(lists, wr_flush as Flush)(lists.ex, lists.rkey(), lists.addr(0), 256, global_range.0, global_range.1);
    assert_eq!((lists.complete(), word), (0, 0));
    let seen: Vec<_> = lists.device.completions(3).iter().map(|wc| (wc.status, wc.opcode)).collect();
    assert_eq!(seen, [(0, wc_opcode::RDMA_WRITE), (0, wc_opcode::ATOMIC_WRITE), (0, wc_opcode::FLUSH)]);
    assert_eq!((lists.device.memory[8], lists.device.memory[16]), (7, 0x0102_0304_0506_0708));
    lists.end();
}

/// Each kind of mistake: nothing of the list is posted, neither before nor after the mistake.
#[test]
fn a_mistake_refuses_the_whole_list() {
    let mut lists = Lists::new(RC & !0x10);
    lists.device.memory[0] = 1;
    let mut long = [0u8; 200];
    let many: [Sge; 3] = std::array::from_fn(|_| lists.device.element(0, 8));
    let fetch_add = |it: &Lists| slot!(it, wr_atomic_fetch_add as Atomic)(it.ex, it.rkey(), it.addr(64), 1);
    let errors = [
        lists.refused(|it| slot!(it, wr_rdma_read as To)(it.ex, it.rkey(), it.addr(0))),
        lists.refused(|it| slot!(it, wr_send_tso as Plain)(it.ex)),
        lists.refused(|it| slot!(it, wr_set_ud_addr as Plain)(it.ex)),
        lists.refused(|it| slot!(it, wr_set_xrc_srqn as Plain)(it.ex)),
        lists.refused(|it| it.sge(0, 8)),
        lists.refused(|it| {
            slot!(it, wr_send as Plain)(it.ex);
            slot!(it, wr_set_sge_list as Sges)(it.ex, 3, many.as_ptr());
        }),
        lists.refused(|it| {
            slot!(it, wr_send as Plain)(it.ex);
            slot!(it, wr_set_inline_data as InlineData)(it.ex, (&raw mut long).cast(), long.len());
        }),
        lists.refused(|it| {
            fetch_add(it);
            slot!(it, wr_set_inline_data as InlineData)(it.ex, (&raw mut long).cast(), 8);
        }),
        lists.refused(fetch_add),
        lists.refused(|it| {
            slot!(it, wr_flush as Flush)(it.ex, it.rkey(), it.addr(0), 8, 1, 0);
            it.sge(0, 8);
        }),
        lists.refused(|it| slot!(it, wr_flush as Flush)(it.ex, it.rkey(), it.addr(0), 8, 0, 0)),
        lists.refused(|it| slot!(it, wr_flush as Flush)(it.ex, it.rkey(), it.addr(0), 8, 1, 2)),
        lists.refused(|it| {
            slot!(it, wr_atomic_write as WriteWord)(it.ex, it.rkey(), it.addr(0), std::ptr::null());
        }),
    ];
    assert_eq!(errors, [EINVAL; 13]);
    // One more than the queue accepts.
    let depth = lists.depth();
    assert_eq!(lists.refused(|it| (0..depth).for_each(|_| it.write(0, 64))), ENOMEM);
    // A list that the program aborts.
    lists.start();
    lists.write(0, 64);
    slot!(lists, wr_abort as Plain)(lists.ex);
    // Only the requests posted from here on complete: the queue is as empty as before.
    assert_eq!(lists.device.memory[8], 0);
    lists.start();
    (0..depth).for_each(|_| lists.write(0, 72));
    assert_eq!(lists.complete(), 0);
    let statuses: Vec<u32> = lists.device.completions(depth).iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, vec![0; depth]);
    assert_eq!((lists.device.memory[8], lists.device.memory[9]), (0, 1));
    lists.end();
}

#[test]
fn a_list_on_a_queue_that_takes_none_leaves_it_as_it_was() {
    let device = Device::open();
    let ex = make(&device, kind::RC, RC).expect("a QP");
    let lists = Lists { device, ex };
    assert_eq!(lists.refused(|_| ()), EINVAL, "in RESET");
    lists.end();
    let lists = Lists::new(RC);
    let mut attr = QpAttr { qp_state: 6, ..QpAttr::zeroed() };
    assert_eq!(call!(qp::modify(lists.ex.cast(), &raw mut attr, 1)), 0);
    // In the error state a posted request is flushed; a refused one gives no completion.
    assert_eq!(lists.refused(|it| it.sge(0, 8)), EINVAL);
    let mut three: [Sge; 3] = std::array::from_fn(|_| lists.device.element(0, 8));
    let many = three.as_mut_ptr();
    let refused = lists.refused(|it| {
        slot!(it, wr_send as Plain)(it.ex);
        slot!(it, wr_set_sge_list as Sges)(it.ex, 3, many);
    });
    assert_eq!(refused, EINVAL);
    lists.start();
    object::set!(lists.ex, wr_id, 5);
    lists.write(0, 64);
    assert_eq!(lists.complete(), 0);
    let seen: Vec<_> = lists.device.completions(1).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(5, abi::cq::status::WR_FLUSH_ERR)]);
    lists.end();
}

impl Lists {
    fn depth(&self) -> usize {
        let (mut attr, mut init) = (QpAttr::zeroed(), QpInitAttr::zeroed());
        assert_eq!(call!(qp::query(self.ex.cast(), &raw mut attr, 0, &raw mut init)), 0);
        attr.cap.max_send_wr as usize
    }
}
