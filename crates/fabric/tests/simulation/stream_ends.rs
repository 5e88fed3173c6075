//! How connections of iWARP end in simulated time, mostly while the peer does not read: what the
//! program is told, and in which order.

use std::time::Duration;

use crate::common::wait::nonblocking;
use crate::streams::{SLOT, Side, Trouble, WORKS, WRITTEN, Work, joined, pattern};
use abi::cq::status;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::opcode;
use abi::qp::{ModifyQp, attr, state};
use fabric::simulation::{Simulation, StreamHarm};

/// How long the peer does not read.
const UNREAD: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_micros(50);

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
