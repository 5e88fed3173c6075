//! Many connections at once: all of them work, tables keep their limits, and memory is given back.

use super::world::{A, B, Manner, World};
use softhca_protocol::cm::{Attribute, CmState, Config, Counts, Dropped, Kind, Reason};

#[test]
fn ten_thousand_connections() {
    const CROWD: usize = 10_000;
    // No choice of numbers may make the tables slow. This test would be slow if the tables were
    // searched.
    let mut world = World::new().willing();
    world.keeps = false;
    let config = Config { undecided: 20_000, ..Config::default() };
    world.hosts[B].cm = softhca_protocol::cm::Cm::new(config);
    let ids: Vec<_> = (0..CROWD).map(|_| world.request(A, B)).collect();
    world.run_for(1_000);
    for id in &ids {
        assert_eq!(world.hosts[A].cm.state(*id), Ok(CmState::Established));
    }
    let full = Counts { ids: CROWD, undecided: 0, resting: 0, timers: 0, keys: CROWD };
    assert_eq!(world.counts(A), full);
    assert_eq!(world.counts(B), Counts { keys: 2 * CROWD, ..full });
    for id in ids {
        world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
    }
    world.run_for(1);
    assert_eq!((world.counts(A).resting, world.counts(B).resting), (CROWD, CROWD));
    world.run();
    world.assert_empty();
}

#[test]
fn as_many_ids_as_there_may_be() {
    let mut world = World::with(Config { ids: 10, ..Config::default() }, 1);
    for _ in 0..10 {
        world.request(A, B);
    }
    let request = world.asking(A, B);
    assert!(world.call(A, |cm, now| cm.request(now, &request)).is_err());
    world.run_for(1);
    assert_eq!(world.counts(B).undecided, 10);
    let now = world.now;
    let oldest = world.hosts[B].events[0].id;
    world.hosts[B].cm.destroy(now, oldest).unwrap();
    world.collect(B);
    world.run_for(1);
    assert!(matches!(world.hosts[A].events[0].kind, Kind::Rejected(_)));
}

#[test]
fn as_many_undecided_as_there_may_be_and_their_senders_try_again() {
    let mut world = World::with(Config { undecided: 4, ..Config::default() }, 1);
    for _ in 0..6 {
        world.request(A, B);
    }
    for _ in 0..6 {
        world.sidr_request(A, B);
    }
    world.run_for(1);
    assert_eq!((world.counts(B).undecided, world.counts(B).ids), (4, 4));
    let full = |message| Dropped::Full { message, held: 4 };
    assert!(world.hosts[B].dropped.contains(&full(Attribute::Req)));
    assert!(world.hosts[B].dropped.contains(&full(Attribute::SidrReq)));
    world.hosts[B].manner = Manner::Willing;
    for id in world.hosts[B].events.iter().map(|event| event.id).collect::<Vec<_>>() {
        world.call(B, |cm, _| cm.forget(id)).unwrap();
    }
    world.run_for(5_000);
    assert_eq!(world.hosts[A].events.len(), 12);
}

#[test]
fn when_too_many_rest_the_rest_is_cut_short() {
    let mut world = World::with(Config { resting: 3, ..Config::default() }, 1).willing();
    let ids: Vec<_> = (0..8).map(|_| world.request(A, B)).collect();
    world.run_for(10);
    for id in &ids {
        world.call(A, |cm, now| cm.disconnect(now, *id, &[])).unwrap();
    }
    world.run_for(1);
    assert_eq!((world.counts(A).ids, world.counts(A).resting), (3, 3));
    for id in &ids[3..] {
        // By then the connection has nothing more to do, and its user has destroyed the id.
        let events = world.hosts[A].events_of(*id);
        assert!(matches!(events[1..], [Kind::Disconnected { .. }]), "{events:?}");
    }
    world.run();
    world.assert_empty();
}

#[test]
fn both_ends_in_one_host_when_too_many_rest() {
    for resting in 0..3 {
        let mut world = World::with(Config { resting, ..Config::default() }, 1).willing();
        let ids: Vec<_> = (0..4).map(|_| world.request(A, A)).collect();
        world.run_for(10);
        for id in ids {
            world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap();
            world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
        }
        world.run();
        world.assert_empty();
    }
}

#[test]
fn refusing_a_crowd_keeps_nothing() {
    let mut world = World::new().willing();
    world.hosts[B].manner = Manner::Deaf;
    for _ in 0..1000 {
        world.request(A, B);
    }
    world.run_for(1);
    assert_eq!(world.counts(B), Counts::default());
    let refused = |kind: &Kind| matches!(kind, Kind::Rejected(rej) if rej.reason == Reason::INVALID_SERVICE_ID);
    assert!(world.hosts[A].events.len() == 1000 && world.hosts[A].events.iter().all(|event| refused(&event.kind)));
    world.assert_empty();
}
