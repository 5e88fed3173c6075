//! A client of the agent's node of management datagrams ([`abi::umad`] is the contract): a file
//! `umadN` with its registrations, and `issmN`. It knows nothing of what the datagrams say, and not
//! which port has which number. The path redirector, which may not allocate, has the same in its
//! own file and shares [`abi::umad::client`]. The principal type is [`File`].
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use abi::Errno;
use abi::layout::Record;
use abi::umad::client::{Key, answer, fit, whole};
use abi::umad::{self, DATAGRAM, FileReply, FileRequest, NODE, PIECE, RegisterAgent2, UserMad, ioctl, kind};
use abi::umad::{Holder, RegisterAgent};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use shm::Socket;

/// The length of the header of each message.
pub const HEADER: usize = size_of::<UserMad>();
/// The longest answer.
const ANSWER: usize = size_of::<FileReply>() + size_of::<RegisterAgent2>() + size_of::<Holder>();
const _: () = assert!(size_of::<RegisterAgent>() < size_of::<RegisterAgent2>());

/// The refusal of a registration, because another client serves a method. Its errno is EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("method {method:#04x} of class {class:#04x} version {version} is served by process {pid} of user {uid}")]
pub struct Served {
    /// The class.
    pub class: u8,
    /// Its version.
    pub version: u8,
    /// The first method that is served.
    pub method: u32,
    /// The process that serves it, as the agent sees it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// An open `umadN`. Headers have a P_Key index.
#[derive(Debug)]
pub struct File {
    node: PathBuf,
    socket: Socket,
    key: Key,
    /// Held between the look at the next message and receiving it.
    reader: Mutex<()>,
}

impl File {
    /// Opens `umadN` of a run directory.
    ///
    /// # Errors
    /// EACCES if this user may not.
    pub fn open(run_dir: &Path, number: u32) -> io::Result<Self> {
        let node = run_dir.join(NODE);
        let mut key = Key::default();
        let socket = opened(&node, kind::OPEN_MADS, number, &mut key)?;
        let file = Self { node, socket, key, reader: Mutex::new(()) };
        file.control(ioctl::ENABLE_PKEY, &mut [])?;
        Ok(file)
    }

    /// What names the file in calls.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Registers for datagrams. Returns the registration's id.
    ///
    /// # Errors
    /// Those of `ioctl`; or [`Served`] in an error of the kind `InvalidInput`.
    pub fn register(&self, wanted: &RegisterAgent2) -> io::Result<u32> {
        let mut argument = wanted.bytes().to_vec();
        let mut holder = Vec::new();
        if let Err(error) = self.call(ioctl::REGISTER_AGENT2, &mut argument, &mut holder) {
            let Some(Holder { pid, uid, method, .. }) = Holder::read(&holder) else { return Err(error) };
            let (class, version) = (wanted.mgmt_class, wanted.mgmt_class_version);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, Served { class, version, method, pid, uid }));
        }
        Ok(RegisterAgent2::read(&argument).ok_or(Errno::EIO)?.id)
    }

    /// Calls `ioctl`. The argument changes, also when the call fails.
    ///
    /// # Errors
    /// Those of `ioctl`; EIO if the agent has ended.
    pub fn control(&self, request: u32, argument: &mut [u8]) -> io::Result<()> {
        self.call(request, argument, &mut Vec::new())
    }

    /// Calls `ioctl`. What follows the argument in the answer is added to `more`.
    fn call(&self, request: u32, argument: &mut [u8], more: &mut Vec<u8>) -> io::Result<()> {
        debug_assert_eq!(umad::argument(request), Some(argument.len()));
        let socket = Socket::connect(&self.node).map_err(gone)?;
        let call = FileRequest::call(kind::IOCTL, request, self.key);
        socket.send(&[call.bytes(), argument].concat(), &[]).map_err(gone)?;
        replied_with(&socket, argument, more)
    }

    /// Writes a message: a header, and the datagram or what RMPP carries.
    ///
    /// # Errors
    /// Those of `write`; EIO if the agent has ended.
    pub fn write(&self, header: &UserMad, mad: &[u8]) -> io::Result<()> {
        let socket = Socket::connect(&self.node).map_err(gone)?;
        let call = FileRequest::write(self.key, HEADER.saturating_add(mad.len()));
        let message = [call.bytes(), header.bytes(), mad].concat();
        for piece in message.chunks(PIECE) {
            match socket.send(piece, &[]) {
                // The agent may have refused the message before its end.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                sent => sent.map_err(gone)?,
            }
        }
        replied(&socket, &mut [])
    }

    /// Receives the next message, if there is one. Returns its length, with the header. One with a
    /// status was not answered.
    ///
    /// # Errors
    /// EAGAIN without a message. EINVAL, or ENOSPC with the first segment, if the message does not
    /// fit: it stays the next one. EIO if the agent has ended.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        let _alone = self.reader.lock();
        let mut first = [0; HEADER + DATAGRAM];
        let peeked = self.socket.peek(&mut first).map_err(gone)?;
        let whole = whole(&first[..peeked.len]).ok_or(Errno::EIO)?;
        if let Err((copied, errno)) = fit(whole, room.len(), HEADER) {
            room[..copied].copy_from_slice(&first[..copied]);
            return Err(errno.into());
        }
        let mut length = 0;
        while length < whole {
            match self.socket.try_recv(&mut room[length..whole]) {
                Ok(received) if received.len == 0 => return Err(Errno::EIO.into()),
                Ok(received) => length += received.len,
                // The agent sends the rest of a message when there is space for it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                Err(error) => return Err(gone(error)),
            }
        }
        Ok(whole)
    }

    /// The next datagram, if one has arrived; of a longer message, its beginning.
    ///
    /// # Errors
    /// EIO if the agent has ended.
    pub fn next(&self) -> io::Result<Option<(UserMad, Box<[u8; DATAGRAM]>)>> {
        let mut room = vec![0; HEADER + DATAGRAM];
        while let Err(error) = self.receive(&mut room) {
            match error.raw_os_error() {
                Some(errno) if errno == Errno::EAGAIN.0 => return Ok(None),
                Some(errno) if errno == Errno::ENOSPC.0 => room.resize(whole(&room).ok_or(Errno::EIO)?, 0),
                _ => return Err(error),
            }
        }
        let header = UserMad::read(&room).ok_or(Errno::EIO)?;
        let mad = room[HEADER..HEADER + DATAGRAM].try_into().map_err(|_| Errno::EIO)?;
        Ok(Some((header, Box::new(mad))))
    }

    fn wait(&self) -> io::Result<()> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
        Ok(())
    }
}

/// Readable when a message has arrived.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Opens `issmN` of a run directory: the port says that it has a subnet manager, while the result
/// exists.
///
/// # Errors
/// EAGAIN if another manager has it open.
pub fn hold_manager(run_dir: &Path, number: u32) -> io::Result<Socket> {
    opened(&run_dir.join(NODE), kind::OPEN_MANAGER, number, &mut [])
}

/// Opens a node. What follows the answer is copied to `rest`.
fn opened(node: &Path, kind: u32, number: u32, rest: &mut [u8]) -> io::Result<Socket> {
    let socket = Socket::connect(node)?;
    socket.send(FileRequest::open(kind, number, true).bytes(), &[])?;
    replied(&socket, rest)?;
    Ok(socket)
}

/// Waits for the answer. What follows it is copied to `rest`, also when the call has failed.
fn replied(socket: &Socket, rest: &mut [u8]) -> io::Result<()> {
    replied_with(socket, rest, &mut Vec::new())
}

/// Waits for the answer, which may say more than what is copied to `rest`.
fn replied_with(socket: &Socket, rest: &mut [u8], more: &mut Vec<u8>) -> io::Result<()> {
    let mut bytes = [0; ANSWER];
    let received = match socket.recv(&mut bytes) {
        // The agent did not read all of the request. Its answer is still there.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => socket.recv(&mut bytes),
        received => received,
    };
    let message = &bytes[..received.map_err(gone)?.len];
    let data = message.get(size_of::<FileReply>()..).unwrap_or_default();
    if let Some((data, behind)) = data.split_at_checked(rest.len()) {
        rest.copy_from_slice(data);
        more.extend_from_slice(behind);
    }
    Ok(answer(message).map(drop)?)
}

/// A connection that has ended is a device that is gone.
fn gone(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::NotFound => Errno::EIO.into(),
        _ => error,
    }
}
