//! READs that are requested in pieces: where the pieces end, how many are outstanding, and that
//! this stays true after losses.

use crate::corners::answer;
use crate::packet::OneByOne;
use crate::reliable::{LONG, is, pattern, psns};
use crate::world::{A, B, BASE, Scenario, World};
use softhca_protocol::{Incoming, Requester, SendOp, Status, Time};
use wire::{Operation as W, Psn, Syndrome};

/// Packets of 1024 bytes; a READ in pieces of two.
fn world(rd_atomic: u8) -> World {
    World::new(Scenario { rd_atomic, read_piece: 2, ..Scenario::default() })
}

fn requests(world: &World) -> Vec<(u32, u64, u32)> {
    let asked = world.sent.iter().filter(|sent| sent.1.opcode.operation == W::ReadRequest);
    asked.map(|(_, it)| (it.psn.value() - 100, it.reth.va - BASE, it.reth.len)).collect()
}

/// Delivers one answer to a READ, and reports that its data was placed.
fn bring(requester: &mut Requester, operation: W, psn: u32, len: u32) {
    let response = answer(operation, psn, Syndrome::ACK);
    let Incoming::Place { .. } = requester.handle_response(Time(1), &response, len) else { panic!("data") };
    requester.placed(Time(1), Ok(()));
}

fn next_psn(requester: &mut Requester) -> Option<u32> {
    requester.poll_transmit(Time(1)).map(|packet| packet.headers.psn.value())
}

#[test]
fn each_piece_is_a_request_with_an_answer_of_its_own() {
    let mut world = world(4);
    world.hosts[B].memory[..5000].copy_from_slice(&pattern(5000));
    world.hosts[A].read(0, 5000);
    world.run();
    assert_eq!(requests(&world), [(0, 0, 2048), (2, 2048, 2048), (4, 4096, 904)]);
    let (first, last, only) = (W::ReadResponseFirst, W::ReadResponseLast, W::ReadResponseOnly);
    assert_eq!(world.operations(B), [first, last, first, last, only]);
    assert_eq!(psns(&world, B), [100, 101, 102, 103, 104]);
    assert_eq!(world.hosts[A].local[0], pattern(5000));
    assert_eq!(world.hosts[A].completions, [(0, Status::Success)]);
    assert_eq!(world.hosts[B].responder.msn(), 3, "to the responder each is a message");
}

#[test]
fn a_piece_counts_as_a_read() {
    let mut world = world(2);
    world.hosts[A].read(0, 5000);
    world.hosts[A].fetch_add(0, 1);
    let requester = &mut world.hosts[A].requester;
    assert_eq!([next_psn(requester), next_psn(requester), next_psn(requester)], [Some(100), Some(102), None]);
    bring(requester, W::ReadResponseFirst, 100, 1024);
    assert_eq!(next_psn(requester), None, "half a piece");
    bring(requester, W::ReadResponseLast, 101, 1024);
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(104), None]);
    bring(requester, W::ReadResponseFirst, 102, 1024);
    bring(requester, W::ReadResponseLast, 103, 1024);
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(105), None]);
    assert_eq!(requester.poll_completion(), None);
    bring(requester, W::ReadResponseOnly, 104, 904);
    assert!(requester.poll_completion().is_some());
}

#[test]
fn a_lost_read_response_is_requested_up_to_the_end_of_its_piece() {
    let mut world = World::new(Scenario { read_piece: 4, ..Scenario::default() });
    world.hosts[B].memory[..LONG * 2].copy_from_slice(&pattern(LONG * 2));
    world.lose_nth(B, 1, is(W::ReadResponseMiddle));
    world.hosts[A].read(0, LONG * 2);
    world.run();
    // The third of eight packets was lost.
    assert_eq!(requests(&world), [(0, 0, 4096), (4, 4096, 3904), (2, 2048, 2048), (4, 4096, 3904)]);
    assert_eq!(world.hosts[A].local[0], pattern(LONG * 2));
    assert_eq!(world.now, Time(4000), "the packets behind the missing one told, no timer was needed");
}

#[test]
fn an_answer_that_comes_after_going_back_frees_no_place_that_was_not_taken() {
    let mut world = world(1);
    world.hosts[A].read(0, 8000);
    let requester = &mut world.hosts[A].requester;
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(100), None]);
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    // The answer was only late, and arrives before anything is retransmitted.
    bring(requester, W::ReadResponseFirst, 100, 1024);
    bring(requester, W::ReadResponseLast, 101, 1024);
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(102), None]);
    // Half of the answer arrives before the rest is requested again, half after.
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    bring(requester, W::ReadResponseFirst, 102, 1024);
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(103), None]);
    bring(requester, W::ReadResponseLast, 103, 1024);
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(104), None]);
    // The whole answer arrives afterwards. The repeated request is no longer awaited.
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(104), None]);
    bring(requester, W::ReadResponseFirst, 104, 1024);
    bring(requester, W::ReadResponseLast, 105, 1024);
    assert_eq!([next_psn(requester), next_psn(requester)], [Some(106), None]);
    assert_eq!(requester.losses(), 3);
}

#[test]
fn a_fence_waits_for_all_pieces() {
    let mut world = world(4);
    world.hosts[A].read(0, 4096);
    world.hosts[A].post(SendOp { fence: true, ..SendOp::default() }, b"fenced".to_vec());
    let requester = &mut world.hosts[A].requester;
    assert_eq!([next_psn(requester), next_psn(requester), next_psn(requester)], [Some(100), Some(102), None]);
    for (operation, psn) in [(W::ReadResponseFirst, 100), (W::ReadResponseLast, 101), (W::ReadResponseFirst, 102)] {
        bring(requester, operation, psn, 1024);
        assert_eq!(next_psn(requester), None);
    }
    bring(requester, W::ReadResponseLast, 103, 1024);
    assert_eq!(next_psn(requester), Some(104));
}

#[test]
fn a_piece_that_is_not_sent_was_not_asked_for() {
    let mut world = world(1);
    world.hosts[A].read(0, 8000);
    let requester = &mut world.hosts[A].requester;
    for _ in 0..3 {
        assert_eq!(requester.poll_run(Time(1)).map(|run| run.first), Some(Psn::new(100)));
        assert_eq!((requester.under_way(), requester.sq_psn()), (0, Psn::new(100)));
    }
    assert_eq!((next_psn(requester), requester.under_way()), (Some(100), 2));
}

#[test]
fn a_read_that_has_begun_ends_whatever_the_limit_becomes() {
    let mut world = world(4);
    world.hosts[A].read(0, 100_000);
    assert_eq!(next_psn(&mut world.hosts[A].requester), Some(100));
    world.hosts[A].requester.set_max_rd_atomic(0);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

#[test]
fn an_answer_that_does_not_end_with_its_piece_is_none() {
    for (operation, psn) in [(W::ReadResponseOnly, 100), (W::ReadResponseMiddle, 101)] {
        let mut world = world(4);
        world.hosts[A].read(0, 4096);
        let requester = &mut world.hosts[A].requester;
        let _ = (next_psn(requester), next_psn(requester));
        if psn == 101 {
            bring(requester, W::ReadResponseFirst, 100, 1024);
        }
        let _ = requester.handle_response(Time(1), &answer(operation, psn, Syndrome::ACK), 1024);
        assert_eq!(requester.fatal(), Some(Status::BadRespErr));
    }
}

/// Whatever the network does, a responder that remembers the agreed number of requests never gets
/// one too many. The mixed runs check this too. Here there are only long READs, and few slots.
#[test]
fn no_responder_is_ever_asked_for_more_than_was_agreed() {
    for seed in 0..240 {
        let pick = |choices: [u32; 4], by: u64| choices[(seed / by % 4) as usize];
        let mut world = World::new(Scenario {
            seed,
            mtu: 256,
            psn: 0xff_ffc0,
            loss: pick([0, 2, 8, 20], 1),
            duplication: pick([0, 10, 0, 30], 4),
            reordering: pick([0, 0, 5, 20], 2),
            path_full: pick([0, 50, 0, 20], 8),
            rd_atomic: pick([1, 2, 3, 16], 3) as u8,
            read_piece: pick([1, 2, 5, 16], 5),
            window: pick([u32::MAX, 1, 9, 40], 7),
            retry_cnt: 100,
            ..Scenario::default()
        });
        world.hosts[B].memory[..40_000].copy_from_slice(&pattern(40_000));
        for number in 0..20 {
            let (at, len) = (world.random.below(10_000), world.random.below(12_000));
            world.hosts[A].read(at.into(), len as usize);
            if number % 4 == 0 {
                world.hosts[A].fetch_add(40_000, 1);
            }
        }
        world.run();
        let host = &world.hosts[A];
        assert_eq!(host.statuses(), vec![Status::Success; 25], "{:?}", world.scenario);
        assert_eq!(world.hosts[B].responder.dead(), None, "{:?}", world.scenario);
        assert_eq!((world.hosts[B].atomics, world.hosts[B].word(40_000)), (5, 5));
    }
}
