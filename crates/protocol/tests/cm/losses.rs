//! Messages that are lost, duplicated and reordered: each one lost alone, and then everything at
//! random.

use super::world::{A, B, Harm, LATENCY, RETRIES, World};
use softhca_protocol::Time;
use softhca_protocol::cm::{Attribute, CmState, Config, Kind, Request};

/// A whole connection: request, use, disconnect, with both users acting by themselves.
fn life(world: &mut World) {
    let id = world.request(A, B);
    world.run_for(60_000);
    if world.hosts[A].cm.state(id) == Ok(CmState::Established) {
        world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap();
    }
    world.run();
    // A side that is still connected did not learn of the end. Its user notices on the data path,
    // and gives up.
    for host in [A, B] {
        let known: Vec<_> = world.hosts[host].events.iter().map(|event| event.id).collect();
        for id in known.into_iter().chain([id].into_iter().filter(|_| host == A)) {
            let _ = world.call(host, |cm, now| cm.destroy(now, id));
        }
    }
    world.run();
}

#[test]
fn each_message_lost_once() {
    for (host, attribute) in
        [(A, Attribute::Req), (B, Attribute::Rep), (A, Attribute::Rtu), (A, Attribute::Dreq), (B, Attribute::Drep)]
    {
        let mut world = World::new().willing();
        world.lose.push((host, attribute));
        life(&mut world);
        assert_eq!(world.hosts[B].events.len(), 4, "{attribute}: {:?}", world.hosts[B].events);
        assert!(matches!(world.hosts[B].events[1].kind, Kind::Established { .. }), "{attribute}");
        assert!(matches!(world.hosts[B].events[2].kind, Kind::DisconnectWanted(_)), "{attribute}");
        assert!(matches!(world.hosts[A].events[1].kind, Kind::Disconnected { .. }), "{attribute}");
        assert!(world.times(host, attribute) >= 2, "{attribute}");
        world.assert_empty();
    }
}

#[test]
fn an_answer_that_was_lost_is_said_again_and_not_asked_for_again() {
    let mut world = World::new().willing();
    world.lose = vec![(B, Attribute::Rep), (B, Attribute::Rep)];
    world.request(A, B);
    world.run_for(20_000);
    let told = world.hosts[B].events.iter().filter(|event| matches!(event.kind, Kind::Incoming { .. })).count();
    assert_eq!(told, 1);
}

#[test]
fn a_refusal_that_was_lost_is_said_again_and_the_user_is_asked_once() {
    let mut world = World::new();
    world.lose.push((B, Attribute::Rej));
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world
        .call(B, |cm, now| {
            cm.reject(now, passive, softhca_protocol::cm::Reason::CONSUMER_DEFINED, &[], b"no")?;
            cm.destroy(now, passive)
        })
        .unwrap();
    world.run_for(3_000);
    assert!(matches!(&world.hosts[A].events_of(id)[..], [Kind::Rejected(rej)] if rej.private_data.starts_with(b"no")));
    assert_eq!(world.hosts[B].events.len(), 1);
    world.run();
    assert_eq!(world.counts(B).ids, 0);
}

#[test]
fn nothing_comes_back() {
    let mut world = World::new().willing();
    world.cut_off = Some(B);
    let id = world.request(A, B);
    let start = world.now;
    world.run();
    assert_eq!(world.hosts[A].events_of(id), [Kind::TimedOut { message: Attribute::Req }]);
    assert_eq!(world.times(A, Attribute::Req), 1 + usize::from(RETRIES));
    // Eight times the response time and both directions; then the REJ is on its way.
    let each = (4096 << 18) + 2 * (4096 << 14);
    assert_eq!(world.now.0 - start.0, 8 * each + LATENCY);
    assert_eq!(world.times(A, Attribute::Rej), 1);
    world.assert_empty();
}

/// A peer that claims to need hours is not waited for so long. A peer that claims no time does not
/// make us send many repetitions at once.
#[test]
fn response_times_of_a_peer_are_bounded() {
    for (code, longest) in [(31, 18_000), (0, 20)] {
        let mut world = World::new();
        let request = Request { local_response_timeout: code, ack_timeout: code, ..world.asking(A, B) };
        world.call(A, |cm, now| cm.request(now, &request)).unwrap();
        world.run_for(1);
        world.cut_off = Some(A);
        let passive = world.incoming(B);
        world.reply(B, passive);
        let start = world.now;
        let turns = u64::from(RETRIES) + 1;
        while world.state(B, passive) == CmState::RepSent {
            assert!(world.step(Time(u64::MAX - 1)));
        }
        let took = (world.now.0 - start.0) / 1_000_000;
        assert!(took <= turns * longest && took >= turns, "{took} ms");
        let rest = world.now;
        while world.state(B, passive) == CmState::TimeWait {
            assert!(world.step(Time(u64::MAX - 1)));
        }
        assert!(world.now.0 - rest.0 <= longest * 1_000_000);
    }
}

#[test]
fn the_end_is_never_confirmed() {
    let mut world = World::new().willing();
    let id = world.request(A, B);
    world.run_for(5);
    world.cut_off = Some(B);
    world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap();
    world.run();
    let events = world.hosts[A].events_of(id);
    assert_eq!(events[1..], [Kind::TimedOut { message: Attribute::Dreq }, Kind::Rested]);
    assert_eq!(world.times(A, Attribute::Dreq), 1 + usize::from(RETRIES));
    assert_eq!(world.counts(A).ids, 0);
}

#[test]
fn rtu_is_lost_and_the_peer_parts_at_once() {
    let mut world = World::new().willing();
    world.lose.push((A, Attribute::Rtu));
    let id = world.request(A, B);
    world.run_for(5);
    world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap();
    world.run();
    let passive = world.incoming(B);
    let events = world.hosts[B].events_of(passive);
    assert!(matches!(events[..], [Kind::Incoming { .. }, Kind::DisconnectWanted(_), Kind::Rested]), "{events:?}");
    world.assert_empty();
}

#[test]
fn no_rtu_ever() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.reply(B, passive);
    world.run_for(1);
    assert_eq!(world.state(A, id), CmState::RepRcvd);
    // The active side's user does not decide: the REP is repeated, and finally withdrawn.
    world.run();
    let events = world.hosts[B].events_of(passive);
    assert!(
        matches!(events[1..], [Kind::Later(_), Kind::TimedOut { message: Attribute::Rep }, Kind::Rested]),
        "{events:?}"
    );
    // Linux identifies the sender of this REJ by the adapter alone.
    let told = world.hosts[A].events_of(id);
    let guid = world.hosts[B].ca_guid.to_be_bytes();
    assert!(matches!(told.last(), Some(Kind::Rejected(rej)) if rej.told() == guid), "{told:?}");
    assert_eq!(world.state(A, id), CmState::Idle);
    assert_eq!(world.times(B, Attribute::Rep), 1 + usize::from(RETRIES));
}

#[test]
fn a_late_repetition_of_the_request_is_no_new_one() {
    let mut world = World::new().willing();
    world.harm.duplication = 100;
    let id = world.request(A, B);
    world.run_for(5);
    let (_, req) = world.sent[0];
    world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap();
    world.run_for(1);
    assert!(world.claim(A, B, &req).is_err());
    world.run();
    assert_eq!(world.hosts[B].events.iter().filter(|event| matches!(event.kind, Kind::Incoming { .. })).count(), 1);
    world.assert_empty();
}

/// Whatever happens to the datagrams, both sides come to an end, no user gets an impossible event,
/// and no id remains.
#[test]
fn everything_at_random() {
    for seed in 0..400 {
        let harm = Harm {
            loss: [0, 5, 20, 40][seed as usize % 4],
            duplication: [0, 10, 50][seed as usize % 3],
            reordering: [0, 30, 80][seed as usize / 3 % 3],
        };
        let mut world = World::with(Config::default(), seed).willing();
        world.harm = harm;
        life(&mut world);
        for host in [A, B] {
            check_order(&world, host, seed, harm);
        }
        world.assert_empty();
    }
}

/// Checks that each id gets its events in a possible order.
fn check_order(world: &World, host: usize, seed: u64, harm: Harm) {
    let events = &world.hosts[host].events;
    for id in events.iter().map(|event| event.id) {
        let story = world.hosts[host].events_of(id);
        let count = |wanted: fn(&Kind) -> bool| story.iter().filter(|kind| wanted(kind)).count();
        let wrong = format!("seed {seed} {harm:?} host {host}: {story:?}");
        assert!(count(|kind| matches!(kind, Kind::Incoming { .. })) <= 1, "{wrong}");
        assert!(count(|kind| matches!(kind, Kind::Agreed { .. })) <= 1, "{wrong}");
        assert!(count(|kind| matches!(kind, Kind::Established { .. })) <= 1, "{wrong}");
        let ends = count(|kind| {
            matches!(
                kind,
                Kind::Rejected(_) | Kind::TimedOut { .. } | Kind::DisconnectWanted(_) | Kind::Disconnected { .. }
            )
        });
        assert!(ends <= 2, "{wrong}");
        assert!(count(|kind| *kind == Kind::Rested) <= 1, "{wrong}");
        if let Some(place) = story.iter().position(|kind| *kind == Kind::Rested) {
            assert_eq!(place, story.len() - 1, "{wrong}");
        }
    }
}
