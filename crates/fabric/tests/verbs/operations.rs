//! Every operation of every service between two engines: the data that arrives, and the completions
//! of both sides.

use crate::common::{Fabric, Memory, Plan, Side, register};
use abi::cq::{opcode as wc_opcode, wc_flags};
use abi::post::{Sge, opcode, send_flags};
use engine::{RecvWr, SendWr};

/// Lengths around every limit: cells, the MTU for datagrams, a lane's maximal packet.
const LENGTHS: [usize; 12] = [0, 1, 7, 60, 230, 300, 4056, 4096, 32767, 32768, 32769, 200_000];

fn big(plan: Plan) -> Plan {
    Plan { memory: 512 * 1024, ..plan }
}

fn sends_and_writes_of_the_connected_services(fabric: &Fabric) {
    for plan in [big(Plan::rc()), big(Plan::uc())] {
        let (a, b) = fabric.pair(&plan);
        for len in LENGTHS {
            a.memory.pattern(0, len, len);
            let expected = a.memory.get(0, len);
            let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
            for (code, imm) in [(opcode::SEND, false), (opcode::SEND_WITH_IMM, true)] {
                b.memory.pattern(0, len, len + 1);
                b.recv(11, 0, len + 5);
                a.post(&SendWr {
                    wr_id: 12,
                    opcode: code,
                    imm: 0x0102_0304,
                    sges: &a.sge(0, len),
                    ..SendWr::default()
                });
                let wc = b.received();
                assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (11, 0, wc_opcode::RECV, len as u32));
                assert_eq!(wc.qp_num, b.qp.qpn());
                assert_eq!(wc.wc_flags, if imm { wc_flags::WITH_IMM } else { 0 });
                assert_eq!(wc.imm_data, if imm { 0x0102_0304 } else { 0 });
                let wc = a.sent();
                assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.qp_num), (12, 0, wc_opcode::SEND, a.qp.qpn()));
                assert!(b.memory.get(0, len) == expected, "{code} of {len}");
            }
            for (code, imm) in [(opcode::RDMA_WRITE, false), (opcode::RDMA_WRITE_WITH_IMM, true)] {
                b.memory.pattern(0, len, len + 1);
                if imm {
                    // Its scatter list is ignored (V-72), and may have any content.
                    b.qp.post_recv(&RecvWr { wr_id: 13, sges: &[Sge::new(1, 1, 1)] }).expect("a receive");
                }
                let wr = SendWr {
                    wr_id: 14,
                    opcode: code,
                    imm: 99,
                    remote_addr,
                    rkey,
                    sges: &a.sge(0, len),
                    ..SendWr::default()
                };
                a.post(&wr);
                if imm {
                    let wc = b.received();
                    let expected = (13, 0, wc_opcode::RECV_RDMA_WITH_IMM, len as u32);
                    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), expected);
                    assert_eq!((wc.wc_flags, wc.imm_data), (wc_flags::WITH_IMM, 99));
                }
                let wc = a.sent();
                assert_eq!((wc.wr_id, wc.status, wc.opcode), (14, 0, wc_opcode::RDMA_WRITE));
                if !imm {
                    // WRITEs on this service are unreliable. Only a later message, which arrives in
                    // order, shows that this one has arrived.
                    b.recv(15, 0, 0);
                    a.post(&SendWr::default());
                    assert_eq!(b.received().wr_id, 15);
                    assert_eq!(a.sent().status, 0);
                }
                assert!(b.memory.get(0, len) == expected, "{code} of {len}");
            }
        }
    }
}

fn reads_fill_the_local_buffer(fabric: &Fabric) {
    let (a, b) = fabric.pair(&big(Plan::rc()));
    for len in LENGTHS {
        b.memory.pattern(3, len, len);
        let (remote_addr, rkey) = (b.memory.addr(3), b.mr.rkey());
        a.post(&SendWr {
            wr_id: 1,
            opcode: opcode::RDMA_READ,
            remote_addr,
            rkey,
            sges: &a.sge(5, len),
            ..SendWr::default()
        });
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, 0, wc_opcode::RDMA_READ, len as u32));
        assert!(a.memory.get(5, len) == b.memory.get(3, len), "{len}");
    }
}

fn atomics_answer_what_stood_there(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let (remote_addr, rkey) = (b.memory.addr(24), b.mr.rkey());
    let swap = |compare_add, swap| SendWr {
        opcode: opcode::ATOMIC_CMP_AND_SWP,
        compare_add,
        swap,
        remote_addr,
        rkey,
        ..SendWr::default()
    };
    let add = |compare_add| SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, ..swap(compare_add, 0) };
    b.memory.put_word(24, 5);
    // (request, before, after): the sum wraps, and a failed comparison changes nothing.
    let cases = [(swap(5, 7), 5, 7), (swap(5, 9), 7, 7), (add(3), 7, 10), (add(u64::MAX), 10, 9), (add(0), 9, 9)];
    for (wr, before, after) in cases {
        a.memory.put_word(8, 0xdead);
        a.post(&SendWr { sges: &a.sge(8, 8), ..wr });
        let wc = a.sent();
        assert_eq!((wc.status, wc.byte_len), (0, 8));
        let expected =
            if wr.opcode == opcode::ATOMIC_CMP_AND_SWP { wc_opcode::COMP_SWAP } else { wc_opcode::FETCH_ADD };
        assert_eq!(wc.opcode, expected);
        assert_eq!((a.memory.word(8), b.memory.word(24)), (before, after));
    }
    // The result is scattered into two pieces.
    let sges = [a.sge(100, 3)[0], a.sge(200, 5)[0]];
    a.post(&SendWr { sges: &sges, ..add(1) });
    assert_eq!(a.sent().status, 0);
    let got = [a.memory.get(100, 3), a.memory.get(200, 5)].concat();
    assert_eq!(got, 9u64.to_ne_bytes());
}

fn nothing_is_checked_where_nothing_is_moved(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    for code in [opcode::RDMA_WRITE, opcode::RDMA_READ] {
        // V-75: a message without bytes may have any key and address.
        a.post(&SendWr { opcode: code, remote_addr: 1, rkey: 2, ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
    }
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect("a receive");
    a.post(&SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, imm: 5, remote_addr: 1, rkey: 2, ..SendWr::default() });
    let wc = b.received();
    assert_eq!((wc.status, wc.byte_len, wc.imm_data), (0, 0, 5));
    assert_eq!(a.sent().status, 0);
}

fn lists_of_many_elements_in_several_regions(fabric: &Fabric) {
    let plan = big(Plan::rc());
    let (a, b) = fabric.pair(&plan);
    let second = |side: &Side| {
        let memory = Memory::new(200_000);
        let mr = register(&side.pd, &memory, crate::common::ALL_RIGHTS);
        (memory, mr)
    };
    let ((am, amr), (bm, bmr)) = (second(&a), second(&b));
    a.memory.pattern(0, 100_000, 1);
    am.pattern(0, 200_000, 2);
    // Elements of no bytes between others, and one element that crosses the end of a packet.
    let pieces = [(0usize, 17usize), (50, 0), (1000, 70_000), (31, 13)];
    let gather = [
        a.sge(pieces[0].0, pieces[0].1)[0],
        Sge::new(am.addr(50), 0, amr.lkey()),
        Sge::new(am.addr(1000), 70_000, amr.lkey()),
        a.sge(pieces[3].0, pieces[3].1)[0],
    ];
    let expected = [a.memory.get(0, 17), am.get(1000, 70_000), a.memory.get(31, 13)].concat();
    let total = expected.len();
    let scatter = [Sge::new(bm.addr(9), 40_000, bmr.lkey()), b.sge(77, 1)[0], b.sge(100, 0)[0], b.sge(1000, 60_000)[0]];
    let collect = || [bm.get(9, 40_000), b.memory.get(77, 1), b.memory.get(1000, total - 40_001)].concat();

    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &scatter }).expect("a receive");
    a.post(&SendWr { sges: &gather, ..SendWr::default() });
    assert_eq!((b.received().byte_len, a.sent().status), (total as u32, 0));
    assert!(collect() == expected, "SEND");

    // The reader's scatter list is the other side's gather list.
    b.memory.pattern(200_000, total, 5);
    let source = b.memory.get(200_000, total);
    let (remote_addr, rkey) = (b.memory.addr(200_000), b.mr.rkey());
    a.post(&SendWr { opcode: opcode::RDMA_READ, remote_addr, rkey, sges: &gather, ..SendWr::default() });
    assert_eq!(a.sent().status, 0);
    assert!([a.memory.get(0, 17), am.get(1000, 70_000), a.memory.get(31, 13)].concat() == source, "READ");

    a.post(&SendWr { opcode: opcode::RDMA_WRITE, remote_addr, rkey, sges: &gather, ..SendWr::default() });
    assert_eq!(a.sent().status, 0);
    assert!(b.memory.get(200_000, total) == source, "WRITE");
}

fn a_region_may_be_called_by_other_addresses(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let mr = b.pd.reg_mr(b.memory.addr(4096), 100, 0x1000, crate::common::ALL_RIGHTS).expect("an MR at 0x1000");
    a.memory.pattern(0, 10, 3);
    let wr = SendWr { opcode: opcode::RDMA_WRITE, remote_addr: 0x105a, rkey: mr.rkey(), ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 10), ..wr });
    assert_eq!(a.sent().status, 0);
    assert_eq!(b.memory.get(4096 + 0x5a, 10), a.memory.get(0, 10));
}

fn inline_data_is_taken_at_once_and_without_a_key(fabric: &Fabric) {
    for plan in [Plan::rc(), Plan::uc(), Plan::ud()] {
        let (a, b) = fabric.pair(&plan);
        let ah = a.ah(&b);
        let ud = matches!(plan.service, engine::Service::Ud).then_some((&*ah, b.qp.qpn(), crate::common::QKEY));
        let before = if ud.is_some() { 40 } else { 0 };
        for len in [0usize, 1, 63, 64] {
            b.recv(1, 0, 200);
            a.memory.pattern(0, len, 9);
            let expected = a.memory.get(0, len);
            let sges = [
                Sge::new(a.memory.addr(0), (len / 2) as u32, 0),
                Sge::new(a.memory.addr(len / 2), (len - len / 2) as u32, 0xffff_ffff),
            ];
            {
                let mut batch = a.qp.send_batch().expect("a batch");
                batch
                    .push(&SendWr { send_flags: send_flags::INLINE, sges: &sges, ud, ..SendWr::default() })
                    .expect("room");
                // V-66: the program may reuse the buffer at once, before anything is sent.
                a.memory.pattern(0, len, 10);
                batch.finish();
            }
            assert_eq!(b.received().byte_len as usize, len + before);
            assert_eq!(a.sent().status, 0);
            assert_eq!(b.memory.get(before, len), expected);
        }
    }
}

fn one_sided_operations_need_nobody_at_the_target(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    // From here on no thread of this process makes a call on `b`. Only its engine's helper thread
    // serves it.
    for round in 0..200u64 {
        a.memory.put_word(0, round);
        let base = SendWr { remote_addr, rkey, ..SendWr::default() };
        a.post_all(&[
            SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(0, 8), ..base },
            SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, compare_add: 1, sges: &a.sge(8, 8), ..base },
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(16, 8), ..base },
        ]);
        for _ in 0..3 {
            assert_eq!(a.sent().status, 0);
        }
        assert_eq!((a.memory.word(8), a.memory.word(16)), (round, round + 1));
    }
}

/// The IBA lets later requests overtake a READ without a fence. Common responders answer in order,
/// and programs rely on it.
fn a_read_gets_what_stood_there_before_the_next_request(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let base = SendWr { remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
    for round in 0..200u64 {
        for code in [opcode::RDMA_WRITE, opcode::SEND, opcode::ATOMIC_FETCH_AND_ADD] {
            b.memory.put_word(0, round);
            b.recv(1, 0, 8);
            a.memory.put_word(0, u64::MAX);
            let next = if code == opcode::ATOMIC_FETCH_AND_ADD { a.sge(16, 8) } else { a.sge(0, 8) };
            a.post_all(&[
                SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(8, 8), ..base },
                SendWr { opcode: code, compare_add: 1, sges: &next, ..base },
            ]);
            (0..2).for_each(|_| assert_eq!(a.sent().status, 0));
            assert_eq!(a.memory.word(8), round, "opcode {code}");
            if code != opcode::SEND {
                a.post(&SendWr::default());
                assert_eq!(a.sent().status, 0);
            }
            assert_eq!(b.received().status, 0);
        }
    }
}

/// The same while the path has no room for the data of the READ. The requests behind it wait.
fn a_long_read_is_not_overtaken(fabric: &Fabric) {
    let len = 4 << 20;
    let plan = Plan { memory: 2 * len, ..Plan::rc() };
    let (a, b) = fabric.pair(&plan);
    let (rkey, last) = (b.mr.rkey(), b.memory.addr(len - 8));
    let base = SendWr { remote_addr: b.memory.addr(0), rkey, ..SendWr::default() };
    for round in 0..8 {
        b.memory.pattern(0, len, round);
        let before = b.memory.get(0, len);
        b.recv(1, len - 64, 16);
        a.memory.pattern(len, 32, round + 1);
        a.post_all(&[
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(0, len), ..base },
            SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(len, 8), remote_addr: last, ..base },
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(len + 64, 8), remote_addr: last, ..base },
            SendWr { opcode: opcode::SEND, sges: &a.sge(len + 8, 16), ..base },
        ]);
        (0..4).for_each(|_| assert_eq!(a.sent().status, 0));
        assert!(a.memory.get(0, len) == before, "round {round}");
        assert_eq!(a.memory.get(len + 64, 8), a.memory.get(len, 8), "round {round}");
        assert_eq!((b.received().status, b.memory.get(len - 64, 16)), (0, a.memory.get(len + 8, 16)));
    }
}

fn long_messages_and_messages_that_are_too_long(fabric: &Fabric) {
    let len = 40 << 20;
    let (a, b) = fabric.pair(&Plan { memory: len, ..Plan::rc() });
    a.memory.pattern(0, len, 1);
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    b.recv(1, 0, len);
    a.post(&SendWr { sges: &a.sge(0, len), ..SendWr::default() });
    assert_eq!((b.received().byte_len as usize, a.sent().status), (len, 0));
    assert!(b.memory.get(0, len) == a.memory.get(0, len));
    b.memory.pattern(0, len, 2);
    a.post(&SendWr { opcode: opcode::RDMA_READ, remote_addr, rkey, sges: &a.sge(0, len), ..SendWr::default() });
    assert_eq!(a.sent().status, 0);
    assert!(b.memory.get(0, len) == a.memory.get(0, len));
    // The longest message has 2^31 bytes, and a longer one fails. Elements whose sum overflows 32
    // bits do not count as short.
    let (half, lkey) = (0x8000_0000, a.mr.lkey());
    for (code, lens) in
        [(opcode::SEND, &[half, 1][..]), (opcode::RDMA_WRITE, &[half, half, 8]), (opcode::RDMA_READ, &[half, half])]
    {
        let (a, b) = fabric.pair(&Plan::rc());
        let sges: Vec<_> = lens.iter().map(|&len| Sge::new(a.memory.addr(0), len, lkey)).collect();
        a.post(&SendWr {
            opcode: code,
            remote_addr: b.memory.addr(0),
            rkey: b.mr.rkey(),
            sges: &sges,
            ..SendWr::default()
        });
        assert_eq!(a.sent().status, abi::cq::status::LOC_LEN_ERR, "opcode {code}");
    }
}

crate::common::everywhere! {
    sends_and_writes_of_the_connected_services
    inline_data_is_taken_at_once_and_without_a_key
    long_messages_and_messages_that_are_too_long
    a_read_gets_what_stood_there_before_the_next_request
    a_long_read_is_not_overtaken
}

crate::common::even_with_losses! {
    reads_fill_the_local_buffer
    atomics_answer_what_stood_there
    nothing_is_checked_where_nothing_is_moved
    lists_of_many_elements_in_several_regions
    a_region_may_be_called_by_other_addresses
    one_sided_operations_need_nobody_at_the_target
}
