//! The longest message and the largest memory region. No test needs as much memory as the message
//! or region has.

use abi::cq::status;
use abi::errno::Errno;
use abi::mr::access;
use abi::post::{Sge, opcode};
use engine::{RecvWr, SendWr};

use super::refused;
use crate::common::{ALL_RIGHTS, Fabric, Memory, Plan, register};

/// The length of the buffer. All of a long message is this buffer, again and again.
const PART: usize = 16 << 20;

/// A scatter or gather list for `len` bytes, over a buffer of [`PART`] bytes.
fn list(memory: &Memory, key: u32, len: u64) -> Vec<Sge> {
    let whole = len / PART as u64;
    let mut list: Vec<Sge> = (0..whole).map(|_| Sge::new(memory.addr(0), PART as u32, key)).collect();
    list.extend((len > whole * PART as u64).then(|| Sge::new(memory.addr(0), (len - whole * PART as u64) as u32, key)));
    list
}

#[test]
fn messages_of_two_to_the_31st_bytes() {
    let fabric = Fabric::configured("addresses = ['127.0.0.1']\n[[devices]]\n[devices.limits]\nmax_sge = 256");
    let plan = Plan::rc();
    let caps = engine::Caps { max_send_sge: 129, max_recv_sge: 1, ..plan.caps };
    let (a, b) = fabric.pair(&Plan { caps, ..plan });
    let most = a.engine.query_port(1).expect("a port").max_msg_sz;
    assert_eq!(most, 1 << 31);
    let source = Memory::new(PART);
    source.pattern(0, PART, 3);
    let source_mr = register(&a.pd, &source, ALL_RIGHTS);
    let nothing = b.pd.null_mr().expect("a region of nothing");
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[Sge::new(0, most, nothing.lkey())] }).expect("a receive");
    a.post(&SendWr { sges: &list(&source, source_mr.lkey(), u64::from(most)), ..SendWr::default() });
    let (sent, received) = (a.sent(), b.received());
    assert_eq!((sent.status, received.status, received.byte_len), (0, 0, most));

    b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[Sge::new(0, u32::MAX, nothing.lkey())] }).expect("a receive");
    a.post(&SendWr { wr_id: 0xabcd, sges: &list(&source, source_mr.lkey(), u64::from(most) + 1), ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_LEN_ERR);
    let why = engine::reason::last(64);
    assert!(why.iter().any(|why| why.contains("wr_id 0xabcd") && why.contains("2147483648")), "{why:?}");
}

#[test]
fn a_read_of_more_than_two_to_the_31st_bytes_is_refused() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let nothing = a.pd.null_mr().expect("a region of nothing");
    let sges = [Sge::new(0, 1 << 31, nothing.lkey()), Sge::new(0, 1, nothing.lkey())];
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    a.post(&SendWr { opcode: opcode::RDMA_READ, remote_addr, rkey, sges: &sges, ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_LEN_ERR);
}

#[test]
fn the_longest_region() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let most = engine.query_device().expect("limits").max_mr_size;
    let pd = engine.alloc_pd().expect("a PD");
    // More than any process has mapped: with on-demand paging the memory need not exist.
    let demand = access::ON_DEMAND | access::LOCAL_WRITE;
    let mr = pd.reg_mr(0, most, 0, demand).expect("all that a process has");
    assert_eq!(mr.length(), most);
    refused(pd.reg_mr(0, most + 1, 0, demand), Errno::EINVAL, &["max_mr_size", &most.to_string()]);
    // A larger region can only be all memory.
    pd.reg_mr(0, u64::MAX, 0, demand).expect("all memory");
}

#[test]
fn device_memory_is_given_to_the_last_byte() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let most = engine.query_device_ex().expect("limits").max_dm_size;
    refused(engine.alloc_dm(most + 1, 0), Errno::ENOMEM, &["device memory", &most.to_string()]);
    let all = engine.alloc_dm(most, 0).expect("all of it");
    refused(engine.alloc_dm(1, 0), Errno::ENOMEM, &["0 of"]);
    all.free().expect("freed");
    let [first, second] = [most / 2; 2].map(|half| engine.alloc_dm(half, 12).expect("a half"));
    refused(engine.alloc_dm(1, 0), Errno::ENOMEM, &["0 of"]);
    // Each piece is separate: its first and last bytes belong to it alone.
    let memory = Memory::new(64);
    for (dm, byte) in [(&first, 1), (&second, 2)] {
        memory.put(0, &[byte; 8]);
        dm.write(0, memory.source(0, 8)).expect("written");
        dm.write(most / 2 - 8, memory.source(0, 8)).expect("written");
    }
    for (dm, byte) in [(&first, 1), (&second, 2)] {
        for at in [0, most / 2 - 8] {
            dm.read(at, &memory.sink(8, 8)).expect("read");
            assert_eq!(memory.get(8, 8), [byte; 8]);
        }
        refused(dm.write(most / 2 - 4, memory.source(0, 8)), Errno::EFAULT, &[]);
        dm.free().expect("freed");
    }
    // Pieces occupy whole cache lines.
    let rest: Vec<_> = (0..16).map(|_| engine.alloc_dm(1, 0).expect("a byte")).collect();
    refused(engine.alloc_dm(most - 16 * 64 + 1, 0), Errno::ENOMEM, &["are left"]);
    engine.alloc_dm(most - 16 * 64, 0).expect("all that is left");
    drop(rest);
}
