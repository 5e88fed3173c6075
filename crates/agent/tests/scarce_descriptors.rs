//! More descriptors are in flight between the processes of a user than one process may have open.
//! This happens if programs are stopped to which others want lanes. Then the kernel passes no more
//! descriptors for a while. The agent disconnects no client for that, and everything arrives when
//! there is room again.
//!
//! There is only one test in this file, because the limit belongs to the process.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use abi::Errno;
use abi::command::{extended, number};
use abi::layout::Record;
use abi::open::profile;
use abi::private::{EngineHello, EngineHelloAnswer, LaneOpen, LaneOut, Push, push};
use common::TestAgent;
use engine::{Control, SocketControl};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use shm::socket::{FDS_MAX, Socket};

const MOST: u64 = 1024;

/// From now on, no thread may have more descriptors in flight than the limit.
fn be_ordinary() {
    let mut all = capabilities(None).expect("what this thread may do");
    all.effective.remove(CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN);
    set_capabilities(None, all).expect("less is always possible");
}

/// Fills up what may be in flight. The returned sockets hold it.
fn fill() -> (Socket, Socket) {
    let (ours, theirs) = Socket::pair().expect("a pair");
    let file = std::fs::File::open("/dev/null").expect("there");
    let full = (0..MOST).any(|_| match ours.try_send(&[1], &[file.as_fd(); FDS_MAX]) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::TOOMANYREFS.raw_os_error()));
            true
        }
    });
    assert!(full, "the kernel has a limit");
    (ours, theirs)
}

#[test]
fn a_push_without_descriptors_arrives_when_some_are_free() {
    be_ordinary();
    let agent = TestAgent::start();
    let (mut one, mut two) = (agent.client(), agent.client());
    let (_, _push_one, _kick_one) = one.hello();
    let (engine, push_two, _kick_two) = two.hello();
    let path = agent.dir.join("uverbs0");
    let control = SocketControl::open(&path, profile::MAINLINE).expect("an agent");
    // Set after the agent has raised the limit for itself.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(MOST), ..limit }).expect("less is always possible");

    let held = fill();
    one.send(&extended(number::LANE_OPEN, &LaneOpen { engine, lane_index: 0 }, size_of::<LaneOut>(), 0), &[]);
    agent.eventually("status", |status| status["lanes"] == 1);
    let mut bytes = [0; 512];
    for socket in [&one.socket, &push_two] {
        let error = socket.try_recv(&mut bytes).expect_err("no room for descriptors");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
    // A program that sends descriptors is told the reason, and not that its agent is gone.
    let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("there"));
    let hello = extended(number::ENGINE_HELLO, &EngineHello::default(), size_of::<EngineHelloAnswer>(), 0);
    let error = control.call(&hello, &[file.as_fd(), file.as_fd()]).expect_err("no room");
    assert_eq!(error.errno, Errno::EMFILE);
    assert!(error.reason.contains("ulimit -n"), "{}", error.reason);
    // A client that needs no descriptors does not wait.
    two.alloc_pd();

    drop(held);
    let answer = one.receive();
    assert_eq!((answer.get::<LaneOut>(0).engine, answer.fds.len()), (engine, 4));
    let received = push_two.recv(&mut bytes).expect("a push");
    let pushed = Push::read(&bytes[..received.len]).expect("whole");
    assert_eq!((pushed.kind, received.fds.len()), (push::LANE, 4));
    one.qp();
    let error = control.call(&hello, &[file.as_fd(), file.as_fd()]).expect_err("those are no wake word and no eventfd");
    assert_eq!(error.errno, Errno::EINVAL, "the agent has heard it");
}
