//! Questions to the agent: one JSON request and one JSON answer on its `admin` node.
//!
//! The principal type is [`Connection`]. Of an answer this module reads only the member `error`;
//! everything else goes to the caller unread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use shm::Socket;

/// How long the agent may take to answer. After this time it counts as stopped, not as busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer.
enum Silence {
    /// The agent has ended.
    Gone(io::Error),
    /// The agent exists and does not answer.
    Late(String),
}

/// A call that failed. An error of the kernel or an end of file means that the agent has ended. Any
/// other error means that this process cannot send the request.
impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::Gone(error);
        }
        Self::Late(format!("cannot send the request to the agent: {error}"))
    }
}

/// An open connection to an agent.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
}

impl Connection {
    /// Connects to the agent of `run_dir`.
    pub(crate) fn open(run_dir: &Path) -> io::Result<Self> {
        Ok(Self { socket: Socket::connect(&engine::rundir::admin(run_dir))? })
    }

    /// Connects; if there is no agent, the error says what to type.
    pub(crate) fn expect(run_dir: &Path) -> Result<Self, String> {
        Self::open(run_dir).map_err(|error| {
            let dir = run_dir.display();
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    format!(
                        "no agent is running in {dir}; start one with `softhca agent`, or with `softhca run -- PROGRAM`"
                    )
                }
                _ => format!("cannot connect to the agent of {dir}: {error}; run `softhca doctor`"),
            }
        })
    }

    /// Whether an agent answers. It is an error if the agent accepts the request and does not
    /// answer.
    pub(crate) fn answers(&self) -> Result<bool, String> {
        match self.exchange(&json!({ "request": "status" }), PATIENCE) {
            Ok(_) => Ok(true),
            Err(Silence::Gone(_)) => Ok(false),
            Err(Silence::Late(why)) => Err(why),
        }
    }

    /// Sends a request that has no members but its name, and returns the answer.
    pub(crate) fn ask(&self, request: &str) -> Result<Value, String> {
        self.ask_for(&json!({ "request": request }))
    }

    /// Sends a request with all its members, and returns the answer.
    pub(crate) fn ask_for(&self, question: &Value) -> Result<Value, String> {
        self.ask_within(question, PATIENCE)
    }

    /// As [`Self::ask_for`], for a caller that waits at most `patience`.
    pub(crate) fn ask_within(&self, question: &Value, patience: Duration) -> Result<Value, String> {
        let bytes = self.exchange(question, patience).map_err(|silence| match silence {
            Silence::Gone(error) => format!("lost the connection to the agent: {error}"),
            Silence::Late(why) => why,
        })?;
        let answer: Value = serde_json::from_slice(&bytes).map_err(|error| {
            format!("cannot parse the agent's answer ({error}); the agent may have another version")
        })?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }

    fn exchange(&self, question: &Value, patience: Duration) -> Result<Vec<u8>, Silence> {
        self.socket.send(question.to_string().as_bytes(), &[])?;
        agent::admin::receive(&self.socket, || self.await_answer(patience).map_err(Silence::Late))
    }

    /// The agent's process id. `None`: it is not visible here, for example because the agent runs
    /// in another container.
    pub(crate) fn agent_pid(&self) -> Option<u32> {
        self.socket.peer_credentials().ok().map(|peer| peer.pid).filter(|pid| *pid != 0)
    }

    fn await_answer(&self, patience: Duration) -> Result<(), String> {
        let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => Err(format!("the agent has not answered for {} s; is it stopped?", patience.as_secs())),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("waiting for the agent: {errno}")),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
