//! Memory windows, device memory, null regions, advice and importing, through the tables that the
//! inline functions call.

use super::*;
use crate::layout::{AllocDmAttr, Dm, MwBind, MwBindInfo, SendWr, Sge, WrBindMw, WrTail};
use crate::{dm, import, post, window};
use abi::mr::access;
use abi::post::opcode;
use libc::{EINVAL, EOPNOTSUPP};
use std::ptr::null_mut;

/// A region of the device's page that windows can be bound to.
fn bindable(device: &Device) -> *mut Mr {
    let start = device.memory.as_ptr().cast_mut().cast();
    let mr = call!(memory::reg(device.pd, start, 4096, (access::MW_BIND | access::LOCAL_WRITE).cast_signed()));
    assert!(!mr.is_null(), "errno {}", errno());
    mr
}

#[test]
fn a_window_of_type_1_has_its_next_key_at_once() {
    let device = Device::open();
    let (mr, qp) = (bindable(&device), device.loopback());
    let mw = call!(window::alloc(device.pd, 1));
    let first = object::get!(mw, rkey);
    let addr = (&raw const *device.memory).expose_provenance() as u64;
    let bind_info = MwBindInfo { mr, addr, length: 64, mw_access_flags: access::REMOTE_WRITE };
    let mut bind = MwBind { wr_id: 9, send_flags: 2, bind_info };
    assert_eq!(call!(window::bind(qp, mw, &raw mut bind)), 0);
    assert_eq!(object::get!(mw, rkey), abi::mr::next_key(first));
    let wc = device.completions(1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (9, 0, 5));
    assert_eq!(call!(memory::dereg(mr)), libc::EBUSY);
    bind.bind_info.mw_access_flags |= access::ZERO_BASED;
    assert_eq!(call!(window::bind(qp, mw, &raw mut bind)), EINVAL);
    bind.bind_info = MwBindInfo { mr: null_mut(), mw_access_flags: 0, ..bind_info };
    assert_eq!(call!(window::bind(qp, mw, &raw mut bind)), EINVAL, "64 bytes of nothing");
    assert_eq!(object::get!(mw, rkey), abi::mr::next_key(first), "what was refused gave no key");
    bind.bind_info.length = 0;
    assert_eq!(call!(window::bind(qp, mw, &raw mut bind)), 0);
    assert_eq!(device.completions(1)[0].status, 0);
    assert_eq!((call!(memory::dereg(mr)), call!(window::dealloc(mw)), call!(qp::destroy(qp))), (0, 0, 0));
    assert!(call!(window::alloc(device.pd, 3)).is_null() && errno() == EINVAL);
}

#[test]
fn a_window_of_type_2_is_bound_and_invalidated_by_posting() {
    let device = Device::open();
    let (mr, qp) = (bindable(&device), device.loopback());
    let mw = call!(window::alloc(device.pd, 2));
    let key = abi::mr::next_key(object::get!(mw, rkey));
    let addr = (&raw const *device.memory).expose_provenance() as u64;
    let bind_info = MwBindInfo { mr, addr, length: 64, mw_access_flags: access::REMOTE_WRITE };
    let bind_mw = WrBindMw { mw, rkey: key, bind_info };
    let mut bind = SendWr { opcode: opcode::BIND_MW, send_flags: 2, tail: WrTail { bind_mw }, ..SendWr::zeroed() };
    let mut bad = null_mut();
    assert_eq!(call!(post::send(qp, &raw mut bind, &raw mut bad)), 0);
    let mut close = SendWr { opcode: opcode::LOCAL_INV, send_flags: 2, imm_data: key, ..SendWr::zeroed() };
    assert_eq!(call!(post::send(qp, &raw mut close, &raw mut bad)), 0);
    let seen: Vec<_> = device.completions(2).iter().map(|wc| (wc.status, wc.opcode)).collect();
    assert_eq!(seen, [(0, 5), (0, 6)]);
    let mut verb = MwBind { wr_id: 0, send_flags: 0, bind_info };
    assert_eq!(call!(window::bind(qp, mw, &raw mut verb)), EINVAL, "the verb is for type 1");
    let of_type_1 = call!(window::alloc(device.pd, 1));
    bind.tail.bind_mw = WrBindMw { mw: of_type_1, ..bind_mw };
    assert_eq!(call!(post::send(qp, &raw mut bind, &raw mut bad)), EINVAL, "posting is for type 2");
    assert_eq!(bad, &raw mut bind);
    for mw in [mw, of_type_1] {
        assert_eq!(call!(window::dealloc(mw)), 0);
    }
    assert_eq!((call!(qp::destroy(qp)), call!(memory::dereg(mr))), (0, 0));
}

#[test]
fn device_memory_and_its_import() {
    let device = Device::open();
    let mut attr = AllocDmAttr { length: 64, log_align_req: 0, comp_mask: 1 };
    assert!(call!(dm::alloc(device.context, &raw mut attr)).is_null() && errno() == EINVAL);
    attr.comp_mask = 0;
    let piece = call!(dm::alloc(device.context, &raw mut attr));
    assert!(!piece.is_null(), "errno {}", errno());
    let rights = access::ZERO_BASED | access::LOCAL_WRITE;
    let mr = call!(dm::register(device.pd, piece, 0, 64, rights));
    assert_eq!((object::get!(mr, addr), object::get!(mr, length)), (null_mut(), 64));
    assert_eq!(call!(memory::rereg(mr, 4, null_mut(), null_mut(), 0, 1)), -4, "errno {}", errno());

    // A copy of the command's descriptor opens the device once more, and gives access to its
    // objects.
    let copy = call!(libc::dup(object::get!(device.context, cmd_fd)));
    let second = call!(import::import_device(copy));
    assert!(!second.is_null(), "errno {}", errno());
    let domain = call!(import::import_pd(second, object::get!(device.pd, handle)));
    let handle = object::get!(mr, handle);
    let shared = call!(import::import_mr(domain, handle));
    assert_eq!((object::get!(shared, handle), object::get!(shared, lkey)), (handle, object::get!(mr, lkey)));
    let twin = call!(dm::import(second, object::get!(piece, handle)));
    assert_eq!(object::get!(twin, handle), object::get!(piece, handle));
    let (mut there, mut back) = ([7_u32, 8, 9, 10], [0_u32; 4]);
    assert_eq!(copies(piece).0(piece, 16, there.as_mut_ptr().cast(), 16), 0);
    assert_eq!((copies(twin).1(back.as_mut_ptr().cast(), twin, 16, 16), back), (0, there));
    assert_eq!(copies(piece).0(piece, 2, there.as_mut_ptr().cast(), 4), EINVAL);
    assert_eq!(copies(piece).0(piece, 64, there.as_mut_ptr().cast(), 4), libc::EFAULT);
    assert_eq!(call!(memory::dereg(mr)), libc::EBUSY, "it is imported");
    call!(import::unimport_mr(shared));
    call!(import::unimport_pd(domain));
    call!(dm::unimport(twin));
    assert_eq!(call!(device::close_device(second)), 0);
    assert_eq!(call!(dm::free(piece)), libc::EBUSY);
    assert_eq!((call!(memory::dereg(mr)), call!(dm::free(piece))), (0, 0));
}

type CopyTo = fn(*mut Dm, u64, *mut std::ffi::c_void, usize) -> c_int;
type CopyFrom = fn(*mut std::ffi::c_void, *mut Dm, u64, usize) -> c_int;

fn copies(piece: *mut Dm) -> (CopyTo, CopyFrom) {
    let (to, from) = (object::get!(piece, memcpy_to_dm), object::get!(piece, memcpy_from_dm));
    assert_eq!((to, from), (dm::copy_to as *const _, dm::copy_from as *const _), "what `verbs.h` calls");
    (
        |piece, offset, host, length| call!(dm::copy_to(piece, offset, host, length)),
        |host, piece, offset, length| call!(dm::copy_from(host, piece, offset, length)),
    )
}

#[test]
fn regions_of_nothing_and_advice() {
    let device = Device::open();
    let nothing = call!(memory::alloc_null(device.pd));
    assert_eq!((object::get!(nothing, length), object::get!(nothing, addr)), (usize::MAX, null_mut()));
    let start: *mut std::ffi::c_void = device.memory.as_ptr().cast_mut().cast();
    let paged = call!(memory::reg(device.pd, start, 4096, (access::ON_DEMAND | access::LOCAL_WRITE).cast_signed()));
    let mut list = [Sge { lkey: object::get!(paged, lkey), ..device.element(0, 64) }];
    let advise = |list: &mut [Sge], advice, flags, count| {
        call!(memory::advise(device.pd, advice, flags, list.as_mut_ptr(), count))
    };
    assert_eq!(advise(&mut list, 1, 1, 1), 0);
    assert_eq!(advise(&mut list, 1, 1, 0), EINVAL);
    assert_eq!(advise(&mut list, 9, 1, 1), EOPNOTSUPP);
    assert_eq!(advise(&mut [device.element(0, 64)], 1, 1, 1), libc::EFAULT, "not on demand");
    assert_eq!((call!(memory::dereg(nothing)), call!(memory::dereg(paged))), (0, 0));
}
