//! Tests an initiator in a separate process that accesses this process's memory directly, and is
//! stopped or killed in the middle of it. Also tests a target that is killed, or that executes
//! another program.
//!
//! The other process runs this same test program. Its command line and environment make it run
//! [`the_other_process`] or [`the_other_target`].

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side};
use abi::post::opcode;
use engine::{Engine, SendWr, SocketControl};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The environment variable that tells the other process where the agent is.
const NODE: &str = "SOFTHCA_TEST_NODE";
/// The prefix of the other process's lines among the output of the test harness.
const MARK: &str = "peer ";
const LEN: usize = 64 * 1024;

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn gid(text: &str) -> [u8; 16] {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex");
    std::array::from_fn(byte)
}

#[test]
fn the_other_process() {
    let Some(node) = std::env::var_os(NODE) else { return };
    let control = SocketControl::open(node.as_ref(), 0).expect("an agent");
    let engine = Engine::open(Box::new(control)).expect("a context");
    let a = Side::new(&engine, &Plan { memory: 2 * LEN, ..Plan::rc() });
    println!("\n{MARK}{} {}", a.qp.qpn(), hex(a.gid()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("what to connect to");
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    a.init();
    a.rtr(gid(words[1]), number(0) as u32);
    a.rts();
    a.memory.put(0, &[1; LEN]);
    let sges = a.sge(0, LEN);
    let wr = SendWr {
        opcode: opcode::RDMA_WRITE,
        remote_addr: number(2),
        rkey: number(3) as u32,
        sges: &sges,
        ..SendWr::default()
    };
    let mut told = false;
    loop {
        a.post(&wr);
        let status = a.sent().status;
        if status != 0 {
            println!("{MARK}{status}");
            return;
        }
        if !told && a.qp.carried_directly() > 20 {
            println!("{MARK}direct");
            told = true;
        }
    }
}

#[test]
fn the_other_target() {
    let Some(node) = std::env::var_os(NODE) else { return };
    let control = SocketControl::open(node.as_ref(), 0).expect("an agent");
    let engine = Engine::open(Box::new(control)).expect("a context");
    let b = Side::new(&engine, &Plan { memory: LEN, ..Plan::rc() });
    println!("\n{MARK}{} {} {} {}", b.qp.qpn(), hex(b.gid()), b.memory.addr(0), b.mr.rkey());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("what to connect to");
    let words: Vec<&str> = line.split_whitespace().collect();
    b.init();
    b.rtr(gid(words[1]), words[0].parse().expect("a number"));
    b.rts();
    println!("{MARK}ready");
    line.clear();
    std::io::stdin().read_line(&mut line).expect("when to become another program");
    let error = Command::new("sh").args(["-c", &format!("echo '{MARK}another'; read line")]).exec();
    panic!("{error}");
}

struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    fn run(fabric: &Fabric, what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", &format!("direct_peers::{what}"), "--nocapture"])
            .env(NODE, fabric.node(0))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the other process");
        let lines = BufReader::new(child.stdout.take().expect("its lines"));
        Self { child, lines }
    }

    fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("where it is told");
        stdin.write_all(line.as_bytes()).expect("told");
    }

    /// Starts a process whose memory `a` accesses. Returns the process, and the address and key of
    /// its memory.
    fn target(fabric: &Fabric, a: &Side) -> (Self, u64, u32) {
        let mut peer = Self::run(fabric, "the_other_target");
        let line = peer.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        peer.tell(&format!("{} {}\n", a.qp.qpn(), hex(a.gid())));
        a.init();
        a.rtr(gid(words[1]), number(0) as u32);
        a.rts();
        assert_eq!(peer.line(), "ready");
        (peer, number(2), number(3) as u32)
    }

    /// The file that backs the process's memory.
    fn memory(&self) -> File {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("its descriptors");
        let path = entries
            .map(|entry| entry.expect("a descriptor").path())
            .find(|path| std::fs::read_link(path).is_ok_and(|name| name.as_os_str() == "/memfd:test (deleted)"));
        File::open(path.expect("a memfd")).expect("its memory")
    }

    /// Starts a process that writes to `b`'s memory without end. It already does so directly.
    fn start(fabric: &Fabric, b: &Side) -> Self {
        let mut peer = Self::run(fabric, "the_other_process");
        let line = peer.line();
        let (qpn, its_gid) = line.split_once(' ').expect("a QP and a GID");
        b.init();
        b.rtr(gid(its_gid), qpn.parse().expect("a number"));
        b.rts();
        let told = format!("{} {} {} {}\n", b.qp.qpn(), hex(b.gid()), b.memory.addr(0), b.mr.rkey());
        peer.tell(&told);
        assert_eq!(peer.line(), "direct");
        peer
    }

    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("a line"), 0, "the other process has ended");
            if let Some(text) = line.strip_prefix(MARK) {
                return text.trim().into();
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn target(fabric: &Fabric) -> Side {
    Side::new(&fabric.engine(), &Plan { memory: 2 * LEN, ..Plan::rc() })
}

#[test]
fn a_stopped_initiator_writes_nothing_after_dereg() {
    let fabric = Fabric::start();
    for _ in 0..3 {
        let b = target(&fabric);
        let mut peer = Peer::start(&fabric, &b);
        kill_process(peer.pid(), Signal::STOP).expect("stopped");
        waitpid(Some(peer.pid()), WaitOptions::UNTRACED).expect("it is stopped");
        b.mr.dereg().expect("deregistered, whatever the peer does");
        b.memory.put(0, &[2; LEN]);
        kill_process(peer.pid(), Signal::CONT).expect("it goes on");
        assert_eq!(peer.line(), "10", "IBV_WC_REM_ACCESS_ERR");
        assert!(b.memory.get(0, LEN).iter().all(|byte| *byte == 2));
    }
}

#[test]
fn an_initiator_that_is_killed_leaves_nothing_behind() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    for _ in 0..3 {
        let b = Side::new(&engine, &Plan { memory: 2 * LEN, ..Plan::rc() });
        drop(Peer::start(&fabric, &b));
        b.mr.dereg().expect("deregistered");
        b.memory.put(0, &[2; LEN]);
        assert!(b.memory.get(0, LEN).iter().all(|byte| *byte == 2));
    }
}

/// The word at the beginning of a target's memory.
fn word(memory: &File) -> u64 {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, 0).expect("a word");
    u64::from_ne_bytes(bytes)
}

/// Once another process can know that a target has ended, nothing writes to the target's memory,
/// because it may belong to another program by then. This holds even if the agent has not announced
/// the end yet.
fn a_target_that_ends_is_not_written_to(mut end: impl FnMut(&mut Peer)) {
    let fabric = Fabric::start();
    for _ in 0..5 {
        let a = Side::new(&fabric.engine(), &Plan::rc().hasty());
        let (mut peer, remote_addr, rkey) = Peer::target(&fabric, &a);
        let memory = peer.memory();
        let sges = a.sge(0, 8);
        let wr = SendWr { opcode: opcode::RDMA_WRITE, remote_addr, rkey, sges: &sges, ..SendWr::default() };
        a.memory.put_word(0, 1);
        until("a request that goes direct", || {
            a.post(&wr);
            assert_eq!(a.sent().status, 0);
            (a.qp.carried_directly() > 0).then_some(())
        });
        assert_eq!(word(&memory), 1);
        a.memory.put_word(0, 2);
        end(&mut peer);
        a.post(&wr);
        assert_eq!(word(&memory), 1);
        assert_eq!((a.sent().status, word(&memory)), (12, 1), "IBV_WC_RETRY_EXC_ERR");
    }
}

#[test]
fn a_target_that_is_killed_is_not_written_to() {
    a_target_that_ends_is_not_written_to(|peer| {
        peer.child.kill().expect("killed");
        peer.child.wait().expect("ended");
    });
}

#[test]
fn a_target_that_becomes_another_program_is_not_written_to() {
    a_target_that_ends_is_not_written_to(|peer| {
        peer.tell("now\n");
        assert_eq!(peer.line(), "another");
    });
}
