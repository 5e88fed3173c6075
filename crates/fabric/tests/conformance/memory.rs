//! Section 3.2: memory regions, their rights and their keys.

use abi::cq::status;
use abi::errno::Errno;
use abi::mr::access;
use abi::post::{Sge, opcode};

use crate::common::{ALL_RIGHTS, Fabric, Memory, Plan, Side, everywhere, register};
use engine::SendWr;

/// The status of a one-sided request of 8 bytes that uses this key.
fn outcome(fabric: &Fabric, plan: &Plan, code: u32, target: impl Fn(&Side) -> (u64, u32)) -> u32 {
    let (a, b) = fabric.pair(plan);
    let (remote_addr, rkey) = target(&b);
    a.post(&SendWr { opcode: code, remote_addr, rkey, sges: &a.sge(0, 8), ..SendWr::default() });
    a.sent().status
}

const ONE_SIDED: [(u32, u32); 4] = [
    (opcode::RDMA_WRITE, access::REMOTE_WRITE),
    (opcode::RDMA_READ, access::REMOTE_READ),
    (opcode::ATOMIC_CMP_AND_SWP, access::REMOTE_ATOMIC),
    (opcode::ATOMIC_FETCH_AND_ADD, access::REMOTE_ATOMIC),
];

fn v_20_one_buffer_is_registered_many_times(fabric: &Fabric) {
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let memory = Memory::new(8192);
    let regions: Vec<_> = [ALL_RIGHTS, 0, access::REMOTE_READ].map(|rights| register(&pd, &memory, rights)).into();
    let mut keys: Vec<_> = regions.iter().flat_map(|mr| [mr.lkey(), mr.rkey()]).collect();
    keys.sort_unstable();
    keys.dedup();
    assert!(keys.len() >= 3, "{keys:x?}");
    // Registering memory that is not mapped, or not writable for LOCAL_WRITE, is refused.
    let refused = |addr, rights| pd.reg_mr(addr, 4096, addr, rights).err().map(|error| error.errno);
    assert_eq!(refused(4096, 0), Some(Errno::EFAULT));
    memory.protect(true);
    assert_eq!(refused(memory.addr(0), access::LOCAL_WRITE), Some(Errno::EFAULT));
    assert_eq!(refused(memory.addr(0), 0), None);
}

fn v_20_a_region_may_have_no_bytes(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let nothing = |side: &Side| {
        let at = side.memory.addr(100);
        side.pd.reg_mr(at, 0, at, ALL_RIGHTS).expect("a region of no bytes")
    };
    let (ours, theirs) = (nothing(&a), nothing(&b));
    assert_ne!(ours.lkey(), a.mr.lkey());
    let empty = [Sge::new(a.memory.addr(100), 0, ours.lkey()), a.sge(0, 8)[0], Sge::new(0, 0, 0xdead_be00)];
    b.recv(1, 0, 100);
    a.memory.pattern(0, 8, 3);
    a.post(&SendWr { sges: &empty, ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().byte_len), (0, 8), "elements without bytes are none");
    assert_eq!(b.memory.get(0, 8), a.memory.get(0, 8));
    for code in [opcode::RDMA_WRITE, opcode::RDMA_READ] {
        let to = SendWr { opcode: code, remote_addr: b.memory.addr(100), rkey: theirs.rkey(), ..SendWr::default() };
        a.post(&SendWr { sges: &empty[..1], ..to });
        assert_eq!(a.sent().status, 0, "opcode {code}");
    }
    a.post(&SendWr {
        opcode: opcode::RDMA_WRITE,
        remote_addr: b.memory.addr(100),
        rkey: theirs.rkey(),
        sges: &a.sge(0, 1),
        ..SendWr::default()
    });
    assert_eq!(a.sent().status, status::REM_ACCESS_ERR, "there is not one byte");
    for mr in [ours, theirs] {
        mr.dereg().expect("deregistered");
    }
    // A region of no bytes needs no mapped memory.
    a.pd.reg_mr(0, 0, 0, 0).expect("a region of no bytes").dereg().expect("deregistered");
}

fn v_21_remote_writing_needs_local_writing(fabric: &Fabric) {
    let engine = fabric.engine();
    let pd = engine.alloc_pd().expect("a PD");
    let memory = Memory::new(4096);
    for rights in 0..16 {
        let wants = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && rights & access::LOCAL_WRITE == 0;
        let answer = pd.reg_mr(memory.addr(0), 4096, memory.addr(0), rights).map(|_| ()).map_err(|error| error.errno);
        assert_eq!(answer, if wants { Err(Errno::EINVAL) } else { Ok(()) }, "access {rights:#x}");
    }
    // Reading local memory needs no right.
    let (a, b) = fabric.pair(&Plan { mr_access: 0, ..Plan::rc() });
    let write = register(&b.pd, &b.memory, ALL_RIGHTS);
    let wr =
        SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey: write.rkey(), ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
    assert_eq!(a.sent().status, 0);
}

fn v_22_keys_open_their_range_with_their_rights_only(fabric: &Fabric) {
    for (code, right) in ONE_SIDED {
        let what = format!("opcode {code}");
        assert_eq!(outcome(fabric, &Plan::rc(), code, |b| (b.memory.addr(0), b.mr.rkey())), 0, "{what}");
        // Each case lacks one right.
        let weak = |b: &Side| (b.memory.addr(0), register(&b.pd, &b.memory, ALL_RIGHTS & !right).rkey());
        assert_eq!(outcome(fabric, &Plan::rc(), code, weak), status::REM_ACCESS_ERR, "{what}, the key's right");
        let plan = Plan { qp_access: 0xe & !right, ..Plan::rc() };
        let strong = |b: &Side| (b.memory.addr(0), b.mr.rkey());
        assert_eq!(outcome(fabric, &plan, code, strong), status::REM_INV_REQ_ERR, "{what}, the QP's right");
        let beyond = |b: &Side| (b.memory.addr(b.memory.len()), b.mr.rkey());
        assert_eq!(outcome(fabric, &Plan::rc(), code, beyond), status::REM_ACCESS_ERR, "{what}, behind the end");
    }
}

fn v_23_keys_die_with_their_translation(fabric: &Fabric) {
    for (code, _) in ONE_SIDED {
        let dead = |b: &Side| {
            b.mr.dereg().expect("deregistered");
            (b.memory.addr(0), b.mr.rkey())
        };
        assert_eq!(outcome(fabric, &Plan::rc(), code, dead), status::REM_ACCESS_ERR, "opcode {code}");
        let moved = |b: &Side| {
            let (old, other) = (b.mr.rkey(), Memory::new(4096));
            b.mr.rereg(1, None, other.addr(0), 4096, 0).expect("another translation");
            assert_ne!(b.mr.rkey(), old);
            (b.memory.addr(0), old)
        };
        assert_eq!(outcome(fabric, &Plan::rc(), code, moved), status::REM_ACCESS_ERR, "opcode {code}");
    }
    // The old key stays invalid even when another region has its place in the table.
    let (a, b) = fabric.pair(&Plan::rc());
    let old = b.mr.rkey();
    b.mr.dereg().expect("deregistered");
    let heir = std::iter::repeat_with(|| register(&b.pd, &b.memory, ALL_RIGHTS)).take(5000).find(|mr| {
        let same_place = mr.rkey() >> 8 == old >> 8;
        same_place || mr.dereg().is_err()
    });
    let heir = heir.expect("places are used again");
    assert_ne!(heir.rkey(), old);
    let write = |rkey| SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey, ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), ..write(heir.rkey()) });
    a.post(&SendWr { sges: &a.sge(0, 8), ..write(old) });
    assert_eq!((a.sent().status, a.sent().status), (0, status::REM_ACCESS_ERR));
    // The local key becomes invalid too.
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 8);
    let lkey = a.mr.lkey();
    a.mr.dereg().expect("deregistered");
    a.post(&SendWr { sges: &[Sge::new(a.memory.addr(0), 8, lkey)], ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_PROT_ERR);
}

everywhere! {
    v_20_a_region_may_have_no_bytes
    v_20_one_buffer_is_registered_many_times
    v_21_remote_writing_needs_local_writing
    v_22_keys_open_their_range_with_their_rights_only
    v_23_keys_die_with_their_translation
}
