//! Thread domains and parent domains: which object keeps which in use, and queues in the program's
//! own memory.

use super::{Device, call, errno};
use crate::layout::{CqInitAttrEx, ParentDomainInitAttr, Pd, Qp, QpInitAttr, SrqAttr, SrqInitAttr, TdInitAttr};
use crate::{cq, cq_ex, object, parent, pd, post, qp, srq};
use bytemuck::Zeroable;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the calls of the program's allocator.
#[derive(Default)]
struct Pool {
    given: AtomicUsize,
    freed: AtomicUsize,
    /// 0: memory; 1: "use the default"; 2: failure.
    answer: AtomicUsize,
}

unsafe extern "C" fn alloc(_pd: *mut Pd, pool: *mut c_void, size: usize, align: usize, _kind: u64) -> *mut c_void {
    // SAFETY: the tests' pools live longer than their domains.
    let pool = unsafe { &*pool.cast::<Pool>() };
    match pool.answer.load(Ordering::Relaxed) {
        0 => {
            pool.given.fetch_add(1, Ordering::Relaxed);
            // SAFETY: plain allocation.
            let memory = unsafe { libc::aligned_alloc(align, size) };
            // SAFETY: just allocated. Old contents must not matter.
            unsafe { memory.cast::<u8>().write_bytes(0xa5, size) };
            memory
        }
        1 => std::ptr::without_provenance_mut(usize::MAX),
        _ => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn free(pd: *mut Pd, pool: *mut c_void, memory: *mut c_void, _kind: u64) {
    assert!(!pd.is_null());
    // SAFETY: as above.
    unsafe { &*pool.cast::<Pool>() }.freed.fetch_add(1, Ordering::Relaxed);
    // SAFETY: given by `alloc`.
    unsafe { libc::free(memory) };
}

fn domain(device: &Device, pool: &Pool) -> *mut Pd {
    let mut init = ParentDomainInitAttr { pd: device.pd, comp_mask: 3, ..ParentDomainInitAttr::zeroed() };
    init.alloc = alloc as *const c_void;
    init.free = free as *const c_void;
    init.pd_context = std::ptr::from_ref(pool).cast_mut().cast();
    let made = call!(parent::alloc(device.context, &raw mut init));
    assert!(!made.is_null(), "errno {}", errno());
    made
}

fn counts(pool: &Pool) -> (usize, usize) {
    (pool.given.load(Ordering::Relaxed), pool.freed.load(Ordering::Relaxed))
}

fn create_qp(device: &Device, pd: *mut Pd, init: QpInitAttr) -> *mut Qp {
    let mut init = QpInitAttr { send_cq: device.cq, ..init };
    call!(qp::create(pd, &raw mut init))
}

#[test]
fn queues_lie_in_the_memory_that_the_program_gave_and_give_it_back() {
    let device = Device::open();
    let pool = Pool::default();
    let pd = domain(&device, &pool);
    let mut attr = CqInitAttrEx { cqe: 100, comp_mask: 2, parent_domain: pd, ..CqInitAttrEx::zeroed() };
    let queue = call!(cq_ex::create(device.context, &raw mut attr)).cast();
    assert_eq!(counts(&pool), (1, 0));
    assert_eq!(call!(cq::resize(queue, 500)), 0);
    assert_eq!(counts(&pool), (2, 1), "it moves");
    let mut init = SrqInitAttr { attr: SrqAttr { max_wr: 10, max_sge: 1, srq_limit: 0 }, ..SrqInitAttr::zeroed() };
    let shared = call!(srq::create(pd, &raw mut init));
    assert_eq!(counts(&pool), (3, 1));
    let made = create_qp(&device, pd, QpInitAttr { recv_cq: queue, ..device.init(abi::qp::kind::RC) });
    assert_eq!(counts(&pool), (5, 1), "a send queue and a receive queue");
    assert_eq!(object::get!(made, pd), pd);

    // An MR that is registered on the PD is valid for objects made in the parent domain.
    device.connect(made, object::get!(made, qp_num));
    let mut element = device.element(0, 8);
    let mut receive = crate::layout::RecvWr { wr_id: 7, sg_list: &raw mut element, num_sge: 1, ..Zeroable::zeroed() };
    assert_eq!(call!(post::recv(made, &raw mut receive, std::ptr::null_mut())), 0);
    let mut from = device.element(64, 8);
    let mut send =
        crate::layout::SendWr { opcode: 2, send_flags: 2, sg_list: &raw mut from, num_sge: 1, ..Zeroable::zeroed() };
    assert_eq!(call!(post::send(made, &raw mut send, std::ptr::null_mut())), 0);
    assert_eq!(device.completions(1)[0].status, 0);
    let mut wc = crate::layout::Wc::zeroed();
    while call!(cq::poll(queue, 1, &raw mut wc)) == 0 {}
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (7, 0, 8));

    assert_eq!(call!(pd::dealloc(pd)), libc::EBUSY);
    assert_eq!(call!(qp::destroy(made)), 0);
    assert_eq!(call!(srq::destroy(shared)), 0);
    assert_eq!(call!(pd::dealloc(pd)), libc::EBUSY, "the CQ");
    assert_eq!(call!(cq::destroy(queue)), 0);
    assert_eq!(counts(&pool), (5, 5));
    assert_eq!(call!(pd::dealloc(device.pd)), libc::EBUSY, "the parent domain");
    assert_eq!(call!(pd::dealloc(pd)), 0);
}

#[test]
fn an_allocator_may_leave_it_to_the_library_or_have_nothing() {
    let device = Device::open();
    let pool = Pool::default();
    let pd = domain(&device, &pool);
    pool.answer.store(1, Ordering::Relaxed);
    let made = create_qp(&device, pd, device.init(abi::qp::kind::RC));
    assert!(!made.is_null());
    assert_eq!(call!(qp::destroy(made)), 0);
    pool.answer.store(2, Ordering::Relaxed);
    assert!(create_qp(&device, pd, device.init(abi::qp::kind::RC)).is_null());
    assert_eq!(errno(), libc::ENOMEM);
    let mut init = SrqInitAttr { attr: SrqAttr { max_wr: 10, max_sge: 1, srq_limit: 0 }, ..SrqInitAttr::zeroed() };
    assert!(call!(srq::create(pd, &raw mut init)).is_null());
    assert_eq!(errno(), libc::ENOMEM);
    let mut attr = CqInitAttrEx { cqe: 100, comp_mask: 2, parent_domain: pd, ..CqInitAttrEx::zeroed() };
    assert!(call!(cq_ex::create(device.context, &raw mut attr)).is_null());
    assert_eq!(errno(), libc::ENOMEM);
    assert_eq!(counts(&pool), (0, 0));
    // The failed creations left nothing behind: neither domain is in use.
    assert_eq!(call!(pd::dealloc(pd)), 0);
}

#[test]
fn a_thread_domain_stays_while_a_parent_domain_has_it() {
    let device = Device::open();
    let mut wanted = TdInitAttr { comp_mask: 1 };
    assert!(call!(parent::alloc_td(device.context, &raw mut wanted)).is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    wanted.comp_mask = 0;
    let td = call!(parent::alloc_td(device.context, &raw mut wanted));
    let mut init = ParentDomainInitAttr { pd: device.pd, td, ..ParentDomainInitAttr::zeroed() };
    let pd = call!(parent::alloc(device.context, &raw mut init));
    assert_eq!(object::get!(pd, handle), object::get!(device.pd, handle));
    assert_eq!(call!(parent::dealloc_td(td)), libc::EBUSY);
    let mut of_it = ParentDomainInitAttr { pd, ..ParentDomainInitAttr::zeroed() };
    let cases = [(0, pd, libc::EINVAL), (8, device.pd, libc::EOPNOTSUPP), (0, std::ptr::null_mut(), libc::EINVAL)];
    for (comp_mask, of, refusal) in cases {
        (of_it.comp_mask, of_it.pd) = (comp_mask, of);
        assert!(call!(parent::alloc(device.context, &raw mut of_it)).is_null());
        assert_eq!(errno(), refusal);
    }
    let mut attr = CqInitAttrEx { cqe: 10, comp_mask: 2, parent_domain: device.pd, ..CqInitAttrEx::zeroed() };
    assert!(call!(cq_ex::create(device.context, &raw mut attr)).is_null(), "a PD is no parent domain");
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(call!(pd::dealloc(pd)), 0);
    assert_eq!(call!(parent::dealloc_td(td)), 0);
}

#[test]
fn an_allocator_that_has_nothing_for_a_resize_changes_nothing() {
    let device = Device::open();
    let pool = Pool::default();
    let pd = domain(&device, &pool);
    let mut attr = CqInitAttrEx { cqe: 100, comp_mask: 2, parent_domain: pd, ..CqInitAttrEx::zeroed() };
    let queue = call!(cq_ex::create(device.context, &raw mut attr)).cast();
    let mut init = SrqInitAttr { attr: SrqAttr { max_wr: 10, max_sge: 1, srq_limit: 0 }, ..SrqInitAttr::zeroed() };
    let shared = call!(srq::create(pd, &raw mut init));
    let resize = |max_wr, mask| {
        let mut attr = SrqAttr { max_wr, max_sge: 1, srq_limit: 1 };
        call!(srq::modify(shared, &raw mut attr, mask))
    };
    // The agent's value, as the query returns it.
    let size = || {
        let mut attr = SrqAttr::zeroed();
        assert_eq!(call!(srq::query(shared, &raw mut attr)), 0);
        attr.max_wr
    };
    assert_eq!((counts(&pool), size()), ((2, 0), 16));
    pool.answer.store(2, Ordering::Relaxed);
    let max_wr = 1;
    assert_eq!((call!(cq::resize(queue, 500)), resize(100, max_wr)), (libc::ENOMEM, libc::ENOMEM));
    let cqe: std::ffi::c_int = object::get!(queue, cqe);
    assert_eq!((size(), cqe), (16, 128));
    // An impossible size is refused before the allocator is called.
    pool.answer.store(0, Ordering::Relaxed);
    assert_eq!((call!(cq::resize(queue, 0)), call!(cq::resize(queue, 1 << 30))), (libc::EINVAL, libc::EINVAL));
    assert_eq!((resize(1 << 30, max_wr), counts(&pool)), (libc::EINVAL, (2, 0)));
    // Only the agent knows that this size is wrong: the memory lent for it goes back.
    let mut receive = crate::layout::RecvWr { wr_id: 7, ..Zeroable::zeroed() };
    for _ in 0..3 {
        assert_eq!(call!(srq::post(shared, &raw mut receive, std::ptr::null_mut())), 0);
    }
    assert_eq!((resize(1, max_wr), size()), (libc::EINVAL, 16));
    assert_eq!(counts(&pool), (3, 1));
    assert_eq!((resize(100, max_wr), call!(cq::resize(queue, 500))), (0, 0));
    assert_eq!((counts(&pool), size()), ((5, 3), 128));
    assert_eq!((call!(srq::destroy(shared)), call!(cq::destroy(queue))), (0, 0));
    assert_eq!((counts(&pool), call!(pd::dealloc(pd))), ((5, 5), 0));
}
