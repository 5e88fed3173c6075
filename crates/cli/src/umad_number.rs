//! A client of the agent's node of management datagrams (docs/abi.md): a file `umadN` with its
//! registrations, and `issmN`. It knows nothing of what the datagrams say. The principal type is
//! [`File`].

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use abi::Errno;
use abi::layout::Record;
use abi::umad::{FileReply, FileRequest, NODE, RegisterAgent2, UserMad, ioctl, kind};
use shm::Socket;
use wire::mad::{MAD_LEN, Mad};

/// An open file.
pub(crate) struct File {
    node: PathBuf,
    socket: Socket,
    key: [u8; 16],
}

impl File {
    /// Opens `umadN`.
    ///
    /// # Errors
    /// EACCES if this user may not.
    pub(crate) fn open(run_dir: &Path, number: u32) -> io::Result<Self> {
        let node = run_dir.join(NODE);
        let (socket, answer) = opened(&node, kind::OPEN_MADS, number)?;
        let key = answer.get(..16).and_then(|key| key.try_into().ok()).ok_or_else(cut)?;
        Ok(Self { node, socket, key })
    }

    /// Registers for datagrams. Returns the registration's id.
    pub(crate) fn register(&self, wanted: &RegisterAgent2) -> io::Result<u32> {
        let answer = self.call(kind::IOCTL, ioctl::REGISTER_AGENT2, &[wanted.bytes()])?;
        Ok(RegisterAgent2::read(&answer).ok_or_else(cut)?.id)
    }

    /// Sends a datagram.
    pub(crate) fn send(&self, header: &UserMad, mad: &Mad) -> io::Result<()> {
        self.call(kind::WRITE, 0, &[header.bytes(), mad]).map(drop)
    }

    /// The next datagram that has arrived. One with a status was not answered.
    pub(crate) fn next(&self) -> io::Result<Option<(UserMad, Box<Mad>)>> {
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
        let mad = bytes[size_of::<UserMad>()..].try_into().map_err(|_| cut())?;
        Ok(Some((header, Box::new(mad))))
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

/// Opens `issmN`: the port says that it has a subnet manager, while the result exists.
///
/// # Errors
/// EAGAIN if another manager has it open.
pub(crate) fn hold_manager(run_dir: &Path, number: u32) -> io::Result<Socket> {
    Ok(opened(&run_dir.join(NODE), kind::OPEN_MANAGER, number)?.0)
}

fn opened(node: &Path, kind: u32, number: u32) -> io::Result<(Socket, Vec<u8>)> {
    let socket = Socket::connect(node)?;
    let request = FileRequest { kind, number, nonblocking: 1, ..FileRequest::default() };
    socket.send(request.bytes(), &[])?;
    let answer = reply(&socket)?;
    Ok((socket, answer))
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

/// A port's number in `umadN` and `issmN`, from the agent's mirror of `/sys`: of a device, or of
/// the first one.
pub(crate) fn number(run_dir: &Path, device: Option<&str>, port: u8) -> io::Result<(u32, String)> {
    let folder = engine::rundir::sysfs(run_dir).join("class/infiniband_mad");
    let content = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let port = port.to_string();
    let found = fs::read_dir(folder)?.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("umad")?.parse().ok()?;
        let name = content(entry.path().join("ibdev"));
        let same = device.is_none_or(|device| device == name) && content(entry.path().join("port")) == port;
        same.then_some((number, name))
    });
    found.min().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the port has no management datagrams"))
}
