//! Messages with file descriptors between processes: unix sockets of type SOCK_SEQPACKET. The
//! caller defines the meaning of the messages. Principal types: [`Socket`] and [`Listener`].
//!
//! All descriptors, received ones included, are close-on-exec. Interrupted calls are repeated. A
//! peer that has closed is an error (EPIPE), never a SIGPIPE. An empty message cannot be
//! distinguished from the end of the stream, so empty messages are never sent.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::denied::{denied, forbidden};

/// Maximum number of descriptors of a message.
pub const FDS_MAX: usize = 8;

/// Maximum number of descriptors of a message in the kernel (SCM_MAX_FD).
const KERNEL_FDS_MAX: usize = 253;

const BACKLOG: i32 = 128;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message that are in the buffer; 0 means that the peer has closed.
    pub len: usize,
    /// All descriptors attached to it, even if a hostile sender has attached more than [`FDS_MAX`]:
    /// closing a descriptor can block, and the caller decides where that happens.
    pub fds: Vec<OwnedFd>,
    /// Some bytes did not fit and are lost, or there are more than [`FDS_MAX`] descriptors.
    pub truncated: bool,
}

/// The next message, which stays in the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    /// Bytes of the message that are in the buffer; 0 if the message is empty or the peer has
    /// closed.
    pub len: usize,
    /// Some bytes did not fit.
    pub truncated: bool,
    /// Descriptors are attached to it.
    pub has_fds: bool,
}

/// Who opened the other end, as the kernel recorded it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process, by its number in our PID namespace; 0 when it has none there.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Socket {
    /// Connects to a [`Listener`]; waits while its queue is full.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = unconnected()?;
        at_address(path, |address| retry_on_intr(|| rustix::net::connect(&fd, address)))?;
        Ok(Self { fd })
    }

    /// Two ends that are connected with each other.
    pub fn pair() -> io::Result<(Self, Self)> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (a, b) = pair.map_err(denied("socketpair"))?;
        Ok((Self { fd: a }, Self { fd: b }))
    }

    /// Checks that messages with descriptors work at all: a sandbox may forbid the calls.
    ///
    /// # Errors
    /// Which call is refused.
    pub fn check() -> io::Result<()> {
        let (one, other) = Self::pair()?;
        one.try_send(b"?", &[other.as_fd()])?;
        other.try_recv(&mut [0; 1]).map(drop)
    }

    /// Whether [`Socket::send`] and [`Socket::recv`] fail with WouldBlock where they would wait
    /// otherwise.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, nonblocking)?)
    }

    /// Sets how much this end may send before the other end receives it. The unit is bytes as the
    /// kernel counts them, some hundreds for the shortest message. The kernel doubles the value,
    /// and uses at least 4608.
    pub fn set_send_room(&self, bytes: usize) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_send_buffer_size(&self.fd, bytes)?)
    }

    /// Like [`Socket::set_send_room`], beyond the system's limit if this process may do that, and
    /// otherwise up to the limit.
    pub fn set_most_send_room(&self) -> io::Result<()> {
        let most = i32::MAX as usize / 2;
        let forced = rustix::net::sockopt::set_socket_send_buffer_size_force(&self.fd, most);
        forced.or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(&self.fd, most)).map_err(io::Error::from)
    }

    /// Refuses every message from the peer from now on: its sends fail with EPIPE, so that no
    /// unread descriptor ever waits here. This end can still send.
    pub fn only_send(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read)?)
    }

    /// Sends one message with up to [`FDS_MAX`] descriptors: all of it or nothing.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL)
    }

    /// Like [`Socket::send`], but never waits: fails with WouldBlock while the peer's buffer is
    /// full.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
        if bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an empty message would look like the end"));
        }
        if fds.len() > FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is space for FDS_MAX descriptors");
        }
        let iov = [IoSlice::new(bytes)];
        let sent = retry_on_intr(|| rustix::net::sendmsg(&self.fd, &iov, &mut control, flags));
        let sent = sent.map_err(forbidden("sendmsg"))?;
        debug_assert_eq!(sent, bytes.len(), "a SOCK_SEQPACKET message goes whole or not at all");
        Ok(())
    }

    /// Receives one message.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<Received> {
        self.recv_with(buf, RecvFlags::CMSG_CLOEXEC)
    }

    /// Like [`Socket::recv`], but never waits: fails with WouldBlock when there is no message.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<Received> {
        self.recv_with(buf, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    }

    /// Copies the next message and leaves it in the socket, so that no descriptor comes into this
    /// process; never waits.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<Peeked> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut none = RecvAncillaryBuffer::default();
        let message = rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(buf)], &mut none, flags);
        let message = message.map_err(forbidden("recvmsg"))?;
        Ok(Peeked {
            len: message.bytes,
            truncated: message.flags.contains(ReturnFlags::TRUNC),
            // The buffer had no room for descriptors.
            has_fds: message.flags.contains(ReturnFlags::CTRUNC),
        })
    }

    /// Removes the next message; fails with WouldBlock if there is no message. The kernel closes
    /// the message's descriptors in this thread, and closing may block.
    pub fn discard(&self) -> io::Result<()> {
        Ok(rustix::net::recv(&self.fd, &mut [0; 1], RecvFlags::DONTWAIT).map(drop)?)
    }

    /// Ends the connection in both directions: the peer reads what was sent and then the end, and
    /// cannot send any more. True: no descriptor is left in the socket, so that closing it does not
    /// block. Unread messages may be lost.
    pub fn end(&self) -> bool {
        self.drain().unwrap_or(false)
    }

    fn drain(&self) -> io::Result<bool> {
        rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both)?;
        // No message can be added any more, so the loop ends.
        loop {
            let next = match self.peek(&mut [0; 1]) {
                // The peer has closed with unread messages; the kernel reports it once.
                Err(error) if error.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => continue,
                next => next?,
            };
            if next.has_fds {
                return Ok(false);
            }
            if next.len == 0 && !self.has_message()? {
                return Ok(true);
            }
            self.discard()?;
        }
    }

    /// Distinguishes an empty message from the end: the kernel reports a sender for every message,
    /// and the call leaves no room for the name.
    fn has_message(&self) -> io::Result<bool> {
        rustix::net::sockopt::set_socket_passcred(&self.fd, true)?;
        let peeked = self.peek(&mut [0; 1]);
        rustix::net::sockopt::set_socket_passcred(&self.fd, false)?;
        Ok(peeked?.has_fds)
    }

    fn recv_with(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
        // With less room the kernel would close the descriptors that do not fit, in this thread.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            match rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(buf)], &mut control, flags) {
                Err(Errno::INTR) => {}
                done => break done.map_err(forbidden("recvmsg"))?,
            }
        };
        let mut fds = Vec::new();
        for attached in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = attached {
                fds.extend(received);
            }
        }
        let truncated = fds.len() > FDS_MAX || message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(Received { len: message.bytes, fds, truncated })
    }

    /// Who opened the other end.
    pub fn peer_credentials(&self) -> io::Result<Credentials> {
        // Without rustix, whose process ids cannot be 0: a peer in another PID namespace has the id
        // 0.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `peer`, a plain struct of that size.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Credentials { pid: peer.pid.cast_unsigned(), uid: peer.uid, gid: peer.gid })
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Listens at a path that does not exist yet. The file stays when the listener is dropped.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let fd = unconnected()?;
        at_address(path, |address| rustix::net::bind(&fd, address))?;
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(Self { fd })
    }

    /// Whether [`Listener::accept`] fails with WouldBlock where it would wait otherwise.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, nonblocking)?)
    }

    /// Takes the next connection.
    pub fn accept(&self) -> io::Result<Socket> {
        let fd = retry_on_intr(|| rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC))?;
        Ok(Socket { fd })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn unconnected() -> io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(denied("socket"))
}

/// Calls `what` with the address of a path; a path that is too long for an address (108 bytes) is
/// named through its directory.
fn at_address(path: &Path, what: impl Fn(&SocketAddrUnix) -> rustix::io::Result<()>) -> io::Result<()> {
    let address = match SocketAddrUnix::new(path) {
        Err(Errno::NAMETOOLONG) => {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Errno::NAMETOOLONG.into());
            };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::open(folder, flags, Mode::empty())?;
            let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            return Ok(what(&SocketAddrUnix::new(short)?)?);
        }
        address => address?,
    };
    Ok(what(&address)?)
}
