//! Sockets: making, connecting and closing them. Data transfer is in `data`.

use crate::next::Function;
use crate::rdma::{self, call};
use crate::sizes::apply_sizes;
use crate::table::{self, Kind, Later};
use crate::{epoll, fork};
use interpose::{errno, intercept, refused, set_errno};
use libc::{c_int, c_void, sockaddr, socklen_t};

intercept! {
    /// `socket`: internet sockets become rsockets.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int as next => {
        let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
        let known = matches!((plain, protocol), (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) | (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP));
        if !internet || !known || rdma::is_inside() {
            return next(domain, kind, protocol);
        }
        if plain == libc::SOCK_STREAM && fork::is_wanted() {
            let fd = next(domain, kind, protocol);
            table::set(fd, Kind::Later(Later::Fresh));
            return fd;
        }
        match rsocket(domain, kind) {
            Some(fd) => fd,
            None => next(domain, kind, protocol),
        }
    };

    /// `bind`.
    fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int as next => match table::rsocket(fd) {
        Some(inner) => call!(rbind(inner, address, length)),
        None => next(fd, address, length),
    };

    /// `listen`.
    fn listen(fd: c_int, backlog: c_int) -> c_int as next => match table::find(fd) {
        Kind::Rsocket(inner) => call!(rlisten(inner, backlog)),
        kind => {
            let answer = next(fd, backlog);
            if answer == 0 && kind == Kind::Later(Later::Fresh) {
                table::set(fd, Kind::Later(Later::Listener));
            }
            answer
        }
    };

    /// `accept`.
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int as next => {
        accepted(fd, (address, length), 0, || next(fd, address, length))
    };

    /// `accept4`.
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int as next => {
        accepted(fd, (address, length), flags, || next(fd, address, length, flags))
    };

    /// `connect`: tries TCP if no peer accepts by RDMA.
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int as next => match table::find(fd) {
        Kind::Rsocket(inner) => {
            let answer = call!(rconnect(inner, address, length));
            if answer == 0 || matches!(errno(), libc::EINPROGRESS | libc::EALREADY | libc::EINTR | libc::EISCONN) {
                return answer;
            }
            let why = errno();
            match tcp_instead(fd, inner) {
                true => next(fd, address, length),
                false => refused(why),
            }
        }
        kind => {
            if kind == Kind::Later(Later::Fresh) {
                table::set(fd, Kind::Later(Later::Active));
            }
            next(fd, address, length)
        }
    };

    /// `shutdown`.
    fn shutdown(fd: c_int, how: c_int) -> c_int as next => match table::rsocket(fd) {
        Some(inner) => call!(rshutdown(inner, how)),
        None => next(fd, how),
    };

    /// `close`: closing the last descriptor of an rsocket closes the rsocket.
    fn close(fd: c_int) -> c_int as next => {
        match table::take(fd) {
            (Kind::Plain, _) => {}
            (Kind::Rsocket(inner), last) => {
                epoll::forget(fd);
                if last {
                    let _: c_int = call!(rclose(inner));
                }
            }
            (Kind::Epoll, _) => epoll::end(fd),
            (Kind::Later(_), _) => {}
        }
        next(fd)
    };

    /// `getsockname`.
    fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int as next => match table::rsocket(fd) {
        Some(inner) => call!(rgetsockname(inner, address, length)),
        None => next(fd, address, length),
    };

    /// `getpeername`.
    fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int as next => match table::rsocket(fd) {
        Some(inner) => call!(rgetpeername(inner, address, length)),
        None => next(fd, address, length),
    };

    /// `setsockopt`.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int as next => {
        match table::rsocket(fd) {
            Some(inner) => call!(rsetsockopt(inner, level, name, value, length)),
            None => next(fd, level, name, value, length),
        }
    };

    /// `getsockopt`.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int as next => {
        match table::rsocket(fd) {
            Some(inner) => call!(rgetsockopt(inner, level, name, value, length)),
            None => next(fd, level, name, value, length),
        }
    };
}

/// Makes an rsocket and a descriptor for the program. Returns `None` without RDMA.
fn rsocket(domain: c_int, kind: c_int) -> Option<c_int> {
    let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: takes numbers.
    let inner = rdma::with(|rdma| unsafe { (rdma.rsocket)(domain, plain, 0) }).filter(|inner| *inner >= 0)?;
    adopt(inner, kind)
}

/// Makes the program's descriptor for an rsocket, with the flags of `socket` or `accept4`.
pub(crate) fn adopt(inner: c_int, flags: c_int) -> Option<c_int> {
    let close = if flags & libc::SOCK_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
    // SAFETY: a C string.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | close) };
    if fd < 0 || !table::set(fd, Kind::Rsocket(inner)) {
        let why = errno();
        // SAFETY: takes a number; the descriptor was just opened, or is -1. Nothing else uses the
        // rsocket yet.
        unsafe { libc::close(fd) };
        let _: c_int = call!(rclose(inner));
        set_errno(why);
        return None;
    }
    let wait = if flags & libc::SOCK_NONBLOCK == 0 { 0 } else { libc::O_NONBLOCK };
    let _: c_int = call!(rfcntl(inner, libc::F_SETFL, wait.into()));
    apply_sizes(inner);
    Some(fd)
}

/// Accepts an rsocket, or with `next` a TCP connection. The TCP connection may become an rsocket
/// later.
fn accepted(fd: c_int, name: (*mut sockaddr, *mut socklen_t), flags: c_int, next: impl FnOnce() -> c_int) -> c_int {
    match table::find(fd) {
        Kind::Rsocket(inner) => {
            let new: c_int = call!(raccept(inner, name.0, name.1));
            if new < 0 { new } else { adopt(new, flags).unwrap_or(-1) }
        }
        kind => {
            let new = next();
            if new >= 0 && kind == Kind::Later(Later::Listener) {
                table::set(new, Kind::Later(Later::Passive));
            }
            new
        }
    }
}

/// Replaces an rsocket that could not connect by a TCP socket.
fn tcp_instead(fd: c_int, inner: c_int) -> bool {
    let (mut domain, mut length) = (0, socklen_t::try_from(size_of::<c_int>()).unwrap_or(4));
    let asked: c_int =
        call!(rgetsockopt(inner, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut length));
    let (mut kind, mut length) = (0, length);
    let told: c_int =
        call!(rgetsockopt(inner, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut length));
    if asked != 0 || told != 0 || kind != libc::SOCK_STREAM {
        return false;
    }
    // SAFETY: takes numbers.
    let Some(real) =
        (unsafe { crate::next::Function::socket.next::<unsafe extern "C" fn(c_int, c_int, c_int) -> c_int>() })
    else {
        return false;
    };
    // SAFETY: the C library's function.
    let tcp = unsafe { real(domain, libc::SOCK_STREAM, 0) };
    if tcp < 0 {
        return false;
    }
    let flags: c_int = call!(rfcntl(inner, libc::F_GETFL, 0));
    crate::files::replace(fd, tcp);
    // SAFETY: takes numbers.
    unsafe { crate::files::real_fcntl(fd, libc::F_SETFL, (flags & libc::O_NONBLOCK).into()) };
    if let (_, true) = table::take(fd) {
        let _: c_int = call!(rclose(inner));
    }
    true
}
