//! Objects that were destroyed, or whose handle was changed: every kind is refused with an errno,
//! and nothing is changed.

use super::*;
use crate::layout::{
    AhAttr, AllocDmAttr, CompChannel, ParentDomainInitAttr, SrqInitAttr, Td, TdInitAttr, Xrcd, XrcdInitAttr,
};
use crate::{address, dm, ece, mcast, parent, srq, window, xrc};
use libc::{EBADF, EBUSY, EINVAL, ENOENT};
use std::ptr::null_mut;
use std::time::Duration;

/// Calls `end` as a program with a mistake would: after the handle was changed, and a second time.
fn ends_once(name: &str, handle: Option<*mut u32>, missing: c_int, end: impl Fn() -> c_int) {
    if let Some(handle) = handle {
        let right = call!(handle.read());
        for wrong in [right ^ 1, 0, u32::MAX, 0xdead_beef] {
            call!(handle.write(wrong));
            assert_eq!((end(), errno()), (missing, missing), "{name} with handle {wrong:#x}");
        }
        call!(handle.write(right));
    }
    assert_eq!(end(), 0, "{name}");
    for _ in 0..2 {
        assert_eq!((end(), errno()), (missing, missing), "{name} again");
    }
}

#[test]
fn destroying_twice_or_by_a_wrong_handle_is_an_errno_for_every_kind() {
    let device = Device::open();
    let (context, pd) = (device.context, device.pd);

    let mr = call!(memory::reg(pd, (&raw const *device.memory).cast_mut().cast(), 64, 1));
    ends_once("an MR", Some(&raw mut (call!(&mut *mr)).handle), ENOENT, || call!(memory::dereg(mr)));
    let null = call!(memory::alloc_null(pd));
    ends_once("a null MR", Some(&raw mut (call!(&mut *null)).handle), ENOENT, || call!(memory::dereg(null)));
    let mw = call!(window::alloc(pd, 1));
    ends_once("an MW", Some(&raw mut (call!(&mut *mw)).handle), ENOENT, || call!(window::dealloc(mw)));
    let mut size = AllocDmAttr { length: 64, ..AllocDmAttr::zeroed() };
    let memory = call!(dm::alloc(context, &raw mut size));
    ends_once("a DM", Some(&raw mut (call!(&mut *memory)).handle), ENOENT, || call!(dm::free(memory)));
    let mut to = AhAttr { is_global: 1, port_num: 1, ..AhAttr::zeroed() };
    to.grh.dgid = device.gid();
    let ah = call!(address::create(pd, &raw mut to));
    ends_once("an AH", Some(&raw mut (call!(&mut *ah)).handle), ENOENT, || call!(address::destroy(ah)));
    let qp = device.qp(abi::qp::kind::RC);
    ends_once("a QP", Some(&raw mut (call!(&mut *qp)).handle), ENOENT, || call!(qp::destroy(qp)));
    let mut init = SrqInitAttr::zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (4, 1);
    let shared = call!(srq::create(pd, &raw mut init));
    ends_once("an SRQ", Some(&raw mut (call!(&mut *shared)).handle), ENOENT, || call!(srq::destroy(shared)));
    let cq = call!(cq::create(context, 4, null_mut(), null_mut(), 0));
    ends_once("a CQ", Some(&raw mut (call!(&mut *cq)).handle), ENOENT, || call!(cq::destroy(cq)));
    let channel: *mut CompChannel = channel_of(&device);
    let fd = &raw mut (call!(&mut *channel)).fd;
    ends_once("a channel", Some(fd.cast()), EBADF, || call!(channel::destroy(channel)));
    let mut file = XrcdInitAttr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
    let xrcd: *mut Xrcd = call!(xrc::open(context, &raw mut file));
    ends_once("an XRC domain", None, ENOENT, || call!(xrc::close(xrcd)));
    let mut plain = TdInitAttr { comp_mask: 0 };
    let td: *mut Td = call!(parent::alloc_td(context, &raw mut plain));
    let mut of = ParentDomainInitAttr { pd, td, ..ParentDomainInitAttr::zeroed() };
    let above = call!(parent::alloc(context, &raw mut of));
    ends_once("a parent", Some(&raw mut (call!(&mut *above)).handle), ENOENT, || call!(pd::dealloc(above)));
    ends_once("a thread domain", None, ENOENT, || call!(parent::dealloc_td(td)));
    let second = call!(pd::alloc(context));
    ends_once("a PD", Some(&raw mut (call!(&mut *second)).handle), ENOENT, || call!(pd::dealloc(second)));
}

#[test]
fn calls_with_a_destroyed_object_return_enoent() {
    let device = Device::open();
    let (gone, qp) = (call!(pd::alloc(device.context)), device.qp(abi::qp::kind::UD));
    assert_eq!((call!(pd::dealloc(gone)), call!(qp::destroy(qp))), (0, 0));
    let nothing = |made: bool| assert_eq!((made, errno()), (false, ENOENT));
    nothing(!call!(memory::reg(gone, (&raw const *device.memory).cast_mut().cast(), 64, 1)).is_null());
    let mut init = device.init(abi::qp::kind::RC);
    nothing(!call!(qp::create(gone, &raw mut init)).is_null());
    nothing(!call!(window::alloc(gone, 1)).is_null());
    let (mut attr, mut init) = (QpAttr::zeroed(), QpInitAttr::zeroed());
    let (mut gid, mut options) = (device.gid(), crate::layout::Ece::zeroed());
    assert_eq!(call!(qp::query(qp, &raw mut attr, 1, &raw mut init)), ENOENT);
    assert_eq!(call!(qp::modify(qp, &raw mut attr, 1)), ENOENT);
    assert_eq!(call!(mcast::attach(qp, &raw mut gid, 0)), ENOENT);
    assert_eq!(call!(ece::query(qp, &raw mut options)), ENOENT);
    assert!(call!(qp::to_qp_ex(qp)).is_null());

    let cq = call!(cq::create(device.context, 4, null_mut(), null_mut(), 0));
    assert_eq!((call!(cq::destroy(cq)), call!(cq::resize(cq, 9))), (0, ENOENT));
    let mut init = QpInitAttr { recv_cq: cq, ..device.init(abi::qp::kind::RC) };
    nothing(!call!(qp::create(device.pd, &raw mut init)).is_null());
    // One kind in place of another, although the address is good.
    assert_eq!(call!(memory::dereg(device.pd.cast())), EINVAL);
    assert_eq!(call!(pd::dealloc(device.cq.cast())), EINVAL);
    assert_eq!(call!(pd::dealloc((&raw mut gid).cast())), ENOENT, "memory of the program");
    // An object in use is not destroyed, and stays valid.
    assert_eq!(call!(pd::dealloc(device.pd)), EBUSY);
    let mw = call!(window::alloc(device.pd, 1));
    assert_eq!(call!(window::dealloc(mw)), 0);
}

#[test]
fn a_device_is_closed_once() {
    let (first, second) = (Device::open(), Device::open());
    let context = second.context;
    drop(second);
    assert_eq!((call!(device::close_device(context)), errno()), (EBADF, EBADF));
    assert!(call!(pd::alloc(context)).is_null());
    assert_eq!(errno(), EBADF);
    drop(first);
}

#[test]
fn a_child_process_can_look_objects_up_however_busy_its_parent_was() {
    let device = Device::open();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let address = object::cookie(device.context);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let context = object::from_cookie(address);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut init = TdInitAttr { comp_mask: 0 };
                let td = call!(parent::alloc_td(context, &raw mut init));
                assert_eq!(call!(parent::dealloc_td(td)), 0);
            }
        });
        let ends = |_| {
            // The child calls only this and `_exit`. A lock that no thread releases would keep the
            // child for ever.
            let child = call!(libc::fork());
            if child == 0 {
                let answer = call!(crate::pd::PdObject::live(device.pd)).is_ok();
                call!(libc::_exit(i32::from(!answer)));
            }
            let (mut status, start) = (-1, std::time::Instant::now());
            while call!(libc::waitpid(child, &raw mut status, libc::WNOHANG)) == 0 {
                if start.elapsed() > Duration::from_secs(20) {
                    call!(libc::kill(child, libc::SIGKILL));
                }
                std::thread::yield_now();
            }
            status
        };
        let statuses: Vec<c_int> = (0..50).map(ends).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(statuses, [0; 50]);
    });
}
