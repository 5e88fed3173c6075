//! A private agent, and clients that use its socket, for the tests in this directory.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod flood;
pub(crate) mod fuse;
pub(crate) mod hostile;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use abi::command::{extended, legacy, number};
use abi::cq::{CreateCq, CreateCqAnswer};
use abi::device::{GetContext, GetContextAnswer};
use abi::envelope::{ReplyEnvelope, RequestEnvelope};
use abi::layout::Record;
use abi::open::{Open, OpenAnswer, profile};
use abi::pd::{AllocPd, AllocPdAnswer};
use abi::private::{EngineHello, EngineHelloAnswer};
use abi::qp::{CreateQp, CreateQpAnswer, kind};
use abi::queue::{CqOut, QpOut};
use agent::{Agent, AgentHandle, Config};
use rustix::event::EventfdFlags;
use shm::region::Region;
use shm::socket::Socket;

/// An agent in a run directory of its own.
pub(crate) struct TestAgent {
    pub(crate) handle: AgentHandle,
    pub(crate) dir: PathBuf,
    pub(crate) scratch: tempfile::TempDir,
}

impl TestAgent {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    pub(crate) fn start_with(config: &str) -> Self {
        Self::start_as(&Config::parse(config).expect("a configuration"))
    }

    pub(crate) fn start_as(config: &Config) -> Self {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let dir = scratch.path().join("run");
        let handle = Agent::start(config, Some(&dir)).expect("an agent");
        Self { handle, dir, scratch }
    }

    pub(crate) fn client(&self) -> Client {
        let mut client = Client::connect(&self.dir.join("uverbs0"));
        client.open();
        client
    }

    /// Asks the admin node until the answer satisfies `wanted`. The objects of a client that has
    /// ended go soon, but not at once.
    pub(crate) fn eventually(&self, request: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
        for _ in 0..200 {
            if wanted(&self.ask(request)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{request} still answers {}", self.ask(request));
    }

    pub(crate) fn ask(&self, request: &str) -> serde_json::Value {
        agent::admin::ask(&self.dir, &serde_json::json!({ "request": request })).expect("an answer")
    }
}

/// The reply to one command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Answer {
    pub(crate) fn get<T: Record>(&self, offset: usize) -> T {
        assert_eq!(self.status, 0, "{}", self.reason());
        T::read(&self.bytes[offset..]).expect("a whole record")
    }

    pub(crate) fn reason(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A raw connection to a node.
pub(crate) struct Client {
    pub(crate) socket: Socket,
    sequence: u32,
}

impl Client {
    pub(crate) fn connect(path: &std::path::Path) -> Self {
        Self { socket: Socket::connect(path).expect("connected"), sequence: 100 }
    }

    /// Opens the node and sends GET_CONTEXT.
    pub(crate) fn open(&mut self) -> Answer {
        self.socket.send(Open::new(profile::MAINLINE).bytes(), &[]).expect("sent");
        let mut bytes = [0; 16];
        assert_eq!(self.socket.recv(&mut bytes).expect("an answer").len, 16);
        assert_eq!(OpenAnswer::read(&bytes).expect("whole").status, 0);
        let answer = self.call(&legacy(
            number::GET_CONTEXT,
            &GetContext { response: 1 },
            &[],
            size_of::<GetContextAnswer>() + 40,
        ));
        assert_eq!(answer.fds.len(), 2, "the async file and the context page");
        answer
    }

    pub(crate) fn send(&mut self, command: &[u8], fds: &[BorrowedFd<'_>]) {
        self.sequence += 1;
        let envelope = RequestEnvelope { sequence: self.sequence, flags: 0 };
        self.socket.send(&[envelope.bytes(), command].concat(), fds).expect("sent");
    }

    pub(crate) fn receive(&mut self) -> Answer {
        let mut bytes = vec![0; 64 * 1024];
        let received = self.socket.recv(&mut bytes).expect("a reply");
        let envelope = ReplyEnvelope::read(&bytes[..received.len]).expect("an envelope");
        assert_eq!(envelope.sequence, self.sequence);
        assert_eq!(envelope.fds as usize, received.fds.len());
        Answer { status: envelope.status, bytes: bytes[16..received.len].to_vec(), fds: received.fds }
    }

    pub(crate) fn call(&mut self, command: &[u8]) -> Answer {
        self.call_with(command, &[])
    }

    pub(crate) fn call_with(&mut self, command: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        self.send(command, fds);
        self.receive()
    }

    pub(crate) fn alloc_pd(&mut self) -> u32 {
        let answer = self.call(&legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12));
        answer.get::<AllocPdAnswer>(0).pd_handle
    }

    pub(crate) fn create_cq(&mut self, cqe: u32) -> (u32, CqOut, Vec<OwnedFd>) {
        let body = CreateCq { response: 1, cqe, comp_channel: -1, ..CreateCq::default() };
        let answer = self.call(&legacy(number::CREATE_CQ, &body, &[], 8 + 56));
        (answer.get::<CreateCqAnswer>(0).cq_handle, answer.get(8), answer.fds)
    }

    pub(crate) fn create_qp(&mut self, pd: u32, cq: u32, qp_type: u8) -> (CreateQpAnswer, QpOut, Vec<OwnedFd>) {
        let answer = self.call(&create_qp(pd, cq, qp_type));
        (answer.get(0), answer.get(32), answer.fds)
    }

    /// Creates a PD, a CQ and an RC QP.
    pub(crate) fn qp(&mut self) -> (u32, u32, CreateQpAnswer) {
        let pd = self.alloc_pd();
        let (cq, ..) = self.create_cq(16);
        let (qp, ..) = self.create_qp(pd, cq, kind::RC);
        (pd, cq, qp)
    }

    /// Sends ENGINE_HELLO. Returns the engine's number, its push socket and its wake eventfd.
    pub(crate) fn hello(&mut self) -> (u32, Socket, OwnedFd) {
        let (_, wake_word) = Region::create("wake-word", 4096).expect("a wake word");
        let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let body = EngineHello { pid: std::process::id(), flags: 0 };
        let command = extended(number::ENGINE_HELLO, &body, size_of::<EngineHelloAnswer>(), 0);
        let mut answer = self.call_with(&command, &[wake_word.as_fd(), kick.as_fd()]);
        let out: EngineHelloAnswer = answer.get(0);
        let push = answer.fds.pop().expect("the push socket");
        (out.engine, push.into(), kick)
    }
}

pub(crate) fn create_qp(pd: u32, cq: u32, qp_type: u8) -> Vec<u8> {
    let body = CreateQp {
        response: 1,
        pd_handle: pd,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        qp_type,
        ..CreateQp::default()
    };
    legacy(number::CREATE_QP, &body, &[], 32 + 72)
}
