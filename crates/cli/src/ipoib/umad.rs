//! A client of the agent's node of management datagrams: one file `umadN`, registered for subnet
//! administration (docs/abi.md). It knows nothing of what the datagrams say. The principal type is
//! [`File`].

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use abi::Errno;
use abi::layout::Record;
use abi::umad::{FileReply, FileRequest, NODE, RegisterAgent2, UserMad, ioctl, kind};
use shm::Socket;
use wire::mad::{CLASS_SA, GSI_QKEY, MAD_LEN, Mad};

/// How long an answer may take, and how often the agent sends again.
const ANSWER_MS: u32 = 500;
const RETRIES: u32 = 5;

/// An open file.
pub(crate) struct File {
    node: PathBuf,
    socket: Socket,
    key: [u8; 16],
    agent: u32,
}

/// A datagram that has come back.
pub(crate) enum Arrived {
    /// An answer.
    Answer(Box<Mad>),
    /// Nobody has answered the request with this transaction.
    TimedOut(u64),
}

impl File {
    /// Opens the file of a port.
    ///
    /// # Errors
    /// EACCES if this user may not.
    pub(crate) fn open(run_dir: &Path, device: &str, port: u8) -> io::Result<Self> {
        let number = number(run_dir, device, port)?;
        let node = run_dir.join(NODE);
        let socket = Socket::connect(&node)?;
        let request = FileRequest { kind: kind::OPEN_MADS, number, nonblocking: 1, ..FileRequest::default() };
        socket.send(request.bytes(), &[])?;
        let answer = reply(&socket)?;
        let key = answer.get(..16).and_then(|key| key.try_into().ok()).ok_or_else(cut)?;
        let mut file = Self { node, socket, key, agent: 0 };
        let wanted = RegisterAgent2 {
            qpn: 1,
            mgmt_class: CLASS_SA,
            mgmt_class_version: wire::sa::CLASS_VERSION,
            rmpp_version: 1,
            ..RegisterAgent2::default()
        };
        let answer = file.call(kind::IOCTL, ioctl::REGISTER_AGENT2, &[wanted.bytes()])?;
        file.agent = RegisterAgent2::read(&answer).ok_or_else(cut)?.id;
        Ok(file)
    }

    /// Sends a request to QP 1 of a LID.
    pub(crate) fn send(&self, lid: u16, sl: u8, mad: &Mad) -> io::Result<()> {
        let header = UserMad {
            id: self.agent,
            timeout_ms: ANSWER_MS,
            retries: RETRIES,
            qpn: 1_u32.to_be(),
            qkey: GSI_QKEY.to_be(),
            lid: lid.to_be(),
            sl,
            ..UserMad::default()
        };
        self.call(kind::WRITE, 0, &[header.bytes(), mad]).map(drop)
    }

    /// The next datagram that has arrived.
    pub(crate) fn next(&self) -> io::Result<Option<Arrived>> {
        let mut bytes = [0; size_of::<UserMad>() + MAD_LEN];
        let received = match self.socket.try_recv(&mut bytes) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        if received.len == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent has ended"));
        }
        let header = UserMad::read(&bytes).ok_or_else(cut)?;
        let datagram = &bytes[size_of::<UserMad>()..];
        let mad: Box<Mad> = Box::new(datagram.try_into().map_err(|_| cut())?);
        Ok(Some(match header.status {
            0 => Arrived::Answer(mad),
            _ => Arrived::TimedOut(wire::mad::Header::of(&mad).transaction),
        }))
    }

    /// A call on the file, which has its own connection. Returns what follows the answer.
    fn call(&self, kind: u32, number: u32, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
        let socket = Socket::connect(&self.node)?;
        let request = FileRequest { kind, number, key: self.key, ..FileRequest::default() };
        socket.send(&[&[request.bytes()], parts].concat().concat(), &[])?;
        reply(&socket)
    }
}

/// Readable when a datagram has arrived.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn reply(socket: &Socket) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 128];
    let length = socket.recv(&mut bytes)?.len;
    let answer = FileReply::read(&bytes[..length]).ok_or_else(cut)?;
    match answer.status {
        0 => Ok(bytes[size_of::<FileReply>()..length].to_vec()),
        status => Err(io::Error::from_raw_os_error(status.saturating_neg())),
    }
}

fn cut() -> io::Error {
    Errno::EIO.into()
}

/// The number of a port's file, from the agent's mirror of `/sys`.
fn number(run_dir: &Path, device: &str, port: u8) -> io::Result<u32> {
    let folder = engine::rundir::sysfs(run_dir).join("class/infiniband_mad");
    let content = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("umad")?.parse().ok());
        let same =
            content(entry.path().join("ibdev")) == device && content(entry.path().join("port")) == port.to_string();
        if let Some(number) = number.filter(|_| same) {
            return Ok(number);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the port has no management datagrams"))
}
