//! Which memory can be registered, how a registration changes, and which advice is accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::common::wait::until;
use crate::common::{ALL_RIGHTS, Fabric, Memory, Plan, Side, connect, everywhere, register};
use abi::cq::status;
use abi::errno::Errno;
use abi::mr::access;
use abi::post::{Sge, opcode};
use abi::qp::state;
use engine::{Feth, Flush, Mr, RecvWr, SendWr, Service, SrqSpec};

/// `IBV_ADVISE_MR_ADVICE_*`.
const PREFETCH: u32 = 0;
const PREFETCH_WRITE: u32 = 1;
const PREFETCH_NO_FAULT: u32 = 2;

const ON_DEMAND: u32 = access::ON_DEMAND | ALL_RIGHTS;

fn restart(a: &Side, b: &Side) {
    for side in [a, b] {
        side.to(state::RESET);
    }
    connect(a, b);
}

/// Writes 8 bytes and returns the status.
fn write(side: &Side, rkey: u32, remote_addr: u64) -> u32 {
    side.post(&SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, sges: &side.sge(0, 8), ..SendWr::default() });
    side.sent().status
}

/// Sends one element and returns the status.
fn send(side: &Side, sge: Sge) -> u32 {
    side.post(&SendWr { sges: &[sge], ..SendWr::default() });
    side.sent().status
}

everywhere! {
    a_zero_based_region_counts_from_0
    a_region_of_nothing_gives_zeros_and_takes_everything
    a_region_of_all_memory
    a_region_ends_at_once_for_a_queue_pair_that_has_used_it_for_long
    regions_that_queue_pairs_keep_end_while_their_peers_write
}

/// V-21: a zero-based region.
fn a_zero_based_region_counts_from_0(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let rights = access::ZERO_BASED | ALL_RIGHTS;
    let based = b.pd.reg_mr(b.memory.addr(100), 1000, b.memory.addr(100), rights).expect("an MR");
    a.memory.pattern(0, 8, 5);
    assert_eq!(write(&a, based.rkey(), 992), 0);
    assert_eq!(b.memory.get(1092, 8), a.memory.get(0, 8));
    b.recv(1, 0, 8);
    a.recv(2, 64, 8);
    assert_eq!(send(&b, Sge::new(992, 8, based.lkey())), 0);
    assert_eq!((a.received().status, a.memory.get(64, 8)), (0, a.memory.get(0, 8)));
    for wrong in [993, b.memory.addr(100)] {
        assert_eq!(write(&a, based.rkey(), wrong), status::REM_ACCESS_ERR);
        restart(&a, &b);
    }
}

/// ibv_alloc_null_mr(3): reading it returns zeros, and writes to it are discarded.
fn a_region_of_nothing_gives_zeros_and_takes_everything(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let nothing = a.pd.null_mr().expect("an MR");
    let anywhere = 0xffff_ffff_0000_0000;
    for len in [1, 64, 4097, 40_000] {
        b.memory.pattern(0, 50_000, 5);
        b.recv(1, 0, 50_000);
        let sges = [a.sge(0, 3)[0], Sge::new(anywhere, len, nothing.lkey()), a.sge(3, 5)[0]];
        a.memory.pattern(0, 8, 8);
        a.post(&SendWr { sges: &sges, ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().status), (0, 0));
        let middle = 3 + len as usize;
        assert_eq!(b.memory.get(3, len as usize), vec![0; len as usize]);
        assert_eq!([b.memory.get(0, 3), b.memory.get(middle, 5)].concat(), a.memory.get(0, 8));
        let sges = [Sge::new(anywhere, middle as u32, nothing.lkey()), a.sge(100, 5)[0]];
        let (rkey, remote_addr) = (b.mr.rkey(), b.memory.addr(0));
        a.post(&SendWr { opcode: opcode::RDMA_READ, rkey, remote_addr, sges: &sges, ..SendWr::default() });
        assert_eq!((a.sent().status, a.memory.get(100, 5)), (0, a.memory.get(3, 5)));
    }
    assert_eq!(write(&b, nothing.rkey(), 0), status::REM_ACCESS_ERR, "peers cannot use it");
    let rereg = nothing.rereg(4, None, 0, 0, access::LOCAL_WRITE);
    assert_eq!(rereg.expect_err("it is no memory").errno, Errno::EINVAL);
    nothing.dereg().expect("it goes");
    // A PD can be freed while it has such a region, as with mlx5; perftest relies on it.
    let pd = a.engine.alloc_pd().expect("a PD");
    let nothing = pd.null_mr().expect("an MR");
    pd.dealloc().expect("nothing holds the PD");
    nothing.dereg().expect("it goes");
}

/// Implicit on-demand paging: the region includes memory that is mapped after the registration.
/// Access to unmapped memory is an error.
fn a_region_of_all_memory(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let all = b.pd.reg_mr(0, u64::MAX, 0, ON_DEMAND).expect("an MR");
    let late = Memory::new(8192);
    a.memory.pattern(0, 8, 3);
    assert_eq!(write(&a, all.rkey(), late.addr(8184)), 0);
    assert_eq!(late.get(8184, 8), a.memory.get(0, 8));
    let (gone, beyond) = (late.addr(0), 1 << 60);
    // Protected and not unmapped, because another thread's mapping could take the place.
    late.protect(false);
    for addr in [gone, beyond, u64::MAX - 8] {
        assert_eq!(write(&a, all.rkey(), addr), status::REM_OP_ERR, "{addr:#x}");
        restart(&a, &b);
        assert_eq!(send(&b, Sge::new(addr, 8, all.lkey())), status::LOC_PROT_ERR, "{addr:#x}");
        restart(&a, &b);
    }
    for (start, iova) in [(0, 4096), (4096, 4096)] {
        assert_eq!(b.pd.reg_mr(start, u64::MAX, iova, ON_DEMAND).err().map(|error| error.errno), Some(Errno::EINVAL));
    }
    let pinned = b.pd.reg_mr(0, u64::MAX, 0, ALL_RIGHTS);
    assert_eq!(pinned.err().map(|error| error.errno), Some(Errno::EFAULT));
}

/// With on-demand paging, memory need not be accessible when it is registered.
#[test]
fn on_demand_memory_may_come_later() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let memory = Memory::new(8192);
    memory.protect(false);
    let pinned = b.pd.reg_mr(memory.addr(0), 8192, memory.addr(0), ALL_RIGHTS);
    assert_eq!(pinned.err().map(|error| error.errno), Some(Errno::EFAULT));
    let mr = register(&b.pd, &memory, ON_DEMAND);
    assert_eq!(write(&a, mr.rkey(), memory.addr(0)), status::REM_OP_ERR);
}

/// Only a registration with on-demand paging must be of real huge pages, because paging must know
/// the page size.
#[test]
fn on_demand_memory_of_huge_pages_is_of_huge_pages() {
    let fabric = Fabric::start();
    let side = Side::new(&fabric.engine(), &Plan::rc());
    let mut memory = Memory::new(8192);
    let huge = |addr, length, access| side.pd.reg_mr(addr, length, addr, access).map(drop).map_err(|error| error.errno);
    assert_eq!(huge(memory.addr(0), 8192, ON_DEMAND | access::HUGETLB), Err(Errno::EINVAL));
    assert!(engine::reason::last(1)[0].contains("no huge pages"), "{:?}", engine::reason::last(1));
    assert_eq!(huge(0, u64::MAX, ON_DEMAND | access::HUGETLB), Err(Errno::EINVAL), "all memory");
    // For pinned memory the page size does not matter.
    assert_eq!(huge(memory.addr(0), 8192, ALL_RIGHTS | access::HUGETLB), Ok(()));
    let mr = register(&side.pd, &memory, ALL_RIGHTS);
    let changed = mr.rereg(4, None, 0, 0, ON_DEMAND | access::HUGETLB).map_err(|error| error.errno);
    assert_eq!(changed, Err(Errno::EINVAL));
    memory.unmap();
    assert_eq!(huge(memory.addr(0), 8192, ON_DEMAND | access::HUGETLB), Err(Errno::EINVAL), "nothing is there");
}

/// V-23: a new translation gives new keys, other changes keep the old keys, and a refused change
/// changes nothing.
#[test]
fn a_region_changes_as_it_is_told() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let other = b.engine.alloc_pd().expect("a PD");
    let old = b.mr.rkey();
    for (what, flags, addr, length, access, errno) in [
        ("nothing to change", 0, 0, 0, 0, Errno::EINVAL),
        ("an unknown flag", 8, 0, 0, 0, Errno::EINVAL),
        ("no length", 1, b.memory.addr(0), 0, 0, Errno::EINVAL),
        ("no memory", 1, 1 << 60, 64, 0, Errno::EFAULT),
        ("remote write alone", 4, 0, 0, access::REMOTE_WRITE, Errno::EINVAL),
        ("an unknown right", 4, 0, 0, 1 << 31, Errno::EINVAL),
    ] {
        let refused = b.mr.rereg(flags, None, addr, length, access).expect_err(what);
        assert_eq!((refused.errno, b.mr.rkey()), (errno, old), "{what}");
        assert_eq!(write(&a, old, b.memory.addr(0)), 0, "{what}");
    }
    b.mr.rereg(1, None, b.memory.addr(4096), 64, 0).expect("another place");
    let new = b.mr.rkey();
    assert_ne!(new, old);
    assert_eq!(write(&a, new, b.memory.addr(4096)), 0);
    for (key, at) in [(old, 4096), (new, 0)] {
        assert_eq!(write(&a, key, b.memory.addr(at)), status::REM_ACCESS_ERR);
        restart(&a, &b);
    }
    b.mr.rereg(2, Some(&other), 0, 0, 0).expect("another PD");
    assert_eq!(write(&a, b.mr.rkey(), b.memory.addr(4096)), status::REM_ACCESS_ERR);
    restart(&a, &b);
    assert_eq!(b.pd.dealloc().expect_err("a QP is on it"), Errno::EBUSY);
    assert_eq!(other.dealloc().expect_err("the MR is on it"), Errno::EBUSY);
    b.mr.rereg(6, Some(&b.pd), 0, 0, access::LOCAL_WRITE | access::REMOTE_READ).expect("back, with other rights");
    other.dealloc().expect("nothing is on it");
    assert_eq!(write(&a, b.mr.rkey(), b.memory.addr(4096)), status::REM_ACCESS_ERR);
    restart(&a, &b);
    b.mr.rereg(7, Some(&b.pd), b.memory.addr(0), 128, ALL_RIGHTS).expect("all at once");
    assert_eq!(write(&a, b.mr.rkey(), b.memory.addr(120)), 0);
}

#[test]
fn a_key_is_not_given_twice() {
    let fabric = Fabric::start();
    let side = Side::new(&fabric.engine(), &Plan::rc());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..3000 {
        let mr = register(&side.pd, &side.memory, ALL_RIGHTS);
        assert!(seen.insert(mr.rkey()), "{:#x}", mr.rkey());
        mr.dereg().expect("it goes");
    }
}

/// ibv_advise_mr(3): valid advice is accepted, invalid advice is refused.
#[test]
fn advice_is_checked_and_taken() {
    let fabric = Fabric::start();
    let side = Side::new(&fabric.engine(), &Plan::rc());
    let mut memory = Memory::new(64 * 1024);
    let paged = register(&side.pd, &memory, access::ON_DEMAND | access::LOCAL_WRITE);
    let readable = register(&side.pd, &memory, access::ON_DEMAND);
    let all = side.pd.reg_mr(0, u64::MAX, 0, ON_DEMAND).expect("an MR");
    let range = |key| Sge::new(memory.addr(5), 50_000, key);
    for advice in [PREFETCH, PREFETCH_WRITE, PREFETCH_NO_FAULT] {
        for flags in [0, 1] {
            side.pd.advise(advice, flags, &[range(paged.lkey()), range(all.lkey())]).expect("good advice");
        }
    }
    side.pd.advise(PREFETCH, 1, &[range(readable.lkey()), Sge::new(memory.addr(0), 0, paged.lkey())]).expect("reading");
    let elsewhere = side.engine.alloc_pd().expect("a PD");
    let good = [range(paged.lkey())];
    let beyond = Sge::new(memory.addr(60_000), 50_000, paged.lkey());
    let (pinned, unmapped) = (side.sge(0, 8)[0], Sge::new(1 << 40, 8, all.lkey()));
    for (what, pd, advice, flags, ranges, errno) in [
        ("unknown advice", &side.pd, 3, 1, &good[..], Errno::EOPNOTSUPP),
        ("an unknown flag", &side.pd, PREFETCH, 2, &good, Errno::EINVAL),
        ("no ranges", &side.pd, PREFETCH, 1, &[], Errno::EINVAL),
        ("another PD", &elsewhere, PREFETCH, 1, &good, Errno::EFAULT),
        ("beyond the end", &side.pd, PREFETCH, 1, &[beyond], Errno::EFAULT),
        ("no such key", &side.pd, PREFETCH, 1, &[range(0xbad_0000)], Errno::EFAULT),
        ("no right to write", &side.pd, PREFETCH_WRITE, 1, &[range(readable.lkey())], Errno::EFAULT),
        ("not on demand", &side.pd, PREFETCH, 1, &[pinned], Errno::EFAULT),
        ("nothing is there", &side.pd, PREFETCH_NO_FAULT, 0, &[good[0], unmapped], Errno::EFAULT),
    ] {
        assert_eq!(pd.advise(advice, flags, ranges).expect_err(what).errno, errno, "{what}");
    }
    memory.unmap();
    assert_eq!(side.pd.advise(PREFETCH, 1, &good).expect_err("gone").errno, Errno::EFAULT);
}

/// Every operation for which a device reports on-demand paging works on memory that was never
/// touched, and on memory that comes and goes.
#[test]
fn on_demand_paging_serves_what_the_device_tells() {
    use abi::device::odp_service::{ATOMIC, ATOMIC_WRITE, FLUSH, READ, RECV, SEND, SRQ_RECV, WRITE};
    let fabric = Fabric::start();
    let facts = fabric.engine().query_device_ex().expect("facts");
    let all = SEND | RECV | SRQ_RECV | WRITE | READ | ATOMIC | FLUSH | ATOMIC_WRITE;
    let told = (facts.odp_rc, facts.odp_uc, facts.odp_ud, facts.odp_xrc);
    assert_eq!(told, (all, SEND | RECV | SRQ_RECV | WRITE, SEND | RECV | SRQ_RECV, all));
    for (service, told) in [(Service::Rc, told.0), (Service::Uc, told.1), (Service::Ud, told.2)] {
        for shared in [false, true] {
            let rights = access::FLUSH_GLOBAL * u32::from(told & FLUSH != 0);
            let plan = Plan::new(service);
            let plan = Plan { mr_access: ON_DEMAND | rights, qp_access: plan.qp_access | rights, ..plan };
            let (a, engine) = (Side::new(&fabric.engine(), &plan), fabric.engine());
            let pd = engine.alloc_pd().expect("a PD");
            let spec = SrqSpec { max_wr: 8, max_sge: 1, cookie: 9 };
            let srq = shared.then(|| engine.create_srq(&pd, &spec).expect("an SRQ"));
            let b = Side::with_srq(&engine, &pd, &plan, srq.as_ref());
            connect(&a, &b);
            let ah = a.ah(&b);
            let ud = (service == Service::Ud).then_some((&*ah, b.qp.qpn(), crate::common::QKEY));
            let receive = RecvWr { wr_id: 1, sges: &b.sge(0, 2000) };
            match &srq {
                Some(srq) => srq.post(&receive).expect("a place"),
                None => b.qp.post_recv(&receive).expect("a place"),
            }
            a.post(&SendWr { sges: &a.sge(0, 1000), ud, ..SendWr::default() });
            assert_eq!((a.sent().status, b.received().status), (0, 0), "{service}, {shared}");
            let remote =
                [(WRITE, opcode::RDMA_WRITE), (READ, opcode::RDMA_READ), (ATOMIC, opcode::ATOMIC_FETCH_AND_ADD)];
            for (_, opcode) in remote.into_iter().filter(|(bit, _)| told & bit != 0) {
                let to = SendWr { opcode, remote_addr: b.memory.addr(4096), rkey: b.mr.rkey(), ..SendWr::default() };
                a.post(&SendWr { sges: &a.sge(8192, 8), ..to });
                assert_eq!(a.sent().status, 0, "{service}, opcode {opcode}");
            }
            let to = SendWr { remote_addr: b.memory.addr(12288), rkey: b.mr.rkey(), ..SendWr::default() };
            if told & FLUSH != 0 {
                let flush = Flush { length: 64, feth: Feth { placement: 1, selectivity: 0 } };
                a.post(&SendWr { opcode: opcode::FLUSH, flush, ..to });
                assert_eq!(a.sent().status, 0, "{service}, FLUSH");
            }
            if told & ATOMIC_WRITE != 0 {
                a.post(&SendWr { opcode: opcode::ATOMIC_WRITE, sges: &a.sge(8192, 8), ..to });
                assert_eq!(a.sent().status, 0, "{service}, ATOMIC WRITE");
            }
        }
    }
}

/// A queue pair keeps a region that it uses again and again. It gives the region up as soon as the
/// program deregisters it, in each of the three roles of a region.
fn a_region_ends_at_once_for_a_queue_pair_that_has_used_it_for_long(fabric: &Fabric) {
    const USES: usize = 50;
    let write = |from: &Side, mr: &Mr, memory: &Memory, sges: &[Sge]| {
        let (rkey, remote_addr) = (mr.rkey(), memory.addr(0));
        from.post(&SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, sges, ..SendWr::default() });
        from.sent().status
    };
    // The target of WRITEs.
    let (a, b) = fabric.pair(&Plan::rc());
    assert!((0..USES).all(|_| write(&a, &b.mr, &b.memory, &a.sge(0, 64)) == status::SUCCESS));
    b.mr.dereg().expect("deregistered");
    a.memory.put(0, &[1; 64]);
    b.memory.put(0, &[2; 64]);
    assert_eq!(write(&a, &b.mr, &b.memory, &a.sge(0, 64)), status::REM_ACCESS_ERR);
    assert_eq!(b.memory.get(0, 64), [2; 64]);

    // The target of WRITEs that loses a right, and may keep its key.
    let (a, b) = fabric.pair(&Plan::rc());
    assert!((0..USES).all(|_| write(&a, &b.mr, &b.memory, &a.sge(0, 64)) == status::SUCCESS));
    b.mr.rereg(4, None, 0, 0, access::LOCAL_WRITE).expect("changed");
    assert_eq!(write(&a, &b.mr, &b.memory, &a.sge(0, 64)), status::REM_ACCESS_ERR);

    // The source of WRITEs.
    let (a, b) = fabric.pair(&Plan::rc());
    assert!((0..USES).all(|_| write(&a, &b.mr, &b.memory, &a.sge(0, 64)) == status::SUCCESS));
    a.mr.dereg().expect("deregistered");
    assert_eq!(write(&a, &b.mr, &b.memory, &a.sge(0, 64)), status::LOC_PROT_ERR);

    // The place of messages.
    let (a, b) = fabric.pair(&Plan::rc());
    for _ in 0..USES {
        b.recv(0, 0, 64);
        a.post(&SendWr { sges: &a.sge(0, 64), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().status), (status::SUCCESS, status::SUCCESS));
    }
    b.recv(0, 0, 64);
    b.mr.dereg().expect("deregistered");
    a.memory.put(0, &[1; 64]);
    b.memory.put(0, &[2; 64]);
    a.post(&SendWr { sges: &a.sge(0, 64), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (status::REM_OP_ERR, status::LOC_PROT_ERR));
    assert_eq!(b.memory.get(0, 64), [2; 64]);
}

/// Many threads use the regions of many queue pairs while these are deregistered. No byte is
/// written after a deregistration has returned.
fn regions_that_queue_pairs_keep_end_while_their_peers_write(fabric: &Fabric) {
    let pairs: Vec<(Side, Side)> = (0..4).map(|_| fabric.pair(&Plan::rc())).collect();
    std::thread::scope(|scope| {
        for (a, b) in &pairs {
            let (rkey, remote_addr) = (b.mr.rkey(), b.memory.addr(0));
            let begun = Arc::new(AtomicU32::new(0));
            let ended = Arc::new(AtomicBool::new(false));
            let (seen, has_ended) = (Arc::clone(&begun), Arc::clone(&ended));
            scope.spawn(move || {
                let mut more = 0;
                let wr = SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, ..SendWr::default() };
                loop {
                    // This limit ends the loop if nothing else does.
                    more += u32::from(has_ended.load(Ordering::Relaxed));
                    assert!(more < 1000, "written after dereg_mr");
                    a.post(&SendWr { sges: &a.sge(0, 512), ..wr });
                    let wc = a.sent();
                    begun.fetch_add(1, Ordering::Relaxed);
                    if wc.status != status::SUCCESS {
                        return assert_eq!(wc.status, status::REM_ACCESS_ERR);
                    }
                }
            });
            scope.spawn(move || {
                a.memory.put(0, &[1; 512]);
                until("traffic", || (seen.load(Ordering::Relaxed) > 100).then_some(()));
                b.mr.dereg().expect("deregistered");
                b.memory.put(0, &[2; 512]);
                ended.store(true, Ordering::Relaxed);
                // Longer than any copy: the writer has got its error.
                until("the error", || (a.qp.state() != u32::from(state::RTS)).then_some(()));
                assert_eq!(b.memory.get(0, 512), [2; 512]);
            });
        }
    });
}
