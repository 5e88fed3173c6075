//! How connections of iWARP end in simulated time, mostly while the peer does not read: what the
//! program is told, and in which order.

use std::time::Duration;

use crate::common::wait::nonblocking;
use crate::streams::{SLOT, Side, Trouble, WORKS, WRITTEN, Work, engines, joined, pair, pattern};
use abi::cq::status;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::opcode;
use abi::qp::{ModifyQp, attr, state};
use fabric::simulation::{Simulation, StreamHarm};

/// How long the peer does not read.
const UNREAD: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_micros(50);
/// How long a side waits for the peer's end.
const LINGER: Duration = Duration::from_secs(5);

const WRITE: Work = Work { opcode: opcode::RDMA_WRITE, len: SLOT, is_wrong: false };

/// Bytes of the ready-to-receive message of a connection.
const READY: u64 = 20;

/// Two connected sides. Behind the ready-to-receive message, the second one reads nothing for a
/// time.
fn unread() -> (Simulation, [Side; 2]) {
    let mut simulation = Simulation::new(7);
    let (sides, stream) = joined(&mut simulation, Trouble::Delays);
    simulation.harm(stream, 0, StreamHarm::Unread(READY, UNREAD));
    sides.iter().for_each(Side::connect);
    simulation.run_for(Duration::from_millis(1));
    (simulation, sides)
}

/// WRITEs of the first side, until some have ended, and wait because the socket is full.
fn ended_and_waiting() -> (Simulation, [Side; 2]) {
    let (mut simulation, mut sides) = unread();
    let rkey = sides[1].mr.rkey();
    let one = &mut sides[0];
    one.works = vec![WRITE; WORKS];
    for nth in 0..WORKS {
        one.memory.put(nth * SLOT, &pattern(0, nth, SLOT));
    }
    while one.posted < one.sent.len() + 3 {
        one.post(rkey);
        simulation.run_for(Duration::from_millis(1));
        one.poll();
    }
    assert!(one.posted < WORKS && !one.sent.is_empty());
    (simulation, sides)
}

/// Runs until everything that was posted has completed, in order.
fn completed(simulation: &mut Simulation, one: &mut Side) {
    let limit = simulation.now() + 2 * UNREAD;
    while one.sent.len() < one.posted && simulation.now() < limit {
        simulation.run_for(MOMENT);
        one.poll();
    }
    assert!(one.sent.iter().map(|wc| wc.wr_id).eq(0..one.posted as u64), "{:?}", one.sent);
}

#[test]
fn a_send_queue_has_drained_behind_its_last_completion() {
    let (mut simulation, [mut one, mut two]) = ended_and_waiting();
    nonblocking(one.engine.async_fd());
    let (qp_state, attr_mask) = (state::SQD, attr::STATE | attr::EN_SQD_ASYNC_NOTIFY);
    let to_sqd = ModifyQp { attr_mask, qp_state, en_sqd_async_notify: 1, ..ModifyQp::default() };
    one.qp.modify(&to_sqd).expect("a change");
    let limit = simulation.now() + 2 * UNREAD;
    let event = loop {
        match one.engine.async_event() {
            Ok(event) => break event,
            Err(errno) => assert_eq!(errno, Errno::EAGAIN),
        }
        assert!(simulation.now() < limit, "no event");
        simulation.run_for(MOMENT);
    };
    assert_eq!(event.kind, kind::SQ_DRAINED);
    one.poll();
    assert_eq!(one.sent.len(), one.posted, "the event comes last");
    assert!(one.sent.iter().all(|wc| wc.status == status::SUCCESS));
    simulation.run_for(2 * UNREAD);
    two.poll();
    for nth in 0..one.posted {
        assert!(two.memory.bytes(WRITTEN + nth * SLOT, SLOT) == pattern(0, nth, SLOT), "what {nth} has written");
    }
    assert_eq!(one.engine.async_event(), Err(Errno::EAGAIN), "one event");
    assert!(two.is_in_error(), "the end has come");
}

#[test]
fn a_request_that_is_posted_in_error_completes_behind_what_the_socket_has_not_taken() {
    let (mut simulation, [mut one, two]) = ended_and_waiting();
    one.close();
    one.post(two.mr.rkey());
    one.poll();
    assert!(one.sent.len() < one.posted - 1, "the socket is still full");
    completed(&mut simulation, &mut one);
    let (last, others) = one.sent.split_last().expect("completions");
    assert!(last.status == status::WR_FLUSH_ERR && others.iter().all(|wc| wc.status == status::SUCCESS));
}

#[test]
fn requests_that_have_not_begun_are_flushed_behind_those_that_have_ended() {
    let (mut simulation, [mut one, two]) = ended_and_waiting();
    // More than the output has room for.
    for _ in 0..7 {
        one.post(two.mr.rkey());
    }
    simulation.run_for(MOMENT);
    one.close();
    one.post(two.mr.rkey());
    completed(&mut simulation, &mut one);
    let flushed = one.sent.iter().skip_while(|wc| wc.status == status::SUCCESS);
    assert!(flushed.clone().count() > 7 && flushed.clone().all(|wc| wc.status == status::WR_FLUSH_ERR));
}

/// A side that refuses an access and cannot send, because its peer reads nothing. `reads`: READs of
/// the peer that wait for their responses, before the access.
fn refuses_an_unread_peer(reads: usize) {
    let mut simulation = Simulation::new(7);
    let places = engines(&mut simulation);
    let ([mut one, mut two], stream) = pair(&mut simulation, &places, Trouble::Delays);
    let (mut others, _) = pair(&mut simulation, &places, Trouble::Delays);
    [&one, &two].into_iter().chain(&others).for_each(Side::connect);
    simulation.run_for(Duration::from_millis(1));
    simulation.harm(stream, 1, StreamHarm::Unread(0, 10 * LINGER));
    let rkeys = [one.mr.rkey(), two.mr.rkey()];
    two.works = vec![WRITE; WORKS];
    while two.posted < two.sent.len() + 3 {
        two.post(rkeys[0]);
        simulation.run_for(Duration::from_millis(1));
        two.poll();
    }
    one.works = vec![Work { opcode: opcode::RDMA_READ, ..WRITE }; reads];
    one.works.push(Work { is_wrong: true, ..WRITE });
    (0..=reads).for_each(|_| one.post(rkeys[1]));
    simulation.run_for(Duration::from_millis(10));
    two.poll();
    assert!(two.sent.len() < two.posted, "the socket is still full");
    // Another queue pair of the same engines goes on.
    let rkey = others[0].mr.rkey();
    others[1].works = vec![WRITE; 4];
    (0..4).for_each(|_| others[1].post(rkey));
    simulation.run_for(Duration::from_millis(10));
    others[1].poll();
    assert_eq!(others[1].sent.iter().filter(|wc| wc.status == status::SUCCESS).count(), 4);
    simulation.run_for(2 * LINGER);
    two.poll();
    assert!(two.is_in_error() && two.sent.iter().map(|wc| wc.wr_id).eq(0..two.posted as u64), "{:?}", two.sent);
    assert_eq!(two.sent.last().map(|wc| wc.status), Some(status::WR_FLUSH_ERR));
    assert_eq!(two.received.len(), WORKS, "receive requests are flushed");
    simulation.run_for(10 * LINGER);
    one.poll();
    assert!(one.is_in_error(), "the peer sees the end when it reads again");
    assert_eq!(one.sent.len(), one.posted);
}

#[test]
fn a_side_that_refuses_an_access_of_an_unread_peer_ends_in_time() {
    refuses_an_unread_peer(0);
    refuses_an_unread_peer(2);
}

/// Whether a side that has nothing to do sees a reset, or the end of its peer.
fn told_of_the_end(resets: bool) -> String {
    let mut simulation = Simulation::new(7);
    let (mut sides, _) = joined(&mut simulation, Trouble::Delays);
    sides.iter().for_each(Side::connect);
    simulation.run_for(Duration::from_millis(1));
    if resets {
        let rkey = sides[1].mr.rkey();
        sides[0].works = vec![Work { opcode: opcode::RDMA_READ, ..WRITE }];
        sides[0].post(rkey);
    }
    sides[0].close();
    simulation.run_for(Duration::from_millis(1));
    sides[1].poll();
    assert_eq!(sides[1].received.len(), WORKS);
    sides[1].qp.why(0).expect("it is flushed")
}

#[test]
fn a_side_without_work_sees_whether_its_peer_resets() {
    let (reset, end) = (told_of_the_end(true), told_of_the_end(false));
    assert!(reset.contains("the TCP connection was lost"), "{reset}");
    assert!(end.contains("the peer closed the connection"), "{end}");
}
