//! An agent, clients that speak bytes, and the checks that every row of docs/abi.md shares.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use agent::{Agent, AgentHandle, Config};
use shm::socket::Socket;

pub(crate) const ENOENT: i32 = -2;
pub(crate) const EBADF: i32 = -9;
pub(crate) const EAGAIN: i32 = -11;
pub(crate) const ENOMEM: i32 = -12;
pub(crate) const EBUSY: i32 = -16;
pub(crate) const EINVAL: i32 = -22;
pub(crate) const ENOSPC: i32 = -28;
pub(crate) const ENOSYS: i32 = -38;
pub(crate) const EOPNOTSUPP: i32 = -95;

/// The GUIDs are fixed, and no address of the host becomes a GID, so that every answer is known.
const CONFIGURATION: &str = r#"
[[devices]]
node_guid = "0200:0000:0000:00a1"
[[devices.ports]]
guid = "0200:0000:0000:00b1"
interfaces = []
"#;

/// A running agent with a directory of its own.
pub(crate) struct Node {
    path: PathBuf,
    _agent: AgentHandle,
    _dir: tempfile::TempDir,
}

/// A connection to a node.
pub(crate) struct Client {
    socket: Socket,
    sequence: u32,
    /// The agent, if this is its only client.
    _node: Option<Box<Node>>,
}

/// A command: bytes and descriptors.
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: i32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Kinds of object that a handle can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pd,
    Mr,
    Mw,
    Dm,
    Ah,
    Channel,
    Cq,
    Qp,
    UdQp,
    Srq,
    Xrcd,
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// With a few more lines at the head of its configuration.
    pub(crate) fn with(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::parse(&format!("{more}{CONFIGURATION}")).unwrap();
        let config = Config { in_order: true, ..config };
        let agent = Agent::start(&config, Some(dir.path())).unwrap();
        Self { path: dir.path().join("uverbs0"), _agent: agent, _dir: dir }
    }

    /// A connection before its first message.
    pub(crate) fn connect(&self) -> Client {
        Client { socket: Socket::connect(&self.path).unwrap(), sequence: 0x1000, _node: None }
    }

    /// A connection that has been opened in a profile (0 mainline, 1 OFED).
    pub(crate) fn open(&self, profile: u8) -> Client {
        let client = self.connect();
        let answer = client.exchange(&hex(&format!("53484341 0100 {profile:02x}00 00000000 00000000")));
        let pattern = format!("53484341 0100 {profile:02x}00 00000000 {}", word(std::process::id()));
        assert_eq!(show(&answer), show(&hex(&pattern)));
        client
    }

    /// An opened connection with a context.
    pub(crate) fn context(&self) -> Client {
        let mut client = self.open(0);
        assert_eq!(client.call(&"00000000 0400 0c00 0100000000000000".into()).status, 0);
        client
    }
}

impl Client {
    /// The only client of an agent, with a context.
    pub(crate) fn alone() -> Self {
        let node = Node::start();
        let mut client = node.context();
        client._node = Some(Box::new(node));
        client
    }

    /// Sends one message and returns the answer.
    pub(crate) fn exchange(&self, message: &[u8]) -> Vec<u8> {
        self.socket.send(message, &[]).unwrap();
        self.receive().0
    }

    fn receive(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut buffer = vec![0; 65536];
        let received = self.socket.recv(&mut buffer).unwrap();
        assert!(!received.truncated);
        buffer.truncate(received.len);
        (buffer, received.fds)
    }

    /// Sends one command and returns its reply, after a check of the envelope.
    pub(crate) fn call(&mut self, request: &Request) -> Reply {
        self.sequence += 1;
        let message = [&hex(&format!("{} 00000000", word(self.sequence))), request.bytes.as_slice()].concat();
        let fds: Vec<_> = request.fds.iter().map(AsFd::as_fd).collect();
        self.socket.send(&message, &fds).unwrap();
        let (mut envelope, fds) = self.receive();
        assert!(envelope.len() >= 16, "a reply of {} bytes", envelope.len());
        let bytes = envelope.split_off(16);
        let status = i32::from_le_bytes(envelope[4..8].try_into().unwrap());
        let count = u32::try_from(fds.len()).unwrap();
        let expected = format!("{} {} {} 00000000", word(self.sequence), word(status.cast_unsigned()), word(count));
        assert_eq!(show(&envelope), show(&hex(&expected)));
        Reply { status, bytes, fds }
    }

    /// A command that must succeed.
    pub(crate) fn done(&mut self, text: &str) -> Reply {
        let reply = self.call(&text.into());
        assert_eq!(reply.status, 0, "{text} was refused: {}", String::from_utf8_lossy(&reply.bytes));
        reply
    }

    /// A command that must be refused, with a sentence.
    pub(crate) fn refused(&mut self, request: &Request, errno: i32, what: &str) {
        let reply = self.call(request);
        let sentence = String::from_utf8(reply.bytes).unwrap();
        assert_eq!(reply.status, errno, "{what}: {sentence}");
        assert!(!sentence.is_empty() && reply.fds.is_empty(), "{what}: refused without a reason");
    }

    /// Creates an object of a kind and returns its handle as hex digits. Also creates the objects
    /// that it needs.
    pub(crate) fn make(&mut self, kind: Kind) -> String {
        let answer = match kind {
            Kind::Pd => self.done("03000000 0400 0300 0100000000000000"),
            Kind::Channel => self.done("11000000 0400 0100 0100000000000000"),
            Kind::Cq => {
                self.done("12000000 0a00 1000 0100000000000000 c0c0000000000000 10000000 00000000 ffffffff 00000000")
            }
            Kind::Mr => {
                let pd = self.make(Kind::Pd);
                self.done(&format!(
                    "09000000 0c00 0300 0100000000000000 0000100000000000 0010000000000000 0000100000000000 {pd} 0f000000"
                ))
            }
            Kind::Dm => {
                self.done("d0000080 0200 0200 0100000000000000 0000 0000 00000000 4000000000000000 00000000 00000000")
            }
            Kind::Mw => {
                let pd = self.make(Kind::Pd);
                self.done(&format!("0e000000 0600 0200 0100000000000000 {pd} 02000000"))
            }
            Kind::Ah => {
                let pd = self.make(Kind::Pd);
                self.done(&format!("05000000 1000 0100 0100000000000000 0000000000000000 {pd} 00000000 {AV}"))
            }
            Kind::Srq => {
                let pd = self.make(Kind::Pd);
                self.done(&format!(
                    "20000000 0a00 1200 0100000000000000 5050000000000000 {pd} 04000000 01000000 00000000"
                ))
            }
            Kind::Xrcd => self.done("25000000 0600 0300 0100000000000000 ffffffff 00000000"),
            Kind::Qp => self.make_qp(2),
            Kind::UdQp => self.make_qp(4),
        };
        digits(&answer.bytes[..4])
    }

    fn make_qp(&mut self, qp_type: u8) -> Reply {
        let (pd, cq) = (self.make(Kind::Pd), self.make(Kind::Cq));
        self.done(&format!(
            "18000000 1000 1a00 0100000000000000 9090000000000000 {pd} {cq} {cq} 00000000 \
             04000000 04000000 01000000 01000000 00000000 00 {qp_type:02x} 00 00"
        ))
    }

    /// Destroys an object by its kind's command.
    pub(crate) fn destroy(&mut self, kind: Kind, handle: &str) {
        let text = match kind {
            Kind::Pd => format!("04000000 0300 0000 {handle}"),
            Kind::Ah => format!("08000000 0300 0000 {handle}"),
            Kind::Dm => {
                format!("d1000080 0100 0000 0000000000000000 0000 0000 00000000 {handle} 00000000")
            }
            Kind::Mw => format!("10000000 0300 0000 {handle}"),
            Kind::Mr => format!("0d000000 0300 0000 {handle}"),
            Kind::Cq => format!("14000000 0600 0200 0100000000000000 {handle} 00000000"),
            Kind::Qp | Kind::UdQp => format!("1b000000 0600 0100 0100000000000000 {handle} 00000000"),
            Kind::Srq => format!("23000000 0600 0100 0100000000000000 {handle} 00000000"),
            Kind::Xrcd => format!("26000000 0300 0000 {handle}"),
            Kind::Channel => {
                format!("c3000080 0100 0000 0000000000000000 0000 0000 00000000 {handle} 00000000")
            }
        };
        self.done(&text);
    }
}

/// An address vector that is valid on port 1: to the port's own GID, source GID index 0.
pub(crate) const AV: &str = "fe80000000000000 02000000000000b1 00000000 00 40 00 00 0000 00 00 00 01 01 00";
/// The same address vector in the layout of MODIFY_QP.
pub(crate) const DEST: &str = "fe80000000000000 02000000000000b1 00000000 0000 0000 00 40 00 00 00 00 01 01";

impl From<&str> for Request {
    fn from(text: &str) -> Self {
        Self { bytes: hex(text), fds: Vec::new() }
    }
}

impl From<String> for Request {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

/// Converts hex digits to bytes; spaces are ignored.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap()).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text}");
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

/// A little endian word as hex digits.
pub(crate) fn word(value: u32) -> String {
    digits(&value.to_le_bytes())
}

/// Bytes as hex digits.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes in groups of four, so that a difference is easy to find.
pub(crate) fn show(bytes: &[u8]) -> String {
    bytes.chunks(4).map(digits).collect::<Vec<_>>().join(" ")
}

/// Compares an answer with hex digits, in which `??` stands for any byte.
pub(crate) fn compare(bytes: &[u8], pattern: &str) {
    let pattern: Vec<char> = pattern.chars().filter(|c| !c.is_whitespace()).collect();
    let expected: String = pattern.iter().collect();
    let found: String = digits(bytes)
        .chars()
        .enumerate()
        .map(|(index, digit)| if pattern.get(index) == Some(&'?') { '?' } else { digit })
        .collect();
    let grouped =
        |text: &str| text.as_bytes().chunks(8).map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join(" ");
    assert_eq!(grouped(&found), grouped(&expected));
}

/// A row of docs/abi.md.
pub(crate) struct Row {
    /// Creates the objects that the command needs, and returns the command.
    pub(crate) setup: fn(&mut Client) -> Request,
    /// The answer in a fresh agent.
    pub(crate) answer: String,
    /// How many descriptors come with it.
    pub(crate) fds: usize,
    /// Length of the shortest body.
    pub(crate) body: usize,
    /// Least room for the answer.
    pub(crate) room: usize,
    /// Where handles are in the body, and their kinds.
    pub(crate) handles: &'static [(usize, Kind)],
}

impl Row {
    /// A row without answer and handles.
    pub(crate) fn new(body: usize, setup: fn(&mut Client) -> Request) -> Self {
        Self { setup, answer: String::new(), fds: 0, body, room: 0, handles: &[] }
    }
}

/// Checks what all rows have in common: success in a fresh agent, and every kind of refusal.
pub(crate) fn check(row: &Row) {
    let node = Node::start();
    let mut client = node.context();
    let request = (row.setup)(&mut client);
    let reply = client.call(&request);
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    compare(&reply.bytes, &row.answer);
    assert_eq!(reply.fds.len(), row.fds);

    let mut client = node.context();
    let request = (row.setup)(&mut client);
    check_refusals(row, &node, &mut client, &request);
    let again = client.call(&request);
    assert_eq!((again.status, again.bytes.len()), (0, reply.bytes.len()), "a refused command changed something");

    let mut client = node.context();
    let request = (row.setup)(&mut client);
    check_tail(&mut client, &request, reply.bytes.len());

    node.open(0).refused(&request, EINVAL, "before GET_CONTEXT");
}

fn check_refusals(row: &Row, node: &Node, client: &mut Client, request: &Request) {
    let head = header(request);
    let size = if head == 8 { 4 } else { 8 };

    let mut lie = request.copy();
    lie.bytes[4] -= 1;
    client.refused(&lie, EINVAL, "in_words that are not the length");
    let mut short = request.copy();
    let cut = short.bytes.len() - (head + row.body - size);
    short.bytes.truncate(head + row.body - size);
    short.bytes[4] -= u8::try_from(cut / size).unwrap();
    client.refused(&short, EINVAL, "short length");
    client.refused(&Request { bytes: short.bytes[..7].to_vec(), fds: Vec::new() }, EINVAL, "no whole header");

    if row.room > 0 {
        let mut small = request.copy();
        let words = u8::try_from(row.room / size - 1).unwrap();
        small.bytes[6..8].copy_from_slice(&[words, 0]);
        if head == 24 && words == 0 && small.bytes[18..20] == [0, 0] {
            small.bytes[8..16].fill(0);
        }
        client.refused(&small, ENOSPC, "response too small");
    }
    for &(at, kind) in row.handles {
        let with = |handle: &str| {
            let mut other = request.copy();
            other.bytes[head + at..head + at + 4].copy_from_slice(&hex(handle));
            other
        };
        let stale = client.make(kind);
        client.destroy(kind, &stale);
        let missing = if matches!(kind, Kind::Channel) { EBADF } else { ENOENT };
        client.refused(&with(&stale), missing, &format!("stale {kind:?} handle"));
        let mut stranger = node.context();
        let foreign = stranger.make(kind);
        client.refused(&with(&foreign), missing, &format!("another context's {kind:?} handle"));
        client.refused(&with("00000000"), missing, &format!("no {kind:?} handle"));
    }
}

/// Checks the tail. After the body of a legacy command comes a provider's private tail, which is
/// ignored. After the body of an extended one, only zeros are allowed.
fn check_tail(client: &mut Client, request: &Request, answer_len: usize) {
    let mut longer = request.copy();
    if header(request) == 8 {
        longer.bytes[4] += 1;
        longer.bytes.extend([1, 0, 0, 0]);
    } else {
        let mut unknown = request.copy();
        unknown.bytes[4] += 1;
        unknown.bytes.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        client.refused(&unknown, EOPNOTSUPP, "unknown core input");
        let mut unknown = request.copy();
        unknown.bytes[16] += 1;
        unknown.bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        client.refused(&unknown, EOPNOTSUPP, "unknown provider input");
        longer.bytes[4] += 1;
        longer.bytes.extend([0; 8]);
    }
    let reply = client.call(&longer);
    assert_eq!((reply.status, reply.bytes.len()), (0, answer_len), "a tail that may be there");
}

/// Length of a command's headers.
fn header(request: &Request) -> usize {
    if request.bytes[3] & 0x80 == 0 { 8 } else { 24 }
}

impl Request {
    fn copy(&self) -> Self {
        Self { bytes: self.bytes.clone(), fds: self.fds.iter().map(|fd| fd.try_clone().unwrap()).collect() }
    }
}
