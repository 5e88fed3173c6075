//! ATOMIC WRITE and FLUSH: the services that have them, their effects, their order, and the reasons
//! for which they are refused.

use abi::cq::{opcode as wc_opcode, status};
use abi::errno::Errno;
use abi::mr::access;
use abi::post::{opcode, send_flags};
use abi::qp::state;

use crate::common::wait::until;
use crate::common::{ALL_RIGHTS, Fabric, Plan, QKEY, Side, even_with_losses, everywhere, register};
use engine::{Feth, Flush, PostError, SendWr, Service};

const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 2;
const RANGE: u8 = 0;
const REGION: u8 = 1;

/// RC, with the right FLUSH_GLOBAL on the memory region and the QP.
fn plan() -> Plan {
    let plan = Plan::rc();
    Plan { mr_access: ALL_RIGHTS | access::FLUSH_GLOBAL, qp_access: plan.qp_access | access::FLUSH_GLOBAL, ..plan }
}

fn write(b: &Side, at: usize) -> SendWr<'static> {
    SendWr { opcode: opcode::ATOMIC_WRITE, remote_addr: b.memory.addr(at), rkey: b.mr.rkey(), ..SendWr::default() }
}

fn flush(b: &Side, at: usize, length: u32, placement: u8, selectivity: u8) -> SendWr<'static> {
    let flush = Flush { length, feth: Feth { placement, selectivity } };
    SendWr { opcode: opcode::FLUSH, flush, ..write(b, at) }
}

fn op_atomic_write_puts_eight_bytes_there(fabric: &Fabric) {
    let (a, b) = fabric.pair(&plan());
    b.memory.put(0, &[0xee; 32]);
    a.memory.put_word(0, 0x0102_0304_0506_0708);
    a.post(&SendWr { wr_id: 1, sges: &a.sge(0, 8), ..write(&b, 8) });
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, 0, wc_opcode::ATOMIC_WRITE, 8));
    assert_eq!(
        (b.memory.word(8), b.memory.get(0, 8), b.memory.get(16, 16)),
        (a.memory.word(0), vec![0xee; 8], vec![0xee; 16])
    );
    // Inline, and from several scatter/gather elements.
    a.memory.put_word(64, 77);
    a.post(&SendWr { sges: &a.sge(64, 8), send_flags: send_flags::INLINE, ..write(&b, 8) });
    a.memory.put_word(64, 0);
    assert_eq!((a.sent().status, b.memory.word(8)), (0, 77));
    let halves = [a.sge(0, 4)[0], a.sge(4, 4)[0]];
    a.post(&SendWr { sges: &halves, ..write(&b, 16) });
    assert_eq!((a.sent().status, b.memory.word(16)), (0, a.memory.word(0)));
    // The write is never torn: a program that reads meanwhile sees the old value or the new one.
    let (old, new) = (0u64, u64::MAX);
    for round in 0..200 {
        a.memory.put_word(0, if round % 2 == 0 { new } else { old });
        a.post(&SendWr { sges: &a.sge(0, 8), ..write(&b, 24) });
        assert_eq!(a.sent().status, 0);
        assert_eq!(b.memory.word(24), a.memory.word(0));
    }
}

fn op_atomic_write_keeps_its_place(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { max_rd_atomic: 2, max_dest_rd_atomic: 2, memory: 256 * 1024, ..plan() });
    b.memory.put_word(8, 0);
    for value in 1..=20u64 {
        a.memory.put_word(0, value << 32);
        a.memory.pattern(1024, 60_000, value as usize);
        b.recv(value, 512, 0);
        a.post_all(&[
            SendWr { sges: &a.sge(1024, 60_000), opcode: opcode::RDMA_WRITE, ..write(&b, 100_000) },
            SendWr { sges: &a.sge(0, 8), ..write(&b, 8) },
            SendWr { sges: &a.sge(64, 8), opcode: opcode::ATOMIC_FETCH_AND_ADD, compare_add: 1, ..write(&b, 8) },
            SendWr { send_flags: send_flags::FENCE, ..SendWr::default() },
        ]);
        (0..4).for_each(|_| assert_eq!(a.sent().status, 0));
        assert_eq!((b.received().wr_id, a.memory.word(64), b.memory.word(8)), (value, value << 32, (value << 32) + 1));
        assert!(b.memory.get(100_000, 60_000) == a.memory.get(1024, 60_000));
    }
}

fn op_atomic_write_what_refuses_it(fabric: &Fabric) {
    // The posting side refuses it: an ATOMIC WRITE is one word.
    let (a, b) = fabric.pair(&plan());
    for len in [0, 4, 7, 9, 16] {
        let refused = a.qp.send_batch().expect("a batch").push(&SendWr { sges: &a.sge(0, len), ..write(&b, 0) });
        assert_eq!(refused.map_err(PostError::errno), Err(Errno::EINVAL), "{len} bytes");
    }
    a.post(&SendWr { sges: &a.sge(0, 8), ..write(&b, 0) });
    assert_eq!(a.sent().status, 0, "it goes on");
    // The peer refuses it.
    let no_write = access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let len = plan().memory;
    let cases = [
        ("misaligned", plan(), 4, 0, status::REM_INV_REQ_ERR),
        ("a QP without the right", Plan { qp_access: 0xc, ..plan() }, 0, 0, status::REM_INV_REQ_ERR),
        ("no depth there", Plan { max_dest_rd_atomic: 0, ..plan() }, 0, 0, status::REM_INV_REQ_ERR),
        ("a region without the right", Plan { mr_access: no_write, ..plan() }, 0, 0, status::REM_ACCESS_ERR),
        ("another key", plan(), 0, 0xff_ff00, status::REM_ACCESS_ERR),
        ("beyond the end", plan(), len, 0, status::REM_ACCESS_ERR),
        ("no depth here", Plan { max_rd_atomic: 0, ..plan() }, 0, 0, status::LOC_QP_OP_ERR),
    ];
    for (what, plan, at, twist, expected) in cases {
        let (a, b) = fabric.pair(&plan);
        b.memory.put_word(0, 1);
        let local = register(&a.pd, &a.memory, ALL_RIGHTS);
        let sges = [abi::post::Sge::new(a.memory.addr(0), 8, local.lkey())];
        let remote_addr = b.memory.addr(0) + at as u64;
        a.post(&SendWr { sges: &sges, remote_addr, rkey: b.mr.rkey() ^ twist, ..write(&b, 0) });
        assert_eq!((a.sent().status, b.memory.word(0)), (expected, 1), "{what}");
        until("the error state", || (a.qp.state() == u32::from(state::ERR)).then_some(()));
    }
}

fn op_atomic_write_rc_only(fabric: &Fabric) {
    only_rc(fabric, |b| write(b, 0), 8);
}

/// Posts the request on UC and UD, which refuse it and continue.
fn only_rc(fabric: &Fabric, wr: impl Fn(&Side) -> SendWr<'static>, len: usize) {
    for service in [Service::Uc, Service::Ud] {
        let (a, b) = fabric.pair(&Plan::new(service));
        let to_b = a.ah(&b);
        let ud = (service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        let sges = a.sge(0, len);
        let sges = if len == 0 { &sges[..0] } else { &sges[..] };
        let refused = a.qp.send_batch().expect("a batch").push(&SendWr { ud, sges, ..wr(&b) });
        assert_eq!(refused.map_err(PostError::errno), Err(Errno::EINVAL), "{service}");
        b.recv(1, 0, 200);
        a.post(&SendWr { ud, ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().status), (0, 0), "{service}");
    }
}

fn op_flush_says_when_writes_are_seen(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 256 * 1024, ..plan() });
    for round in 1..=20 {
        a.memory.pattern(0, 50_000, round);
        a.post_all(&[
            SendWr { sges: &a.sge(0, 50_000), opcode: opcode::RDMA_WRITE, ..write(&b, 4096) },
            flush(&b, 4096, 50_000, GLOBAL, RANGE),
            SendWr { send_flags: send_flags::FENCE, sges: &a.sge(0, 8), ..write(&b, 0) },
        ]);
        assert_eq!((a.sent().status, a.sent().opcode, a.sent().status), (0, wc_opcode::FLUSH, 0));
        assert!(b.memory.get(4096, 50_000) == a.memory.get(0, 50_000));
    }
    // A whole region, whatever range the request names, and an empty range.
    let everything = plan().memory as u32;
    for wr in [
        flush(&b, 0, 0, GLOBAL, REGION),
        SendWr { remote_addr: 1, ..flush(&b, 0, 77, GLOBAL, REGION) },
        flush(&b, 0, everything, GLOBAL, RANGE),
        flush(&b, 0, 0, GLOBAL, RANGE),
    ] {
        a.post(&SendWr { wr_id: 3, ..wr });
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, 0, wc_opcode::FLUSH));
    }
}

fn op_flush_what_refuses_it(fabric: &Fabric) {
    let (a, b) = fabric.pair(&plan());
    let with_data = a.sge(0, 8);
    for (what, wr) in [
        ("to nowhere", flush(&b, 0, 8, 0, RANGE)),
        ("to an unknown place", flush(&b, 0, 8, 4, RANGE)),
        ("an unknown selection", flush(&b, 0, 8, GLOBAL, 2)),
        ("with data", SendWr { sges: &with_data, ..flush(&b, 0, 8, GLOBAL, RANGE) }),
        ("inline", SendWr { send_flags: send_flags::INLINE, ..flush(&b, 0, 8, GLOBAL, RANGE) }),
    ] {
        assert_eq!(
            a.qp.send_batch().expect("a batch").push(&wr).map_err(PostError::errno),
            Err(Errno::EINVAL),
            "{what}"
        );
    }
    a.post(&flush(&b, 0, 8, GLOBAL, RANGE));
    assert_eq!(a.sent().status, 0, "it goes on");
    let len = plan().memory as u32;
    let persistent = plan().qp_access | access::FLUSH_PERSISTENT;
    let cases = [
        ("a QP without the right", Plan { qp_access: 0xe, ..plan() }, GLOBAL, 8, 0, status::REM_INV_REQ_ERR),
        ("a QP alone that has it", Plan { qp_access: persistent, ..plan() }, PERSISTENT, 8, 0, status::REM_ACCESS_ERR),
        ("persistence, which is not promised", plan(), PERSISTENT, 8, 0, status::REM_INV_REQ_ERR),
        ("both", plan(), GLOBAL | PERSISTENT, 8, 0, status::REM_INV_REQ_ERR),
        ("no depth there", Plan { max_dest_rd_atomic: 0, ..plan() }, GLOBAL, 8, 0, status::REM_INV_REQ_ERR),
        ("a region without the right", Plan { mr_access: ALL_RIGHTS, ..plan() }, GLOBAL, 8, 0, status::REM_ACCESS_ERR),
        ("another key", plan(), GLOBAL, 8, 0xff_ff00, status::REM_ACCESS_ERR),
        ("beyond the end", plan(), GLOBAL, len + 1, 0, status::REM_ACCESS_ERR),
        ("too much for a message", plan(), GLOBAL, u32::MAX, 0, status::LOC_LEN_ERR),
        ("no depth here", Plan { max_rd_atomic: 0, ..plan() }, GLOBAL, 8, 0, status::LOC_QP_OP_ERR),
    ];
    for (what, plan, placement, length, twist, expected) in cases {
        let (a, b) = fabric.pair(&plan);
        let rkey = b.mr.rkey() ^ twist;
        a.post(&SendWr { rkey, ..flush(&b, 0, length, placement, RANGE) });
        assert_eq!(a.sent().status, expected, "{what}");
    }
    // A QP may have the right FLUSH_PERSISTENT, but no region can have it, because the device
    // promises no persistence.
    let side = Side::new(&fabric.engine(), &plan());
    let (addr, rights) = (side.memory.addr(0), access::FLUSH_PERSISTENT);
    let refused = side.pd.reg_mr(addr, 4096, addr, rights).err().map(|error| error.errno);
    assert_eq!(refused, Some(Errno::EOPNOTSUPP));
}

fn op_flush_rc_only(fabric: &Fabric) {
    only_rc(fabric, |b| flush(b, 0, 8, GLOBAL, RANGE), 0);
}

everywhere! {
    op_atomic_write_what_refuses_it
    op_atomic_write_rc_only
    op_flush_what_refuses_it
    op_flush_rc_only
}

even_with_losses! {
    op_atomic_write_puts_eight_bytes_there
    op_atomic_write_keeps_its_place
    op_flush_says_when_writes_are_seen
}
