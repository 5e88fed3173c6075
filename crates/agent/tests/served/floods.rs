//! Floods: one user floods an agent that serves many users, while another user works.
//!
//! The test threads become other users, which needs root. Without root these tests print a message
//! and end. Each flood is limited in time, and prints how long the other user's commands took. The
//! tests judge by counts, not by time, that the other user is served at all and fairly.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::common::flood::{MALLORY, agent, become_user, figures, quiet};
use crate::common::{Client, TestAgent};
use abi::command::{legacy, number};
use abi::envelope::{RequestEnvelope, request as envelope_flag};
use abi::layout::Record;
use abi::open::{Open, OpenAnswer, profile};
use abi::pd::AllocPd;
use abi::qp::kind;
use abi::ucma::id::{CreateId, CreateIdAnswer};
use abi::ucma::{build, command, port_space};
use shm::socket::Socket;

/// A client of Mallory with many objects.
fn rich(dir: &Path, objects: usize) -> Client {
    let mut client = Client::connect(&dir.join("uverbs0"));
    client.open();
    for _ in 0..objects {
        quiet(&mut client.socket, &legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12));
    }
    // Commands are handled in order, so all objects exist after this one.
    client.alloc_pd();
    client
}

#[test]
fn a_user_who_asks_for_everything_again_and_again_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let dir = agent.dir.clone();
    let rich = std::thread::spawn(move || {
        become_user(MALLORY);
        rich(&dir, 9_800)
    });
    let rich = rich.join().expect("objects");
    let figures = figures(&agent, "show", 40, |dir, over, done| {
        let socket = Socket::connect(&dir.join(agent::rundir::ADMIN)).expect("connected");
        while !over.load(Ordering::Relaxed) {
            socket.send(br#"{"request":"show"}"#, &[]).expect("sent");
            let answer = agent::admin::receive(&socket, || Ok::<(), std::io::Error>(())).expect("an answer");
            assert!(answer.len() > 200_000, "all that there is");
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    drop(rich);
    // In strict alternation of single pieces, the victim would get one command for each 40 answers.
    let commands = figures.times.len() as u64;
    assert!(4 * commands > figures.done, "{commands} commands beside {} answers", figures.done);
}

#[test]
fn a_user_who_comes_and_goes_with_much_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "ends", 2, |dir, over, done| {
        while !over.load(Ordering::Relaxed) {
            drop(rich(dir, 3_000));
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(figures.times.len() as u64 > figures.done, "as much as others");
}

#[test]
fn a_user_who_connects_again_and_again_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    figures(&agent, "connections", 3, |dir, over, done| {
        let nodes: [PathBuf; 3] = ["uverbs0", "rdma_cm", "admin"].map(|node| dir.join(node));
        for node in nodes.iter().cycle() {
            if over.load(Ordering::Relaxed) {
                break;
            }
            drop(Socket::connect(node));
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
}

#[test]
fn a_user_with_many_quiet_commands_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "commands", 8, |dir, over, done| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        while !over.load(Ordering::Relaxed) {
            quiet(&mut client.socket, &crate::common::create_qp(1, 1, kind::RC));
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(!figures.times.is_empty());
}

#[test]
fn a_user_with_many_ids_of_the_connection_manager_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "ids", 3, |dir, over, done| {
        while !over.load(Ordering::Relaxed) {
            let socket = Socket::connect(&dir.join(abi::ucma::NODE)).expect("connected");
            socket.send(Open::new(profile::MAINLINE).bytes(), &[]).expect("sent");
            let mut bytes = [0; 64];
            let opened = socket.recv(&mut bytes).expect("an answer");
            assert_eq!(OpenAnswer::read(&bytes[..opened.len]).expect("whole").status, 0);
            let create =
                CreateId { uid: 1, response: 1, ps: port_space::TCP, qp_type: kind::RC, ..CreateId::default() };
            let create = build(command::CREATE_ID, &create, &[], size_of::<CreateIdAnswer>());
            for _ in 0..3_000 {
                let envelope = RequestEnvelope { sequence: 1, flags: envelope_flag::QUIET };
                if socket.send(&[envelope.bytes(), &create].concat(), &[]).is_err() {
                    break;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    assert!(!figures.times.is_empty());
}

/// An answer that is longer than a message arrives complete, with any number of clients and slow
/// readers.
#[test]
fn long_answers_come_whole() {
    let agent = TestAgent::start();
    let client = rich(&agent.dir, 5_000);
    let waiting: Vec<Socket> = (0..20)
        .map(|_| {
            let socket = Socket::connect(&agent.dir.join(agent::rundir::ADMIN)).expect("connected");
            socket.send(br#"{"request":"show"}"#, &[]).expect("sent");
            socket.send(br#"{"request":"status"}"#, &[]).expect("sent");
            socket
        })
        .collect();
    for socket in waiting.iter().rev() {
        let next = || agent::admin::receive(socket, || Ok::<(), std::io::Error>(())).expect("an answer");
        let shown: serde_json::Value = serde_json::from_slice(&next()).expect("JSON");
        assert_eq!(shown["contexts"][0]["pds"].as_array().map(Vec::len), Some(5_001));
        assert!(shown["manager"]["ids"].is_array() && shown["contexts"][0]["qps"].is_array() && shown["more"] == 0);
        let status: serde_json::Value = serde_json::from_slice(&next()).expect("JSON");
        assert_eq!(status["objects"], 5_001);
    }
    drop(client);
    let errors = agent.ask("errors");
    assert!(
        errors["programs"].is_array() && errors["drops"].is_object() && errors["last_drops"].is_object(),
        "{errors}"
    );
}

/// A value that another user could guess would be the same for both agents.
#[test]
fn numbers_of_one_agent_say_nothing_about_anothers() {
    let numbers = || {
        let agent = TestAgent::start();
        let mut clients: Vec<Client> = (0..3).map(|_| agent.client()).collect();
        clients.iter_mut().map(|client| client.qp().2.qpn).collect::<Vec<u32>>()
    };
    let (one, other) = (numbers(), numbers());
    assert_ne!(one, other);
    assert!(one.windows(2).any(|pair| pair[1].abs_diff(pair[0]) > 0x200), "{one:x?}");
}
