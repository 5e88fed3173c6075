//! XRC domains that processes share: targets that serve another process's queues, and that continue
//! when their server ends.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::common::Fabric;
use crate::common::stranger::Stranger;
use crate::common::wait::{event, next, until};
use crate::common::xrc::{Asker, O_CREAT, Queue};
use abi::cq::{Wc, opcode as done, status};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::state;
use engine::{Engine, Hold, SendWr, Xrcd};
use shm::{RECORD_MAX, ends};
use wire::{Headers, Opcode, Operation, Transport};

/// The flags, at 7, of records with remote-SRQ requests and replies.
const SRQ_REQUEST: u8 = 8;
const SRQ_REPLY: u8 = 16;

/// Two processes with one domain: the first has a target, the second a queue. A third process is
/// the initiator.
struct Shared {
    file: std::fs::File,
    first: Arc<Engine>,
    first_domain: Arc<Xrcd>,
    first_queue: Queue,
    target: Arc<Hold>,
    second: Arc<Engine>,
    second_domain: Arc<Xrcd>,
    queue: Queue,
    asker: Asker,
}

fn open(engine: &Arc<Engine>, file: &std::fs::File) -> Arc<Xrcd> {
    engine.open_xrcd(Some(file.as_fd()), O_CREAT).expect("the domain")
}

/// If there are two hosts, engines are opened on them in turn. Both processes with the domain are
/// on the first host.
fn shared_with(fabric: &Fabric, rnr_retry: u8) -> Shared {
    let file = tempfile::tempfile().expect("a file");
    let (first, asking, second) = (fabric.engine(), fabric.engine(), fabric.engine());
    let _fourth = fabric.engine();
    let first_domain = open(&first, &file);
    let first_queue = Queue::new(&first, &first_domain, 64);
    let target = first.create_target(&first_domain, 9).expect("a target");
    let second_domain = open(&second, &file);
    let queue = Queue::new(&second, &second_domain, 64);
    let asker = Asker::new(asking);
    asker.connect(&first, target.qp(), rnr_retry);
    Shared { file, first, first_domain, first_queue, target, second, second_domain, queue, asker }
}

fn shared(fabric: &Fabric) -> Shared {
    shared_with(fabric, 7)
}

/// Every operation on the memory and the queue of a process that is no end of the connection.
fn every_operation(asker: &Asker, queue: &Queue, target: u32) {
    asker.memory.pattern(0, 20_000, 3);
    queue.post(10, 0, 20_000);
    queue.post(11, 20_000, 100);
    queue.post(12, 0, 0);
    let number = queue.number();
    assert_eq!(asker.outcome(number, &SendWr { sges: &asker.sge(0, 20_000), ..SendWr::default() }), 0);
    let with_imm =
        SendWr { opcode: opcode::SEND_WITH_IMM, imm: 0x0102, send_flags: send_flags::SOLICITED, ..SendWr::default() };
    assert_eq!(asker.outcome(number, &with_imm), 0);
    let write = SendWr { sges: &asker.sge(0, 9000), ..queue.at(opcode::RDMA_WRITE, 30_000) };
    assert_eq!(asker.outcome(number, &write), 0);
    let write_imm = SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, imm: 0x0304, ..write };
    assert_eq!(asker.outcome(number, &write_imm), 0);
    let read = SendWr { sges: &asker.sge(40_000, 9000), ..queue.at(opcode::RDMA_READ, 30_000) };
    assert_eq!(asker.outcome(number, &read), 0);
    queue.memory.put(60_000, &5u64.to_ne_bytes());
    let word = asker.sge(60_000, 8);
    let add = SendWr { sges: &word, compare_add: 2, ..queue.at(opcode::ATOMIC_FETCH_AND_ADD, 60_000) };
    assert_eq!(asker.outcome(number, &add), 0);
    let swap = SendWr { sges: &word, compare_add: 7, swap: 1, ..queue.at(opcode::ATOMIC_CMP_AND_SWP, 60_000) };
    assert_eq!(asker.outcome(number, &swap), 0);
    let got: Vec<_> = (0..3).map(|_| next(&queue.cq)).collect();
    let facts: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm_data)).collect();
    assert_eq!(
        facts,
        [
            (10, 0, done::RECV, 20_000, 0),
            (11, 0, done::RECV, 0, 0x0102),
            (12, 0, done::RECV_RDMA_WITH_IMM, 9000, 0x0304)
        ]
    );
    assert!(got.iter().all(|wc| wc.qp_num == target && wc.src_qp == asker.initiator.qpn()));
    assert_eq!(queue.memory.get(0, 20_000), asker.memory.get(0, 20_000));
    assert_eq!(asker.memory.get(40_000, 9000), asker.memory.get(0, 9000), "written there, and read back");
    assert_eq!(
        (queue.memory.get(60_000, 8), asker.memory.get(60_000, 8)),
        (1u64.to_ne_bytes().into(), 7u64.to_ne_bytes().into())
    );
}

fn xrc_shared_every_operation_reaches_another_process(fabric: &Fabric) {
    let shared = shared(fabric);
    let target = shared.target.qp().qpn();
    every_operation(&shared.asker, &shared.queue, target);
    every_operation(&shared.asker, &shared.first_queue, target);
    every_operation(&shared.asker, &shared.queue, target);
}

/// Many messages at once, to the queues of two processes in turn. Each queue gets its own messages,
/// in order.
fn xrc_shared_messages_keep_their_order(fabric: &Fabric) {
    let shared = shared(fabric);
    let queues = [&shared.queue, &shared.first_queue];
    for round in 0..4u32 {
        for queue in queues {
            (0..12).for_each(|wr_id| queue.post(wr_id, wr_id as usize * 5000, 5000));
        }
        for number in 0..24u32 {
            let sges = shared.asker.sge(number as usize * 100, 4000);
            let wr =
                SendWr { opcode: opcode::SEND_WITH_IMM, imm: round << 8 | number, sges: &sges, ..SendWr::default() };
            shared.asker.post(queues[number as usize % 2].number(), &wr);
        }
        (0..24).for_each(|_| assert_eq!(next(&shared.asker.cq).status, 0));
        for (which, queue) in queues.iter().enumerate() {
            let got: Vec<_> = (0..12).map(|_| next(&queue.cq)).map(|wc| (wc.wr_id, wc.imm_data)).collect();
            let all: Vec<_> = (0..12).map(|n| (u64::from(n), round << 8 | (2 * n + which as u32))).collect();
            assert_eq!(got, all);
        }
    }
}

/// Keys belong to the process whose queue is named.
fn xrc_shared_keys_are_the_queue_s_process_s(fabric: &Fabric) {
    let shared = shared(fabric);
    let wr = SendWr { sges: &shared.asker.sge(0, 8), ..shared.queue.at(opcode::RDMA_WRITE, 0) };
    assert_eq!(shared.asker.outcome(shared.queue.number(), &wr), 0);
    let wrong = SendWr { rkey: shared.first_queue.mr.rkey(), ..wr };
    assert_eq!(shared.asker.outcome(shared.queue.number(), &wrong), status::REM_ACCESS_ERR);
    assert_eq!(event(&shared.first).kind, kind::QP_ACCESS_ERR);
    assert_eq!(shared.target.qp().state(), u32::from(state::ERR));
}

/// V-70: the receive request that was taken completes with the error in the process that posted it.
fn xrc_shared_a_message_that_does_not_fit_ends_both(fabric: &Fabric) {
    let shared = shared(fabric);
    shared.queue.post(4, 0, 10);
    let wr = SendWr { sges: &shared.asker.sge(0, 11), ..SendWr::default() };
    assert_eq!(shared.asker.outcome(shared.queue.number(), &wr), status::REM_INV_REQ_ERR);
    let wc = next(&shared.queue.cq);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (4, status::LOC_LEN_ERR, shared.target.qp().qpn()));
}

fn xrc_shared_an_empty_queue_makes_the_initiator_wait(fabric: &Fabric) {
    let shared = shared(fabric);
    shared.asker.post(shared.queue.number(), &SendWr::default());
    until("an RNR wait", || (shared.queue.cq.poll(&mut [Wc::default()]) == Ok(0)).then_some(()));
    shared.first_queue.post(2, 0, 0);
    shared.queue.post(1, 0, 0);
    assert_eq!(next(&shared.queue.cq).wr_id, 1);
    assert_eq!(next(&shared.asker.cq).status, 0);

    let impatient = shared_with(fabric, 0);
    assert_eq!(impatient.asker.outcome(impatient.queue.number(), &SendWr::default()), status::RNR_RETRY_EXC_ERR);
}

/// A queue of a process that has ended, and a queue of another domain.
fn xrc_shared_a_queue_that_is_gone_is_refused(fabric: &Fabric) {
    let ended = shared(fabric);
    ended.queue.post(1, 0, 0);
    assert_eq!(ended.asker.outcome(ended.queue.number(), &SendWr::default()), 0);
    ended.first_queue.post(1, 0, 0);
    ended.second.close();
    assert_eq!(ended.asker.outcome(ended.first_queue.number(), &SendWr::default()), 0, "others go on");
    assert_eq!(ended.asker.outcome(ended.queue.number(), &SendWr::default()), status::REM_INV_RD_REQ_ERR);

    let other = shared(fabric);
    let file = tempfile::tempfile().expect("a file");
    let foreign = Queue::new(&other.second, &open(&other.second, &file), 16);
    foreign.post(1, 0, 10);
    assert_eq!(other.asker.outcome(foreign.number(), &SendWr::default()), status::REM_INV_RD_REQ_ERR);
    assert_eq!(foreign.cq.poll(&mut [Wc::default()]), Ok(0));
}

/// The message is longer than its receive buffer: both the request and the receive request that it
/// took fail.
fn xrc_shared_half_a_message_ends_with_its_connection(fabric: &Fabric) {
    let shared = shared(fabric);
    shared.queue.post(1, 0, 20_000);
    shared.asker.post(shared.queue.number(), &SendWr { sges: &shared.asker.sge(0, 60_000), ..SendWr::default() });
    assert_eq!(next(&shared.asker.cq).status, status::REM_INV_REQ_ERR);
    assert_eq!(next(&shared.queue.cq).status, status::LOC_LEN_ERR);
}

/// Half of a message has arrived when the target's only server ends. The receive request is
/// flushed, because no process continues the message.
fn xrc_shared_half_a_message_ends_with_its_server(fabric: &Fabric) {
    let shared = shared(fabric);
    shared.asker.memory.put_word(0, u64::MAX);
    shared.queue.post(1, 0, 60_000);
    let [whole] = shared.asker.sge(0, 40_000);
    let sges = [whole, Sge::new(whole.addr, 100, whole.lkey ^ 1)];
    assert_eq!(
        shared.asker.outcome(shared.queue.number(), &SendWr { sges: &sges, ..SendWr::default() }),
        status::LOC_PROT_ERR
    );
    until("half a message", || (shared.queue.memory.word(0) == u64::MAX).then_some(()));
    assert_eq!(shared.queue.cq.poll(&mut [Wc::default()]), Ok(0));
    shared.first.close();
    let wc = next(&shared.queue.cq);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (1, status::WR_FLUSH_ERR, shared.target.qp().qpn()));
}

/// Section 10: a target ends with its last holder, even if its maker ended earlier.
fn xrc_outlives_its_maker(fabric: &Fabric) {
    let shared = shared(fabric);
    let qpn = shared.target.qp().qpn();
    let held = shared.second.open_target(&shared.second_domain, qpn, 21).expect("opened");
    every_operation(&shared.asker, &shared.queue, qpn);
    shared.first.close();
    every_operation(&shared.asker, &shared.queue, qpn);
    assert_eq!(held.qp().query(0).expect("it lives").qp_state, state::RTS);
    let number = shared.first_queue.number();
    // The refusal is sent only once, and may be lost.
    let refused = shared.asker.outcome(number, &SendWr::default());
    assert!([status::REM_INV_RD_REQ_ERR, status::RETRY_EXC_ERR].contains(&refused), "gone with its process: {refused}");
    assert_eq!(event(&shared.second).element, 21);
    held.destroy().expect("the last");
    assert!(shared.second.open_target(&shared.second_domain, qpn, 22).is_err(), "it is gone");
}

/// The maker lives and releases the target, and then the next holder does.
fn xrc_outlives_whoever_lets_go(fabric: &Fabric) {
    let shared = shared(fabric);
    let qpn = shared.target.qp().qpn();
    let third = fabric.engine();
    let third_domain = open(&third, &shared.file);
    let queue = Queue::new(&third, &third_domain, 64);
    let seconds = shared.second.open_target(&shared.second_domain, qpn, 2).expect("opened");
    let thirds = third.open_target(&third_domain, qpn, 3).expect("opened");
    every_operation(&shared.asker, &queue, qpn);
    shared.target.destroy().expect("others hold it");
    every_operation(&shared.asker, &queue, qpn);
    every_operation(&shared.asker, &shared.first_queue, qpn);
    seconds.destroy().expect("another one holds it");
    every_operation(&shared.asker, &queue, qpn);
    every_operation(&shared.asker, &shared.queue, qpn);
    assert!(shared.first_domain.close().is_err(), "its queue is on it");
    assert_eq!(thirds.destroy().expect("the last"), 0);
}

/// Nothing is done twice and nothing is lost when the server ends in the middle of requests.
fn xrc_outlives_its_server_without_a_change_to_what_was_done(fabric: &Fabric) {
    let shared = shared(fabric);
    let _held = shared.second.open_target(&shared.second_domain, shared.target.qp().qpn(), 21).expect("opened");
    goes_on_without_a_change(&shared, &shared.queue);
}

/// The same for the queue of a third process, which neither is nor becomes the server.
fn xrc_outlives_its_server_for_others(fabric: &Fabric) {
    let shared = shared(fabric);
    let _held = shared.second.open_target(&shared.second_domain, shared.target.qp().qpn(), 21).expect("opened");
    let third = fabric.engine();
    goes_on_without_a_change(&shared, &Queue::new(&third, &open(&third, &shared.file), 64));
}

fn goes_on_without_a_change(shared: &Shared, queue: &Queue) {
    let asker = &shared.asker;
    queue.memory.put(60_000, &0u64.to_ne_bytes());
    (0..8).for_each(|wr_id| queue.post(wr_id, wr_id as usize * 7000, 7000));
    for number in 0..8u32 {
        let word = asker.sge(60_000, 8);
        let add = SendWr { sges: &word, compare_add: 1, ..queue.at(opcode::ATOMIC_FETCH_AND_ADD, 60_000) };
        asker.post(queue.number(), &add);
        let sges = asker.sge(0, 7000);
        let send = SendWr { opcode: opcode::SEND_WITH_IMM, imm: number, sges: &sges, ..SendWr::default() };
        asker.post(queue.number(), &send);
    }
    assert_eq!(next(&asker.cq).status, 0);
    shared.first.close();
    (0..15).for_each(|_| assert_eq!(next(&asker.cq).status, 0));
    let got: Vec<_> = (0..8).map(|_| next(&queue.cq)).map(|wc| (wc.status, wc.imm_data, wc.byte_len)).collect();
    assert_eq!(got, (0..8).map(|number| (0, number, 7000)).collect::<Vec<_>>());
    assert_eq!(queue.memory.get(60_000, 8), 8u64.to_ne_bytes());
    assert_eq!(queue.cq.poll(&mut [Wc::default()]), Ok(0));
}

/// Only its server can change a target. Every holder gets the event of its end.
#[test]
fn xrc_shared_targets_are_changed_by_their_server() {
    let fabric = Fabric::start();
    let shared = shared(&fabric);
    let held = shared.second.open_target(&shared.second_domain, shared.target.qp().qpn(), 21).expect("opened");
    let refused = held.qp().modify(&abi::qp::ModifyQp { qp_state: state::ERR, attr_mask: 1, ..Default::default() });
    assert_eq!(refused.expect_err("not here").errno, Errno::EOPNOTSUPP);
    assert_eq!(shared.asker.outcome(0x77_7777, &SendWr::default()), status::REM_INV_RD_REQ_ERR);
    let heard: Vec<_> = (0..2).map(|_| event(&shared.second)).map(|event| (event.kind, event.element)).collect();
    assert_eq!(heard, [(kind::QP_REQ_ERR, 21), (kind::QP_LAST_WQE_REACHED, 21)]);
    assert_eq!(held.qp().query(0).expect("an answer").qp_state, state::ERR);
}

/// Requests of an engine that has not opened the domain, or in the name of a QP of another engine,
/// are not carried out. All other values in these requests are valid: queue, key and address are
/// the victim's.
#[test]
fn xrc_shared_requests_of_other_engines_are_refused() {
    let fabric = Fabric::start();
    let shared = shared(&fabric);
    let queue = &shared.queue;
    queue.post(1, 0, 64);
    queue.memory.pattern(0, 64, 5);
    let before = queue.memory.get(0, 64);
    let stranger = Stranger::new(&fabric);
    let lane = stranger.lane(shared.second.number(), 0);
    let (mut tx, mut rx) = ends(lane.region.clone(), lane.side);
    let mut send_request = |qpn: u32, token: u64, operation: Operation, kind: u8, id: u32| {
        let headers = Headers {
            opcode: Opcode::new(Transport::Xrc, operation),
            xrc_srq: queue.number(),
            pkey: 0xffff,
            ..Headers::default()
        };
        let mut record = vec![0; 60];
        record[7] = SRQ_REQUEST;
        record[8..12].copy_from_slice(&qpn.to_le_bytes());
        record[12..14].copy_from_slice(&8u16.to_le_bytes());
        record[16..20].copy_from_slice(&id.to_le_bytes());
        record[20..24].copy_from_slice(&[kind, 1, 1, 0]);
        record[24..32].copy_from_slice(&token.to_le_bytes());
        record[36..40].copy_from_slice(&8u32.to_le_bytes());
        record[40..48].copy_from_slice(&queue.memory.addr(0).to_le_bytes());
        record[48..52].copy_from_slice(&queue.mr.rkey().to_le_bytes());
        let mut head = [0; 64];
        let len = headers.emit(&mut head).expect("room");
        record.extend(&head[..len]);
        record.extend([0xee; 8]);
        until("room", || tx.ring.push(&record).ok());
        lane.peer.notify();
    };
    // In the name of a QP of another engine: there is not even a reply.
    send_request(shared.target.qp().qpn(), 0, Operation::WriteOnly, 1, 1);
    // In its own name, without the token: to write, to send, and to read.
    for (id, (operation, kind)) in (2..).zip([
        (Operation::WriteOnly, 1),
        (Operation::SendOnly, 0),
        (Operation::ReadRequest, 4),
        (Operation::CompareSwap, 3),
    ]) {
        send_request(stranger.qpn, u64::from(id), operation, kind, id);
    }
    let mut record = [0; RECORD_MAX];
    for id in 2..6u32 {
        until("a reply", || rx.ring.pop(&mut record).expect("it is sound"));
        rx.ring.publish();
        // Refused as an invalid SRQ.
        assert_eq!((record[7], &record[16..20], &record[20..22]), (SRQ_REPLY, &id.to_le_bytes()[..], &[3, 3][..]));
    }
    assert_eq!(queue.memory.get(0, 64), before);
    assert_eq!(queue.cq.poll(&mut [Wc::default()]), Ok(0));
    every_operation(&shared.asker, &shared.first_queue, shared.target.qp().qpn());
}

crate::common::everywhere! {
    xrc_shared_keys_are_the_queue_s_process_s
    xrc_shared_a_message_that_does_not_fit_ends_both
    xrc_shared_a_queue_that_is_gone_is_refused
    xrc_shared_half_a_message_ends_with_its_connection
    xrc_shared_half_a_message_ends_with_its_server
}

crate::common::even_with_losses! {
    xrc_shared_every_operation_reaches_another_process
    xrc_shared_messages_keep_their_order
    xrc_shared_an_empty_queue_makes_the_initiator_wait
    xrc_outlives_its_maker
    xrc_outlives_whoever_lets_go
    xrc_outlives_its_server_without_a_change_to_what_was_done
    xrc_outlives_its_server_for_others
}
