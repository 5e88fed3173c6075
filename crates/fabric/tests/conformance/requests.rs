//! Section 5: work requests, from posting to completion.

use abi::cq::{Wc, opcode as wc_opcode, status, wc_flags};
use abi::errno::Errno;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::state;

use crate::common::wait::until;
use crate::common::{Fabric, Plan, QKEY, Side, even_with_losses, everywhere};
use engine::{Caps, PostError, RecvWr, SendWr, Service};

/// A one-sided request for the peer's memory at `at`.
fn to(b: &Side, opcode: u32, at: usize) -> SendWr<'static> {
    SendWr { opcode, remote_addr: b.memory.addr(at), rkey: b.mr.rkey(), ..SendWr::default() }
}

fn v_60_requests_start_and_complete_in_order(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    a.memory.put_word(0, 77);
    // The WRITE is behind a message that waits for a receive request, so the WRITE waits too.
    a.post_all(&[
        SendWr { wr_id: 1, ..SendWr::default() },
        SendWr { wr_id: 2, sges: &a.sge(0, 8), ..to(&b, opcode::RDMA_WRITE, 0) },
        SendWr { wr_id: 3, sges: &a.sge(8, 8), ..to(&b, opcode::RDMA_READ, 0) },
    ]);
    // The receive queue is independent.
    a.recv(9, 0, 0);
    b.post(&SendWr::default());
    assert_eq!((b.sent().status, a.received().wr_id, b.memory.word(0)), (0, 9, 0));
    b.recv(4, 0, 0);
    assert_eq!([a.sent().wr_id, a.sent().wr_id, a.sent().wr_id], [1, 2, 3]);
    assert_eq!(a.memory.word(8), 77);
}

fn v_61_a_completed_request_gives_its_buffer_back(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { sq_sig_all: false, ..Plan::rc() });
    (0..8).for_each(|wr_id| b.recv(wr_id, wr_id as usize * 100, 100));
    for round in 0..4usize {
        // The completion of the second request implies that the first is complete too.
        a.memory.put(0, &[round as u8; 200]);
        a.post_all(&[
            SendWr { sges: &a.sge(0, 100), ..SendWr::default() },
            SendWr { sges: &a.sge(100, 100), send_flags: send_flags::SIGNALED, ..SendWr::default() },
        ]);
        assert_eq!(a.sent().status, 0);
        a.memory.put(0, &[0xee; 200]);
        for index in 0..2 {
            let wr_id = b.received().wr_id as usize;
            assert_eq!(wr_id, round * 2 + index);
            assert_eq!(b.memory.get(wr_id * 100, 100), [round as u8; 100]);
        }
    }
}

fn v_62_which_requests_complete(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { sq_sig_all: false, ..Plan::rc() });
    (0..2).for_each(|wr_id| b.recv(wr_id, 0, 0));
    a.post_all(&[
        SendWr { wr_id: 1, ..SendWr::default() },
        SendWr { wr_id: 2, send_flags: send_flags::SIGNALED, ..SendWr::default() },
    ]);
    assert_eq!((a.sent().wr_id, b.received().wr_id, b.received().wr_id), (2, 0, 1));
    assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
    // An unsignalled request that fails, and a request that is flushed.
    let bad = [Sge::new(a.memory.addr(0), 8, a.mr.lkey() ^ 0xff_ff00)];
    a.post_all(&[SendWr { wr_id: 3, sges: &bad, ..SendWr::default() }, SendWr { wr_id: 4, ..SendWr::default() }]);
    let seen = [a.sent(), a.sent()].map(|wc| (wc.wr_id, wc.status));
    assert_eq!(seen, [(3, status::LOC_PROT_ERR), (4, status::WR_FLUSH_ERR)]);
}

fn v_63_places_come_free_by_polling_a_signalled_one(fabric: &Fabric) {
    let caps = Caps { max_send_wr: 4, ..Plan::rc().caps };
    let (a, b) = fabric.pair(&Plan { sq_sig_all: false, caps, ..Plan::rc() });
    let depth = a.qp.caps().max_send_wr as usize;
    let full = || a.qp.send_batch().expect("a batch").push(&SendWr::default()).map_err(PostError::errno);
    a.memory.put_word(0, 1);
    a.post_all(&vec![to(&b, opcode::RDMA_WRITE, 64); depth - 1]);
    a.post(&SendWr { sges: &a.sge(0, 8), ..to(&b, opcode::RDMA_WRITE, 0) });
    until("the last write", || (b.memory.word(0) == 1).then_some(()));
    assert_eq!((a.scq.poll(&mut [Wc::default()]), full()), (Ok(0), Err(Errno::ENOMEM)));
    // If the last request is signalled, the queue is reused round after round.
    let (a, b) = fabric.pair(&Plan { sq_sig_all: false, caps, ..Plan::rc() });
    for _ in 0..3 {
        a.post_all(&vec![to(&b, opcode::RDMA_WRITE, 64); depth - 1]);
        a.post(&SendWr { send_flags: send_flags::SIGNALED, ..to(&b, opcode::RDMA_WRITE, 0) });
        assert_eq!(a.sent().status, 0);
    }
}

fn v_64_the_first_bad_one_of_a_list_is_told(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    (0..2).for_each(|wr_id| b.recv(wr_id, 0, 8));
    let many = vec![a.sge(0, 1)[0]; a.qp.caps().max_send_sge as usize + 1];
    for bad in [SendWr { opcode: 77, ..SendWr::default() }, SendWr { sges: &many, ..SendWr::default() }] {
        let mut batch = a.qp.send_batch().expect("a batch");
        assert_eq!(batch.push(&SendWr { wr_id: 1, ..SendWr::default() }), Ok(()));
        assert_eq!(batch.push(&bad).map_err(PostError::errno), Err(Errno::EINVAL));
        batch.finish();
        assert_eq!((a.sent().wr_id, b.received().status), (1, 0), "what was before it is posted");
    }
    assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
}

fn v_65_a_fence_waits_for_reads(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 1 << 20, ..Plan::rc() });
    let len = 300_000;
    for round in 1..6 {
        b.memory.pattern(0, len, round);
        a.post_all(&[
            SendWr { sges: &a.sge(0, len), ..to(&b, opcode::RDMA_READ, 0) },
            SendWr { sges: &a.sge(0, len), send_flags: send_flags::FENCE, ..to(&b, opcode::RDMA_WRITE, 500_000) },
        ]);
        assert_eq!((a.sent().status, a.sent().status), (0, 0));
        assert!(b.memory.get(500_000, len) == b.memory.get(0, len), "round {round}");
    }
}

fn v_66_inline_data_is_copied_at_posting(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let most = a.qp.caps().max_inline_data as usize;
    a.memory.pattern(0, most, 5);
    let expected = a.memory.get(0, most);
    b.recv(1, 0, most);
    let keyless = [Sge::new(a.memory.addr(0), most as u32, 0xffff_ffff)];
    {
        let mut batch = a.qp.send_batch().expect("a batch");
        let wr = SendWr { send_flags: send_flags::INLINE, sges: &keyless, ..SendWr::default() };
        batch.push(&wr).expect("posted");
        a.memory.put(0, &vec![0xee; most]);
        batch.finish();
    }
    assert_eq!((a.sent().status, b.received().byte_len as usize), (0, most));
    assert_eq!(b.memory.get(0, most), expected);
    let refused = |wr: &SendWr<'_>| a.qp.send_batch().expect("a batch").push(wr).map_err(PostError::errno);
    let inline = SendWr { send_flags: send_flags::INLINE, ..SendWr::default() };
    assert_eq!(refused(&SendWr { sges: &a.sge(0, most + 1), ..inline }), Err(Errno::EINVAL));
    for opcode in [opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD] {
        assert_eq!(refused(&SendWr { opcode, ..inline }), Err(Errno::EINVAL));
    }
}

fn v_67_reads_and_atomics_have_a_depth(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Plan::rc() });
    let sges: Vec<_> = (0..16).map(|index| a.sge(index * 8, 8)).collect();
    let add = SendWr { compare_add: 1, ..to(&b, opcode::ATOMIC_FETCH_AND_ADD, 0) };
    a.post_all(&sges.iter().map(|sges| SendWr { sges, ..add }).collect::<Vec<_>>());
    (0..16).for_each(|_| assert_eq!(a.sent().status, 0));
    (0..16).for_each(|index| assert_eq!(a.memory.word(index * 8), index as u64));
    let (a, b) = fabric.pair(&Plan { max_dest_rd_atomic: 0, ..Plan::rc() });
    a.post(&SendWr { sges: &a.sge(0, 8), ..to(&b, opcode::RDMA_READ, 0) });
    assert_eq!(a.sent().status, status::REM_INV_REQ_ERR);
}

fn v_68_the_responder_keeps_the_order_of_posting(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { caps: Caps { max_send_wr: 64, ..Plan::rc().caps }, ..Plan::rc() });
    for value in 1..=20u64 {
        a.memory.put_word(0, value);
        b.recv(value, 512, 8);
        a.post_all(&[
            SendWr { sges: &a.sge(0, 8), ..to(&b, opcode::RDMA_WRITE, 0) },
            SendWr { compare_add: 1000, sges: &a.sge(64, 8), ..to(&b, opcode::ATOMIC_FETCH_AND_ADD, 0) },
            SendWr { sges: &a.sge(128, 8), ..to(&b, opcode::RDMA_READ, 0) },
            SendWr { sges: &a.sge(0, 8), ..SendWr::default() },
        ]);
        (0..4).for_each(|_| assert_eq!(a.sent().status, 0));
        assert_eq!((a.memory.word(64), a.memory.word(128), b.received().wr_id), (value, value + 1000, value));
    }
}

fn v_69_datagrams_leave_room_for_the_header(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    a.memory.pattern(0, 100, 4);
    b.recv(1, 0, 140);
    a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, 100), ..SendWr::default() });
    let wc = b.received();
    assert_eq!((a.sent().status, wc.byte_len, wc.wc_flags), (0, 140, wc_flags::GRH));
    assert_eq!(b.memory.get(40, 100), a.memory.get(0, 100));
    let header = b.memory.get(0, 40);
    if a.gid()[12] == 10 {
        assert_eq!((header[20], &header[32..36], &header[36..40]), (0x45, &a.gid()[12..], &b.gid()[12..]));
    } else {
        assert_eq!((header[0] >> 4, &header[8..24], &header[24..40]), (6, &a.gid()[..], &b.gid()[..]));
    }
}

fn v_70_a_receive_buffer_must_have_room(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(1, 0, 99);
    a.post(&SendWr { sges: &a.sge(0, 100), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (status::REM_INV_REQ_ERR, status::LOC_LEN_ERR));
    until("the error state", || (b.qp.state() == u32::from(state::ERR)).then_some(()));
    // The sender cannot be told. The message is dropped, and the receive request serves the next
    // message.
    for (plan, room) in [(Plan::uc(), 99), (Plan::ud(), 139)] {
        let (a, b) = fabric.pair(&plan);
        let to_b = a.ah(&b);
        let ud = (plan.service == Service::Ud).then_some((&*to_b, b.qp.qpn(), QKEY));
        b.recv(1, 0, room);
        for len in [100, 99] {
            a.post(&SendWr { ud, sges: &a.sge(0, len), ..SendWr::default() });
            assert_eq!(a.sent().status, 0, "{}", plan.service);
        }
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (1, 0, room), "{}", plan.service);
        assert_eq!(b.qp.state(), u32::from(state::RTS), "{}", plan.service);
    }
}

fn v_71_reliable_success_means_it_is_there(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 256 * 1024, ..Plan::rc() });
    for round in 1..6 {
        a.memory.pattern(0, 100_000, round);
        a.post(&SendWr { sges: &a.sge(0, 100_000), ..to(&b, opcode::RDMA_WRITE, 0) });
        assert_eq!(a.sent().status, 0);
        assert!(b.memory.get(0, 100_000) == a.memory.get(0, 100_000));
        b.memory.pattern(0, 50_000, round + 9);
        a.post(&SendWr { sges: &a.sge(100_000, 50_000), ..to(&b, opcode::RDMA_READ, 0) });
        assert_eq!(a.sent().status, 0);
        assert!(a.memory.get(100_000, 50_000) == b.memory.get(0, 50_000));
    }
    // Success on an unreliable service means only that the message was sent.
    let a = Side::new(&fabric.engine(), &Plan::uc());
    a.init();
    a.rtr(a.gid(), 0x80_0000);
    a.rts();
    a.post(&SendWr::default());
    assert_eq!(a.sent().status, 0);
}

fn v_72_a_write_with_immediate_takes_a_receive_request(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    b.memory.put(1000, &[0x55; 100]);
    b.recv(1, 1000, 100);
    a.memory.pattern(0, 300, 7);
    a.post(&SendWr { imm: 0xabcd, sges: &a.sge(0, 300), ..to(&b, opcode::RDMA_WRITE_WITH_IMM, 0) });
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (1, wc_opcode::RECV_RDMA_WITH_IMM, 300));
    assert_eq!((wc.wc_flags, wc.imm_data), (wc_flags::WITH_IMM, 0xabcd));
    assert_eq!(b.memory.get(1000, 100), [0x55; 100], "its scatter list is not touched");
    assert_eq!((a.sent().opcode, b.memory.get(0, 300)), (wc_opcode::RDMA_WRITE, a.memory.get(0, 300)));
}

fn v_73_atomics_answer_what_was_there(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    let atomic = |wr: SendWr<'_>| {
        a.post(&SendWr { sges: &a.sge(0, 8), ..wr });
        assert_eq!(a.sent().status, 0);
        a.memory.word(0)
    };
    let (add, swap) = (to(&b, opcode::ATOMIC_FETCH_AND_ADD, 8), to(&b, opcode::ATOMIC_CMP_AND_SWP, 8));
    b.memory.put_word(8, u64::MAX);
    assert_eq!(atomic(SendWr { compare_add: 2, ..add }), u64::MAX);
    assert_eq!(b.memory.word(8), 1, "64 bits wrap");
    assert_eq!(atomic(SendWr { compare_add: 5, swap: 9, ..swap }), 1);
    assert_eq!(b.memory.word(8), 1, "not equal");
    assert_eq!(atomic(SendWr { compare_add: 1, swap: 9, ..swap }), 1);
    assert_eq!(b.memory.word(8), 9);
}

/// Runs without losses: the responder sends its NAK only once, because it then is in the error
/// state.
fn v_73_atomics_want_aligned_words(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    a.post(&SendWr { sges: &a.sge(0, 8), ..to(&b, opcode::ATOMIC_FETCH_AND_ADD, 4) });
    assert_eq!(a.sent().status, status::REM_INV_REQ_ERR);
}

fn v_75_nothing_is_checked_where_nothing_is_moved(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    for opcode in [opcode::RDMA_WRITE, opcode::RDMA_READ] {
        a.post(&SendWr { opcode, remote_addr: 1, rkey: 0xdead, ..SendWr::default() });
        assert_eq!(a.sent().status, 0);
    }
    b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).expect("posted");
    a.post(&SendWr::default());
    assert_eq!((a.sent().status, b.received().byte_len), (0, 0));
}

everywhere! {
    v_62_which_requests_complete
    v_63_places_come_free_by_polling_a_signalled_one
    v_64_the_first_bad_one_of_a_list_is_told
    v_69_datagrams_leave_room_for_the_header
    v_70_a_receive_buffer_must_have_room
    v_73_atomics_want_aligned_words
}

even_with_losses! {
    v_60_requests_start_and_complete_in_order
    v_61_a_completed_request_gives_its_buffer_back
    v_65_a_fence_waits_for_reads
    v_66_inline_data_is_copied_at_posting
    v_67_reads_and_atomics_have_a_depth
    v_68_the_responder_keeps_the_order_of_posting
    v_71_reliable_success_means_it_is_there
    v_72_a_write_with_immediate_takes_a_receive_request
    v_73_atomics_answer_what_was_there
    v_75_nothing_is_checked_where_nothing_is_moved
}
