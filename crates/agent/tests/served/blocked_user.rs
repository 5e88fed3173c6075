//! A user whose thread in the agent is blocked continues to connect, thousands of times and in
//! every way. The agent keeps few descriptors of this user and serves other users. When the thread
//! is no longer blocked, all descriptors are closed.
//!
//! Only one test, because it counts the descriptors of its process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use crate::common::TestAgent;
use crate::common::hostile::{
    HANG, HOSTILE, OTHER, as_user, descriptors, for_everybody, lingering, open_xrcd, send, serves, serves_another,
};
use abi::layout::Record;
use abi::open::{Open, profile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shm::socket::Socket;

/// The number of connections in each way.
const TIMES: usize = 3000;
/// The most descriptors of a blocked user, besides the ones of its open connections.
const FEW: usize = 32;

/// Sends the last message of a connection, which the agent may already have ended.
type Way = fn(&Socket, &[BorrowedFd<'_>]) -> rustix::io::Result<usize>;

const WAYS: [(&str, Way); 5] = [
    ("sends nothing", |_, _| Ok(0)),
    ("sends data", |socket, _| send(socket, &[0; 64], &[]).and_then(|_| send(socket, &[0; 64], &[]))),
    ("sends empty messages", |socket, _| send(socket, b"", &[]).and_then(|_| send(socket, b"", &[]))),
    ("opens with descriptors", |socket, fds| send(socket, Open::new(profile::MAINLINE).bytes(), fds)),
    ("sends descriptors behind empty messages and data", |socket, fds| {
        send(socket, b"", &[]).and_then(|_| send(socket, &[0; 64], &[])).and_then(|_| send(socket, b"", fds))
    }),
];

/// Blocks the thread of the calling user until the returned peer is dropped.
fn block(agent: &TestAgent) -> std::net::TcpStream {
    let (socket, peer) = lingering();
    let mut client = agent.client();
    assert_eq!(client.call_with(&open_xrcd(), &[socket.as_fd()]).status, 0, "any file names a domain");
    drop((socket, client));
    peer
}

fn connect(dir: &Path, node: &str) -> Socket {
    Socket::connect(&dir.join(node)).expect("connected")
}

#[test]
fn a_blocked_user_who_goes_on_connecting_takes_few_descriptors() {
    let Some(agent) = &for_everybody() else { return };
    let peer = as_user(HOSTILE, || block(agent));
    agent.eventually("show", |shown| shown["contexts"].as_array().is_some_and(Vec::is_empty));
    // One descriptor blocks its closer. The other shows when all copies are closed.
    let (lingering, other_peer) = lingering();
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let mut kept: Vec<Socket> = Vec::new();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("read");
    let share = agent::users::contexts(limit, mappings.trim().parse().expect("a number")) as usize;
    for (name, kept_too) in [("has no connections", 0), ("has its share of connections", 2 * share)] {
        as_user(HOSTILE, || kept.extend((0..kept_too).map(|_| connect(&agent.dir, "uverbs0"))));
        serves_another(agent, "connections that are kept");
        let before = descriptors();
        for (way, leave) in WAYS {
            for node in ["uverbs0", "rdma_cm", agent::rundir::ADMIN] {
                as_user(HOSTILE, || {
                    for _ in 0..TIMES / 3 {
                        let _ = leave(&connect(&agent.dir, node), &[lingering.as_fd(), write.as_fd()]);
                    }
                });
                serves_another(agent, way);
                serves(agent, way);
            }
            as_user(OTHER, || agent::admin::ask(&agent.dir, &serde_json::json!({"request": "devices"})))
                .expect("an answer");
            // Other users are served before this user's waiting work, so the agent may still have
            // to do some of it.
            let limit = Instant::now() + HANG;
            while descriptors() > before + FEW {
                let more = descriptors().saturating_sub(before);
                assert!(Instant::now() < limit, "a user who {name} and {way} costs {more} descriptors");
                std::thread::yield_now();
            }
        }
    }
    drop((peer, other_peer, kept, lingering, write));
    is_closed(&read);
    as_user(HOSTILE, || {
        let mut client = agent.client();
        assert_eq!(client.call_with(&open_xrcd(), &[read.as_fd()]).status, 0, "the user is served again");
    });
    serves_another(agent, "all of that");
}

/// Asserts that the other end of a pipe is closed.
#[track_caller]
fn is_closed(read: &OwnedFd) {
    let mut polled = [PollFd::new(read, PollFlags::IN)];
    let hang = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&hang)), Ok(1), "somebody keeps what was passed");
    assert!(polled[0].revents().contains(PollFlags::HUP));
}
