//! Path migration, as far as the transport handles it: the migration bit of packets, and what
//! happens when a path fails.

use crate::corners::{answer, request, responder, take};
use crate::packet::{Answers, OneByOne};
use crate::world::{A, Scenario, World};
use softhca_protocol::{Requester, Status, Time};
use wire::{Operation as W, Psn, Syndrome};

/// Sends everything, and lets the timer expire until the queue stops or the path has failed.
/// Returns the number of expiries.
fn wait_in_vain(requester: &mut Requester) -> u32 {
    let mut tries = 0;
    loop {
        let mut now = Time(0);
        while requester.poll_transmit(now).is_some() {}
        let Some(expiry) = requester.poll_timeout() else { return tries };
        now = expiry;
        requester.handle_timeout(now);
        tries += 1;
        if requester.has_failed_over() {
            return tries;
        }
    }
}

#[test]
fn a_path_in_reserve_is_tried_before_giving_up_with_all_tries_anew() {
    let mut world = World::new(Scenario { retry_cnt: 2, ..Scenario::default() });
    world.hosts[A].write(0, &[1; 3000]);
    let requester = &mut world.hosts[A].requester;
    requester.set_migration(false, true);
    assert_eq!(wait_in_vain(requester), 3);
    assert!(!requester.has_failed_over(), "it is said once");
    assert_eq!(requester.poll_completion(), None);
    let first = requester.poll_run(Time(0)).expect("from the beginning, by the other path");
    assert_eq!((first.first, first.offset), (Psn::new(100), 0));
    assert_eq!(wait_in_vain(requester), 3);
    let end = requester.poll_completion().expect("no path is left");
    assert_eq!(end.status, Status::RetryExcErr);
}

#[test]
fn an_answer_by_the_other_path_ends_the_request() {
    let mut world = World::new(Scenario { retry_cnt: 0, ..Scenario::default() });
    world.hosts[A].send(b"twice");
    let requester = &mut world.hosts[A].requester;
    requester.set_migration(false, true);
    assert_eq!(wait_in_vain(requester), 1);
    assert!(requester.poll_transmit(Time(0)).is_some());
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::ACK), 0);
    assert_eq!(requester.poll_completion().map(|end| end.status), Some(Status::Success));
}

#[test]
fn requests_and_answers_say_whether_the_path_is_armed() {
    let mut world = World::new(Scenario::default());
    for migrated in [true, false] {
        let requester = &mut world.hosts[A].requester;
        requester.set_migration(migrated, false);
        world.hosts[A].write(0, &[1; 100]);
        let sent = world.hosts[A].requester.poll_transmit(Time(0)).expect("a packet");
        assert_eq!(sent.headers.migrated, migrated);

        let mut responder = responder(4);
        responder.set_migrated(migrated);
        let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 8), 0);
        let _ = take(&mut responder, &request(W::WriteOnly, 1, 0, 0), 0);
        for operation in [W::ReadResponseOnly, W::Acknowledge] {
            let headers = responder.poll_transmit().expect("an answer").headers;
            assert_eq!((headers.opcode.operation, headers.migrated), (operation, migrated));
        }
    }
}
