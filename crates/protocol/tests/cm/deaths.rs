//! One side dies silently, at each stage of a connection. The other side ends, and no id remains.

use super::world::{A, B, Manner, World};
use softhca_protocol::cm::{Attribute, CmState, Counts, Id, Kind, Reason};

/// Brings two hosts to a stage of a connection: 0 nothing, then REQ sent, REQ received, REP sent,
/// REP received, RTU sent, RTU received, DREQ sent, DREQ received, DREP sent, DREP received.
fn stage(world: &mut World, stage: u32) -> (Id, Option<Id>) {
    let id = world.request(A, B);
    let deliver = |world: &mut World| {
        let one = world.now.after(1_000_000);
        assert!(world.step(one));
    };
    let mut passive = None;
    for stage in 1..=stage {
        match stage {
            2 | 4 | 6 | 8 | 10 => deliver(world),
            3 => {
                let incoming = world.incoming(B);
                passive = Some(incoming);
                world.reply(B, incoming);
            }
            5 => world.call(A, |cm, _| cm.ready(id, &[])).unwrap(),
            7 => world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap(),
            9 => world.call(B, |cm, now| cm.disconnect(now, passive.unwrap(), &[])).unwrap(),
            _ => {}
        }
    }
    if stage == 2 {
        passive = Some(world.incoming(B));
    }
    (id, passive)
}

/// After the death of one side, the user of the other side gives up as soon as it is told, or after
/// waiting.
fn outlive(world: &mut World, host: usize, id: Id) {
    world.run();
    if world.hosts[host].cm.state(id).is_ok() {
        world.call(host, |cm, now| cm.destroy(now, id)).unwrap();
    }
    world.run();
    assert_eq!(world.counts(host), Counts::default());
}

#[test]
fn the_asked_dies_for_ever() {
    for at in 1..=10 {
        let mut world = World::new();
        let (id, _) = stage(&mut world, at);
        world.cut_off = Some(B);
        outlive(&mut world, A, id);
    }
}

#[test]
fn the_asker_dies_for_ever() {
    for at in 2..=10 {
        let mut world = World::new();
        let (_, passive) = stage(&mut world, at);
        world.cut_off = Some(A);
        outlive(&mut world, B, passive.unwrap());
    }
}

#[test]
fn the_asked_begins_anew_and_says_what_it_does_not_know() {
    for at in 1..=10 {
        let mut world = World::new().willing();
        world.hosts[A].manner = Manner::Silent;
        world.hosts[B].manner = Manner::Silent;
        let (id, _) = stage(&mut world, at);
        world.restart(B);
        world.hosts[B].manner = Manner::Willing;
        world.run();
        let state = world.state(A, id);
        match at {
            // The REQ is repeated, and the restarted host agrees, until it stops waiting for RTU.
            1 | 2 => {
                let events = world.hosts[A].events_of(id);
                assert!(matches!(events[..], [Kind::Agreed { .. }, Kind::Rejected(_)]), "at {at}: {events:?}");
            }
            // The REP of the old instance is under way or has arrived.
            3..=6 => assert!(matches!(state, CmState::RepRcvd | CmState::Established), "at {at}: {state}"),
            // A host that gets DREQ for an unknown connection answers that it has ended.
            _ => {
                assert_eq!(state, CmState::Idle, "at {at}");
                assert!(world.hosts[A].events_of(id).contains(&Kind::Rested), "at {at}");
            }
        }
        if matches!(state, CmState::RepRcvd | CmState::Established) {
            world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
            world.run();
            assert_eq!(world.counts(A).ids, 0, "at {at}");
        }
    }
}

#[test]
fn the_asker_begins_anew_and_says_what_it_does_not_know() {
    for at in 2..=10 {
        let mut world = World::new();
        let (_, passive) = stage(&mut world, at);
        let passive = passive.unwrap();
        world.restart(A);
        world.run();
        let state = world.state(B, passive);
        let events = world.hosts[B].events_of(passive);
        match at {
            2 => assert_eq!(state, CmState::ReqRcvd),
            // REP arrives at a host that does not know the request.
            3 | 4 => {
                assert_eq!(state, CmState::Idle, "at {at}");
                let told = matches!(events.last(), Some(Kind::Rejected(rej)) if rej.reason == Reason::INVALID_COMM_ID);
                assert!(told, "at {at}: {events:?}");
            }
            5..=7 => {
                assert!(matches!(state, CmState::Established | CmState::Idle | CmState::DreqRcvd), "at {at}: {state}")
            }
            8 => assert_eq!(state, CmState::DreqRcvd),
            _ => assert_eq!(state, CmState::Idle, "at {at}"),
        }
        outlive(&mut world, B, passive);
    }
}

#[test]
fn users_give_ids_back_at_each_moment() {
    for both in [false, true] {
        for at in 1..=10 {
            let mut world = World::new();
            let (id, passive) = stage(&mut world, at);
            world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
            if let Some(passive) = passive.filter(|_| both) {
                world.call(B, |cm, now| cm.destroy(now, passive)).unwrap();
            }
            world.hosts[B].manner = Manner::Willing;
            world.run();
            if let Some(passive) = passive.filter(|_| !both) {
                // It learned of the end, in one way or another.
                let told = world.hosts[B].events_of(passive);
                let ended = |kind: &Kind| {
                    matches!(kind, Kind::Rejected(_) | Kind::DisconnectWanted(_) | Kind::TimedOut { .. } | Kind::Rested)
                };
                assert!(told.iter().any(ended), "at {at}: {told:?}");
                let _ = world.call(B, |cm, now| cm.destroy(now, passive));
                world.run();
            }
            assert!(world.times(A, Attribute::Req) <= 2, "at {at}");
            world.assert_empty();
        }
    }
}
