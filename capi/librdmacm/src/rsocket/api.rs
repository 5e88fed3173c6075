//! The C functions of rsockets that make, connect and close sockets and wait for them
//! (`rsocket(7)`). The functions that move data are in `api_data`, options in `options`.

use super::address::{AF_IB, Name};
use super::datagram::DatagramSocket;
use super::epoll::Epoll;
use super::poll::{self, Set};
use super::settings::Settings;
use super::stream::StreamSocket;
use super::table::{self, Socket, current, socket};
use super::waiting::Patience;
use crate::entry::{self, Outcome, Refusal};
use libc::{c_int, c_long, c_void, epoll_event, fd_set, pollfd, timeval};
use std::sync::Arc;
use std::time::Duration;

/// `rsocket`.
pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    entry::or_minus_one("rsocket", || {
        let plain = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let known = matches!(
            (domain, plain, protocol),
            (libc::AF_INET | libc::AF_INET6 | AF_IB, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP)
                | (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP)
        );
        if !known {
            return Err(Refusal(libc::ENOTSUP));
        }
        let settings = Settings {
            status_flags: if kind & libc::SOCK_NONBLOCK == 0 { 0 } else { libc::O_NONBLOCK },
            descriptor_flags: if kind & libc::SOCK_CLOEXEC == 0 { 0 } else { libc::FD_CLOEXEC },
            ..Settings::default()
        };
        if plain == libc::SOCK_STREAM {
            let socket = StreamSocket::new(domain, settings)?;
            current().add(socket.fd(), Socket::Stream(Arc::new(socket)))
        } else {
            let socket = DatagramSocket::new(domain, settings)?;
            current().add(socket.fd(), Socket::Datagram(Arc::new(socket)))
        }
    })
}

/// `rbind`.
///
/// # Safety
/// `address` has `length` bytes.
pub(crate) unsafe extern "C" fn rbind(fd: c_int, address: *const c_void, length: u32) -> c_int {
    entry::or_minus_one("rbind", || {
        let socket = socket(fd)?;
        // SAFETY: the caller's promise.
        let name = unsafe { Name::read(address, length) }?;
        match &socket {
            Socket::Stream(stream) => stream.bind(&name)?,
            Socket::Datagram(datagram) => datagram.bind(&name)?,
            Socket::Epoll(_) => return Err(Refusal(libc::EBADF)),
        }
        Ok(0)
    })
}

/// `rlisten`.
pub(crate) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    entry::or_minus_one("rlisten", || table::stream(fd, libc::EOPNOTSUPP)?.listen(backlog).map(|()| 0))
}

/// `raccept`.
///
/// # Safety
/// `address` and `length` are as for `accept(2)`.
pub(crate) unsafe extern "C" fn raccept(fd: c_int, address: *mut c_void, length: *mut u32) -> c_int {
    entry::or_minus_one("raccept", || {
        let accepted = table::stream(fd, libc::EOPNOTSUPP)?.accept()?;
        if !address.is_null()
            && let Ok(peer) = accepted.endpoint().peer()
        {
            // SAFETY: the caller's promise.
            unsafe { peer.write(address, length) };
        }
        let seconds = {
            let settings = &accepted.state().settings;
            settings.keepalive.then_some(settings.keepalive_time)
        };
        if seconds.is_some() {
            current().keepalive.set(&accepted, seconds);
        }
        current().add(accepted.fd(), Socket::Stream(accepted))
    })
}

/// `rconnect`.
///
/// # Safety
/// `address` has `length` bytes.
pub(crate) unsafe extern "C" fn rconnect(fd: c_int, address: *const c_void, length: u32) -> c_int {
    entry::or_minus_one("rconnect", || {
        let socket = socket(fd)?;
        // SAFETY: the caller's promise.
        let name = unsafe { Name::read(address, length) }?;
        match &socket {
            Socket::Stream(stream) => stream.connect(&name)?,
            Socket::Datagram(datagram) => datagram.connect(&name)?,
            Socket::Epoll(_) => return Err(Refusal(libc::EBADF)),
        }
        Ok(0)
    })
}

/// `rshutdown`.
pub(crate) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    entry::or_minus_one("rshutdown", || {
        match socket(fd)? {
            Socket::Stream(stream) => stream.shut_down(how)?,
            Socket::Datagram(datagram) => datagram.shut_down(how)?,
            Socket::Epoll(_) => return Err(Refusal(libc::EBADF)),
        }
        Ok(0)
    })
}

/// `rclose`.
pub(crate) extern "C" fn rclose(fd: c_int) -> c_int {
    entry::or_minus_one("rclose", || {
        match current().remove(fd)? {
            Socket::Stream(stream) => {
                current().keepalive.set(&stream, None);
                stream.close();
            }
            Socket::Datagram(datagram) => datagram.close(),
            Socket::Epoll(_) => {}
        }
        Ok(0)
    })
}

/// `rgetsockname`.
///
/// # Safety
/// `address` and `length` are as for `getsockname(2)`.
pub(crate) unsafe extern "C" fn rgetsockname(fd: c_int, address: *mut c_void, length: *mut u32) -> c_int {
    entry::or_minus_one("rgetsockname", || {
        let name = match socket(fd)? {
            Socket::Stream(stream) => stream.endpoint().local().unwrap_or_else(|_| Name::any(stream.family())),
            Socket::Datagram(datagram) => datagram.local()?,
            Socket::Epoll(_) => return Err(Refusal(libc::ENOTSOCK)),
        };
        // SAFETY: the caller's promise.
        unsafe { name.write(address, length) };
        Ok(0)
    })
}

/// `rgetpeername`.
///
/// # Safety
/// `address` and `length` are as for `getpeername(2)`.
pub(crate) unsafe extern "C" fn rgetpeername(fd: c_int, address: *mut c_void, length: *mut u32) -> c_int {
    entry::or_minus_one("rgetpeername", || {
        let name = match socket(fd)? {
            Socket::Stream(stream) => {
                if stream.state().stream.is_none() {
                    return Err(Refusal(libc::ENOTCONN));
                }
                stream.endpoint().peer()?
            }
            Socket::Datagram(datagram) => datagram.peer()?,
            Socket::Epoll(_) => return Err(Refusal(libc::ENOTSOCK)),
        };
        // SAFETY: the caller's promise.
        unsafe { name.write(address, length) };
        Ok(0)
    })
}

/// `rpoll`.
///
/// # Safety
/// `fds` has `count` entries.
pub(crate) unsafe extern "C" fn rpoll(fds: *mut pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int {
    entry::or_minus_one("rpoll", || {
        // SAFETY: the caller's promise.
        let fds = unsafe { entries(fds, usize::try_from(count).map_err(|_| Refusal(libc::EINVAL))?) }?;
        number(poll::poll(fds, poll::patience(milliseconds))?)
    })
}

/// The entries of the program's list.
///
/// # Safety
/// `list` has `count` entries, and nothing else uses it meanwhile.
unsafe fn entries<'a, T>(list: *mut T, count: usize) -> Outcome<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    if list.is_null() {
        return Err(Refusal(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(list, count) })
}

fn number(count: usize) -> Outcome<c_int> {
    c_int::try_from(count).map_err(|_| Refusal(libc::EINVAL))
}

/// `rselect`.
///
/// # Safety
/// The sets have bits for `count` descriptors or are NULL; `timeout` is NULL or valid.
pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    input: *mut fd_set,
    output: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    entry::or_minus_one("rselect", || {
        let patience = if timeout.is_null() {
            Patience::Endless
        } else {
            // SAFETY: the caller's promise.
            let timeval { tv_sec, tv_usec } = unsafe { timeout.read() };
            let invalid = |_| Refusal(libc::EINVAL);
            let (seconds, rest) = (u64::try_from(tv_sec).map_err(invalid)?, u64::try_from(tv_usec).map_err(invalid)?);
            let limit = Duration::from_secs(seconds).saturating_add(Duration::from_micros(rest));
            if limit.is_zero() { Patience::None } else { Patience::of(Some(limit)) }
        };
        // SAFETY: the caller's promise.
        let sets = [input, output, exceptional].map(|set| unsafe { Set::new(set) });
        number(poll::select(count, sets, patience)?)
    })
}

/// `rfcntl`. (It is variadic in C; its only optional argument is passed like the third argument of
/// any function.)
pub(crate) extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    entry::or_minus_one("rfcntl", || {
        let flags = c_int::try_from(argument & 0x7FFF_FFFF).unwrap_or(0);
        let socket = socket(fd)?;
        let of = |settings: &mut Settings| match command {
            libc::F_GETFL => Ok(settings.status_flags | libc::O_RDWR),
            libc::F_SETFL => {
                settings.status_flags = flags & !libc::O_ACCMODE;
                Ok(0)
            }
            libc::F_GETFD => Ok(settings.descriptor_flags),
            libc::F_SETFD => {
                settings.descriptor_flags = flags;
                Ok(0)
            }
            _ => Err(Refusal(libc::ENOTSUP)),
        };
        match &socket {
            Socket::Stream(stream) => of(&mut stream.state().settings),
            Socket::Datagram(datagram) => of(&mut datagram.state().settings),
            Socket::Epoll(_) => Err(Refusal(libc::EBADF)),
        }
    })
}

/// `repoll_create`.
pub(crate) extern "C" fn repoll_create(flags: c_int) -> c_int {
    entry::or_minus_one("repoll_create", || {
        let epoll = Epoll::new(flags)?;
        current().add(epoll.number(), Socket::Epoll(Arc::new(epoll)))
    })
}

fn epoll(fd: c_int) -> Outcome<Arc<Epoll>> {
    match current().find(fd) {
        Some(Socket::Epoll(epoll)) => Ok(epoll),
        Some(_) => Err(Refusal(libc::EINVAL)),
        None => Err(Refusal(libc::EBADF)),
    }
}

/// `repoll_ctl`.
///
/// # Safety
/// `event` is NULL or valid.
pub(crate) unsafe extern "C" fn repoll_ctl(
    list: c_int,
    operation: c_int,
    fd: c_int,
    event: *const epoll_event,
) -> c_int {
    entry::or_minus_one("repoll_ctl", || {
        if list == fd {
            return Err(Refusal(libc::EINVAL));
        }
        // SAFETY: the caller's promise.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        epoll(list)?.control(operation, fd, event).map(|()| 0)
    })
}

/// `repoll_wait`.
///
/// # Safety
/// `events` has room for `most`.
pub(crate) unsafe extern "C" fn repoll_wait(
    list: c_int,
    events: *mut epoll_event,
    most: c_int,
    milliseconds: c_int,
) -> c_int {
    entry::or_minus_one("repoll_wait", || {
        let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(Refusal(libc::EINVAL))?;
        let found = epoll(list)?.wait(most, poll::patience(milliseconds))?;
        for (index, event) in found.iter().enumerate() {
            // SAFETY: the caller's promise; no more than `most` entries.
            unsafe { events.wrapping_add(index).write_unaligned(*event) };
        }
        number(found.len())
    })
}
