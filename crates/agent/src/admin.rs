//! The admin node: questions about the agent, as JSON, one object per message.
//!
//! `{"request": "devices"}` answers with the facts of `ibv_devinfo -v`. `"show"` answers with every
//! object of every context (`show.rs`). `"errors"` answers why operations failed in these contexts,
//! and in contexts that ended lately (`reasons.rs`). `"status"` answers with counters. `"fault"`
//! adds, lists and clears faults on demand (`faults.rs`). `"port"` changes a port
//! ([`crate::port_change`]). `"subnet"` shows the switches of a topology, finds a path, or cuts a
//! cable. `"counters"` brings the counters of a port in the mirror up to date. `"stop"` ends the
//! agent. `"capture"` starts a capture that lasts as long as the connection. `"capture-news"` asks
//! for the capture rings, whose descriptors come with the answer ([`crate::capture`]).
//!
//! If an answer is too long for one message, it comes in several. Each of these begins with `+`,
//! and the last one with `.`. The agent makes them one after the other, when there is room for the
//! next ([`telling`]). Every user that reaches the node may ask. Other users' objects are shown
//! without keys and addresses. Only the agent's own user and root may stop the agent. [`ask`] is
//! the client's side.

pub(crate) mod telling;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use serde_json::{Value, json};
use shm::socket::Socket;

use crate::asker::{Asker, asker};
use crate::cm::Manager;
use crate::device_changes;
use crate::faults::manage;
use crate::foreign::Foreign;
use crate::headroom;
use crate::mads::Mads;
use crate::port_change;
use crate::rundir::ADMIN;
use crate::show;
use crate::world::World;
use telling::{Tell, Telling};

/// The longest answer that fits into one message.
const INLINE_MAX: usize = 32 * 1024;
/// The first byte of a message that is not the last of its answer.
const MORE: u8 = b'+';
/// The first byte of the last message of an answer.
const LAST: u8 = b'.';

/// What happens to an admin connection after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It continues.
    Continues,
    /// It has ended, or must.
    Ends,
    /// The whole agent must end.
    Stop,
}

/// The result of a question.
pub(crate) enum QueryOutcome {
    /// An answer, and whether ports have changed.
    Tell(Box<dyn Tell>, bool),
    /// Brings the counters of a port up to date in the mirror: the name of its device, its number.
    Counters(String, u8),
    /// The answer was sent already, or there was no question.
    Over(Verdict),
}

/// Takes a message without descriptors from `socket` into `buffer`. Returns its length, or what
/// happens to the connection. A message with descriptors ends the connection, and stays in the
/// socket: only the thread of the user may receive descriptors.
pub(crate) fn take(socket: &Foreign<Socket>, buffer: &mut [u8]) -> Result<usize, Verdict> {
    match socket.peek(buffer) {
        Ok(peeked) if peeked.has_fds || peeked.len == 0 || socket.discard().is_err() => Err(Verdict::Ends),
        Ok(peeked) => Ok(peeked.len),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Verdict::Continues),
        Err(_) => Err(Verdict::Ends),
    }
}

/// Takes one question from `socket`, which is connection `number`.
pub(crate) fn serve(
    world: &mut World,
    (manager, mads): (&Manager, &mut Mads),
    (number, socket): (u32, &Foreign<Socket>),
    buffer: &mut [u8],
) -> QueryOutcome {
    let len = match take(socket, buffer) {
        Ok(len) => len,
        Err(verdict) => return QueryOutcome::Over(verdict),
    };
    if !headroom::is_there() {
        return tell(&json!({"error": "the agent has no memory left"}));
    }
    let question = match serde_json::from_slice::<Value>(&buffer[..len]) {
        Ok(question) => question,
        Err(error) => return tell(&json!({"error": format!("a question is one JSON object: {error}")})),
    };
    let asker = asker(socket);
    match question["request"].as_str().unwrap_or_default() {
        "fault" => done(manage::answer(world, asker, &question)),
        "capture" => {
            let value = world.captures.begin((&mut world.contexts, &world.devices), number, asker, &question);
            world.flush_news();
            captured(socket, &value, &[])
        }
        "capture-news" => {
            let (value, fds) = world.captures.news(number);
            captured(socket, &value, &fds)
        }
        "devices" => tell(&show::devices(world)),
        "show" => QueryOutcome::Tell(Box::new(Telling::show(asker)), false),
        "errors" => QueryOutcome::Tell(Box::new(Telling::errors(asker)), false),
        "status" => {
            let mut status = show::status(world);
            status["manager"] = manager.status();
            tell(&status)
        }
        "port" => done(port_change::answer(world, asker, &question)),
        "subnet" => done(mads.answer_operator(world, asker, &question)),
        "counters" => {
            let device = question["device"].as_str().unwrap_or_default().to_owned();
            QueryOutcome::Counters(device, question["port"].as_u64().and_then(|port| port.try_into().ok()).unwrap_or(0))
        }
        "device" => done(device_changes::answer(world, asker, &question)),
        "stop" if asker != Asker::Root => tell(&json!({"error": "only the agent's own user and root may stop it"})),
        "stop" => {
            let _ = socket.try_send(json!({"stopping": std::process::id()}).to_string().as_bytes(), &[]);
            QueryOutcome::Over(Verdict::Stop)
        }
        other => tell(&json!({"error": format!(
            "request {other:?} is not known; there are devices, device, subnet, counters, show, errors, status, fault, port, capture, capture-news and stop"
        )})),
    }
}

/// What was done, and whether ports have changed.
fn done((value, changed): (Value, bool)) -> QueryOutcome {
    QueryOutcome::Tell(Box::new(Telling::text(&value)), changed)
}

fn tell(value: &Value) -> QueryOutcome {
    QueryOutcome::Tell(Box::new(Telling::text(value)), false)
}

/// Sends an answer about captures. It is short and comes with descriptors.
fn captured(socket: &Socket, value: &Value, fds: &[OwnedFd]) -> QueryOutcome {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let sent = socket.try_send(value.to_string().as_bytes(), &fds);
    QueryOutcome::Over(sent.map_or(Verdict::Ends, |()| Verdict::Continues))
}

/// Receives an answer from `socket`. `next` is called before each wait for a message.
pub fn receive<E: From<io::Error>>(socket: &Socket, mut next: impl FnMut() -> Result<(), E>) -> Result<Vec<u8>, E> {
    let mut answer = Vec::new();
    let mut buffer = vec![0; 2 * INLINE_MAX];
    loop {
        next()?;
        let len = socket.recv(&mut buffer)?.len;
        match &buffer[..len] {
            [] => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            [MORE, piece @ ..] => answer.extend_from_slice(piece),
            [LAST, piece @ ..] => {
                answer.extend_from_slice(piece);
                return Ok(answer);
            }
            whole => return Ok(whole.to_vec()),
        }
    }
}

/// Asks the agent that serves `run_dir`.
pub fn ask(run_dir: &Path, question: &Value) -> io::Result<Value> {
    let socket = Socket::connect(&run_dir.join(ADMIN))?;
    socket.send(question.to_string().as_bytes(), &[])?;
    let answer = receive(&socket, || Ok::<(), io::Error>(()))?;
    serde_json::from_slice(&answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
