//! Local requests, which send no packet: they are carried out once and in order, whatever happens
//! to the packets around them.

use crate::reliable::{LONG, is, pattern};
use crate::world::{A, B, Scenario, World};
use softhca_protocol::{Operation, SendOp, Service, Status};
use wire::{Operation as W, Psn};

fn local(operation: Operation) -> SendOp {
    SendOp { operation, ..SendOp::default() }
}

/// V-60: a bind behind a message begins when the message has been sent, and completes after it.
#[test]
fn in_the_order_of_posting() {
    let mut world = World::new(Scenario::default());
    world.hosts[B].receives.extend([LONG, 8]);
    world.hosts[A].send(&pattern(LONG));
    world.hosts[A].post(local(Operation::BindMw), Vec::new());
    world.hosts[A].send(&[1; 8]);
    world.hosts[A].post(local(Operation::LocalInv), Vec::new());
    world.run();
    assert_eq!(world.hosts[A].completions, [0, 1, 2, 3].map(|slot| (slot, Status::Success)));
    assert_eq!(world.hosts[A].carried_out, [(1, Psn::new(104)), (3, Psn::new(105))]);
    assert_eq!(world.operations(A).len(), 5, "nothing was sent for them");
}

#[test]
fn alone_and_many() {
    for service in [Service::Rc, Service::Uc] {
        let mut world = World::new(Scenario { service, ..Scenario::default() });
        for _ in 0..3 {
            world.hosts[A].post(local(Operation::BindMw), Vec::new());
        }
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::Success; 3], "{service}");
        assert_eq!((world.hosts[A].carried_out.len(), world.sent.len()), (3, 0));
    }
}

/// Retransmission skips local requests that were carried out.
#[test]
fn once_though_packets_go_again() {
    for lost in 0..3 {
        let mut world = World::new(Scenario::default());
        world.hosts[B].receives.extend([8, 8, 8]);
        for _ in 0..3 {
            world.hosts[A].send(&[2; 8]);
            world.hosts[A].post(local(Operation::LocalInv), Vec::new());
        }
        world.lose_nth(A, lost, is(W::SendOnly));
        world.run();
        assert_eq!(world.hosts[A].completions, [0, 1, 2, 3, 4, 5].map(|slot| (slot, Status::Success)));
        assert_eq!(world.hosts[A].carried_out.iter().map(|done| done.0).collect::<Vec<_>>(), [1, 3, 5]);
        assert!(world.count(A, W::SendOnly) > 3);
    }
}

/// V-65: with a fence, a local request waits for the answers of READs and atomics; without a fence,
/// it does not.
#[test]
fn a_fence_holds_it_back() {
    for fence in [false, true] {
        let mut world = World::new(Scenario::default());
        world.hosts[A].read(0, LONG);
        world.hosts[A].post(SendOp { fence, ..local(Operation::LocalInv) }, Vec::new());
        assert!(world.step());
        assert_eq!(world.hosts[A].carried_out.len(), usize::from(!fence), "fence {fence}");
        world.run();
        assert_eq!(world.hosts[A].completions, [0, 1].map(|slot| (slot, Status::Success)));
    }
}

/// V-33, V-81: requests before a refused bind end normally, requests behind it are flushed.
#[test]
fn a_refused_one_stops_the_queue() {
    let mut world = World::new(Scenario::default());
    world.hosts[B].receives.extend([8, 8]);
    world.hosts[A].send(&[3; 8]);
    let bind = world.hosts[A].post(local(Operation::BindMw), Vec::new());
    world.hosts[A].send(&[4; 8]);
    world.hosts[A].post(local(Operation::LocalInv), Vec::new());
    world.hosts[A].unbindable = Some(bind);
    world.run();
    let flushed = Status::WrFlushErr;
    assert_eq!(world.hosts[A].statuses(), [Status::Success, Status::MwBindErr, flushed, flushed]);
    assert_eq!(world.hosts[A].requester.fatal(), Some(Status::MwBindErr));
    assert_eq!((world.hosts[B].received.len(), world.hosts[A].carried_out.len()), (1, 1));
}

#[test]
fn not_while_the_queue_drains() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].requester.drain();
    world.hosts[A].post(local(Operation::BindMw), Vec::new());
    world.run();
    assert!(world.hosts[A].carried_out.is_empty() && world.hosts[A].requester.drained());
    world.hosts[A].requester.resume();
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

#[test]
fn not_on_datagrams() {
    for operation in [Operation::BindMw, Operation::LocalInv] {
        let mut world = World::new(Scenario { service: Service::Ud, ..Scenario::default() });
        world.hosts[A].post(local(operation), Vec::new());
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::LocQpOpErr], "{operation}");
        assert!(world.hosts[A].carried_out.is_empty());
    }
}

/// Retransmission does not stop at a local request until its predecessor is answered.
#[test]
fn packets_behind_one_that_was_carried_out_are_retransmitted_at_once() {
    let mut world = World::new(Scenario::default());
    world.lose = Box::new(|_, _| true);
    world.hosts[A].send(&[2; 8]);
    world.hosts[A].post(local(Operation::LocalInv), Vec::new());
    world.hosts[A].send(&[2; 8]);
    assert!(world.step(), "the timer");
    assert!(world.step(), "the timer again");
    assert_eq!(world.sent.iter().map(|sent| sent.1.psn.value()).collect::<Vec<_>>(), [100, 101, 100, 101]);
    assert_eq!(world.hosts[A].carried_out.len(), 1);
}
