//! Connections without faults: the messages, the facts that both sides then know, and the end.

use super::world::{A, B, LIFE, Manner, SERVICE, World};
use softhca_protocol::cm::{Attribute, CmState, Ece, Error, Kind, Reason, Request, TransportType};
use wire::cm::Message;

#[test]
fn a_connection_begins_and_ends() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let events = world.hosts[B].events_of(passive);
    let Kind::Incoming { req, origin, .. } = &events[0] else { panic!("{events:?}") };
    assert!(req.private_data.starts_with(b"from the one who asks"));
    assert_eq!((origin.source, req.service_id), (world.hosts[A].gid, SERVICE));
    assert!(matches!(&events[1], Kind::Established { private_data: Some(data) } if data.starts_with(b"ready")));
    let events = world.hosts[A].events_of(active);
    assert!(matches!(&events[..], [Kind::Agreed { rep, .. }] if rep.private_data.starts_with(b"from the one who is")));
    assert_eq!(world.said(), [(A, Attribute::Req), (B, Attribute::Rep), (A, Attribute::Rtu)]);

    world.call(B, |cm, now| cm.disconnect(now, passive, b"enough")).unwrap();
    world.run_for(1);
    assert_eq!((world.state(A, active), world.state(B, passive)), (CmState::DreqRcvd, CmState::DreqSent));
    let events = world.hosts[A].events_of(active);
    assert!(matches!(&events[1], Kind::DisconnectWanted(dreq) if dreq.private_data.starts_with(b"enough")));
    world.call(A, |cm, now| cm.disconnect(now, active, b"so be it")).unwrap();
    world.run_for(1);
    assert_eq!((world.state(A, active), world.state(B, passive)), (CmState::TimeWait, CmState::TimeWait));
    let events = world.hosts[B].events_of(passive);
    assert!(matches!(&events[2], Kind::Disconnected { private_data: Some(data) } if data.starts_with(b"so be")));
    world.run();
    for (host, id) in [(A, active), (B, passive)] {
        assert_eq!(world.hosts[host].events_of(id).last(), Some(&Kind::Rested));
        assert_eq!(world.state(host, id), CmState::Idle);
        world.call(host, |cm, now| cm.destroy(now, id)).unwrap();
        assert_eq!(world.call(host, |cm, now| cm.destroy(now, id)), Err(Error::Stale));
    }
    world.assert_empty();
}

#[test]
fn both_sides_agree_on_what_their_queue_pairs_need() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let one = world.hosts[A].cm.connection(active).unwrap();
    let other = world.hosts[B].cm.connection(passive).unwrap();
    assert!(one.active && !other.active);
    assert_eq!((one.local_qpn, one.remote_qpn), (other.remote_qpn, other.local_qpn));
    assert_eq!((one.send_psn, one.receive_psn), (other.receive_psn, other.send_psn));
    assert_eq!((one.local_comm_id, one.remote_comm_id), (other.remote_comm_id, other.local_comm_id));
    assert_eq!((one.path.sgid, one.path.dgid), (other.path.dgid, other.path.sgid));
    assert_eq!((other.path.mtu, other.path.pkey, other.path.packet_life), (3, 0xffff, LIFE));
    // The active side can answer 4 and wants 3; the passive side can answer 2 and wants 7.
    assert_eq!((one.responder_resources, one.initiator_depth), (4, 2));
    assert_eq!((other.responder_resources, other.initiator_depth), (2, 7));
    // The other side sets a queue pair's retry counts.
    assert_eq!((one.retry_count, one.rnr_retry_count), (6, 4));
    assert_eq!((other.retry_count, other.rnr_retry_count), (6, 5));
    assert_eq!((one.ack_timeout, other.ack_timeout), (LIFE + 1, LIFE + 1));
    assert_eq!((one.remote_ca_guid, other.remote_ca_guid), (world.hosts[B].ca_guid, world.hosts[A].ca_guid));
}

#[test]
fn a_req_without_a_listener_is_rejected_as_invalid_service_id() {
    let mut world = World::new().willing();
    world.hosts[B].manner = Manner::Deaf;
    let id = world.request(A, B);
    world.run();
    let events = world.hosts[A].events_of(id);
    assert!(matches!(&events[..], [Kind::Rejected(rej)] if rej.reason == Reason::INVALID_SERVICE_ID));
    world.assert_empty();
}

#[test]
fn a_refusal_carries_its_words() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.call(B, |cm, now| cm.reject(now, passive, Reason::CONSUMER_DEFINED, b"why", b"no")).unwrap();
    world.run_for(1);
    let events = world.hosts[A].events_of(id);
    let [Kind::Rejected(rej)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((rej.reason, rej.told()), (Reason::CONSUMER_DEFINED, &b"why"[..]));
    assert!(rej.private_data.starts_with(b"no"));
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::Idle, CmState::Declined));
    world.run();
    assert_eq!(world.state(B, passive), CmState::Idle);
}

#[test]
fn the_asker_may_decline_the_answer() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.reply(B, passive);
    world.run_for(1);
    world.call(A, |cm, now| cm.reject(now, id, Reason::CONSUMER_DEFINED, &[], b"changed my mind")).unwrap();
    world.run_for(1);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::Idle, CmState::Declined));
    assert!(matches!(world.hosts[B].events_of(passive).last(), Some(Kind::Rejected(_))));
}

#[test]
fn data_before_rtu_establish_the_connection() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.reply(B, passive);
    world.run_for(1);
    world.lose.push((A, Attribute::Rtu));
    world.call(A, |cm, _| cm.ready(id, &[])).unwrap();
    world.call(B, |cm, _| cm.established_by_data(passive)).unwrap();
    assert_eq!(world.hosts[B].events_of(passive).last(), Some(&Kind::Established { private_data: None }));
    assert!(matches!(world.call(B, |cm, _| cm.established_by_data(passive)), Err(Error::State { .. })));
    world.run();
    assert_eq!(world.times(B, Attribute::Rep), 1);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::Established, CmState::Established));
}

#[test]
fn an_mra_prolongs_the_wait_for_a_reply() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.call(B, |cm, _| cm.mra(passive, 22, b"patience")).unwrap();
    world.run_for(15_000);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::MraReqRcvd, CmState::MraReqSent));
    assert_eq!(world.times(A, Attribute::Req), 1);
    world.reply(B, passive);
    world.run_for(1);
    world.call(A, |cm, _| cm.mra(id, 22, b"patience, too")).unwrap();
    world.run_for(15_000);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::MraRepSent, CmState::MraRepRcvd));
    assert_eq!(world.times(B, Attribute::Rep), 1);
    world.call(A, |cm, _| cm.ready(id, &[])).unwrap();
    world.run_for(1);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::Established, CmState::Established));
    let told: Vec<_> = world.hosts[A].events_of(id);
    assert!(matches!(&told[0], Kind::Later(mra) if mra.private_data.starts_with(b"patience")));
}

#[test]
fn an_mra_is_sent_for_a_user_that_decides_slowly() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(60_000);
    let passive = world.incoming(B);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::MraReqRcvd, CmState::MraReqSent));
    world.reply(B, passive);
    world.run_for(60_000);
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::MraRepSent, CmState::MraRepRcvd));
    world.call(A, |cm, _| cm.ready(id, &[])).unwrap();
    world.run();
    assert_eq!((world.state(A, id), world.state(B, passive)), (CmState::Established, CmState::Established));
    assert_eq!((world.times(A, Attribute::Req), world.times(B, Attribute::Rep)), (2, 2));
    assert_eq!((world.times(B, Attribute::Mra), world.times(A, Attribute::Mra)), (1, 1));
}

#[test]
fn patience_ends_and_the_question_is_asked_again() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.call(B, |cm, _| cm.mra(passive, 20, &[])).unwrap();
    world.run_for(5_000);
    // The REQ was repeated and got the same answer. But more time is granted only once.
    assert_eq!((world.times(A, Attribute::Req), world.times(B, Attribute::Mra)), (2, 2));
    assert_eq!(world.state(A, id), CmState::MraReqRcvd);
    world.run_for(12_000);
    assert_eq!(world.hosts[A].events_of(id).last(), Some(&Kind::TimedOut { message: Attribute::Req }));
}

#[test]
fn both_part_at_once() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.call(B, |cm, now| cm.disconnect(now, passive, &[])).unwrap();
    world.run_for(1);
    for (host, id) in [(A, active), (B, passive)] {
        assert_eq!(world.state(host, id), CmState::TimeWait);
        let events = world.hosts[host].events_of(id);
        assert_eq!(events.last(), Some(&Kind::Disconnected { private_data: None }), "{events:?}");
    }
}

#[test]
fn a_connection_that_is_given_back_is_ended_first() {
    let mut world = World::new().willing();
    let id = world.request(A, B);
    world.run_for(5);
    world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
    world.run();
    let passive = world.incoming(B);
    assert!(matches!(world.hosts[B].events_of(passive).last(), Some(Kind::Rested)));
    assert_eq!((world.times(A, Attribute::Dreq), world.times(B, Attribute::Drep)), (1, 1));
    world.assert_empty();
}

#[test]
fn within_one_host() {
    let mut world = World::new().willing();
    let id = world.request(A, A);
    world.run_for(5);
    let passive = world.incoming(A);
    assert_eq!((world.state(A, id), world.state(A, passive)), (CmState::Established, CmState::Established));
    world.call(A, |cm, now| cm.disconnect(now, id, &[])).unwrap();
    world.run();
    world.assert_empty();
}

#[test]
fn every_kind_of_connection() {
    for transport in [TransportType::Rc, TransportType::Uc, TransportType::Xrc] {
        let mut world = World::new().willing();
        let ece = Ece { vendor_id: 0x12_3456, options: 0x89ab_cdef };
        let request = Request { transport, ece, ..world.asking(A, B) };
        let id = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
        world.run_for(5);
        let passive = world.incoming(B);
        let one = world.hosts[A].cm.connection(id).unwrap();
        let other = world.hosts[B].cm.connection(passive).unwrap();
        assert_eq!((one.transport, other.transport), (transport, transport));
        assert_eq!(one.remote_qpn, other.local_qpn);
        let told = world.hosts[B].events_of(passive);
        assert!(matches!(told[0], Kind::Incoming { ece: told, .. } if told == ece));
    }
}

#[test]
fn a_full_backlog_lets_the_peer_ask_again() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let first = world.incoming(B);
    world.call(B, |cm, _| cm.forget(first)).unwrap();
    assert_eq!(world.call(B, |cm, now| cm.destroy(now, first)), Err(Error::Stale));
    assert_eq!(world.counts(B).ids, 0);
    world.hosts[B].manner = Manner::Willing;
    world.run_for(2_000);
    assert_ne!(world.incoming(B), first);
    assert_eq!(world.state(A, id), CmState::RepRcvd);
}

#[test]
fn calls_out_of_place_change_nothing() {
    let mut world = World::new();
    let id = world.request(A, B);
    let reply = world.agreeing(A);
    let misplaced = |result| assert!(matches!(result, Err(Error::State { .. })), "{result:?}");
    misplaced(world.call(A, |cm, now| cm.reply(now, id, &reply)));
    misplaced(world.call(A, |cm, _| cm.ready(id, &[])));
    misplaced(world.call(A, |cm, _| cm.established_by_data(id)));
    misplaced(world.call(A, |cm, now| cm.disconnect(now, id, &[])));
    misplaced(world.call(A, |cm, _| cm.mra(id, 1, &[])));
    misplaced(world.call(A, |cm, _| cm.forget(id)));
    let long = [0; 197];
    let request = Request { private_data: &long, ..world.asking(A, B) };
    let refused = world.call(A, |cm, now| cm.request(now, &request)).unwrap_err();
    assert_eq!(refused.to_string(), "197 bytes of private data do not fit into the 92 of a REQ");
    assert_eq!(world.counts(A).ids, 1);
    assert_eq!(world.sent.len(), 1);
    let refused = world.call(A, |cm, _| cm.ready(id, &[])).unwrap_err();
    assert_eq!(refused.to_string(), "RTU is not possible in state REQ_SENT");
}

#[test]
fn a_req_carries_the_parameters_of_the_request() {
    let mut world = World::new();
    let request = world.asking(A, B);
    world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    let (_, Message::Req(req)) = &world.sent[0] else { panic!() };
    assert_eq!((req.local_ca_guid, req.local_qpn), (request.ca_guid, request.qpn));
    assert_eq!((req.primary.local_gid, req.primary.remote_gid), (world.hosts[A].gid, world.hosts[B].gid));
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (0xffff, 0xffff));
    assert_eq!((req.remote_response_timeout, req.max_cm_retries), (18, 7));
    assert_eq!((req.mtu, req.pkey, req.starting_psn), (3, 0xffff, request.psn));
    assert!(req.alternate.is_none() && req.flow_control && !req.srq);
}
