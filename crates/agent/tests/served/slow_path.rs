//! A second client, written from docs/abi.md alone: two QPs exchange messages through POST_SEND,
//! POST_RECV, POLL_CQ and REQ_NOTIFY_CQ, without an engine of their own.
//!
//! It uses neither the `abi` crate nor the engine: sockets, memfds and numbers. If this program
//! stops working, either the page or the agent is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType, connect, recvmsg, sendmsg, socket,
};

/// The address by which work requests name the first byte of the memory: any multiple of 4096.
const ADDRESS: u64 = 0x7000_0000;
const LENGTH: u64 = 65536;
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection, one command at a time.
struct Connection {
    socket: OwnedFd,
    sequence: u32,
}

/// The fields of a work completion that this client reads.
#[derive(Debug, PartialEq, Eq)]
struct Completion {
    wr_id: u64,
    status: u32,
    opcode: u32,
    byte_len: u32,
    imm: u32,
    qp_num: u32,
    flags: u32,
}

/// The objects of one side.
struct Side {
    connection: Connection,
    memory: OwnedFd,
    key: u32,
    gid: [u8; 16],
    event_file: OwnedFd,
    cq: u32,
    qp: u32,
    qpn: u32,
}

/// Bytes of a message, built field by field.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u8s(mut self, values: &[u8]) -> Self {
        self.0.extend(values);
        self
    }

    fn u16s(mut self, values: &[u16]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    fn u32s(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    fn u64s(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Connection {
    /// "Opening a node".
    fn open(node: &Path) -> Self {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(node).unwrap()).unwrap();
        let connection = Self { socket, sequence: 0 };
        connection.send(&Bytes::default().u8s(b"SHCA").u16s(&[1, 0]).u32s(&[0, 0]).0, None);
        let (answer, _) = connection.receive();
        assert_eq!((&answer[..4], u32_at(&answer, 8)), (b"SHCA".as_slice(), 0), "the agent did not open");
        connection
    }

    fn send(&self, message: &[u8], fd: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut buffer = vec![0; 65536];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        buffer.truncate(message.bytes);
        (buffer, fds)
    }

    /// A legacy command: its status, answer and descriptors.
    fn command(&mut self, number: u32, body: &Bytes, room: u16, fd: Option<&OwnedFd>) -> (i32, Vec<u8>, Vec<OwnedFd>) {
        self.sequence += 1;
        let in_words = u16::try_from((8 + body.0.len()) / 4).unwrap();
        let head = Bytes::default().u32s(&[self.sequence, 0]).u32s(&[number]).u16s(&[in_words, room / 4]);
        self.send(&[head.0.as_slice(), &body.0].concat(), fd);
        let (mut reply, fds) = self.receive();
        let answer = reply.split_off(16);
        assert_eq!((u32_at(&reply, 0), u32_at(&reply, 8)), (self.sequence, u32::try_from(fds.len()).unwrap()));
        (u32_at(&reply, 4).cast_signed(), answer, fds)
    }

    /// A legacy command that must succeed.
    fn done(&mut self, number: u32, body: Bytes, room: u16, fd: Option<&OwnedFd>) -> (Vec<u8>, Vec<OwnedFd>) {
        let (status, answer, fds) = self.command(number, &body, room, fd);
        assert_eq!(status, 0, "command {number}: {}", String::from_utf8_lossy(&answer));
        (answer, fds)
    }
}

impl Side {
    /// "The proxy engine", steps 1 to 3, as far as they need no peer.
    fn new(node: &Path) -> Self {
        let mut connection = Connection::open(node);
        let response = || Bytes::default().u64s(&[1]);
        connection.done(0, response(), 8, None); // GET_CONTEXT
        let (gid, _) = connection.done(45, response().u32s(&[0]).u8s(&[1, 0, 0, 0]).u64s(&[0]), 16, None); // QUERY_GID
        let (pd, _) = connection.done(3, response(), 4, None); // ALLOC_PD
        let pd = u32_at(&pd, 0);

        let memory = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, LENGTH).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        let all_rights = 0xf;
        let region = response().u64s(&[ADDRESS, LENGTH, ADDRESS]).u32s(&[pd, all_rights]);
        let (mr, _) = connection.done(9, region.u32s(&[1, 1]).u64s(&[0]), 12, Some(&memory)); // REG_MR, MrIn

        let (channel, mut fds) = connection.done(17, response(), 4, None); // CREATE_COMP_CHANNEL
        let event_file = fds.remove(0);
        let queue = response().u64s(&[0xc0]).u32s(&[16, 0, u32_at(&channel, 0), 0]);
        let (cq, _) = connection.done(18, queue, 8, None); // CREATE_CQ
        let cq = u32_at(&cq, 0);
        let pair = response().u64s(&[0x90]).u32s(&[pd, cq, cq, 0, 4, 4, 2, 2, 0]);
        let (qp, _) = connection.done(24, pair.u8s(&[0, 2, 0, 0]), 32, None); // CREATE_QP, RC
        let (qp, qpn) = (u32_at(&qp, 0), u32_at(&qp, 4));
        Self { connection, memory, key: u32_at(&mr, 4), gid: gid.try_into().unwrap(), event_file, cq, qp, qpn }
    }

    /// MODIFY_QP to INIT, RTR and RTS.
    fn join(&mut self, peer: ([u8; 16], u32)) {
        let (gid, qpn) = peer;
        let dest = |gid: [u8; 16], used: u8| {
            Bytes::default().u8s(&gid).u32s(&[0]).u16s(&[0, 0]).u8s(&[0, 64, 0, 0, 0, 0, used, used]).0
        };
        let (to_peer, nowhere) = (dest(gid, 1), dest([0; 16], 0));
        let mut modify = |path: &[u8], words: [u32; 6], bytes: [u8; 14]| {
            let body = Bytes::default().u8s(path).u8s(&nowhere).u32s(&[self.qp]).u32s(&words).u16s(&[0, 0]);
            self.connection.done(26, body.u8s(&bytes).u16s(&[0]), 0, None);
        };
        // Words: attr_mask, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags. Bytes: state,
        // current, mtu, migration, notify, rd_atomic, dest_rd_atomic, rnr timer, port, timeout,
        // retries, rnr.
        let (state, access, index, port) = (1, 8, 16, 32);
        let rights = 0xf;
        modify(
            &nowhere,
            [state | access | index | port, 0, 0, 0, 0, rights],
            [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        );
        let rtr = state | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15;
        modify(&to_peer, [rtr, 0, 100, 0, qpn, 0], [2, 0, 3, 0, 0, 0, 4, 12, 0, 0, 0, 0, 0, 0]);
        let rts = state | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13;
        modify(&nowhere, [rts, 0, 0, 100, 0, 0], [3, 0, 0, 0, 0, 4, 0, 0, 0, 14, 7, 7, 0, 0]);
    }

    /// POST_RECV of one work request with one scatter entry.
    fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let body = Bytes::default().u64s(&[1]).u32s(&[self.qp, 1, 1, 16]);
        let body = body.u64s(&[wr_id]).u32s(&[1, 0]).u64s(&[ADDRESS + offset]).u32s(&[length, self.key]);
        let (answer, _) = self.connection.done(29, body, 4, None);
        assert_eq!(u32_at(&answer, 0), 0, "bad_wr");
    }

    /// A signalled work request with one gather (or scatter) entry, for POST_SEND.
    fn send_request(&self, wr_id: u64, opcode: u32, imm: u32, target: (u64, u32), entry: (u64, u32)) -> Bytes {
        let signaled = 2;
        let body = Bytes::default().u64s(&[1]).u32s(&[self.qp, 1, 1, 56]);
        let body = body.u64s(&[wr_id]).u32s(&[1, opcode, signaled, imm]);
        let body = body.u64s(&[target.0]).u32s(&[target.1, 0]).u64s(&[0, 0]);
        body.u64s(&[ADDRESS + entry.0]).u32s(&[entry.1, self.key])
    }

    fn post_send(&mut self, request: Bytes) {
        let (answer, _) = self.connection.done(28, request, 4, None);
        assert_eq!(u32_at(&answer, 0), 0, "bad_wr");
    }

    /// POLL_CQ for up to four completions.
    fn poll(&mut self) -> Vec<Completion> {
        let (answer, _) = self.connection.done(21, Bytes::default().u64s(&[1]).u32s(&[self.cq, 4]), 8 + 4 * 48, None);
        let count = u32_at(&answer, 0) as usize;
        assert_eq!(answer.len(), 8 + 48 * count);
        let completion = |wc: &[u8]| Completion {
            wr_id: u64_at(wc, 0),
            status: u32_at(wc, 8),
            opcode: u32_at(wc, 12),
            byte_len: u32_at(wc, 20),
            imm: u32_at(wc, 24),
            qp_num: u32_at(wc, 28),
            flags: u32_at(wc, 36),
        };
        answer[8..].chunks(48).map(completion).collect()
    }

    /// Polls until there is a completion.
    fn completion(&mut self) -> Completion {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut found = self.poll();
            assert!(found.len() <= 1, "more than one completion: {found:?}");
            if let Some(completion) = found.pop() {
                return completion;
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::yield_now();
        }
    }

    /// REQ_NOTIFY_CQ.
    fn arm(&mut self, solicited_only: bool) {
        self.connection.done(23, Bytes::default().u32s(&[self.cq, u32::from(solicited_only)]), 0, None);
    }

    /// Whether the channel becomes readable within `patience`; drains it.
    fn rings(&self, patience: Duration) -> bool {
        let timeout =
            Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: i64::from(patience.subsec_nanos()) };
        let ready = poll(&mut [PollFd::new(&self.event_file, PollFlags::IN)], Some(&timeout)).unwrap();
        if ready == 1 {
            rustix::io::read(&self.event_file, &mut [0; 8]).unwrap();
        }
        ready == 1
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, offset).unwrap(), bytes.len());
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, offset).unwrap(), len);
        bytes
    }
}

/// Two sides, connected with each other.
fn pair(node: &Path) -> (Side, Side) {
    let (mut one, mut two) = (Side::new(node), Side::new(node));
    one.join((two.gid, two.qpn));
    two.join((one.gid, one.qpn));
    (one, two)
}

/// An agent and the path of its first node.
fn agent() -> (agent::AgentHandle, tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let handle = agent::Agent::start(&agent::Config::default(), Some(dir.path())).unwrap();
    let node = dir.path().join("uverbs0");
    (handle, dir, node)
}

const SEND: u32 = 2;
const SEND_WITH_IMM: u32 = 3;
const RDMA_WRITE: u32 = 0;
const RDMA_READ: u32 = 4;

#[test]
fn a_send_goes_through_and_rings() {
    let (_agent, _dir, node) = agent();
    let (mut one, mut two) = pair(&node);
    let message: Vec<u8> = (0..10_000_u32).map(|n| (n % 251).to_le_bytes()[0]).collect();
    one.write(4096, &message);
    two.post_recv(7, 8192, 20_000);
    assert_eq!(two.poll(), [], "nothing was sent yet");
    two.arm(false);
    assert!(!two.rings(Duration::ZERO));
    one.post_send(one.send_request(5, SEND, 0, (0, 0), (4096, 10_000)));
    assert!(two.rings(PATIENCE), "the channel rings");
    let received = Completion { wr_id: 7, status: 0, opcode: 128, byte_len: 10_000, imm: 0, qp_num: two.qpn, flags: 0 };
    assert_eq!(two.completion(), received);
    assert_eq!(two.read(8192, 10_000), message);
    let sent = one.completion();
    assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.qp_num), (5, 0, 0, one.qpn));
    assert_eq!((one.poll(), two.poll()), (vec![], vec![]));
}

#[test]
fn immediate_data_write_and_read() {
    let (_agent, _dir, node) = agent();
    let (mut one, mut two) = pair(&node);
    two.post_recv(1, 0, 64);
    one.write(0, b"with immediate data");
    one.post_send(one.send_request(2, SEND_WITH_IMM, 0x0403_0201, (0, 0), (0, 19)));
    let received = two.completion();
    assert_eq!((received.status, received.byte_len, received.imm, received.flags), (0, 19, 0x0403_0201, 2));
    assert_eq!(two.read(0, 19), b"with immediate data");
    assert_eq!(one.completion().status, 0);

    one.write(100, b"written");
    one.post_send(one.send_request(3, RDMA_WRITE, 0, (ADDRESS + 30_000, two.key), (100, 7)));
    assert_eq!(one.completion().status, 0);
    assert_eq!(two.read(30_000, 7), b"written");

    two.write(40_000, b"read back");
    one.post_send(one.send_request(4, RDMA_READ, 0, (ADDRESS + 40_000, two.key), (200, 9)));
    assert_eq!(one.completion().status, 0);
    assert_eq!(one.read(200, 9), b"read back");
    assert_eq!(two.poll(), [], "one-sided operations leave no trace at the target");
}

#[test]
fn a_bad_key_is_a_completion_not_an_end() {
    let (_agent, _dir, node) = agent();
    let (mut one, mut two) = pair(&node);
    one.post_send(one.send_request(9, RDMA_WRITE, 0, (ADDRESS, two.key ^ 0x5500), (0, 8)));
    let remote_access = 10;
    assert_eq!(one.completion().status, remote_access);
    one.post_send(one.send_request(10, SEND, 0, (0, 0), (0, 8)));
    let flushed = 5;
    assert_eq!(one.completion().status, flushed);
    two.arm(true);
}

#[test]
fn a_bad_work_request_is_named() {
    let (_agent, _dir, node) = agent();
    let (mut one, mut two) = pair(&node);
    two.post_recv(1, 0, 64);
    // Two work requests; the second has an invalid opcode.
    let body = Bytes::default().u64s(&[1]).u32s(&[one.qp, 2, 1, 56]);
    let body = body.u64s(&[1]).u32s(&[1, SEND, 2, 0]).u64s(&[0; 4]);
    let body = body.u64s(&[2]).u32s(&[0, 99, 2, 0]).u64s(&[0; 4]);
    let body = body.u64s(&[ADDRESS]).u32s(&[8, one.key]);
    let (status, answer, _) = one.connection.command(28, &body, 4, None);
    assert_eq!((status, u32_at(&answer, 0)), (-22, 2), "{}", String::from_utf8_lossy(&answer[4..]));
    assert_eq!(two.completion().byte_len, 8, "the first went out");
    assert_eq!(one.completion().wr_id, 1);
}

/// Opens the device and creates a CQ. POLL_CQ makes the agent run a proxy engine for this client.
fn poller(node: &Path) -> (Connection, Bytes) {
    let mut connection = Connection::open(node);
    connection.done(0, Bytes::default().u64s(&[1]), 8, None);
    let no_channel = u32::MAX;
    let queue = Bytes::default().u64s(&[1, 0]).u32s(&[16, 0, no_channel, 0]);
    let (cq, _) = connection.done(18, queue, 8, None);
    (connection, Bytes::default().u64s(&[1]).u32s(&[u32_at(&cq, 0), 1]))
}

/// Lines of a file in /proc about this process.
fn lines(file: &str) -> usize {
    std::fs::read_to_string(format!("/proc/self/{file}")).unwrap().lines().count()
}

#[test]
fn the_agent_runs_a_bounded_number_of_engines_for_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let config = agent::Config { system: true, ..agent::Config::default() };
    let _agent = agent::Agent::start(&config, Some(dir.path())).unwrap();
    let node = dir.path().join("uverbs0");
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    let most = agent::users::proxies(agent::users::contexts(descriptors, mappings)) as usize;
    let mut all: Vec<_> = (0..most + 1).map(|_| poller(&node)).collect();
    let mut poll = |number: usize| {
        let (connection, body) = &mut all[number];
        connection.command(21, body, 8 + 48, None)
    };
    // The first proxy engine creates things that the others use too.
    poll(0);
    let (mappings, threads) = (lines("maps"), std::fs::read_dir("/proc/self/task").unwrap().count());
    for number in 1..most {
        let (status, answer, _) = poll(number);
        assert_eq!(status, 0, "{number}: {}", String::from_utf8_lossy(&answer));
    }
    let each = (lines("maps") - mappings).div_ceil(most - 1);
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count() - threads;
    assert!(each <= 16 && threads <= 2 * most, "{each} mappings for each, and {threads} threads for all");
    let (status, answer, _) = poll(most);
    let why = String::from_utf8_lossy(&answer).into_owned();
    assert!(status == -12 && why.contains(&format!("runs {most} engines")), "{status}: {why}");
    // Commands that need no engine still succeed, and a client that has ended makes room.
    all[most].0.done(3, Bytes::default().u64s(&[1]), 4, None);
    all.remove(0);
    let end = Instant::now() + PATIENCE;
    let (connection, body) = &mut all[most - 1];
    while connection.command(21, body, 8 + 48, None).0 != 0 {
        assert!(Instant::now() < end, "there is no room again");
        std::thread::yield_now();
    }
    println!("{each} mappings for each engine that the agent runs, {threads} threads for {most}");
}
