//! The admin node: questions about the agent, as JSON, one object per message.
//!
//! `{"request": "devices"}` answers with the facts of `ibv_devinfo -v`; `"show"` with every object of every context, as
//! `show.rs` tells them; `"errors"` with why something failed in them and in those that ended lately, as `reasons.rs` does; `"status"` with a few numbers; `"fault"` adds, lists and clears faults on demand (`faults.rs`); `"stop"` ends the agent. An answer that is too long for a
//! message comes as a memfd: the message then says `{"attached": bytes}`. Every user that reaches the node may ask; what
//! is somebody else's is shown without keys and addresses, and only the agent's own user and root may stop it. `"capture"` begins
//! a capture that lasts as long as the connection, and `"capture-news"` asks for its spools, whose descriptors come with the answer
//! ([`crate::capture`]). [`ask`] is the client's side.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::MemfdFlags;
use serde_json::{Value, json};
use shm::socket::Socket;

use crate::capture;
use crate::cm::Manager;
use crate::faults;
use crate::reasons;
use crate::rundir::ADMIN;
use crate::show;
use crate::world::World;

/// The longest answer that is a message of its own.
const INLINE_MAX: usize = 32 * 1024;

/// What becomes of an admin connection after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Goes,
    /// It has ended, or must.
    Ends,
    /// It goes on, and ports have changed.
    Changed,
    /// The whole agent is to end.
    Stop,
}

/// Takes one question from `socket`, which is connection `number`, and answers it.
pub(crate) fn serve(
    world: &mut World,
    manager: &Manager,
    (number, socket): (u32, &Socket),
    buffer: &mut [u8],
) -> Verdict {
    let received = match socket.try_recv(buffer) {
        Ok(received) if received.len > 0 => received,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Verdict::Goes,
        _ => return Verdict::Ends,
    };
    let question = &buffer[..received.len];
    if let Ok(asked) = serde_json::from_slice::<Value>(question)
        && asked["request"] == "fault"
    {
        let (value, changed) = faults::answer(world, asker(socket), &asked);
        return match send(socket, &value) {
            Ok(()) if !changed => Verdict::Goes,
            _ if changed => Verdict::Changed,
            _ => Verdict::Ends,
        };
    }
    if let Some(request) = about_capture(question) {
        let (value, fds) = match request["request"] == "capture" {
            true => (capture::begin(world, number, asker(socket), &request), Vec::new()),
            false => capture::news(world, number),
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        return socket.try_send(value.to_string().as_bytes(), &fds).map_or(Verdict::Ends, |()| Verdict::Goes);
    }
    let (value, stop) = answer((world, manager), asker(socket), question);
    match send(socket, &value) {
        _ if stop => Verdict::Stop,
        Ok(()) => Verdict::Goes,
        Err(_) => Verdict::Ends,
    }
}

/// A question about captures, if it is one.
fn about_capture(question: &[u8]) -> Option<Value> {
    let question: Value = serde_json::from_slice(question).ok()?;
    matches!(question["request"].as_str(), Some("capture" | "capture-news")).then_some(question)
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Root, or the user that the agent runs as: they see everything anyway.
    Root,
    /// Another user.
    User(u32),
}

impl Asker {
    /// Whether what belongs to the user `uid` may be shown as it is.
    pub(crate) fn may_see(self, uid: u32) -> bool {
        self == Self::Root || self == Self::User(uid)
    }
}

fn asker(socket: &Socket) -> Asker {
    match socket.peer_credentials() {
        Ok(peer) if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() => Asker::Root,
        Ok(peer) => Asker::User(peer.uid),
        // Nobody has this number.
        Err(_) => Asker::User(u32::MAX),
    }
}

/// The answer to a question, and whether the agent is to end.
fn answer((world, manager): (&World, &Manager), asker: Asker, question: &[u8]) -> (Value, bool) {
    let request = match serde_json::from_slice::<Value>(question) {
        Ok(question) => question["request"].as_str().unwrap_or_default().to_owned(),
        Err(error) => return (json!({"error": format!("a question is one JSON object: {error}")}), false),
    };
    match request.as_str() {
        "devices" => (show::devices(world), false),
        "show" => (with(show::contexts(world, asker), manager.show(asker)), false),
        "errors" => (reasons::show(world, asker), false),
        "status" => (with(show::status(world), manager.status()), false),
        "stop" if asker != Asker::Root => (json!({"error": "only the agent's own user and root may stop it"}), false),
        "stop" => (json!({"stopping": std::process::id()}), true),
        other => (
            json!({"error": format!("request {other:?} is not known; there are devices, show, errors, status, fault, capture, capture-news and stop")}),
            false,
        ),
    }
}

/// An answer with what the connection manager says beside it.
fn with(mut answer: Value, manager: Value) -> Value {
    answer["manager"] = manager;
    answer
}

fn send(socket: &Socket, value: &Value) -> io::Result<()> {
    let text = value.to_string();
    if text.len() <= INLINE_MAX {
        return socket.try_send(text.as_bytes(), &[]);
    }
    let memfd: OwnedFd = rustix::fs::memfd_create("softhca-answer", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memfd);
    file.write_all(text.as_bytes())?;
    socket.try_send(json!({"attached": text.len()}).to_string().as_bytes(), &[file.as_fd()])
}

/// Asks the agent that serves `run_dir`.
pub fn ask(run_dir: &Path, question: &Value) -> io::Result<Value> {
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let socket = Socket::connect(&run_dir.join(ADMIN))?;
    socket.send(question.to_string().as_bytes(), &[])?;
    let mut buffer = vec![0; 2 * INLINE_MAX];
    let mut received = socket.recv(&mut buffer)?;
    if received.len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let answer: Value =
        serde_json::from_slice(&buffer[..received.len]).map_err(|_| broken("the agent's answer is not JSON"))?;
    let Some(memfd) = received.fds.pop() else { return Ok(answer) };
    let mut file = File::from(memfd);
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(|_| broken("the agent's attached answer is not JSON"))
}
