//! Descriptors that programs have passed to the agent: what they are, and where they are closed.
//!
//! A [`Foreign`] is closed on the thread of its user ([`crate::closer`]), wherever it is dropped. A
//! socket that holds no descriptors is closed at once. A [`PassedFd`] came with a command, and has
//! the facts that commands ask for. The user's thread also receives it and finds these facts, so no
//! command makes a system call that a program could block. O_PATH opens a file without any right to
//! it. The kernel does not accept such a descriptor as a file (fdget), and the commands do not
//! either.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::Errno;
use rustix::fs::{FileType, OFlags, SealFlags};
use shm::region::is_on_tmpfs;
use shm::socket::Socket;

use crate::closer::Closer;
use crate::host::Host;
use crate::refusal::{Outcome, refuse};

/// A descriptor that a program has passed, or a socket to which it can send descriptors.
#[derive(Debug)]
pub struct Foreign<T: Close = OwnedFd> {
    /// `Some` until it is dropped.
    fd: Option<T>,
    closer: Closer,
}

/// A type that a [`Foreign`] can hold, and how it is closed.
pub trait Close {
    /// Closes it without waiting.
    fn close(self, closer: &Closer);
}

impl Close for OwnedFd {
    fn close(self, closer: &Closer) {
        closer.close(self);
    }
}

impl Close for Socket {
    fn close(self, closer: &Closer) {
        closer.end(self);
    }
}

impl<T: Close> Foreign<T> {
    /// A descriptor that `closer` will close.
    pub(crate) fn new(fd: T, closer: Closer) -> Self {
        Self { fd: Some(fd), closer }
    }

    /// A descriptor of this process's own, which is closed where it is dropped.
    pub(crate) fn ours(fd: T) -> Self {
        Self::new(fd, Closer::default())
    }

    /// Shared memory of this process's own, which may have many pages to free.
    pub(crate) fn memory(fd: T, host: Arc<dyn Host>) -> Self {
        Self::new(fd, Closer::deferred(host))
    }

    /// The closer that closes it.
    pub(crate) fn closer(&self) -> &Closer {
        &self.closer
    }
}

impl<T: Close + Send + Sync + 'static> Foreign<T> {
    /// Uses a socket that a program has, too, on the thread of the program's user. On the agent's
    /// thread, the program could make any call on the socket last as long as it likes.
    pub(crate) fn act(self: &Arc<Self>, act: impl FnOnce(&T) + Send + 'static) {
        let this = Arc::clone(self);
        self.closer.act(move || act(&this));
    }
}

impl<T: Close> Deref for Foreign<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.fd.as_ref().expect("only drop takes it out")
    }
}

impl<T: Close + AsFd> AsFd for Foreign<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl<T: Close> Drop for Foreign<T> {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            fd.close(&self.closer);
        }
    }
}

/// A message with descriptors.
#[derive(Debug, Default)]
pub(crate) struct ReceivedMessage {
    /// The bytes; empty if the connection has ended.
    pub(crate) bytes: Vec<u8>,
    /// It had more bytes or more descriptors than a message may have.
    pub(crate) truncated: bool,
    /// The descriptors that came with it; none if there were too many.
    pub(crate) fds: Vec<PassedFd>,
}

impl ReceivedMessage {
    /// Receives a message. The sending program can make this block as long as it likes.
    pub(crate) fn receive(socket: &Foreign<Socket>, buffer: &mut [u8]) -> Self {
        let Ok(received) = socket.try_recv(buffer) else { return Self::default() };
        let mut fds = received.fds;
        if received.truncated {
            fds.clear();
        }
        let fds = fds.into_iter().map(|fd| PassedFd::examine(Foreign::new(fd, socket.closer().clone())));
        Self { bytes: buffer[..received.len].to_vec(), truncated: received.truncated, fds: fds.collect() }
    }
}

/// A descriptor that came with a command.
#[derive(Debug)]
pub struct PassedFd {
    fd: Foreign,
    facts: Option<Facts>,
}

/// The facts about an open file.
#[derive(Debug, Clone, Copy)]
struct Facts {
    /// Device and inode.
    inode: (u64, u64),
    size: u64,
    /// The seals, if it is a memfd.
    seals: Option<SealFlags>,
    is_on_tmpfs: bool,
    is_eventfd: bool,
}

impl PassedFd {
    /// A descriptor of this process, which is closed where it is dropped.
    pub fn ours(fd: OwnedFd) -> Self {
        Self::examine(Foreign::ours(fd))
    }

    /// Finds out what a descriptor is. The program that passed it can make this block as long as it
    /// likes.
    pub(crate) fn examine(fd: Foreign) -> Self {
        let facts = Facts::of(&fd);
        Self { fd, facts }
    }

    /// The descriptor, of any kind.
    pub(crate) fn into_foreign(self) -> Foreign {
        self.fd
    }

    /// Device and inode of the file; EBADF if it was opened with O_PATH.
    pub(crate) fn inode(&self) -> Outcome<(u64, u64)> {
        Ok(self.facts()?.inode)
    }

    /// The length of the file. Only mapping the file shows whether it is memory that can be mapped
    /// safely.
    pub(crate) fn size(&self) -> Outcome<u64> {
        Ok(self.facts()?.size)
    }

    /// Checks that it is memory of exactly `len` bytes that cannot change its length; otherwise
    /// EINVAL. Releasing such memory takes no time.
    pub(crate) fn memory_of(&self, len: u64, what: &str) -> Outcome<()> {
        let facts = self.facts()?;
        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        if facts.size == len && facts.is_on_tmpfs && facts.seals.is_some_and(|seals| seals.contains(fixed)) {
            return Ok(());
        }
        refuse(Errno::EINVAL, format!("{what} is not an ordinary memfd of {len} bytes whose size is sealed"))
    }

    /// Checks that it is an eventfd; otherwise EINVAL.
    pub(crate) fn eventfd(&self, what: &str) -> Outcome<()> {
        if self.facts()?.is_eventfd {
            return Ok(());
        }
        refuse(Errno::EINVAL, format!("{what} is not an eventfd"))
    }

    fn facts(&self) -> Outcome<&Facts> {
        match &self.facts {
            Some(facts) => Ok(facts),
            None => refuse(Errno::EBADF, "the descriptor gives no right to its file: it was opened with O_PATH"),
        }
    }
}

impl Facts {
    /// The facts, or `None` for a descriptor that gives no right to its file.
    fn of(fd: &OwnedFd) -> Option<Self> {
        let flags = rustix::fs::fcntl_getfl(fd).ok()?;
        if flags.contains(OFlags::PATH) {
            return None;
        }
        let stat = rustix::fs::fstat(fd).ok()?;
        let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        Some(Self {
            inode: (stat.st_dev, stat.st_ino),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            seals: rustix::fs::fcntl_get_seals(fd).ok(),
            is_on_tmpfs: is_on_tmpfs(fd.as_fd()),
            is_eventfd: match name {
                Ok(name) => name.as_os_str() == "anon_inode:[eventfd]",
                // Without /proc: if the inode has no type, it is anonymous. A write to an anonymous
                // inode neither blocks nor harms.
                Err(_) => FileType::from_raw_mode(stat.st_mode) == FileType::Unknown,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{Mode, open};

    fn file(flags: OFlags) -> PassedFd {
        PassedFd::ours(open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).expect("opened"))
    }

    #[test]
    fn a_file_counts_however_it_was_opened_but_for_o_path() {
        let inode = file(OFlags::RDONLY).inode().expect("a file");
        assert_eq!(file(OFlags::WRONLY).inode().expect("a file"), inode);
        assert_eq!(file(OFlags::PATH).inode().expect_err("no right").errno, Errno::EBADF);
    }

    #[test]
    fn a_descriptor_is_what_it_is() {
        let event = PassedFd::ours(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        event.eventfd("it").expect("it is one");
        assert_eq!(event.memory_of(0, "it").expect_err("no memory").errno, Errno::EINVAL);
        let (_, memfd) = shm::Region::create("test", 4096).expect("memory");
        let memory = PassedFd::ours(memfd);
        assert_eq!(memory.size().expect("memory"), 4096);
        memory.memory_of(4096, "it").expect("a page");
        assert_eq!(memory.memory_of(64, "it").expect_err("longer").errno, Errno::EINVAL);
        assert_eq!(memory.eventfd("it").expect_err("memory").errno, Errno::EINVAL);
        let loose = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        assert_eq!(PassedFd::ours(loose).memory_of(0, "it").expect_err("no seals").errno, Errno::EINVAL);
    }
}
