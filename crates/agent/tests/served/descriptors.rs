//! Descriptors whose close(2) blocks. In whatever way a client leaves one with the agent, the agent
//! continues to serve other clients, and it keeps few of these descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::common::hostile::{HANG, descriptors, lingering, message, open_xrcd, send, serves};
use crate::common::{Client, TestAgent};
use abi::Errno;
use abi::command::{extended, legacy, number};
use abi::layout::Record;
use abi::mr::{RegMr, access};
use abi::open::{Open, profile};
use abi::pd::AllocPd;
use abi::private::{DirectGrant, EngineHello, EngineHelloAnswer};
use abi::queue::MrIn;
use abi::xrc::{OpenXrcdAnswer, XrcdOut};
use rustix::fs::{Mode, OFlags};
use shm::socket::Socket;

/// Checks that this socket accepts no descriptor, because the agent has shut down its end.
fn is_refused(socket: &Socket, fd: BorrowedFd<'_>) {
    let sent = send(socket, b"x", &[fd]);
    if sent.is_err() {
        is_ours_alone(fd);
    }
    assert_eq!(sent, Err(rustix::io::Errno::PIPE));
}

/// No other process has got the descriptor, so the close here must not block.
fn is_ours_alone(fd: BorrowedFd<'_>) {
    rustix::net::sockopt::set_socket_linger(fd, None).expect("set");
}

fn alloc_pd() -> Vec<u8> {
    legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12)
}

fn hello() -> Vec<u8> {
    extended(number::ENGINE_HELLO, &EngineHello { pid: 1, flags: 0 }, size_of::<EngineHelloAnswer>(), 0)
}

fn connect(dir: &Path, node: &str) -> Socket {
    Socket::connect(&dir.join(node)).expect("connected")
}

/// A way to leave a descriptor with the agent. The returned sockets are kept open.
type Way = fn(&TestAgent, BorrowedFd<'_>) -> Vec<Socket>;

fn with_command(agent: &TestAgent, command: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<Socket> {
    let client = agent.client();
    send(&client.socket, &message(command), fds).expect("sent");
    vec![client.socket]
}

const WAYS: [(&str, Way); 15] = [
    ("a command that takes none", |agent, fd| with_command(agent, &alloc_pd(), &[fd])),
    ("a command that is none", |agent, fd| with_command(agent, &[0xff; 40], &[fd])),
    ("more than a command may have", |agent, fd| with_command(agent, &alloc_pd(), &[fd; 9])),
    ("all that the kernel carries", |agent, fd| with_command(agent, &alloc_pd(), &[fd; 253])),
    ("ENGINE_HELLO", |agent, fd| with_command(agent, &hello(), &[fd, fd])),
    ("DIRECT_GRANT", |agent, fd| {
        let mut client = agent.client();
        let (engine, push, _kick) = client.hello();
        let grant = extended(number::DIRECT_GRANT, &DirectGrant { engine, ..DirectGrant::default() }, 0, 0);
        client.send(&grant, &[fd]);
        vec![push, client.socket]
    }),
    ("an XRC domain that ends with its context", |agent, fd| {
        let mut client = agent.client();
        assert_eq!(client.call_with(&open_xrcd(), &[fd]).status, 0, "any file names a domain");
        Vec::new()
    }),
    ("a message that is too short", |agent, fd| {
        let client = agent.client();
        send(&client.socket, b"x", &[fd]).expect("sent");
        vec![client.socket]
    }),
    ("an empty message", |agent, fd| {
        let client = agent.client();
        send(&client.socket, b"", &[fd]).expect("sent");
        vec![client.socket]
    }),
    ("the opening", |agent, fd| {
        let socket = connect(&agent.dir, "uverbs0");
        send(&socket, Open::new(profile::MAINLINE).bytes(), &[fd]).expect("sent");
        vec![socket]
    }),
    ("what is unread when the agent ends the connection", |agent, fd| {
        let socket = connect(&agent.dir, "uverbs0");
        // The agent may already close the connection after the first message.
        if send(&socket, &[0; 64], &[]).is_err() || send(&socket, &[0; 64], &[fd]).is_err() {
            is_ours_alone(fd);
        }
        vec![socket]
    }),
    ("the connection manager", |agent, fd| {
        let socket = connect(&agent.dir, "rdma_cm");
        send(&socket, Open::new(profile::MAINLINE).bytes(), &[]).expect("sent");
        let _ = socket.recv(&mut [0; 64]).expect("opened");
        send(&socket, &message(&[0; 16]), &[fd]).expect("sent");
        vec![socket]
    }),
    ("an event socket of the connection manager", |agent, fd| {
        let socket = connect(&agent.dir, "rdma_cm");
        send(&socket, Open::new(profile::MAINLINE).bytes(), &[]).expect("sent");
        let mut opened = socket.recv(&mut [0; 64]).expect("opened");
        let event_socket = Socket::from(opened.fds.pop().expect("the event socket"));
        is_refused(&event_socket, fd);
        Vec::new()
    }),
    ("a push socket", |agent, fd| {
        let mut client = agent.client();
        let (_, push, _kick) = client.hello();
        is_refused(&push, fd);
        Vec::new()
    }),
    ("the admin node", |agent, fd| {
        let ask = |question: &&[u8]| {
            let socket = connect(&agent.dir, agent::rundir::ADMIN);
            send(&socket, question, &[fd]).expect("sent");
            socket
        };
        [&b"{\"request\": \"status\"}"[..], b"{", b""].iter().map(ask).collect()
    }),
];

#[test]
fn a_descriptor_that_blocks_its_closer_blocks_no_other_client() {
    let agent = &TestAgent::start();
    // The agent's close is the last one if the client is quick, which it need not be each time.
    for (name, way) in WAYS.into_iter().flat_map(|way| [way; 3]) {
        std::thread::scope(|scope| {
            // When the peer is dropped, no close blocks any more.
            let (socket, _peer) = lingering();
            let (left, kept) = channel();
            scope.spawn(move || {
                let _ = left.send(way(agent, socket.as_fd()));
                drop(socket);
            });
            let kept = kept.recv_timeout(HANG);
            serves(agent, name);
            drop(kept);
            serves(agent, &format!("{name}, and the client's end"));
        });
    }
}

#[test]
fn a_user_whose_descriptors_wait_passes_no_more_of_them() {
    let agent = TestAgent::start();
    let (socket, peer) = lingering();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let clients: Vec<Client> = (0..40).map(|_| agent.client()).collect();
    // The agent's close is the last one, at the end of this client's context.
    let mut holder = agent.client();
    assert_eq!(holder.call_with(&open_xrcd(), &[socket.as_fd()]).status, 0);
    drop((socket, holder));
    let before = descriptors();
    for _ in 0..4 {
        for client in &clients {
            let _ = send(&client.socket, &message(&alloc_pd()), &[event.as_fd(); 253]);
        }
    }
    // A local client is served all the time, so the agent has looked at all other clients.
    let local = agent.handle.connect(0, profile::MAINLINE).expect("the agent serves");
    let context = legacy(number::GET_CONTEXT, &abi::device::GetContext { response: 1 }, &[], 48);
    local.command(&context, &[]).expect("served");
    let end = Instant::now() + Duration::from_millis(300);
    let mut most = 0;
    while Instant::now() < end {
        local.command(&alloc_pd(), &[]).expect("served");
        most = most.max(descriptors().saturating_sub(before));
    }
    assert!(most <= 1024 + 2 * 253, "{most} descriptors of one user wait");
    // When nothing blocks any more, everything is read, refused and closed.
    drop(peer);
    for client in clients {
        let mut bytes = [0; 4096];
        assert!(client.socket.recv(&mut bytes).expect("a reply").len > 0);
    }
    serves(&agent, "the flood");
}

#[test]
fn a_domain_is_for_those_who_may_open_its_file() {
    let agent = TestAgent::start();
    let path = agent.scratch.path().join("domain");
    std::fs::write(&path, "").expect("written");
    let fd = |flags: OFlags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()).expect("opened");
    let mut client = agent.client();
    let mut number = |flags| {
        let answer = client.call_with(&open_xrcd(), &[fd(flags).as_fd()]);
        let known = (answer.status == 0).then(|| answer.get::<XrcdOut>(size_of::<OpenXrcdAnswer>()).number);
        known.ok_or(answer.status)
    };
    let reader = number(OFlags::RDONLY).expect("a domain");
    assert_eq!(number(OFlags::PATH), Err(Errno::EBADF.to_status()), "that needs no right to the file");
    assert_eq!(number(OFlags::WRONLY), Ok(reader), "any other way to open the file will do");
}

#[test]
fn engine_hello_refuses_descriptors_of_another_kind() {
    let agent = TestAgent::start();
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let (_, wake_word) = shm::Region::create("wake-word", 4096).expect("memory");
    let (_, long) = shm::Region::create("wake-word", 1 << 20).expect("memory");
    let loose = rustix::fs::memfd_create("wake-word", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
    let by_path = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("opened");
    let refused = [
        (&long, event(), Errno::EINVAL),
        (&loose, event(), Errno::EINVAL),
        (&wake_word, pipe, Errno::EINVAL),
        (&wake_word, by_path, Errno::EBADF),
    ];
    let mut client = agent.client();
    for (wake_word, kick, errno) in refused {
        let answer = client.call_with(&hello(), &[wake_word.as_fd(), kick.as_fd()]);
        assert_eq!(answer.status, errno.to_status(), "{}", answer.reason());
    }
    assert_eq!(client.call_with(&hello(), &[wake_word.as_fd(), event().as_fd()]).status, 0);
}

/// REG_MR of memory in a file that was never written, so that it takes only address space.
fn register(client: &mut Client, pd: u32, file: BorrowedFd<'_>, offset: u64, length: u64) -> i32 {
    let (start, access_flags) = (1 << 20, access::LOCAL_WRITE);
    let body = RegMr { response: 1, start, length, hca_va: start, pd_handle: pd, access_flags };
    let tail = MrIn { rev: 1, flags: 1, offset, ..MrIn::default() };
    client.call_with(&legacy(number::REG_MR, &body, tail.bytes(), 12), &[file]).status
}

fn sparse(len: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags};
    let file = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&file, len).expect("sized");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("sealed");
    file
}

/// Bytes of address space of this process, and so of the agent in it.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("read");
    pages.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

#[test]
fn memory_at_the_end_of_a_long_file_takes_no_address_space_for_its_beginning() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let pd = client.alloc_pd();
    let (cq, ..) = client.create_cq(8);
    // From now on, the agent runs a proxy engine for this client.
    let body = abi::cq::PollCq { response: 1, cq_handle: cq, ne: 1 };
    assert_eq!(client.call(&legacy(number::POLL_CQ, &body, &[], 8 + 48)).status, 0);
    let file = sparse((1 << 40) + 8192);
    let before = address_space();
    for _ in 0..32 {
        assert_eq!(register(&mut client, pd, file.as_fd(), 1 << 40, 4097), 0);
    }
    let more = address_space().saturating_sub(before);
    assert!(more < 1 << 40, "32 regions of two pages take {more} bytes of address space");
}

#[test]
fn a_client_maps_no_more_than_its_share() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let pd = client.alloc_pd();
    let file = sparse(1 << 45);
    assert_eq!(register(&mut client, pd, file.as_fd(), 0, 1 << 44), 0);
    assert_eq!(register(&mut client, pd, file.as_fd(), 0, 1 << 44), 0);
    assert_eq!(register(&mut client, pd, file.as_fd(), 0, 4096), Errno::ENOMEM.to_status());
    // The share of an ended client is free for others.
    drop(client);
    agent.eventually("show", |shown| shown["contexts"].as_array().is_some_and(Vec::is_empty));
    let mut client = agent.client();
    let pd = client.alloc_pd();
    assert_eq!(register(&mut client, pd, file.as_fd(), 0, 4096), 0);
}
