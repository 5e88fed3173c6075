//! Each message arrives once more than it should, in every state: it is answered as before, or
//! dropped.

use super::world::{A, B, World};
use softhca_protocol::cm::{Attribute, Kind};

#[test]
fn every_message_of_a_life_comes_three_times() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.run_for(1);
    world.call(B, |cm, now| cm.disconnect(now, passive, &[])).unwrap();
    world.run_for(1);
    let said = world.sent.clone();
    let told = (world.hosts[A].events.len(), world.hosts[B].events.len());
    for _ in 0..2 {
        for (host, message) in &said {
            // DREQ is answered again; all other messages are late.
            let before = world.sent.len();
            assert!(world.claim(*host, 1 - *host, message).is_err(), "{message}");
            let answers = world.sent.len() - before;
            match message.attribute() {
                Attribute::Dreq => assert_eq!(answers, 1),
                Attribute::Rep => assert_eq!(answers, 1, "who repeats REP after the end has not heard of it"),
                _ => assert_eq!(answers, 0, "{message}"),
            }
        }
    }
    world.run();
    let rested = |host: usize, id| world.hosts[host].events_of(id).last() == Some(&Kind::Rested);
    assert!(rested(A, active) && rested(B, passive));
    assert_eq!((world.hosts[A].events.len(), world.hosts[B].events.len()), (told.0 + 1, told.1 + 1));
}

#[test]
fn a_repeated_question_gets_the_answer_of_the_moment() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let (_, req) = world.sent[0];
    let last = |world: &mut World| {
        let before = world.sent.len();
        assert!(world.claim(A, B, &req).is_err());
        let said: Vec<_> = world.said()[before..].to_vec();
        said
    };
    let passive = world.incoming(B);
    // First by itself, then again for the repetition.
    assert_eq!(last(&mut world), [(B, Attribute::Mra)]);
    assert_eq!(last(&mut world), [(B, Attribute::Mra)]);
    world.reply(B, passive);
    assert_eq!(last(&mut world), [(B, Attribute::Rep)]);
    world.run_for(1);
    world.call(A, |cm, _| cm.ready(id, &[])).unwrap();
    world.run_for(1);
    assert_eq!(last(&mut world), []);
}

#[test]
fn a_repeated_answer_gets_rtu_again() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.reply(B, passive);
    world.run_for(1);
    let (_, rep) = *world.sent.last().unwrap();
    let again = |world: &mut World| {
        let before = world.sent.len();
        assert!(world.claim(B, A, &rep).is_err());
        world.said()[before..].to_vec()
    };
    assert_eq!(again(&mut world), [(A, Attribute::Mra)]);
    assert_eq!(again(&mut world), [(A, Attribute::Mra)]);
    world.call(A, |cm, _| cm.ready(id, b"data of the user")).unwrap();
    assert_eq!(again(&mut world), [(A, Attribute::Rtu)]);
    assert_eq!(world.sent[world.sent.len() - 1], world.sent[world.sent.len() - 2]);
}
