//! Two receive sockets for one address: one receives from all senders, and the *connected* one from
//! a single sender. The kernel looks up the route of each datagram that arrives. If the first
//! socket of the address and port is connected to the datagram's sender, the kernel uses that
//! socket's cached route instead. This saves a twentieth of the time of a small message.
//!
//! At first the connected socket receives nothing: it is connected to its own address and port,
//! from which nobody sends. Adds to [`Socket`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::bind;

use crate::address::{Name, socket_address};
use crate::socket::{receives, set, unbound};
use crate::{PORT, Socket, sys};

impl Socket {
    /// A receiver as [`Socket::receiver`] makes it, and a connected one for the same address if
    /// this kernel allows both.
    ///
    /// # Errors
    /// The errors of [`Socket::receiver`].
    pub fn receiver_pair(local: IpAddr, scope_id: u32) -> io::Result<(Socket, Option<Socket>)> {
        Socket::receiver_pair_at(local, PORT, scope_id)
    }

    /// As [`Socket::receiver_pair`], with a port of the caller's choice.
    ///
    /// The first socket is bound without `SO_REUSEPORT`, so it fails if the port is taken. Then
    /// both sockets set `SO_REUSEPORT` while the second is bound, which admits only sockets of the
    /// same user that set it too. The kernel puts a new socket before the other sockets of its
    /// port, except for an IPv6 socket with `SO_REUSEPORT`, which it puts behind them. The
    /// connected socket must be the first.
    pub(crate) fn receiver_pair_at(local: IpAddr, port: u16, scope_id: u32) -> io::Result<(Socket, Option<Socket>)> {
        let alone = Socket::receiver_at(local, port, scope_id)?;
        let is_first = local.is_ipv6();
        let second = connected_to_itself(is_first.then_some(&alone)).and_then(|()| beside(&alone, &local, scope_id));
        match second {
            Ok(second) if is_first => Ok((second, Some(alone))),
            Ok(second) => match connected_to_itself(Some(&second)) {
                Ok(()) => Ok((alone, Some(second))),
                Err(_) => Ok((alone, None)),
            },
            Err(_) if is_first => {
                // A socket that was connected does not receive from all senders again.
                drop(alone);
                Ok((Socket::receiver_at(local, port, scope_id)?, None))
            }
            Err(_) => Ok((alone, None)),
        }
    }

    /// Connects a receive socket to a sender, or with `None` to its own address, from which nobody
    /// sends. Datagrams that it has already received stay in it.
    ///
    /// # Errors
    /// There is no route to the sender. The socket stays connected as before.
    pub fn connect_receiver(&self, at: Option<&SocketAddr>) -> io::Result<()> {
        sys::connect(self.as_fd(), Some(&Name::of(at.unwrap_or(&self.local()))))
    }
}

fn connected_to_itself(connected: Option<&Socket>) -> io::Result<()> {
    connected.map_or(Ok(()), |connected| connected.connect_receiver(None))
}

/// A second receiver with the address and port of the first.
fn beside(first: &Socket, local: &IpAddr, scope_id: u32) -> io::Result<Socket> {
    let second = unbound(local)?;
    receives(&second, local)?;
    let lenient = |fd: &OwnedFd, value| set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, value);
    lenient(&second, 1)?;
    sys::set(first.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &1_i32)?;
    let bound = bind(&second, &socket_address(*local, first.port(), scope_id));
    sys::set(first.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &0_i32)?;
    lenient(&second, 0)?;
    bound?;
    Ok(Socket::from_fd(second))
}
