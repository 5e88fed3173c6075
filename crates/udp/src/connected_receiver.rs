//! Two receivers for one address: one for everybody, and a *connected* one, which hears one sender only. The kernel looks up
//! the way of a datagram at each arrival, unless the first socket of the address and port is connected to its sender: then it knows the way
//! from the last one, which saves a twentieth of a small message's time.
//!
//! It hears nothing at first: it is connected to the address and port that it has itself, from where nobody sends.
//! Adds to [`Socket`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::bind;

use crate::address::{Name, socket_address};
use crate::socket::{receives, set, unbound};
use crate::{PORT, Socket, sys};

impl Socket {
    /// A receiver as [`Socket::receiver`] makes it, and a connected one for the same address, if this kernel lets both have it.
    ///
    /// # Errors
    /// Those of [`Socket::receiver`].
    pub fn receiver_pair(local: IpAddr, scope_id: u32) -> io::Result<(Socket, Option<Socket>)> {
        Socket::receiver_pair_at(local, PORT, scope_id)
    }

    /// The same with a port of the caller's choice.
    ///
    /// The first of them is bound alone, which nobody can do who comes second. Then both are lenient while the second is bound: towards
    /// sockets that say the same and are this user's, and nobody else's. The kernel puts a new socket before the others of its port, but
    /// with IPv6, if it is lenient, behind them; and the connected socket has to be the first.
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
                // What was connected would not hear everybody again.
                drop(alone);
                Ok((Socket::receiver_at(local, port, scope_id)?, None))
            }
            Err(_) => Ok((alone, None)),
        }
    }

    /// Connects a receive socket to a sender, or to nobody. What it has received before stays in it.
    ///
    /// # Errors
    /// There is no way to the sender; the socket is connected as it was before.
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
