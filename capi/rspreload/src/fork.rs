//! Connections of programs that fork (`RDMAV_FORK_SAFE`). A child cannot use its parent's rsockets.
//! So a connection begins as a TCP connection, and becomes an rsocket when its first byte is sent
//! or received, in the process that does this. The accepting side then listens for an rsocket on
//! the same port and sends four zero bytes. The connecting side connects again when these bytes
//! have come. rdma-core's library does the same, and both sides must do it. A semaphore with that
//! library's name ensures that only one process at a time listens on a port. The principal type is
//! [`Turn`].

use crate::next::Function;
use crate::rdma::{self, call};
use crate::sizes::apply_sizes;
use crate::table::{self, Kind, Later};
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::sync::OnceLock;

/// Whether the environment asks for it.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        // SAFETY: a C string.
        let text = unsafe { libc::getenv(c"RDMAV_FORK_SAFE".as_ptr()) };
        // SAFETY: a C string of the environment.
        !text.is_null() && unsafe { libc::atoi(text) } != 0
    })
}

/// The rsocket of a descriptor. A connection that becomes an rsocket later becomes one now.
#[inline]
pub(crate) fn rsocket(fd: c_int) -> Option<c_int> {
    match table::find(fd) {
        Kind::Plain | Kind::Epoll => None,
        Kind::Rsocket(inner) => Some(inner),
        Kind::Later(later) => turn(fd, later),
    }
}

/// Called before a wait for input: an accepted connection becomes an rsocket now, because the
/// accepting side must send first.
pub(crate) fn awaited(fd: c_int) {
    if table::find(fd) == Kind::Later(Later::Passive) {
        let _ = turn(fd, Later::Passive);
    }
}

#[cold]
fn turn(fd: c_int, later: Later) -> Option<c_int> {
    if rdma::is_inside() {
        return None;
    }
    let inner = match later {
        Later::Fresh | Later::Listener => return None,
        Later::Active => active(fd),
        Later::Passive => passive(fd),
    };
    let Some(inner) = inner else {
        // It stays a TCP socket.
        table::set(fd, Kind::Plain);
        return None;
    };
    // SAFETY: takes numbers.
    let flags = unsafe { crate::files::real_fcntl(fd, libc::F_GETFL, 0) };
    let _: c_int = call!(rfcntl(inner, libc::F_SETFL, (flags & libc::O_NONBLOCK).into()));
    // SAFETY: a C string.
    let place = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    table::set(fd, Kind::Plain);
    crate::files::replace(fd, place);
    table::set(fd, Kind::Rsocket(inner));
    Some(inner)
}

/// An address and its length.
struct Name(libc::sockaddr_storage, socklen_t);

impl Name {
    fn of(function: Function, fd: c_int) -> Option<Self> {
        type Next = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        let mut length = socklen_t::try_from(size_of::<libc::sockaddr_storage>()).ok()?;
        let mut name = std::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
        // SAFETY: `getsockname` and `getpeername` have this type; `name` has `length` bytes.
        let code = unsafe { function.next::<Next>()?(fd, name.as_mut_ptr().cast(), &raw mut length) };
        // SAFETY: all zeros are a valid address without a family.
        (code == 0).then(|| Self(unsafe { name.assume_init() }, length))
    }

    fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.0).cast()
    }

    fn family(&self) -> c_int {
        self.0.ss_family.into()
    }
}

/// Waits for the four bytes, and connects.
fn active(fd: c_int) -> Option<c_int> {
    type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
    let mut word = [1_u8; 4];
    let wait = libc::MSG_PEEK | libc::MSG_WAITALL;
    let flags = blocking(fd);
    // SAFETY: the type is the one of the manual page; `word` has four bytes.
    let got = unsafe { Function::recv.next::<Recv>()?(fd, word.as_mut_ptr().cast(), 4, wait) };
    restore(fd, flags);
    if got != 4 || word != [0; 4] {
        return None;
    }
    let peer = Name::of(Function::getpeername, fd)?;
    let inner: c_int = call!(rsocket(peer.family(), libc::SOCK_STREAM, 0));
    if inner < 0 {
        return None;
    }
    apply_sizes(inner);
    let connected: c_int = call!(rconnect(inner, peer.as_ptr(), peer.1));
    if connected != 0 {
        let _: c_int = call!(rclose(inner));
        return None;
    }
    Some(inner)
}

/// Listens on the port of the connection, sends the four bytes, and accepts.
fn passive(fd: c_int) -> Option<c_int> {
    type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
    let name = Name::of(Function::getsockname, fd)?;
    let turn = Turn::take()?;
    let listener: c_int = call!(rsocket(name.family(), libc::SOCK_STREAM, 0));
    if listener < 0 {
        return None;
    }
    apply_sizes(listener);
    let on: c_int = 1;
    let _: c_int = call!(rsetsockopt(listener, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast(), 4));
    let listens = {
        let bound: c_int = call!(rbind(listener, name.as_ptr(), name.1));
        let heard: c_int = if bound == 0 { call!(rlisten(listener, 1)) } else { bound };
        heard == 0
    };
    let mut inner = -1;
    if listens {
        let flags = blocking(fd);
        // SAFETY: the type is the one of the manual page; the array has four bytes.
        let sent = unsafe { Function::write.next::<Write>()?(fd, [0_u8; 4].as_ptr().cast(), 4) };
        restore(fd, flags);
        if sent == 4 {
            inner = call!(raccept(listener, std::ptr::null_mut(), std::ptr::null_mut()));
        }
    }
    let _: c_int = call!(rclose(listener));
    drop(turn);
    (inner >= 0).then_some(inner)
}

/// Makes a descriptor blocking. Returns its previous flags.
fn blocking(fd: c_int) -> c_int {
    // SAFETY: takes numbers.
    unsafe {
        let flags = crate::files::real_fcntl(fd, libc::F_GETFL, 0);
        crate::files::real_fcntl(fd, libc::F_SETFL, (flags & !libc::O_NONBLOCK).into());
        flags
    }
}

fn restore(fd: c_int, flags: c_int) {
    // SAFETY: takes numbers.
    unsafe { crate::files::real_fcntl(fd, libc::F_SETFL, flags.into()) };
}

/// The right to listen on a port, held through the semaphore.
struct Turn(*mut libc::sem_t);

impl Turn {
    fn take() -> Option<Self> {
        let mode: libc::c_uint = libc::S_IRWXU | libc::S_IRWXG;
        let first: libc::c_uint = 1;
        // SAFETY: a C string, and the arguments that O_CREAT needs.
        let semaphore = unsafe { libc::sem_open(c"/rsocket_fork".as_ptr(), libc::O_CREAT | libc::O_RDWR, mode, first) };
        if semaphore == libc::SEM_FAILED {
            return None;
        }
        // SAFETY: just opened.
        while unsafe { libc::sem_wait(semaphore) } != 0 {
            if interpose::errno() != libc::EINTR {
                return None;
            }
        }
        Some(Self(semaphore))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: the semaphore was taken; it is closed once.
        unsafe {
            libc::sem_post(self.0);
            libc::sem_close(self.0);
        }
    }
}
