//! The system calls on TCP sockets. None of them waits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, recv, socket_with, sockopt};

/// The longest start-up frame.
const FRAME_MAX: usize = iwarp::startup::HEADER_LEN + iwarp::startup::MOST_PRIVATE;

/// Begins to connect. An IPv4 address may be a mapped one at either end.
pub(super) fn begin(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let [from, to] = [from, to].map(canonical);
    let socket = new(&to)?;
    bind(&socket, &from)?;
    match connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, at.port()),
        // It may have a scope.
        _ => at,
    }
}

/// Takes a port from all others. With `v6_only`, an IPv6 socket leaves the port of IPv4 to others.
pub(super) fn hold(at: SocketAddr, v6_only: bool) -> io::Result<OwnedFd> {
    bound(at, v6_only, false)
}

/// Listens, also if connections of an earlier listener still linger at the port. The kernel keeps
/// one connection more than `backlog` until the agent accepts them, and at most as many as
/// `net.core.somaxconn` (listen(2)).
pub(super) fn listen(at: SocketAddr, v6_only: bool, backlog: u32) -> io::Result<TcpListener> {
    let socket = bound(at, v6_only, true)?;
    rustix::net::listen(&socket, backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(TcpListener::from(socket))
}

fn bound(at: SocketAddr, v6_only: bool, reuse: bool) -> io::Result<OwnedFd> {
    let socket = new(&at)?;
    sockopt::set_socket_reuseaddr(&socket, reuse)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    bind(&socket, &at)?;
    Ok(socket)
}

/// A socket of the address's family that never blocks.
fn new(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, None).map_err(shm::denied::denied("socket"))
}

/// The next connection.
pub(super) fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (socket, _) = listener.accept()?;
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Passes what has arrived to `with`, which says how many bytes it takes; the other bytes stay in
/// the socket. `None` means that nothing has arrived. The peer's end is an error.
pub(super) fn feed<T>(mut socket: &TcpStream, with: impl FnOnce(&[u8]) -> (usize, T)) -> io::Result<Option<T>> {
    let mut bytes = [0; FRAME_MAX + 1];
    let len = match recv(socket, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
        Ok((_, len)) => len,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (taken, result) = with(&bytes[..len]);
    socket.read_exact(bytes.get_mut(..taken).ok_or(ErrorKind::InvalidInput)?)?;
    Ok(Some(result))
}

/// Sends a start-up frame, or the Terminate message behind it. A new socket has room for both.
pub(super) fn send(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    socket.write_all(bytes)
}
