//! The sockets of the process, by their descriptors. A forked child starts with an empty table:
//! inherited objects belong to the parent and stay unchanged, and the child may make its own. The
//! principal type is [`Table`].

use super::datagram::DatagramSocket;
use super::epoll::Epoll;
use super::keepalive::Keepalive;
use super::stream::StreamSocket;
use super::watched::Watched;
use crate::entry::{Outcome, Refusal};
use parking_lot::RwLock;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Once};

/// The object behind a descriptor.
#[derive(Clone)]
pub(crate) enum Socket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
    Epoll(Arc<Epoll>),
}

impl Socket {
    /// The socket as an object to wait for; `None` for an epoll list.
    pub(crate) fn watched(&self) -> Option<&dyn Watched> {
        match self {
            Self::Stream(stream) => Some(&**stream),
            Self::Datagram(datagram) => Some(&**datagram),
            Self::Epoll(_) => None,
        }
    }
}

/// The sockets, and the keepalives for them.
#[derive(Default)]
pub(crate) struct Table {
    sockets: RwLock<Vec<Option<Socket>>>,
    pub(crate) keepalive: Keepalive,
}

static CURRENT: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// The table of this process.
pub(crate) fn current() -> &'static Table {
    static PREPARED: Once = Once::new();
    let mut table = CURRENT.load(Ordering::Acquire);
    if table.is_null() {
        PREPARED.call_once(|| {
            begin_anew();
            // SAFETY: the function stays where it is, because this library is never unloaded.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
        });
        table = CURRENT.load(Ordering::Acquire);
    }
    // SAFETY: a table is never freed.
    unsafe { &*table }
}

/// Starts an empty table. The old one stays in memory, with the objects of the parent.
extern "C" fn begin_anew() {
    CURRENT.store(Box::into_raw(Box::default()), Ordering::Release);
}

fn index(fd: RawFd) -> Outcome<usize> {
    usize::try_from(fd).map_err(|_| Refusal(libc::EBADF))
}

impl Table {
    /// Adds a socket, and returns its descriptor.
    pub(crate) fn add(&self, fd: RawFd, socket: Socket) -> Outcome<RawFd> {
        let index = index(fd)?;
        let mut sockets = self.sockets.write();
        if sockets.len() <= index {
            sockets.resize(index + 1, None);
        }
        let place = sockets.get_mut(index).ok_or(Refusal(libc::EBADF))?;
        *place = Some(socket);
        Ok(fd)
    }

    /// The socket of a descriptor, or `None` if it is not an rsocket.
    pub(crate) fn find(&self, fd: RawFd) -> Option<Socket> {
        self.sockets.read().get(index(fd).ok()?)?.clone()
    }

    /// Removes a socket.
    pub(crate) fn remove(&self, fd: RawFd) -> Outcome<Socket> {
        let mut sockets = self.sockets.write();
        sockets.get_mut(index(fd)?).and_then(Option::take).ok_or(Refusal(libc::EBADF))
    }
}

/// The socket of a descriptor. Fails with EBADF if it is not an rsocket.
pub(crate) fn socket(fd: RawFd) -> Outcome<Socket> {
    match current().find(fd) {
        Some(Socket::Epoll(_)) | None => Err(Refusal(libc::EBADF)),
        Some(socket) => Ok(socket),
    }
}

/// The stream socket of a descriptor. Fails with EBADF if it is not an rsocket, and with `other`
/// for a datagram socket.
pub(crate) fn stream(fd: RawFd, other: i32) -> Outcome<Arc<StreamSocket>> {
    match socket(fd)? {
        Socket::Stream(stream) => Ok(stream),
        _ => Err(Refusal(other)),
    }
}
