//! The life of clients: opening, dying in several ways, misbehaving. The life of agents: starting,
//! stopping, starting again.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Client, TestAgent};
use abi::Errno;
use abi::command::{legacy, number};
use abi::layout::Record;
use abi::open::{Open, OpenAnswer};
use abi::pd::DeallocPd;
use agent::{Agent, Config};

fn no_contexts(answer: &serde_json::Value) -> bool {
    answer["contexts"].as_array().is_some_and(Vec::is_empty)
}

#[test]
fn an_open_of_another_version_or_garbage_is_answered_and_closed() {
    let agent = TestAgent::start();
    for (open, errno) in [
        (Open { version: 2, ..Open::new(0) }, Errno::EPROTONOSUPPORT),
        (Open { magic: 1, ..Open::new(0) }, Errno::EINVAL),
        (Open::new(2), Errno::EINVAL),
        (Open { flags: 1, ..Open::new(0) }, Errno::EINVAL),
    ] {
        let client = Client::connect(&agent.dir.join("uverbs0"));
        client.socket.send(open.bytes(), &[]).expect("sent");
        let mut bytes = [0; 64];
        let len = client.socket.recv(&mut bytes).expect("an answer").len;
        let answer = OpenAnswer::read(&bytes[..len]).expect("whole");
        assert_eq!((answer.status, answer.version), (errno.to_status(), 1));
        assert_eq!(client.socket.recv(&mut bytes).expect("the end").len, 0);
    }
    agent.eventually("show", no_contexts);
}

#[test]
fn a_client_that_closes_leaves_nothing() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.qp();
    client.hello();
    let shown = agent.ask("show");
    let context = &shown["contexts"][0];
    assert_eq!(context["pid"], std::process::id());
    assert_eq!(context["qps"][0]["state"], "RESET");
    assert_eq!(context["qps"][0]["type"], "RC");
    drop(client);
    agent.eventually("status", |status| status["contexts"] == 0 && status["objects"] == 0);
}

/// Python, because it is installed, and because its fork leaves a child with the parent's socket.
const FORKS: &str = r"
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(b'SHCA' + bytes([1, 0, 0, 0]) + bytes(8))
assert s.recv(64)[8:12] == bytes(4)
s.send(bytes(8) + bytes([0, 0, 0, 0, 4, 0, 12, 0]) + bytes(8))
assert s.recv(256)[4:8] == bytes(4)
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print('ready', flush=True)
time.sleep(60)
";

#[test]
fn a_killed_parent_is_cleaned_up_while_its_child_lives() {
    let agent = TestAgent::start();
    let Ok(mut parent) =
        Command::new("python3").args(["-c", FORKS]).arg(agent.dir.join("uverbs0")).stdout(Stdio::piped()).spawn()
    else {
        return; // a machine without Python
    };
    agent.eventually("status", |status| status["contexts"] == 1);
    let mut ready = [0; 6];
    std::io::Read::read_exact(parent.stdout.as_mut().expect("piped"), &mut ready).expect("forked");
    parent.kill().expect("killed");
    agent.eventually("show", no_contexts);
    parent.wait().expect("reaped");
}

#[test]
fn a_client_that_never_reads_stops_only_itself() {
    let agent = TestAgent::start();
    let silent = agent.client();
    silent.socket.set_nonblocking(true).expect("nonblocking");
    let command = legacy(number::QUERY_DEVICE, &abi::device::QueryDevice { response: 1 }, &[], 176);
    let message = [&[0; 8][..], &command].concat();
    let mut sent = 0;
    let start = Instant::now();
    // The agent answers until its socket is full. Then it reads no more, and this socket becomes
    // full as well.
    while start.elapsed() < Duration::from_secs(2) {
        match silent.socket.send(&message, &[]) {
            Ok(()) => sent += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    assert!(sent < 10_000, "{sent} commands were taken from a client that reads no reply");
    let mut other = agent.client();
    other.qp();
    // When the client reads at last, every reply is there.
    let mut bytes = [0; 512];
    silent.socket.set_nonblocking(false).expect("blocking");
    for _ in 0..sent {
        assert_eq!(silent.socket.recv(&mut bytes).expect("a reply").len, 16 + 176);
    }
}

#[test]
fn garbage_is_refused_and_the_agent_goes_on() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let mut seed = 1_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..20_000_usize {
        let len = 1 + random() as usize % 200;
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        if len >= 24 {
            // The headers are mostly plausible, so that bodies are reached too.
            let extended = round % 3 == 0;
            bytes[..4].copy_from_slice(&((random() as u32 % 60) | (u32::from(extended) << 31)).to_le_bytes());
            bytes.truncate(len / 8 * 8);
            let words = if extended { (bytes.len() - 24) / 8 } else { bytes.len() / 4 };
            bytes[4..6].copy_from_slice(&(words as u16).to_le_bytes());
            bytes[6..8].copy_from_slice(&64_u16.to_le_bytes());
            if extended {
                bytes[16..24].fill(0);
            }
        }
        client.send(&bytes, &[]);
        client.receive();
    }
    drop(client);
    agent.eventually("status", |status| status["objects"] == 0);
    agent.client().qp();
}

#[test]
fn a_message_without_an_envelope_ends_the_connection() {
    let agent = TestAgent::start();
    let client = agent.client();
    client.socket.send(&[1, 2, 3], &[]).expect("sent");
    assert_eq!(client.socket.recv(&mut [0; 64]).expect("the end").len, 0);
    agent.eventually("show", no_contexts);
}

#[test]
fn two_agents_never_serve_one_directory_and_a_stale_one_is_taken_over() {
    let agent = TestAgent::start();
    let error = Agent::start(&Config::default(), Some(&agent.dir)).expect_err("served already").to_string();
    assert!(error.contains("serves"), "{error}");
    let dir = agent.dir.clone();
    agent.handle.stop();
    assert!(!dir.join("uverbs0").exists() && !dir.join("admin").exists(), "a stopped agent leaves no node");
    std::fs::create_dir_all(&dir).expect("there");
    std::fs::write(dir.join("uverbs0"), "left behind").expect("written");
    let second = Agent::start(&Config::default(), Some(&dir)).expect("a stale directory is no obstacle");
    Client::connect(&dir.join("uverbs0")).open();
    drop(second);
}

#[test]
fn stop_over_the_admin_node_ends_clients_and_frees_the_directory() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let (_, push, _kick) = client.hello();
    assert_eq!(agent.ask("stop")["stopping"], std::process::id());
    let mut bytes = [0; 64];
    let shutdown = push.recv(&mut bytes).expect("a push");
    assert_eq!((shutdown.len, bytes[0]), (40, 3));
    assert_eq!(push.recv(&mut bytes).expect("the end").len, 0);
    assert_eq!(client.socket.recv(&mut bytes).expect("the end").len, 0);
    let TestAgent { handle, dir, scratch: _scratch } = agent;
    handle.wait();
    Agent::start(&Config::default(), Some(&dir)).expect("free again");
}

#[test]
fn an_idle_agent_ends_itself_but_not_while_it_has_a_client() {
    let agent = TestAgent::start_with("idle_exit = 1");
    let client = agent.client();
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(agent.ask("status")["contexts"], 1);
    drop(client);
    let TestAgent { handle, dir, scratch: _scratch } = agent;
    handle.wait();
    assert!(!dir.join("admin").exists());
}

#[test]
fn a_client_in_the_process_speaks_the_same_commands() {
    let handle = Agent::start(&Config::default(), None).expect("an agent without a directory");
    let control = handle.connect(0, 0).expect("open");
    assert_eq!(handle.connect(1, 0).expect_err("no such device").errno, Errno::ENODEV);
    let get = legacy(number::GET_CONTEXT, &abi::device::GetContext { response: 1 }, &[], 48);
    let reply = control.command(&get, &[]).expect("a context");
    assert_eq!((reply.bytes.len(), reply.fds.len()), (48, 2));
    let refusal = control.command(&legacy(number::DEALLOC_PD, &DeallocPd { pd_handle: 7 }, &[], 0), &[]);
    let refusal = refusal.expect_err("no such PD");
    assert_eq!(refusal.errno, Errno::ENOENT);
    assert!(refusal.reason.contains("PD"), "{refusal}");
    handle.stop();
    assert_eq!(control.command(&get, &[]).expect_err("gone").errno, Errno::EIO);
}
