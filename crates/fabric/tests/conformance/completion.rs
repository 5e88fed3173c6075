//! Section 3.4: completion queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::cq::{Wc, status};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::send_flags;
use abi::qp::state;

use crate::common::wait::{PATIENCE, event, nonblocking, readable, until};
use crate::common::{Fabric, Plan, Side, connect, everywhere};
use engine::{Channel, CqSpec, SendWr};

/// A pair whose second side has both queues on one CQ with a completion channel.
fn watched(fabric: &Fabric) -> (Side, Side, Arc<Channel>) {
    let (plan, theirs) = (Plan::rc(), fabric.engine());
    let a = Side::new(&theirs, &plan);
    let ours = fabric.engine();
    let channel = ours.create_channel().expect("a channel");
    nonblocking(channel.fd());
    let cq = ours.create_cq(&CqSpec { cqe: 64, channel: Some(&channel), comp_vector: 0, cookie: 5 }).expect("a CQ");
    let b = Side::on_cqs(&ours, &ours.alloc_pd().expect("a PD"), &plan, (&cq, &cq), None);
    connect(&a, &b);
    (a, b, channel)
}

/// Sends one message. Its completion is in the CQ when this function returns.
fn deliver(from: &Side, to: &Side, send_flags: u32) {
    to.recv(1, 0, 0);
    from.post(&SendWr { send_flags, ..SendWr::default() });
    assert_eq!(from.sent().status, 0);
    let _ = to.qp.state();
}

fn told(channel: &Channel) -> bool {
    match channel.next_event() {
        Ok(cookie) => cookie == 5,
        Err(errno) => {
            assert_eq!(errno, Errno::EAGAIN);
            false
        }
    }
}

fn v_40_completions_leave_in_order_and_once(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    (0..20).for_each(|wr_id| b.recv(wr_id, 0, 0));
    a.post_all(&[SendWr::default(); 20]);
    (0..20).for_each(|_| assert_eq!(a.sent().status, 0));
    (0..20).for_each(|wr_id| assert_eq!(b.received().wr_id, wr_id));
    assert_eq!((b.rcq.poll(&mut [Wc::default(); 4]), b.rcq.poll(&mut [])), (Ok(0), Ok(0)));
    for cqe in [1, 5, 100] {
        assert!(crate::common::cq(&a.engine, cqe).entries() >= cqe, "the real size is told");
    }
}

fn v_41_an_overrun_ends_the_queue_and_its_queue_pairs(fabric: &Fabric) {
    let (engine, plan) = (fabric.engine(), Plan::rc());
    let small = engine.create_cq(&CqSpec { cqe: 2, channel: None, comp_vector: 0, cookie: 40 }).expect("a CQ");
    let roomy = crate::common::cq(&engine, 64);
    let a = Side::on_cqs(&engine, &engine.alloc_pd().expect("a PD"), &plan, (&small, &roomy), None);
    let b = Side::new(&fabric.engine(), &plan);
    connect(&a, &b);
    for wr_id in 0..=u64::from(small.entries()) {
        b.recv(0, 0, 0);
        a.post(&SendWr { wr_id, ..SendWr::default() });
        assert_eq!(b.received().status, 0);
    }
    let mut events = [event(&engine), event(&engine)].map(|told| (told.kind, told.element));
    events.sort_unstable();
    assert_eq!(events, [(kind::CQ_ERR, 40), (kind::QP_FATAL, 2)]);
    until("the error state", || (a.qp.state() == u32::from(state::ERR)).then_some(()));
    // The program polls all completions for which the CQ had room, and then the one for which it
    // had no room.
    for wr_id in 0..small.entries() {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (wr_id.into(), 0));
    }
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (small.entries().into(), status::GENERAL_ERR, a.qp.qpn()));
    assert_eq!(small.poll(&mut [Wc::default(); 4]), Ok(0), "and nothing else");
}

/// The error completion wakes a program that waits for an event.
fn status_21_general_err_wakes_who_waits(fabric: &Fabric) {
    let (engine, plan) = (fabric.engine(), Plan::rc());
    let channel = engine.create_channel().expect("a channel");
    nonblocking(channel.fd());
    let spec = CqSpec { cqe: 2, channel: Some(&channel), comp_vector: 0, cookie: 40 };
    let small = engine.create_cq(&spec).expect("a CQ");
    let roomy = crate::common::cq(&engine, 64);
    let a = Side::on_cqs(&engine, &engine.alloc_pd().expect("a PD"), &plan, (&small, &roomy), None);
    let b = Side::new(&fabric.engine(), &plan);
    connect(&a, &b);
    for round in 0..=small.entries() {
        if round == small.entries() {
            small.req_notify(true).expect("armed for what is solicited, or an error");
        }
        b.recv(0, 0, 0);
        a.post(&SendWr { wr_id: round.into(), ..SendWr::default() });
        assert_eq!(b.received().status, 0);
    }
    assert!(readable(channel.fd(), PATIENCE), "an event");
    assert_eq!(channel.next_event(), Ok(40));
    small.req_notify(false).expect("armed");
    assert_eq!(channel.next_event(), Err(Errno::EAGAIN), "one event for each completion");
    let mut wcs = [Wc::default(); 8];
    let count = small.poll(&mut wcs).expect("polled");
    assert_eq!(count as u32, small.entries() + 1);
    assert_eq!(wcs[count - 1].status, status::GENERAL_ERR);
}

fn v_42_resizing_keeps_what_waits(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { cqe: 16, ..Plan::rc() });
    (0..10).for_each(|wr_id| b.recv(wr_id, 0, 0));
    a.post_all(&[SendWr::default(); 10]);
    (0..10).for_each(|_| assert_eq!(a.sent().status, 0));
    let _ = b.qp.state();
    assert_eq!(b.rcq.resize(8).expect_err("ten wait").errno, Errno::EINVAL);
    for cqe in [500, 10] {
        assert!(b.rcq.resize(cqe).expect("it fits") >= cqe);
    }
    (0..10).for_each(|wr_id| assert_eq!(b.received().wr_id, wr_id));
}

/// The longest time for which moderation holds back an event.
const PERIOD: Duration = Duration::from_micros(u16::MAX as u64);

/// Arms the CQ and delivers this many messages in less than a period. Returns false, which proves
/// nothing, if that took longer.
fn in_time(a: &Side, b: &Side, channel: &Channel, messages: u16) -> bool {
    let begun = Instant::now();
    b.rcq.req_notify(false).expect("armed");
    (0..messages).for_each(|_| deliver(a, b, 0));
    let early = told(channel);
    let was_in_time = begun.elapsed() < PERIOD;
    assert!(!early || !was_in_time, "{messages} are not enough");
    if early { false } else { was_in_time }
}

fn v_43_an_event_waits_for_completions_or_for_a_time(fabric: &Fabric) {
    let (a, b, channel) = watched(fabric);
    let poll = || while b.rcq.poll(&mut [Wc::default(); 8]).expect("a poll") > 0 {};
    let event = || until("the event", || told(&channel).then_some(()));
    b.rcq.moderate(4, u16::MAX).expect("moderated");
    for _ in 0..3 {
        // The fourth completion triggers the event.
        until("a round without a break", || {
            let in_time = in_time(&a, &b, &channel, 3);
            deliver(&a, &b, 0);
            if in_time {
                event();
            }
            poll();
            in_time.then_some(())
        });
    }
    // A single completion triggers the event when its period is over.
    b.rcq.moderate(u16::MAX, u16::MAX).expect("moderated");
    in_time(&a, &b, &channel, 1);
    let _ = b.rcq.req_notify(false);
    event();
    poll();
    // Switching moderation off triggers the event that was held back. After that, each event comes
    // at once.
    for (count, period) in [(0, 0), (0, 5), (5, 0), (1, u16::MAX)] {
        b.rcq.moderate(u16::MAX, u16::MAX).expect("moderated");
        if in_time(&a, &b, &channel, 1) {
            b.rcq.moderate(count, period).expect("moderated");
            event();
        }
        b.rcq.moderate(count, period).expect("moderated");
        b.rcq.req_notify(false).expect("armed");
        deliver(&a, &b, 0);
        assert!(told(&channel), "{count} completions, {period} microseconds");
        poll();
    }
    // Without arming there is no event.
    deliver(&a, &b, 0);
    assert!(!told(&channel));
    let caps = b.engine.query_device_ex().expect("an answer");
    assert_eq!((caps.max_cq_moderation_count, caps.max_cq_moderation_period), (u16::MAX, u16::MAX));
}

fn v_44_arming_is_for_one_event(fabric: &Fabric) {
    let (a, b, channel) = watched(fabric);
    deliver(&a, &b, 0);
    b.rcq.req_notify(false).expect("armed");
    assert!(told(&channel), "it waits to be polled");
    assert_eq!(b.received().status, 0);
    b.rcq.req_notify(false).expect("armed");
    assert!(!told(&channel), "it was polled");
    deliver(&a, &b, 0);
    assert!(told(&channel));
    deliver(&a, &b, 0);
    assert!(!told(&channel), "one-shot");
    (0..2).for_each(|_| assert_eq!(b.received().status, 0));
    // Arming for solicited completions does not cancel arming for all completions.
    b.rcq.req_notify(false).expect("armed");
    b.rcq.req_notify(true).expect("armed");
    deliver(&a, &b, 0);
    assert!(told(&channel));
    // An error counts as solicited.
    b.rcq.req_notify(true).expect("armed");
    deliver(&a, &b, 0);
    assert!(!told(&channel));
    b.recv(9, 0, 0);
    b.to(state::ERR);
    assert!(told(&channel));
    let statuses: Vec<_> = (0..3).map(|_| b.received().status).collect();
    assert_eq!(statuses, [0, 0, status::WR_FLUSH_ERR]);
}

fn v_46_the_sender_solicits_with_sends_and_immediate_data(fabric: &Fabric) {
    use abi::post::opcode::{RDMA_WRITE, RDMA_WRITE_WITH_IMM, SEND, SEND_WITH_IMM};
    let (a, b, channel) = watched(fabric);
    for (opcode, solicits) in [(SEND, true), (SEND_WITH_IMM, true), (RDMA_WRITE_WITH_IMM, true), (RDMA_WRITE, false)] {
        for send_flags in [0, send_flags::SOLICITED] {
            b.rcq.req_notify(true).expect("armed");
            b.recv(1, 0, 0);
            a.post(&SendWr { opcode, send_flags, ..SendWr::default() });
            assert_eq!(a.sent().status, 0);
            let _ = b.qp.state();
            assert_eq!(told(&channel), solicits && send_flags != 0, "opcode {opcode}");
            if opcode == RDMA_WRITE {
                continue;
            }
            assert_eq!(b.received().status, 0);
        }
    }
}

everywhere! {
    v_40_completions_leave_in_order_and_once
    v_41_an_overrun_ends_the_queue_and_its_queue_pairs
    status_21_general_err_wakes_who_waits
    v_42_resizing_keeps_what_waits
    v_43_an_event_waits_for_completions_or_for_a_time
    v_44_arming_is_for_one_event
    v_46_the_sender_solicits_with_sends_and_immediate_data
}
