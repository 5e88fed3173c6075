//! Extended reliable connections: domains and their rights, requests that reach the named queue,
//! and targets that several holders share.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::common::memory::Memory;
use crate::common::wait::{event, next, no_event, until};
use crate::common::xrc::{O_CREAT, O_EXCL, Queue, connect, gid};
use crate::common::{ALL_RIGHTS, Fabric, cq, register};
use abi::cq::{opcode as done, status, wc_flags};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::state;
use engine::{Caps, Cq, Engine, Hold, InitiatorSpec, Mr, PostError, Qp, RecvWr, SendWr, SrqSpec, Xrcd};

/// The engine with the domain and its queues, and the initiator's engine.
struct Pair {
    server: Arc<Engine>,
    xrcd: Arc<Xrcd>,
    queues: [Queue; 2],
    target: Arc<Hold>,
    client: Arc<Engine>,
    scq: Arc<Cq>,
    initiator: Arc<Qp>,
    memory: Memory,
    mr: Arc<Mr>,
}

fn pair_with(fabric: &Fabric, cqe: u32, rnr_retry: u8) -> Pair {
    let (server, client) = (fabric.engine(), fabric.engine());
    let xrcd = server.open_xrcd(None, O_CREAT).expect("a domain");
    let queues = [(); 2].map(|()| Queue::new(&server, &xrcd, cqe));
    let target = server.create_target(&xrcd, 9).expect("a target");
    let pd = client.alloc_pd().expect("a PD");
    let scq = cq(&client, 64);
    let caps = Caps { max_send_wr: 16, max_send_sge: 2, ..Caps::default() };
    let spec = InitiatorSpec { send_cq: &scq, caps, sq_sig_all: true, cookie: 3 };
    let initiator = client.create_initiator(&pd, &spec).expect("an initiator");
    connect(target.qp(), &server, gid(&client).0, initiator.qpn(), 7);
    connect(&initiator, &client, gid(&server).0, target.qp().qpn(), rnr_retry);
    let memory = Memory::new(64 * 1024);
    let mr = register(&pd, &memory, ALL_RIGHTS);
    Pair { server, xrcd, queues, target, client, scq, initiator, memory, mr }
}

fn pair(fabric: &Fabric) -> Pair {
    pair_with(fabric, 64, 7)
}

impl Pair {
    fn post(&self, queue: u32, wr: &SendWr<'_>) {
        let mut batch = self.initiator.send_batch().expect("a batch");
        batch.push(&SendWr { xrc_srq: queue, ..*wr }).expect("room");
        batch.finish();
    }

    fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [Sge::new(self.memory.addr(at), len as u32, self.mr.lkey())]
    }

    /// An RDMA or atomic request for the memory of a queue, with that queue's key.
    fn at(&self, queue: usize, number: u32, at: usize) -> SendWr<'static> {
        let Queue { memory, mr, .. } = &self.queues[queue];
        SendWr { opcode: number, remote_addr: memory.addr(at), rkey: mr.rkey(), ..SendWr::default() }
    }

    /// The status of a request that names a queue.
    fn outcome(&self, queue: u32, wr: &SendWr<'_>) -> u32 {
        self.post(queue, wr);
        next(&self.scq).status
    }

    fn number(&self, queue: usize) -> u32 {
        self.queues[queue].srq.number()
    }
}

/// Every operation of RC uses the named queue: its receive request, the keys of its PD, and its CQ.
fn xrc_every_operation_reaches_the_queue_that_it_names(fabric: &Fabric) {
    let pair = pair(fabric);
    pair.memory.pattern(0, 20_000, 3);
    for (which, queue) in pair.queues.iter().enumerate() {
        let number = pair.number(which);
        queue.post(10, 0, 20_000);
        queue.post(11, 20_000, 100);
        queue.post(12, 0, 0);
        let long = pair.sge(0, 20_000);
        assert_eq!(pair.outcome(number, &SendWr { sges: &long, ..SendWr::default() }), 0);
        let with_imm = SendWr {
            opcode: opcode::SEND_WITH_IMM,
            imm: 0x0102,
            send_flags: send_flags::SOLICITED,
            ..SendWr::default()
        };
        assert_eq!(pair.outcome(number, &with_imm), 0);
        let write = SendWr { sges: &pair.sge(0, 9000), ..pair.at(which, opcode::RDMA_WRITE, 30_000) };
        assert_eq!(pair.outcome(number, &write), 0);
        let write_imm = SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, imm: 0x0304, ..write };
        assert_eq!(pair.outcome(number, &write_imm), 0);
        let read = SendWr { sges: &pair.sge(40_000, 9000), ..pair.at(which, opcode::RDMA_READ, 30_000) };
        assert_eq!(pair.outcome(number, &read), 0);
        queue.memory.put(60_000, &5u64.to_ne_bytes());
        let word = pair.sge(60_000, 8);
        let add = SendWr { sges: &word, compare_add: 2, ..pair.at(which, opcode::ATOMIC_FETCH_AND_ADD, 60_000) };
        assert_eq!(pair.outcome(number, &add), 0);
        let swap =
            SendWr { sges: &word, compare_add: 7, swap: 1, ..pair.at(which, opcode::ATOMIC_CMP_AND_SWP, 60_000) };
        assert_eq!(pair.outcome(number, &swap), 0);
        let got: Vec<_> = (0..3).map(|_| next(&queue.cq)).collect();
        let facts: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm_data)).collect();
        assert_eq!(
            facts,
            [
                (10, 0, done::RECV, 20_000, 0),
                (11, 0, done::RECV, 0, 0x0102),
                (12, 0, done::RECV_RDMA_WITH_IMM, 9000, 0x0304),
            ]
        );
        assert!(got.iter().all(|wc| wc.qp_num == pair.target.qp().qpn() && wc.src_qp == pair.initiator.qpn()));
        assert_eq!(got[1].wc_flags & wc_flags::WITH_IMM, wc_flags::WITH_IMM);
        assert_eq!(queue.memory.get(0, 20_000), pair.memory.get(0, 20_000));
        assert_eq!(pair.memory.get(40_000, 9000), pair.memory.get(0, 9000), "written there, and read back");
        assert_eq!(
            (queue.memory.get(60_000, 8), pair.memory.get(60_000, 8)),
            (1u64.to_ne_bytes().into(), 7u64.to_ne_bytes().into())
        );
    }
}

/// Section 10: a number that is no queue of the domain is refused, and both ends go to the error
/// state.
fn xrc_number_of_no_domain_is_refused(fabric: &Fabric) {
    let pair = pair(fabric);
    let plain =
        pair.server.create_srq(&pair.queues[0].pd, &SrqSpec { max_wr: 4, max_sge: 1, cookie: 0 }).expect("an SRQ");
    assert_eq!(pair.outcome(plain.number(), &SendWr::default()), status::REM_INV_RD_REQ_ERR);
    let got = event(&pair.server);
    assert_eq!((got.kind, got.element), (kind::QP_REQ_ERR, 9));
    assert_eq!(event(&pair.server).kind, kind::QP_LAST_WQE_REACHED);
    assert_eq!(pair.target.qp().state(), u32::from(state::ERR));
    assert_eq!(pair.initiator.state(), u32::from(state::ERR));
}

/// The same for a queue of another domain, and for a destroyed queue.
fn status_15_number_of_another_domain_or_none_any_more_is_refused(fabric: &Fabric) {
    let pair = pair(fabric);
    let other = pair.server.open_xrcd(None, O_CREAT).expect("a domain");
    let foreign = Queue::new(&pair.server, &other, 16);
    foreign.post(1, 0, 10);
    assert_eq!(pair.outcome(foreign.srq.number(), &SendWr::default()), status::REM_INV_RD_REQ_ERR);
    assert_eq!(foreign.cq.poll(&mut [Default::default()]), Ok(0));

    let again = self::pair(fabric);
    let [gone, _] = &again.queues;
    gone.srq.destroy().expect("targets do not hold it");
    assert_eq!(again.outcome(gone.srq.number(), &again.at(0, opcode::RDMA_READ, 0)), status::REM_INV_RD_REQ_ERR);
}

/// V-10 with section 10: keys are looked up in the PD of the named queue.
fn xrc_protection_is_the_queue_s(fabric: &Fabric) {
    let pair = pair(fabric);
    let wr = SendWr { sges: &pair.sge(0, 8), ..pair.at(0, opcode::RDMA_WRITE, 0) };
    assert_eq!(pair.outcome(pair.number(0), &wr), 0);
    assert_eq!(pair.outcome(pair.number(1), &wr), status::REM_ACCESS_ERR);
    assert_eq!(event(&pair.server).kind, kind::QP_ACCESS_ERR);
}

fn xrc_rnr_an_empty_queue_makes_the_initiator_wait(fabric: &Fabric) {
    let pair = pair(fabric);
    pair.post(pair.number(0), &SendWr::default());
    until("an RNR wait", || (pair.queues[0].cq.poll(&mut [Default::default()]) == Ok(0)).then_some(()));
    // The other queue's receive requests do not help.
    pair.queues[1].post(2, 0, 0);
    pair.queues[0].post(1, 0, 0);
    assert_eq!(next(&pair.queues[0].cq).wr_id, 1);
    assert_eq!(next(&pair.scq).status, 0);

    let impatient = pair_with(fabric, 64, 0);
    assert_eq!(impatient.outcome(impatient.number(0), &SendWr::default()), status::RNR_RETRY_EXC_ERR);
}

/// V-70 over XRC: the receive request that was taken completes with the error on the queue's own
/// CQ.
fn a_message_that_does_not_fit_ends_both(fabric: &Fabric) {
    let pair = pair(fabric);
    pair.queues[1].post(4, 0, 10);
    let wr = SendWr { sges: &pair.sge(0, 11), ..SendWr::default() };
    assert_eq!(pair.outcome(pair.number(1), &wr), status::REM_INV_REQ_ERR);
    let wc = next(&pair.queues[1].cq);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (4, status::LOC_LEN_ERR, pair.target.qp().qpn()));
}

#[test]
fn xrc_ends_have_the_queues_that_they_have() {
    let fabric = Fabric::start();
    let pair = pair(&fabric);
    for qp in [&pair.initiator, pair.target.qp()] {
        assert_eq!(qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).map_err(PostError::errno), Err(Errno::EINVAL));
    }
    let mut batch = pair.target.qp().send_batch().expect("a batch");
    assert_eq!(batch.push(&SendWr::default()).map_err(PostError::errno), Err(Errno::EINVAL));
    drop(batch);
    let caps = pair.target.qp().caps();
    assert_eq!((caps.max_send_wr, caps.max_recv_wr), (0, 0));
    assert_eq!(pair.initiator.caps().max_recv_wr, 0);
    let told = pair.target.qp().query(0).expect("an answer");
    assert_eq!((told.qp_state, told.max_dest_rd_atomic, told.timeout), (state::RTS, 4, 14));
    assert_eq!((told.max_rd_atomic, told.retry_cnt), (0, 0), "the initiator's");
}

/// Section 10: a file's inode identifies a domain. O_CREAT and O_EXCL have their usual meaning for
/// files. The domain ends with its last handle.
#[test]
fn xrc_domain_is_that_of_its_file_in_every_process() {
    let fabric = Fabric::start();
    let (one, two) = (fabric.engine(), fabric.engine());
    let file = tempfile::tempfile().expect("a file");
    let open = |engine: &Arc<Engine>, oflags| engine.open_xrcd(Some(file.as_fd()), oflags);
    let errno = |opened: engine::Result<Arc<Xrcd>>| opened.err().expect("refused").errno;
    assert_eq!(errno(open(&one, 0)), Errno::EAGAIN, "nobody has made it");
    let first = open(&one, O_CREAT | O_EXCL).expect("made");
    assert_eq!(errno(open(&two, O_CREAT | O_EXCL)), Errno::EINVAL, "somebody has");
    let second = open(&two, 0).expect("opened");
    let third = open(&one, O_CREAT).expect("opened");
    let target = one.create_target(&first, 1).expect("a target");
    assert_eq!(first.close().expect_err("in use").errno, Errno::EBUSY);
    let opened = one.open_target(&third, target.qp().qpn(), 2).expect("the same domain");
    assert_eq!(third.close().expect_err("in use").errno, Errno::EBUSY);
    let elsewhere = two.open_target(&second, target.qp().qpn(), 3).expect("another process's");
    assert_eq!(second.close().expect_err("in use").errno, Errno::EBUSY);
    elsewhere.destroy().expect("let go");
    second.close().expect("closed");
    target.destroy().expect("the other handle holds it");
    first.close().expect("closed");
    assert_eq!(opened.qp().query(0).expect("it lives").qp_state, state::RESET);
    opened.destroy().expect("the last");
    third.close().expect("closed");
    assert_eq!(errno(open(&two, 0)), Errno::EAGAIN, "the last handle took it along");
}

#[test]
fn xrc_domain_private_ones_are_each_their_own() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let [one, two] = [(); 2].map(|()| engine.open_xrcd(None, 0).expect("a domain"));
    let target = engine.create_target(&one, 1).expect("a target");
    let missing = engine.open_target(&two, target.qp().qpn(), 2);
    assert_eq!(missing.err().expect("refused").errno, Errno::EINVAL);
    let queue = Queue::new(&engine, &two, 4);
    assert_eq!(two.close().expect_err("in use").errno, Errno::EBUSY);
    assert_eq!(queue.cq.destroy().expect_err("in use").errno, Errno::EBUSY);
    queue.srq.destroy().expect("destroyed");
    queue.cq.destroy().expect("destroyed");
    two.close().expect("closed");
}

/// Section 10: every holder of a target gets its events. The target ends with its last holder.
#[test]
fn xrc_target_is_held_by_all_who_opened_it() {
    let fabric = Fabric::start();
    let pair = pair(&fabric);
    let qpn = pair.target.qp().qpn();
    let second = pair.server.open_target(&pair.xrcd, qpn, 21).expect("opened");
    let third = pair.server.open_target(&pair.xrcd, qpn, 22).expect("opened");
    assert_eq!(pair.target.destroy().expect("others hold it"), 0);
    pair.queues[0].post(1, 0, 0);
    assert_eq!(pair.outcome(pair.number(0), &SendWr::default()), 0, "its maker has let go, and it serves");
    assert_eq!(pair.outcome(0, &SendWr::default()), status::REM_INV_RD_REQ_ERR);
    let mut got: Vec<_> = (0..4).map(|_| event(&pair.server)).map(|got| (got.kind, got.element)).collect();
    got.sort_unstable();
    let (refused, last) = (kind::QP_REQ_ERR, kind::QP_LAST_WQE_REACHED);
    assert_eq!(got, [(refused, 21), (refused, 22), (last, 21), (last, 22)]);
    no_event(&pair.server);
    assert_eq!(second.destroy().expect("let go"), 2, "events that were read");
    assert_eq!(third.destroy().expect("destroyed"), 2);
    assert!(pair.server.open_target(&pair.xrcd, qpn, 23).is_err(), "it is gone");
    for queue in &pair.queues {
        queue.srq.destroy().expect("destroyed");
    }
    pair.xrcd.close().expect("nothing is left in it");
    assert!(!pair.client.is_gone());
}

/// V-54 over XRC: a queue whose CQ has overrun receives nothing any more. The target's other queues
/// still work.
#[test]
fn v_54_a_queue_whose_cq_is_overrun_takes_nothing_any_more() {
    let fabric = Fabric::start();
    let pair = pair_with(&fabric, 2, 7);
    for wr_id in 0..4 {
        pair.queues[0].post(wr_id, 0, 0);
    }
    pair.queues[1].post(9, 0, 0);
    for _ in 0..3 {
        assert_eq!(pair.outcome(pair.number(0), &SendWr::default()), 0);
    }
    assert_eq!(event(&pair.server).kind, kind::CQ_ERR);
    let got = event(&pair.server);
    assert_eq!((got.kind, got.element), (kind::SRQ_ERR, 5));
    assert_eq!(pair.outcome(pair.number(1), &SendWr::default()), 0);
    assert_eq!(next(&pair.queues[1].cq).wr_id, 9);
    assert_eq!(pair.outcome(pair.number(0), &SendWr::default()), status::REM_OP_ERR);
}

crate::common::everywhere! {
    xrc_number_of_no_domain_is_refused
    status_15_number_of_another_domain_or_none_any_more_is_refused
    xrc_protection_is_the_queue_s
    a_message_that_does_not_fit_ends_both
}

crate::common::even_with_losses! {
    xrc_every_operation_reaches_the_queue_that_it_names
    xrc_rnr_an_empty_queue_makes_the_initiator_wait
}
