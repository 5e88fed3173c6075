//! Every state × every message: the answer, the event and the next state, compared with a committed
//! table. Run with `UPDATE_SNAPSHOT=1` to write the table after an intended change.

use super::world::{A, B, World};
use softhca_protocol::cm::{Attribute, CmState, Id, Kind, Reason};
use std::fmt::Write;
use wire::cm::{Apr, Drep, Dreq, Lap, Message, Mra, Mraed, Rej, Rejected, Rep, Rtu, SidrRep};

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cm/table.snapshot");

/// A world with an id in this state: the host and the id.
fn in_state(state: CmState) -> (World, usize, Id) {
    let mut world = World::new();
    if matches!(state, CmState::SidrReqSent | CmState::SidrReqRcvd | CmState::SidrAnswered) {
        let id = world.sidr_request(A, B);
        world.run_for(1);
        let asked = world.incoming(B);
        if state == CmState::SidrAnswered {
            world.call(B, |cm, now| cm.sidr_reply(now, asked, &Default::default())).unwrap();
        }
        return if state == CmState::SidrReqSent { (world, A, id) } else { (world, B, asked) };
    }
    if matches!(state, CmState::Established | CmState::DreqSent | CmState::DreqRcvd | CmState::TimeWait | CmState::Idle)
    {
        let (active, passive) = world.connect(A, B);
        if state == CmState::DreqRcvd {
            world.call(B, |cm, now| cm.disconnect(now, passive, &[])).unwrap();
            world.run_for(1);
        } else if state != CmState::Established {
            world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
        }
        if matches!(state, CmState::TimeWait | CmState::Idle) {
            world.run_for(1);
            world.call(B, |cm, now| cm.disconnect(now, passive, &[])).unwrap();
            world.run_for(1);
        }
        if state == CmState::Idle {
            world.run();
        }
        return (world, A, active);
    }
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    match state {
        CmState::ReqSent => return (world, A, id),
        CmState::ReqRcvd => return (world, B, passive),
        CmState::MraReqSent | CmState::MraReqRcvd => {
            world.call(B, |cm, _| cm.mra(passive, 20, &[])).unwrap();
            world.run_for(1);
            return if state == CmState::MraReqRcvd { (world, A, id) } else { (world, B, passive) };
        }
        CmState::Declined => {
            world.call(B, |cm, now| cm.reject(now, passive, Reason::CONSUMER_DEFINED, &[], &[])).unwrap();
            return (world, B, passive);
        }
        _ => world.reply(B, passive),
    }
    world.run_for(1);
    if matches!(state, CmState::MraRepSent | CmState::MraRepRcvd) {
        world.call(A, |cm, _| cm.mra(id, 20, &[])).unwrap();
        world.run_for(1);
    }
    let active = matches!(state, CmState::RepRcvd | CmState::MraRepSent);
    if active { (world, A, id) } else { (world, B, passive) }
}

/// The messages that the peer could send to an id.
fn messages(world: &World, host: usize, id: Id) -> Vec<(&'static str, Message)> {
    let facts = world.hosts[host].cm.connection(id).unwrap();
    let remote_comm_id = facts.local_comm_id;
    let local_comm_id = if facts.remote_comm_id == 0 { 0x7777 } else { facts.remote_comm_id };
    let remote_qpn = facts.local_qpn;
    let mra = |message| Message::Mra(Mra { local_comm_id, remote_comm_id, message, ..Mra::default() });
    let rej = Rej { local_comm_id, remote_comm_id, message: Rejected::Other, ..Rej::new(Reason::CONSUMER_DEFINED) };
    let mut messages = vec![
        ("MRA of REQ", mra(Mraed::Req)),
        ("MRA of REP", mra(Mraed::Rep)),
        ("REJ", Message::Rej(rej)),
        ("REP", Message::Rep(Rep { local_comm_id, remote_comm_id, ..Rep::default() })),
        ("RTU", Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() })),
        ("DREQ", Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() })),
        ("DREP", Message::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() })),
        ("LAP", Message::Lap(Lap { local_comm_id, remote_comm_id, remote_qpn, ..Lap::default() })),
        ("APR", Message::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() })),
        ("SIDR_REP", Message::SidrRep(SidrRep { request_id: remote_comm_id, ..SidrRep::default() })),
    ];
    let asked = world.sent.iter().find(|(from, message)| {
        *from == 1 - host && matches!(message.attribute(), Attribute::Req | Attribute::SidrReq)
    });
    if let Some((_, message)) = asked {
        messages.insert(0, ("its request again", *message));
    }
    messages
}

fn name(kind: &Kind) -> String {
    format!("{kind:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
}

#[test]
fn every_message_in_every_state() {
    let mut table = String::new();
    for state in CmState::ALL {
        let (world, host, id) = in_state(state);
        assert_eq!(world.state(host, id), state);
        for (label, message) in messages(&world, host, id) {
            let (mut world, host, id) = in_state(state);
            let (sent, told) = (world.sent.len(), world.hosts[host].events.len());
            let result = world.claim(1 - host, host, &message);
            let next = world.state(host, id);
            write!(table, "{state} {label}:").unwrap();
            if next != state {
                write!(table, " -> {next}").unwrap();
            }
            for (_, message) in &world.sent[sent..] {
                match message {
                    Message::Rej(rej) => write!(table, " sends REJ {}", rej.reason.0).unwrap(),
                    message => write!(table, " sends {}", message.attribute()).unwrap(),
                }
            }
            for event in &world.hosts[host].events[told..] {
                write!(table, " tells {}", name(&event.kind)).unwrap();
            }
            if result.is_err() && next == state && world.sent.len() == sent {
                write!(table, " -").unwrap();
            }
            table.push('\n');
        }
    }
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(SNAPSHOT, &table).expect("the snapshot can be written");
    }
    let committed = std::fs::read_to_string(SNAPSHOT).expect("the snapshot is there");
    for (ours, theirs) in table.lines().zip(committed.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(table, committed);
}
