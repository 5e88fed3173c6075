//! An agent at its descriptor limit: the kernel closes descriptors without room in the thread that
//! receives them. This thread must not be the one that serves other clients.
//!
//! Only one test, because the limit is the process's.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;

use common::hostile::{HANG, HOSTILE, as_user, for_everybody, lingering, message};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shm::socket::Socket;

/// The number of short messages that a socket can hold.
fn room() -> usize {
    let (a, _b) = Socket::pair().expect("a pair");
    (0..1 << 20).take_while(|_| a.try_send(&[0; 16], &[]).is_ok()).count()
}

/// Opens descriptors up to the limit.
fn fill() -> Vec<OwnedFd> {
    let file = std::fs::File::open("/dev/null").expect("there");
    std::iter::from_fn(|| file.as_fd().try_clone_to_owned().ok()).collect()
}

#[test]
fn descriptors_that_find_no_room_hold_up_nobody_else() {
    let Some(agent) = for_everybody() else { return };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), ..limit }).expect("less is always possible");
    let (mut victim, hostile) = (agent.client(), as_user(HOSTILE, || agent.client()));
    let (socket, peer) = lingering();
    // The agent reads nothing more from a client that does not read its replies.
    let none = message(&[0xff; 40]);
    let commands = room() * 5 / 4;
    for _ in 0..commands {
        hostile.socket.send(&none, &[]).expect("sent");
    }
    hostile.socket.send(&none, &[socket.as_fd()]).expect("sent");
    // Now the last reference is in the message.
    drop(socket);
    let full = fill();
    for _ in 0..commands {
        assert!(hostile.socket.recv(&mut [0; 512]).expect("a reply").len > 0);
    }
    let (done, served) = channel();
    std::thread::spawn(move || {
        for _ in 0..100 {
            victim.alloc_pd();
        }
        let _ = done.send(());
    });
    assert!(served.recv_timeout(HANG).is_ok(), "the agent serves nobody");
    drop((full, peer));
    assert!(hostile.socket.recv(&mut [0; 512]).expect("a reply").len > 0);
}
