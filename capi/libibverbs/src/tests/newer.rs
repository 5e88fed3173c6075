//! The calls that came with rdma-core v59 to v65: as functions, and through the operations at the
//! front of the extended context.

use super::*;
use crate::layout::{Dmah, DmahInitAttr, MrInitAttr, Op, ParentDomainInitAttr, PortAttr, SendWr, Sge, VerbsContext};
use crate::object::get;
use crate::{buffer, counters, dm, dmah, parent, post};
use abi::device::link_speed;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::null_mut;

/// `IBV_REG_MR_MASK_*`.
const IOVA: u64 = 1;
const ADDR: u64 = 2;
const FD: u64 = 4;
const FD_OFFSET: u64 = 8;
const DMAH: u64 = 16;
const BUF: u64 = 32;

/// A buffer of `size` bytes in `pd`: its memory and its handle.
fn allocate(pd: *mut Pd, size: usize) -> (*mut c_void, *mut buffer::Buf) {
    let mut buf = null_mut();
    let memory = call!(buffer::alloc(pd, size, &raw mut buf));
    assert!(!memory.is_null() && !buf.is_null(), "errno {}", errno());
    (memory, buf)
}

fn refused(made: *mut Mr, why: c_int) {
    assert!(made.is_null());
    assert_eq!(errno(), why);
}

#[test]
fn a_port_says_its_speed_in_hundreds_of_megabits() {
    let device = Device::open();
    let mut speed = 7;
    assert_eq!(call!(query::query_port_speed(device.context, 1, &raw mut speed)), 0);
    let mut port = PortAttr::zeroed();
    assert_eq!(call!(query::query_port(device.context, 1, &raw mut port, size_of::<PortAttr>())), 0);
    assert_eq!(Some(speed), link_speed(port.active_width, port.active_speed), "that of the host's interface");
    for port in [0, 2, 256, 257, u32::MAX] {
        assert_eq!(call!(query::query_port_speed(device.context, port, &raw mut speed)), libc::EINVAL, "port {port}");
    }
    assert_eq!(call!(query::query_port_speed(device.context, 1, null_mut())), libc::EINVAL);
}

#[test]
fn memory_in_a_buffer_is_registered_and_sent_and_nothing_beside_it() {
    let device = Device::open();
    let (memory, buf) = allocate(device.pd, 8192);
    assert_eq!(memory.addr() % 4096, 0);
    let second = memory.wrapping_byte_add(4096);
    let mr = call!(buffer::register(device.pd, buf, second, 4096, 1));
    assert!(!mr.is_null(), "errno {}", errno());
    assert_eq!(get!(mr, addr), second);

    // SAFETY: inside the buffer.
    unsafe { second.cast::<u64>().write(0x1234_5678) };
    let qp = device.loopback();
    let mut to = device.element(0, 8);
    let mut receive = crate::layout::RecvWr { sg_list: &raw mut to, num_sge: 1, ..crate::layout::RecvWr::zeroed() };
    let mut bad = null_mut();
    assert_eq!(call!(post::recv(qp, &raw mut receive, &raw mut bad)), 0);
    let mut from = Sge { addr: second.expose_provenance() as u64, length: 8, lkey: get!(mr, lkey) };
    let mut send = SendWr { sg_list: &raw mut from, num_sge: 1, ..SendWr::zeroed() };
    (send.opcode, send.send_flags) = (abi::post::opcode::SEND, abi::post::send_flags::SIGNALED);
    let mut bad = null_mut();
    assert_eq!(call!(post::send(qp, &raw mut send, &raw mut bad)), 0);
    assert!(device.completions(2).iter().all(|completion| completion.status == 0));
    assert_eq!(call!((&raw const device.memory[0]).read_volatile()), 0x1234_5678);
    assert_eq!(call!(qp::destroy(qp)), 0);
    assert_eq!(call!(memory::dereg(mr)), 0);

    let before = memory.wrapping_byte_sub(1);
    for (addr, length) in
        [(memory, 8193), (second, 4097), (before, 1), (memory.wrapping_byte_add(8193), 0), (memory, usize::MAX)]
    {
        refused(call!(buffer::register(device.pd, buf, addr, length, 1)), libc::EINVAL);
    }
    let other = call!(pd::alloc(device.context));
    refused(call!(buffer::register(other, buf, memory, 4096, 1)), libc::EINVAL);
    assert_eq!(call!(pd::dealloc(other)), 0);
    assert_eq!(call!(buffer::export(buf)), -1);
    assert_eq!(errno(), libc::ENODATA);
    call!(buffer::free(buf));
    refused(call!(buffer::register(device.pd, buf, memory, 4096, 1)), libc::ENOENT);
    call!(buffer::free(buf));
    assert_eq!(errno(), libc::ENOENT, "freed twice");
}

#[test]
fn buffers_that_cannot_be_are_refused() {
    let device = Device::open();
    let mut buf = null_mut();
    for size in [usize::MAX, isize::MAX as usize] {
        assert!(call!(buffer::alloc(device.pd, size, &raw mut buf)).is_null());
        assert_eq!(errno(), libc::ENOMEM);
    }
    assert!(call!(buffer::alloc(null_mut(), 4096, &raw mut buf)).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert!(call!(buffer::alloc(device.pd, 4096, null_mut())).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert!(buf.is_null(), "nothing was written");
    let (_, empty) = allocate(device.pd, 0);
    call!(buffer::free(empty));
}

#[test]
fn a_parent_domain_may_allow_unprotected_buffers() {
    let device = Device::open();
    let mut init = ParentDomainInitAttr { pd: device.pd, comp_mask: 4, ..ParentDomainInitAttr::zeroed() };
    let pd = call!(parent::alloc(device.context, &raw mut init));
    assert!(!pd.is_null(), "errno {}", errno());
    let (memory, buf) = allocate(pd, 4096);
    let mr = call!(buffer::register(pd, buf, memory, 4096, 1));
    assert!(!mr.is_null(), "errno {}", errno());
    refused(call!(buffer::register(device.pd, buf, memory, 4096, 1)), libc::EINVAL);
    assert_eq!(call!(memory::dereg(mr)), 0);
    call!(buffer::free(buf));
    assert_eq!(call!(pd::dealloc(pd)), 0);
}

#[test]
fn reg_mr_ex_registers_by_the_fields_that_count() {
    let mut device = Device::open();
    let page: *mut c_void = device.memory.as_mut_ptr().cast();
    // Both addresses have the same offset in their pages.
    let iova = 0x5000 | page.addr() as u64 & 4095;
    let plain = MrInitAttr { length: 4096, access: 1, addr: page, iova, fd: 3, ..MrInitAttr::zeroed() };
    for mask in [ADDR, ADDR | IOVA] {
        let mut attr = MrInitAttr { comp_mask: mask, ..plain };
        let mr = call!(memory::reg_ex(device.pd, &raw mut attr));
        assert!(!mr.is_null(), "errno {}", errno());
        assert_eq!((get!(mr, addr), get!(mr, length), get!(mr, pd)), (page, 4096, device.pd));
        assert_eq!(call!(memory::dereg(mr)), 0);
    }
    let (memory, buf) = allocate(device.pd, 4096);
    let mut attr = MrInitAttr { comp_mask: ADDR | BUF, addr: memory, buf: buf.cast(), ..plain };
    let mr = call!(memory::reg_ex(device.pd, &raw mut attr));
    assert!(!mr.is_null(), "errno {}", errno());
    assert_eq!(call!(memory::dereg(mr)), 0);
    attr.length = 4097;
    refused(call!(memory::reg_ex(device.pd, &raw mut attr)), libc::EINVAL);
    let cases = [
        (0, libc::EINVAL),
        (IOVA, libc::EINVAL),
        (BUF, libc::EINVAL),
        (ADDR | FD_OFFSET, libc::EINVAL),
        (ADDR | FD | FD_OFFSET | IOVA, libc::EINVAL),
        (FD | IOVA, libc::EINVAL),
        (FD | FD_OFFSET, libc::EINVAL),
        (FD | FD_OFFSET | IOVA | BUF, libc::EINVAL),
        (FD | FD_OFFSET | IOVA, libc::EOPNOTSUPP),
        (ADDR | 64, libc::EOPNOTSUPP),
        (ADDR | 1 << 63, libc::EOPNOTSUPP),
    ];
    for (mask, why) in cases {
        let mut attr = MrInitAttr { comp_mask: mask, addr: memory, buf: buf.cast(), ..plain };
        assert!(call!(memory::reg_ex(device.pd, &raw mut attr)).is_null(), "{mask:#x}");
        assert_eq!(errno(), why, "{mask:#x}");
    }
    call!(buffer::free(buf));
    refused(call!(memory::reg_ex(device.pd, null_mut())), libc::EINVAL);
    refused(call!(memory::reg_ex(null_mut(), &raw mut attr)), libc::EINVAL);
}

#[test]
fn a_dma_handle_says_nothing_and_stays_while_a_region_has_it() {
    let mut device = Device::open();
    let mut none = DmahInitAttr::zeroed();
    let handle: *mut Dmah = call!(dmah::alloc(device.context, &raw mut none));
    assert!(!handle.is_null(), "errno {}", errno());
    assert_eq!(get!(handle, context), device.context);
    let page = device.memory.as_mut_ptr().cast();
    let mut attr = MrInitAttr { length: 4096, access: 1, addr: page, dmah: handle, ..MrInitAttr::zeroed() };
    attr.comp_mask = ADDR | DMAH;
    let mr = call!(memory::reg_ex(device.pd, &raw mut attr));
    assert!(!mr.is_null(), "errno {}", errno());
    assert_eq!(call!(dmah::dealloc(handle)), libc::EBUSY);
    assert_eq!(call!(memory::dereg(mr)), 0);
    attr.access |= abi::mr::access::ON_DEMAND.cast_signed();
    refused(call!(memory::reg_ex(device.pd, &raw mut attr)), libc::EOPNOTSUPP);
    let other = Device::open();
    attr.access = 1;
    refused(call!(memory::reg_ex(other.pd, &raw mut attr)), libc::EINVAL);
    assert_eq!(call!(dmah::dealloc(handle)), 0);
    refused(call!(memory::reg_ex(device.pd, &raw mut attr)), libc::ENOENT);
    assert_eq!(call!(dmah::dealloc(handle)), libc::ENOENT);
    assert_eq!(call!(dmah::dealloc(null_mut())), libc::EINVAL);
}

#[test]
fn hints_are_checked_and_not_heeded() {
    let device = Device::open();
    let cases = [
        (1, 0, 0, libc::EOPNOTSUPP),
        (2, 3, 0, libc::EOPNOTSUPP),
        (2, 4, 0, libc::EINVAL),
        (4, 0, 1, libc::EOPNOTSUPP),
        (4, 0, 2, libc::EINVAL),
        (8, 0, 0, libc::EOPNOTSUPP),
    ];
    for (comp_mask, ph, tph_mem_type, why) in cases {
        let mut attr = DmahInitAttr { comp_mask, ph, tph_mem_type, ..DmahInitAttr::zeroed() };
        assert!(call!(dmah::alloc(device.context, &raw mut attr)).is_null());
        assert_eq!(errno(), why, "comp_mask {comp_mask}, hints {ph}, memory type {tph_mem_type}");
    }
    assert!(call!(dmah::alloc(device.context, null_mut())).is_null());
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn unsupported_newer_calls_return_eopnotsupp() {
    let device = Device::open();
    assert!(counters::create().is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    assert_eq!(counters::refused(), libc::EOPNOTSUPP);
    let mut attr = crate::layout::AllocDmAttr { length: 4096, ..crate::layout::AllocDmAttr::zeroed() };
    let memory = call!(dm::alloc(device.context, &raw mut attr));
    assert!(!memory.is_null(), "errno {}", errno());
    assert_eq!(call!(dm::export(memory)), -1);
    assert_eq!(errno(), libc::EOPNOTSUPP);
    assert_eq!(call!(dm::free(memory)), 0);
    assert_eq!(call!(dm::export(null_mut())), -1);
    assert_eq!(errno(), libc::EINVAL);
}

/// Programs reach these operations backwards from the context if `sz` is large enough.
#[test]
fn the_extended_context_has_the_newest_operations() {
    let device = Device::open();
    let start: *mut VerbsContext = device.context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast();
    assert_eq!(get!(start, sz), size_of::<VerbsContext>());
    let filled: [Op; 6] = [
        get!(start, free_buf),
        get!(start, alloc_buf),
        get!(start, dm_export_dmabuf_fd),
        get!(start, reg_mr_ex),
        get!(start, dealloc_dmah),
        get!(start, alloc_dmah),
    ];
    assert!(filled.iter().all(|operation| !operation.is_null()));
}
