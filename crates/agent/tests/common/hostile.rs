//! Hostile clients: descriptors whose close(2) blocks, messages that no library of softhca sends,
//! and threads that run as other users.

use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;
use std::time::Duration;

use abi::command::{legacy, number};
use abi::envelope::RequestEnvelope;
use abi::layout::Record;
use abi::xrc::{OpenXrcd, OpenXrcdAnswer, XrcdOut};
use agent::Config;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use shm::socket::Socket;

use super::{Client, TestAgent};

/// The attacking user.
pub(crate) const HOSTILE: u32 = 64_001;
/// The user that must not be harmed.
pub(crate) const OTHER: u32 = 64_002;
/// Longer than any test lasts.
const LINGER: Duration = Duration::from_secs(3600);
/// No client waits this long for a working agent.
pub(crate) const HANG: Duration = Duration::from_secs(30);
const CREATE: u32 = 0o100;

/// A socket whose last close blocks until its peer, the other value, has gone.
pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    socket.set_nonblocking(true).expect("set");
    let full = loop {
        if let Err(error) = socket.write(&[0; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).expect("set");
    (socket.into(), peer)
}

/// Sends a message as no library of softhca would.
pub(crate) fn send(socket: &Socket, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "no more than the kernel takes");
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

pub(crate) fn message(command: &[u8]) -> Vec<u8> {
    [RequestEnvelope { sequence: 1, flags: 0 }.bytes(), command].concat()
}

pub(crate) fn open_xrcd() -> Vec<u8> {
    let body = OpenXrcd { response: 1, fd: 7, oflags: CREATE };
    legacy(number::OPEN_XRCD, &body, &[], size_of::<OpenXrcdAnswer>() + size_of::<XrcdOut>())
}

/// Does something with an agent that may hang.
#[track_caller]
pub(crate) fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static, hangs: &str) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(what()));
    result.recv_timeout(HANG).unwrap_or_else(|error| panic!("{hangs}: {error}"))
}

/// Checks that the agent serves a new client, and the admin node.
#[track_caller]
pub(crate) fn serves(agent: &TestAgent, after: &str) {
    let dir = agent.dir.clone();
    let uses = move || {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        client.alloc_pd();
        agent::admin::ask(&dir, &serde_json::json!({"request": "status"})).expect("an answer");
    };
    in_time(uses, &format!("the agent serves nobody after {after}"));
}

/// How many descriptors this process has, and so the agent in it.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("listed").count()
}

/// Runs `what` as another user; nothing in it is done as root.
pub(crate) fn as_user<T>(uid: u32, what: impl FnOnce() -> T) -> T {
    let be = |uid| {
        let (uid, root) = (rustix::process::Uid::from_raw(uid), rustix::process::Uid::ROOT);
        rustix::thread::set_thread_res_uid(uid, uid, root).expect("root may be anybody");
    };
    be(uid);
    let result = what();
    be(0);
    result
}

/// An agent that serves all users, or `None` if this process cannot act as other users.
pub(crate) fn for_everybody() -> Option<TestAgent> {
    for_everybody_with("")
}

/// An agent with a configuration that serves all users, or `None` as above.
pub(crate) fn for_everybody_with(config: &str) -> Option<TestAgent> {
    if !is_root() {
        return None;
    }
    let config = Config { system: true, ..Config::parse(config).expect("a configuration") };
    let agent = TestAgent::start_as(&config);
    std::fs::set_permissions(agent.scratch.path(), PermissionsExt::from_mode(0o755)).expect("set");
    Some(agent)
}

/// Another user opens a device and passes descriptors, and the agent examines them.
#[track_caller]
pub(crate) fn serves_another(agent: &TestAgent, after: &str) {
    let dir = agent.dir.clone();
    let uses = move || {
        as_user(OTHER, || {
            let mut client = Client::connect(&dir.join("uverbs0"));
            client.open();
            client.hello();
            client.qp();
        });
    };
    in_time(uses, &format!("the agent does not serve another user after {after}"));
}

/// Whether this process may act as other users; prints a note if it may not.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: other users need root");
    }
    root
}
