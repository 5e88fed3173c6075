//! Completion events: what arms a CQ, what triggers it, and how channels deliver the event.

use std::sync::Arc;

use crate::common::wait::{PATIENCE, nonblocking, readable};
use crate::common::{Fabric, Plan, Side};
use abi::errno::Errno;
use abi::post::send_flags;
use abi::qp::state;
use engine::{Channel, Cq, CqSpec, Engine, SendWr};
use fabric::simulation::Simulation;

/// A CQ that sends its events to `channel`.
fn notifying(engine: &Arc<Engine>, channel: &Arc<Channel>, cookie: u64) -> Arc<Cq> {
    engine.create_cq(&CqSpec { cqe: 64, channel: Some(channel), comp_vector: 0, cookie }).expect("a CQ")
}

/// A pair whose second side has its send CQ (cookie 10) and receive CQ (cookie 11) on one channel.
fn pair(fabric: &Fabric) -> (Side, Side, Arc<Channel>) {
    let plan = Plan::rc();
    let (ours, theirs) = (Side::new(&fabric.engine(), &plan), fabric.engine());
    let channel = theirs.create_channel().expect("a channel");
    let cqs = (notifying(&theirs, &channel, 10), notifying(&theirs, &channel, 11));
    let pd = theirs.alloc_pd().expect("a PD");
    let side = Side::on_cqs(&theirs, &pd, &plan, (&cqs.0, &cqs.1), None);
    crate::common::connect(&ours, &side);
    nonblocking(channel.fd());
    (ours, side, channel)
}

fn send(from: &Side, to: &Side, flags: u32) {
    to.recv(1, 0, 0);
    from.post(&SendWr { send_flags: flags, ..SendWr::default() });
    assert_eq!(from.sent().status, 0);
    settled(to);
}

/// Waits until a message's completion is visible. This happens after the acknowledgement, under a
/// lock that the query of the state also takes.
fn settled(receiver: &Side) {
    let _ = receiver.qp.state();
}

/// The next event of the channel, without waiting.
fn taken(channel: &Channel) -> Result<u64, Errno> {
    channel.next_event()
}

const NONE: Result<u64, Errno> = Err(Errno::EAGAIN);

#[test]
fn one_event_for_one_arming() {
    let fabric = Fabric::start();
    let (a, b, channel) = pair(&fabric);
    send(&a, &b, 0);
    assert_eq!((b.received().status, taken(&channel)), (0, NONE), "not armed");

    // A completion from before the arming counts while it is not polled (V-44).
    send(&a, &b, 0);
    b.rcq.req_notify(false).expect("armed");
    assert_eq!((taken(&channel), b.received().status, taken(&channel)), (Ok(11), 0, NONE));
    b.rcq.req_notify(false).expect("armed");
    assert_eq!(taken(&channel), NONE, "it was polled");

    // The next completion triggers the event, once.
    send(&a, &b, 0);
    assert_eq!((b.received().status, taken(&channel)), (0, Ok(11)));
    send(&a, &b, send_flags::SOLICITED);
    assert_eq!((b.received().status, taken(&channel)), (0, NONE), "one-shot");

    // Arming twice is the same as arming once.
    (0..2).for_each(|_| b.rcq.req_notify(false).expect("armed"));
    (0..2).for_each(|_| send(&a, &b, 0));
    (0..2).for_each(|_| assert_eq!(b.received().status, 0));
    assert_eq!((taken(&channel), taken(&channel)), (Ok(11), NONE));

    // A program that arms between the event and the poll gets no second event.
    for _ in 0..3 {
        b.rcq.req_notify(false).expect("armed");
        assert_eq!(taken(&channel), NONE);
        send(&a, &b, 0);
        assert_eq!(taken(&channel), Ok(11));
        b.rcq.req_notify(false).expect("armed");
        assert_eq!((taken(&channel), b.received().status), (NONE, 0));
    }
}

#[test]
fn solicited_only() {
    let fabric = Fabric::start();
    let (a, b, channel) = pair(&fabric);
    b.rcq.req_notify(true).expect("armed");
    send(&a, &b, 0);
    assert_eq!((b.received().status, taken(&channel)), (0, NONE));
    send(&a, &b, send_flags::SOLICITED);
    assert_eq!((b.received().status, taken(&channel)), (0, Ok(11)));

    // Solicited completions from before the arming count, and others do not.
    send(&a, &b, 0);
    b.rcq.req_notify(true).expect("armed");
    assert_eq!(taken(&channel), NONE);
    send(&a, &b, send_flags::SOLICITED);
    assert_eq!(taken(&channel), Ok(11));
    b.rcq.req_notify(true).expect("armed");
    assert_eq!(taken(&channel), NONE, "both have had one");
    (0..2).for_each(|_| assert_eq!(b.received().status, 0));

    // Each event that comes at once counts for one more of those that wait.
    (0..3).for_each(|_| send(&a, &b, 0));
    for told in [Ok(11), Ok(11), Ok(11), NONE] {
        b.rcq.req_notify(false).expect("armed");
        assert_eq!(taken(&channel), told);
    }
    (0..3).for_each(|_| assert_eq!(b.received().status, 0));

    // Arming for solicited completions does not cancel arming for all completions, in either order.
    for order in [[false, true], [true, false]] {
        order.iter().for_each(|&solicited| b.rcq.req_notify(solicited).expect("armed"));
        send(&a, &b, 0);
        assert_eq!((b.received().status, taken(&channel)), (0, Ok(11)), "{order:?}");
    }

    // A WRITE with immediate data is solicited like a SEND. A WRITE without immediate data has no
    // completion at the target.
    b.rcq.req_notify(true).expect("armed");
    a.post(&SendWr { opcode: abi::post::opcode::RDMA_WRITE, send_flags: send_flags::SOLICITED, ..SendWr::default() });
    assert_eq!((a.sent().status, taken(&channel)), (0, NONE));
    b.recv(1, 0, 0);
    let code = abi::post::opcode::RDMA_WRITE_WITH_IMM;
    a.post(&SendWr { opcode: code, send_flags: send_flags::SOLICITED, ..SendWr::default() });
    assert_eq!((b.received().status, a.sent().status, taken(&channel)), (0, 0, Ok(11)));

    // Errors are always solicited.
    b.rcq.req_notify(true).expect("armed");
    b.scq.req_notify(true).expect("armed");
    b.recv(1, 0, 0);
    b.to(state::ERR);
    assert_eq!((taken(&channel), taken(&channel)), (Ok(11), NONE), "only receives were flushed");
}

#[test]
fn sends_set_off_their_own_queue() {
    let fabric = Fabric::start();
    let (a, b, channel) = pair(&fabric);
    b.scq.req_notify(false).expect("armed");
    a.recv(1, 0, 0);
    b.post(&SendWr::default());
    assert!(readable(channel.fd(), PATIENCE), "nobody polls, and the event comes all the same");
    assert_eq!(taken(&channel), Ok(10));
    assert_eq!((b.sent().status, a.received().status), (0, 0));
    // The completion of a send is not solicited.
    b.scq.req_notify(true).expect("armed");
    a.recv(1, 0, 0);
    b.post(&SendWr { send_flags: send_flags::SOLICITED, ..SendWr::default() });
    assert_eq!((b.sent().status, taken(&channel)), (0, NONE));
}

#[test]
fn a_waiting_thread_is_woken_each_time() {
    let fabric = Fabric::start();
    let plan = Plan::rc();
    let (a, theirs) = (Side::new(&fabric.engine(), &plan), fabric.engine());
    let channel = theirs.create_channel().expect("a channel");
    let cq = notifying(&theirs, &channel, 5);
    let pd = theirs.alloc_pd().expect("a PD");
    let b = Side::on_cqs(&theirs, &pd, &plan, (&cq, &cq), None);
    crate::common::connect(&a, &b);
    const ROUNDS: u64 = 300;
    (0..16).for_each(|wr_id| b.recv(wr_id, 0, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The usual loop: arm, poll until empty, sleep.
            let mut seen = 0;
            while seen < ROUNDS {
                cq.req_notify(false).expect("armed");
                let mut wc = [abi::cq::Wc::default()];
                while cq.poll(&mut wc).expect("it polls") == 1 {
                    assert_eq!(wc[0].status, 0);
                    b.recv(seen, 0, 0);
                    seen += 1;
                }
                if seen < ROUNDS {
                    assert!(readable(channel.fd(), PATIENCE), "{seen} seen");
                    assert_eq!(channel.next_event(), Ok(5));
                }
            }
        });
        for _ in 0..ROUNDS {
            a.post(&SendWr::default());
            assert_eq!(a.sent().status, 0);
        }
    });
}

#[test]
fn several_queues_on_one_channel() {
    let fabric = Fabric::start();
    let (a, b, channel) = pair(&fabric);
    let mut expected = Vec::new();
    for round in 0..6 {
        b.rcq.req_notify(false).expect("armed");
        b.scq.req_notify(false).expect("armed");
        if round % 2 == 0 {
            send(&a, &b, 0);
            assert_eq!(b.received().status, 0);
            expected.push(11);
        }
        a.recv(1, 0, 0);
        b.post(&SendWr::default());
        assert_eq!(b.sent().status, 0);
        expected.push(10);
    }
    // The events come in their order, each as often as it happened.
    for cookie in expected {
        assert!(readable(channel.fd(), PATIENCE));
        assert_eq!(taken(&channel), Ok(cookie));
    }
    assert_eq!(taken(&channel), NONE);
    assert!(!readable(channel.fd(), std::time::Duration::ZERO), "nothing waits");
}

#[test]
fn the_unread_events_of_a_destroyed_queue_go_with_it() {
    let fabric = Fabric::start();
    let (a, b, channel) = pair(&fabric);
    assert_eq!(channel.destroy().expect_err("in use").errno, Errno::EBUSY);
    for _ in 0..3 {
        b.rcq.req_notify(false).expect("armed");
        send(&a, &b, 0);
    }
    b.scq.req_notify(false).expect("armed");
    a.recv(1, 0, 0);
    b.post(&SendWr::default());
    assert_eq!(b.sent().status, 0);
    assert_eq!(taken(&channel), Ok(11));
    assert_eq!(b.rcq.destroy().expect_err("in use").errno, Errno::EBUSY);
    b.qp.destroy().expect("the QP ends");
    // The program has read one event, and the destroying call waits for that many acknowledgements
    // (V-90).
    assert_eq!(b.rcq.destroy().expect("destroyed").completion, 1);
    assert_eq!(taken(&channel), Ok(10), "the other's event is still there");
    assert_eq!(taken(&channel), NONE);
    assert!(!readable(channel.fd(), std::time::Duration::ZERO), "nothing waits");
    assert_eq!(b.scq.destroy().expect("destroyed").completion, 1);
    channel.destroy().expect("nobody uses it any more");
}

/// A peer acknowledges a message before it replies to it. Programs rely on this: they wait for one
/// event, then for the other, although the events come from two queues. A program that looks late
/// finds both at once.
#[test]
fn the_event_of_a_send_comes_before_that_of_its_answer() {
    let mut simulation = Simulation::new(1);
    let host = simulation.host("10.0.0.1").expect("a host");
    let (here, there) = (simulation.connect(host).expect("a context"), simulation.connect(host).expect("a context"));
    let channel = here.create_channel().expect("a channel");
    nonblocking(channel.fd());
    let cqs = (notifying(&here, &channel, 10), notifying(&here, &channel, 11));
    let pd = here.alloc_pd().expect("a PD");
    let asker = Side::on_cqs(&here, &pd, &Plan::rc(), (&cqs.0, &cqs.1), None);
    let answerer = Side::new(&there, &Plan::rc());
    crate::common::connect(&asker, &answerer);
    let polled = |cq: &Cq| cq.poll(&mut [abi::cq::Wc::default()]) == Ok(1);
    for round in 0..4 {
        // From the second round on the route is known, and only the calls in this loop move data.
        let mut until = |mut done: Box<dyn FnMut() -> bool + '_>| {
            let known = round > 0;
            assert!(done() || !known && simulation.run_until(PATIENCE, done), "round {round}");
        };
        for cq in [&cqs.0, &cqs.1] {
            cq.req_notify(false).expect("armed");
        }
        for side in [&asker, &answerer] {
            side.recv(1, 0, 8);
        }
        asker.post(&SendWr { send_flags: send_flags::SIGNALED, ..SendWr::default() });
        until(Box::new(|| polled(&answerer.rcq)));
        answerer.post(&SendWr { send_flags: send_flags::SIGNALED, ..SendWr::default() });
        until(Box::new(|| polled(&cqs.1)));
        assert_eq!([taken(&channel), taken(&channel), taken(&channel)], [Ok(10), Ok(11), NONE], "round {round}");
        assert!(polled(&cqs.0));
        until(Box::new(|| polled(&answerer.scq)));
    }
}
