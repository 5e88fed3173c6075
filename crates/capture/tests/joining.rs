//! Tests the beginning of a capture: it starts with the first packet after every program has
//! joined, and names programs that cannot join. The tests play the agent and the programs.
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use abi::capture::{CaptureRecord, kind, path};
use abi::layout::Record;
use capture::{Packet, Session, Wanted};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::{Value, json};
use shm::Socket;
use shm::capture_ring::{CAPTURE_RING_MIN, CaptureRingTx, create_capture_ring};

/// A program's end of its capture ring.
struct Program {
    ring: CaptureRingTx,
    about: Value,
    fd: OwnedFd,
}

impl Program {
    fn new(engine: u32, pid: u32) -> Self {
        let fd = create_capture_ring(CAPTURE_RING_MIN).unwrap();
        let about =
            json!({"engine": engine, "pid": pid, "comm": "program", "device": "softhca0", "room": CAPTURE_RING_MIN});
        Self { ring: CaptureRingTx::map(fd.as_fd(), CAPTURE_RING_MIN).unwrap(), about, fd }
    }

    /// Records that a packet leaves now. The packet has an opcode of the manufacturer's range, and
    /// this PSN.
    fn send(&mut self, psn: u8) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let bytes = [0xc0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, psn, 0, 0, 0, 0];
        let len = bytes.len() as u32;
        let record = CaptureRecord {
            kind: kind::PACKET,
            path: path::LANE_OUT,
            time,
            len,
            kept: len,
            ..CaptureRecord::default()
        };
        assert!(self.ring.push(&[record.bytes(), &bytes]));
    }
}

/// The agent of a capture: its thread, and the number of requests for news.
struct Agent {
    thread: JoinHandle<()>,
    questions: Arc<AtomicU32>,
}

/// An agent that knows these programs. From the third request on it says that the programs in
/// `ended` have ended.
fn agent(programs: &[&Program], ended: Vec<u32>) -> (Socket, Agent) {
    let (ours, theirs) = Socket::pair().unwrap();
    let abouts: Vec<Value> = programs.iter().map(|program| program.about.clone()).collect();
    let fds: Vec<OwnedFd> = programs.iter().map(|program| program.fd.try_clone().unwrap()).collect();
    let questions = Arc::new(AtomicU32::new(0));
    let asked = Arc::clone(&questions);
    let thread = thread::spawn(move || {
        let mut buffer = vec![0; 4096];
        while let Ok(received) = ours.recv(&mut buffer)
            && received.len > 0
        {
            let question: Value = serde_json::from_slice(&buffer[..received.len]).unwrap();
            let mut fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let answer = if question["request"] == "capture" {
                fds.clear();
                json!({"capture": 1, "everything": true, "devices": ["softhca0"]})
            } else if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                json!({"rings": abouts, "ended": [], "more": false, "unseen": 0})
            } else {
                fds.clear();
                let ended = if asked.load(Ordering::Relaxed) > 2 { &ended[..] } else { &[] };
                json!({"rings": [], "ended": ended, "more": false, "unseen": 0})
            };
            ours.send(answer.to_string().as_bytes(), &fds).unwrap();
        }
    });
    (theirs, Agent { thread, questions })
}

fn psns(packets: &[Packet]) -> Vec<u8> {
    packets.iter().map(|packet| packet.bytes[11]).collect()
}

/// A process that a signal has stopped.
fn stopped() -> Child {
    let child = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    assert!(waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap().1.stopped());
    child
}

#[test]
fn packets_from_before_all_programs_have_joined_are_left_out() {
    let (mut first, mut second) = (Program::new(1, std::process::id()), Program::new(2, std::process::id()));
    let (socket, agent) = agent(&[&first, &second], Vec::new());
    first.ring.attach();
    let begin = thread::spawn(move || Session::begin(socket, Wanted::default()).unwrap());
    for psn in 0..12 {
        first.send(psn);
    }
    // The first program's packets all fit, although they are more than its capture ring holds: 480
    // packets.
    for rounds in 1..4 {
        while agent.questions.load(Ordering::Relaxed) < rounds * 3 {
            assert!(!begin.is_finished(), "one program has not joined yet");
            thread::yield_now();
        }
        (0..300).for_each(|_| first.send(20));
    }
    second.ring.attach();
    let mut session = begin.join().unwrap();
    first.send(100);
    second.send(101);
    first.send(102);
    assert_eq!((psns(&session.finish()), session.lost()), (vec![100, 101, 102], 0));
    assert_eq!(session.complaints(), [""; 0]);
    drop(session);
    agent.thread.join().unwrap();
}

#[test]
fn a_stopped_program_is_named_and_not_waited_for() {
    let mut process = stopped();
    let (mut runs, mut late) = (Program::new(1, std::process::id()), Program::new(2, process.id()));
    let (socket, agent) = agent(&[&runs, &late], Vec::new());
    runs.ring.attach();
    let mut session = Session::begin(socket, Wanted::default()).unwrap();
    assert_eq!(agent.questions.load(Ordering::Relaxed), 1, "it waits for nobody");
    let complaints = session.complaints();
    let name = format!("process {} (program) is stopped or frozen", process.id());
    assert!(complaints.len() == 1 && complaints[0].starts_with(&name), "{complaints:?}");
    runs.send(1);
    assert_eq!(psns(&session.finish()), [1]);
    // The capture continues.
    late.ring.attach();
    late.send(2);
    assert_eq!((psns(&session.finish()), session.complaints()), (vec![2], Vec::new()));
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_program_that_ends_before_it_joins_is_not_waited_for() {
    let program = Program::new(7, std::process::id());
    let (socket, agent) = agent(&[&program], vec![7]);
    let session = Session::begin(socket, Wanted::default()).unwrap();
    assert_eq!(session.complaints(), [""; 0]);
    assert_eq!(agent.questions.load(Ordering::Relaxed), 3);
}
