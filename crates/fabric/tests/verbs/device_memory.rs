//! Device memory: copies, regions on it as local and remote buffers, and its use by a second
//! context.

use crate::common::{ALL_RIGHTS, Fabric, Memory, Plan, Side, connect, everywhere};
use abi::cq::status;
use abi::errno::Errno;
use abi::mr::access;
use abi::post::{Sge, opcode};
use abi::qp::state;
use engine::{Dm, SendWr};

const RIGHTS: u32 = access::ZERO_BASED | ALL_RIGHTS;

fn contents(dm: &Dm, offset: u64, len: usize) -> Vec<u8> {
    let memory = Memory::new(len.max(4096));
    dm.read(offset, &memory.sink(0, len)).expect("a copy");
    memory.get(0, len)
}

fn restart(a: &Side, b: &Side) {
    for side in [a, b] {
        side.to(state::RESET);
    }
    connect(a, b);
}

everywhere! {
    a_region_of_device_memory_is_a_buffer_like_any_other
}

/// Device memory as the buffer of receives and sends, and as the target of WRITEs, READs and
/// atomics.
fn a_region_of_device_memory_is_a_buffer_like_any_other(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let [here, there] = [&a, &b].map(|side| side.engine.alloc_dm(40_000, 3).expect("device memory"));
    let source = a.pd.reg_dm_mr(&here, 64, 30_000, RIGHTS).expect("an MR");
    let target = b.pd.reg_dm_mr(&there, 128, 30_000, RIGHTS).expect("an MR");
    a.memory.pattern(0, 30_000, 5);
    here.write(64, a.memory.source(0, 30_000)).expect("a copy");
    let post = |code, local: Sge, (rkey, remote_addr)| {
        let wr = SendWr { opcode: code, sges: &[local], rkey, remote_addr, compare_add: 3, ..SendWr::default() };
        a.post(&wr);
        a.sent().status
    };
    let expected = a.memory.get(0, 30_000);
    assert_eq!(post(opcode::RDMA_WRITE, Sge::new(0, 29_000, source.lkey()), (target.rkey(), 1000)), 0);
    assert_eq!(contents(&there, 1128, 28_000), expected[..28_000]);
    assert_eq!(post(opcode::RDMA_READ, a.sge(30_000, 20_000)[0], (target.rkey(), 1000)), 0);
    assert_eq!(a.memory.get(30_000, 20_000), expected[..20_000]);
    b.qp.post_recv(&engine::RecvWr { wr_id: 1, sges: &[Sge::new(4, 20_000, target.lkey())] }).expect("a receive");
    assert_eq!(post(opcode::SEND, Sge::new(0, 20_000, source.lkey()), (0, 0)), 0);
    assert_eq!((b.received().status, contents(&there, 132, 20_000)), (0, expected[..20_000].to_vec()));
    there.write(128, Memory::new(4096).source(0, 8)).expect("a copy");
    for old in [0_u64, 3] {
        assert_eq!(post(opcode::ATOMIC_FETCH_AND_ADD, Sge::new(0, 8, source.lkey()), (target.rkey(), 0)), 0);
        assert_eq!(contents(&here, 64, 8), old.to_ne_bytes());
    }
    assert_eq!(contents(&there, 128, 8), 6_u64.to_ne_bytes());
    for at in [29_993, u64::MAX] {
        assert_eq!(post(opcode::RDMA_WRITE, a.sge(0, 8)[0], (target.rkey(), at)), status::REM_ACCESS_ERR, "{at:#x}");
        restart(&a, &b);
    }
    assert_eq!(post(opcode::SEND, Sge::new(29_993, 8, source.lkey()), (0, 0)), status::LOC_PROT_ERR);
    assert_eq!(here.free().expect_err("an MR is on it").errno, Errno::EBUSY);
    source.dereg().expect("it goes");
    here.free().expect("nothing is on it");
}

/// As in libmlx5, words have 4 bytes, and a range outside of the memory is EFAULT.
#[test]
fn copies_are_checked() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let dm = engine.alloc_dm(100, 0).expect("device memory");
    assert_eq!(contents(&dm, 0, 100), [0; 100], "it begins empty");
    let mut memory = Memory::new(4096);
    for (offset, length, errno) in [
        (3, 4, Errno::EINVAL),
        (4, 3, Errno::EINVAL),
        (104, 4, Errno::EFAULT),
        (0, 104, Errno::EFAULT),
        (4, usize::MAX, Errno::EFAULT),
        (u64::MAX, 4, Errno::EFAULT),
    ] {
        assert_eq!(dm.write(offset, memory.source(0, length)).expect_err("bad").errno, errno, "{offset} {length}");
        assert_eq!(dm.read(offset, &memory.sink(0, length)).expect_err("bad").errno, errno, "{offset} {length}");
    }
    memory.unmap();
    assert_eq!(dm.write(0, memory.source(0, 4)).expect_err("no memory").errno, Errno::EFAULT);
    assert_eq!(dm.read(0, &memory.sink(0, 4)).expect_err("no memory").errno, Errno::EFAULT);
}

#[test]
fn invalid_device_memory_is_refused() {
    let fabric = Fabric::start();
    let (engine, other) = (fabric.engine(), fabric.engine());
    let most = engine.query_device_ex().expect("an answer").max_dm_size;
    let errno = |result: engine::Result<std::sync::Arc<Dm>>| result.err().map(|error| error.errno);
    assert_eq!(errno(engine.alloc_dm(most + 1, 0)), Some(Errno::ENOMEM));
    assert_eq!(errno(engine.alloc_dm(0, 0)), Some(Errno::EINVAL));
    assert_eq!(errno(engine.alloc_dm(64, 13)), Some(Errno::EINVAL));
    let dm = engine.alloc_dm(most, 12).expect("all of it");
    assert_eq!(errno(other.alloc_dm(4, 0)), Some(Errno::ENOMEM), "all programs share it");
    let pd = engine.alloc_pd().expect("a PD");
    for (offset, length, access) in [
        (0, most + 4, RIGHTS),
        (most, 4, RIGHTS),
        (u64::MAX, 4, RIGHTS),
        (0, 64, ALL_RIGHTS),
        (0, 64, RIGHTS | access::MW_BIND),
        (0, 64, RIGHTS | access::ON_DEMAND),
        (0, 64, access::ZERO_BASED | access::REMOTE_WRITE),
    ] {
        let refused = pd.reg_dm_mr(&dm, offset, length, access);
        assert_eq!(refused.err().map(|error| error.errno), Some(Errno::EINVAL), "{offset} {length} {access:#x}");
    }
    dm.free().expect("nothing is on it");
    engine.close();
    other.alloc_dm(most, 0).expect("it is free again");
}

/// A second context of the process uses objects that the first context has made.
#[test]
fn imported_objects_work_with_the_originals() {
    let fabric = Fabric::start();
    let (a, b) = (Side::new(&fabric.engine(), &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc()));
    let importer = fabric.engine();
    assert_eq!(importer.import_pd(b.pd.handle()).err().map(|error| error.errno), Some(Errno::EINVAL));
    importer.import(b.engine.share()).expect("an import");
    let pd = importer.import_pd(b.pd.handle()).expect("the PD");
    let dm = b.engine.alloc_dm(4096, 0).expect("device memory");
    let on_dm = b.pd.reg_dm_mr(&dm, 0, 4096, RIGHTS).expect("an MR");
    let nothing = b.pd.null_mr().expect("an MR");
    let c = Side::with_srq(&importer, &pd, &Plan::rc(), None);
    connect(&a, &c);
    let mr = pd.import_mr(b.mr.handle()).expect("the MR");
    let device = pd.import_mr(on_dm.handle()).expect("the MR");
    let null = pd.import_mr(nothing.handle()).expect("the MR");
    assert_eq!([mr.rkey(), device.rkey(), null.lkey()], [b.mr.rkey(), on_dm.rkey(), nothing.lkey()]);
    a.memory.pattern(0, 64, 3);
    for (rkey, remote_addr) in [(mr.rkey(), b.memory.addr(0)), (device.rkey(), 0)] {
        a.post(&SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, sges: &a.sge(0, 64), ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
    }
    assert_eq!(b.memory.get(0, 64), a.memory.get(0, 64));
    let twin = importer.import_dm(dm.handle()).expect("the device memory");
    for dm in [&dm, &twin] {
        assert_eq!(contents(dm, 0, 64), a.memory.get(0, 64));
    }
    a.recv(1, 100, 64);
    c.post(&SendWr { sges: &[Sge::new(b.memory.addr(0), 64, mr.lkey())], ..SendWr::default() });
    assert_eq!((c.sent().status, a.received().status), (0, 0));
    assert_eq!(a.memory.get(100, 64), a.memory.get(0, 64));
    assert_eq!(b.mr.dereg().expect_err("it is imported").errno, Errno::EBUSY);
    for mr in [&mr, &device, &null] {
        mr.dereg().expect("the import ends");
    }
    b.mr.dereg().expect("nobody else has it");
    let left = SendWr { sges: &[Sge::new(b.memory.addr(0), 64, mr.lkey())], ..SendWr::default() };
    c.post(&left);
    assert_eq!(c.sent().status, status::LOC_PROT_ERR);
    let own = fabric.engine();
    assert!(own.import(own.share()).is_err(), "its own");
}
