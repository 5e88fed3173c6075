//! A datagram socket: a UDP socket, whose descriptor and port it uses, and a UD queue pair for each
//! local address in use. The principal type is [`DatagramSocket`].
//!
//! If the peer's queue pair is not known, a datagram goes over UDP and asks for it. No thread
//! handles the answers; they are handled while the program waits for datagrams. Received data is
//! copied out of the registered memory at once. Internally, an IPv4 host has its IPv4 address, even
//! if the socket is an IPv6 socket and shows the program a mapped address ([`inward`],
//! [`outward`]). [`path`] is a queue pair, and [`peers`] resolves the ways to peers.

mod path;
mod peers;
mod watched;

use super::AGAIN;
use super::address::{Name, aimed, inward, outward};
use super::settings::Settings;
use super::vectors::Buffers;
use super::waiting::{self, Patience, SPIN, Waiters, Waker, borrowed, input, refusal};
use crate::entry::{Outcome, Refusal};
use parking_lot::{Mutex, MutexGuard};
use path::Path;
use peers::Peer;
use rsocket::datagram::{MAX_HEADER, MAX_SIZE};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// The maximum number of bytes in a datagram, over UD or over UDP.
const LONGEST: usize = MAX_SIZE - MAX_HEADER;
/// The maximum number of remembered peers. If a flood of addresses exceeds it, all peers are
/// forgotten.
const MOST_PEERS: usize = 4096;
/// A polling caller looks at the UDP socket once in this many calls.
const UDP_TURN: u32 = 8;

/// A datagram socket.
pub(crate) struct DatagramSocket {
    udp: OwnedFd,
    family: c_int,
    state: Mutex<State>,
}

/// The changing part of a socket.
pub(crate) struct State {
    pub(crate) settings: Settings,
    paths: Vec<Path>,
    peers: HashMap<SocketAddr, Peer>,
    connected: Option<SocketAddr>,
    /// An error of the UDP socket about a sent datagram, for example that no receiver exists. It is
    /// reported once.
    pub(crate) error: Option<Refusal>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    waiters: Waiters,
    turn: u32,
    closed: bool,
    readable: bool,
    writable: bool,
}

impl DatagramSocket {
    /// Makes a new socket.
    pub(crate) fn new(family: c_int, settings: Settings) -> Outcome<Self> {
        let domain = if family == libc::AF_INET6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = if settings.descriptor_flags == 0 { SocketFlags::empty() } else { SocketFlags::CLOEXEC };
        let udp = rustix::net::socket_with(domain, SocketType::DGRAM, flags | SocketFlags::NONBLOCK, None);
        let state = State {
            settings,
            paths: Vec::new(),
            peers: HashMap::new(),
            connected: None,
            error: None,
            inbox: VecDeque::new(),
            waiters: Waiters::default(),
            turn: 0,
            closed: false,
            readable: true,
            writable: true,
        };
        Ok(Self { udp: udp.map_err(refusal)?, family, state: Mutex::new(state) })
    }

    /// The descriptor by which the program knows the socket.
    pub(crate) fn fd(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// The address family that it was made for.
    pub(crate) fn family(&self) -> c_int {
        self.family
    }

    /// The changing part.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// `rbind`.
    pub(crate) fn bind(&self, name: &Name) -> Outcome<()> {
        rustix::net::bind(&self.udp, &name.internet()?).map_err(refusal)
    }

    /// `rconnect`.
    pub(crate) fn connect(&self, name: &Name) -> Outcome<()> {
        let mut state = self.state();
        if name.family() == libc::AF_UNSPEC {
            state.connected = None;
            return rustix::net::connect_unspec(&self.udp).map_err(refusal);
        }
        rustix::net::connect(&self.udp, &name.internet()?).map_err(refusal)?;
        // The kernel's view of the address: the wildcard address means this host.
        let peer = rustix::net::getpeername(&self.udp).map_err(refusal)?.ok_or(Refusal(libc::ENOTCONN))?;
        let address = inward(SocketAddr::try_from(peer).map_err(refusal)?);
        state.connected = Some(address);
        self.way_to(&mut state, address, address).map(|_| ())
    }

    /// `rgetsockname`.
    pub(crate) fn local(&self) -> Outcome<Name> {
        Ok(outward(self.own_address()?, self.family).into())
    }

    /// `rgetpeername`.
    pub(crate) fn peer(&self) -> Outcome<Name> {
        let connected = self.state().connected.ok_or(Refusal(libc::ENOTCONN))?;
        Ok(outward(connected, self.family).into())
    }

    /// The destination for an address of the program. As in the kernel, an IPv6 socket accepts both
    /// families.
    fn target(&self, name: &Name) -> Outcome<SocketAddr> {
        let address = name.internet()?;
        if address.is_ipv6() && self.family == libc::AF_INET {
            return Err(Refusal(libc::EAFNOSUPPORT));
        }
        Ok(aimed(inward(address)))
    }

    fn own_address(&self) -> Outcome<SocketAddr> {
        let address = rustix::net::getsockname(&self.udp).map_err(refusal)?;
        Ok(inward(SocketAddr::try_from(address).map_err(refusal)?))
    }

    /// Binds the socket to a free port unless it is bound.
    fn bind_somewhere(&self) -> Outcome<SocketAddr> {
        let own = self.own_address()?;
        if own.port() != 0 {
            return Ok(own);
        }
        rustix::net::bind(&self.udp, &Name::any(self.family).internet()?).map_err(refusal)?;
        self.own_address()
    }

    /// `rsendto` and the other sending calls.
    ///
    /// # Safety
    /// The buffers can be read.
    pub(crate) unsafe fn send(&self, buffers: Buffers<'_>, flags: c_int, to: Option<&Name>) -> Outcome<usize> {
        let length = buffers.length();
        if length > LONGEST {
            return Err(Refusal(libc::EMSGSIZE));
        }
        let mut data = [0; LONGEST];
        // SAFETY: the caller's promise, and `data` has room.
        unsafe { buffers.cursor().copy_out(data.as_mut_ptr(), length) };
        let data = data.get(..length).unwrap_or_default();
        let to = to.map(|name| self.target(name)).transpose()?;
        loop {
            let patience = {
                let mut state = self.state();
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                if !state.writable {
                    return Err(Refusal(libc::EPIPE));
                }
                let to = to.or(state.connected).ok_or(Refusal(libc::EDESTADDRREQ))?;
                match self.send_now(&mut state, to, data) {
                    Err(refusal) if refusal == AGAIN => state.settings.send_patience(flags),
                    other => return other.map(|()| length),
                }
            };
            self.wait(patience, |state| !state.writable || state.paths.iter().all(Path::can_send))?;
        }
    }

    /// `rrecvfrom` and the other receiving calls: the number of bytes copied, the length of the
    /// datagram, and the sender.
    ///
    /// # Safety
    /// The buffers can be written.
    pub(crate) unsafe fn receive(&self, buffers: Buffers<'_>, flags: c_int) -> Outcome<(usize, usize, SocketAddr)> {
        let peek = flags & libc::MSG_PEEK != 0;
        loop {
            let patience = {
                let mut state = self.state();
                if state.inbox.is_empty() {
                    self.look(&mut state, true);
                }
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                let next = if peek { state.inbox.front().cloned() } else { state.inbox.pop_front() };
                if let Some((source, data)) = next {
                    drop(state);
                    let length = data.len().min(buffers.length());
                    // SAFETY: the caller's promise; no more bytes than the datagram has.
                    unsafe { buffers.cursor().copy_in(data.as_ptr(), length) };
                    return Ok((length, data.len(), outward(source, self.family)));
                }
                if !state.readable {
                    return Err(Refusal(libc::EBADF));
                }
                state.settings.receive_patience(flags)
            };
            self.wait(patience, |state| !state.inbox.is_empty() || state.error.is_some() || !state.readable)?;
        }
    }

    /// Takes everything that has arrived.
    fn look(&self, state: &mut State, closely: bool) {
        let before = state.inbox.len();
        let most = usize::from(state.settings.receive_queue);
        for path in &mut state.paths {
            path.look(&mut state.inbox, most, state.connected);
        }
        state.turn = state.turn.wrapping_add(1);
        if closely || state.turn.is_multiple_of(UDP_TURN) {
            self.look_at_udp(state);
            self.look_for_ways(state);
        }
        if state.inbox.len() > before {
            state.waiters.wake();
        }
    }

    /// Takes datagrams that have arrived over UDP.
    fn look_at_udp(&self, state: &mut State) {
        let mut room = [0; MAX_SIZE];
        // A bounded number, so that the lock is not held for long.
        for _ in 0..64 {
            let (bytes, from) = match rustix::net::recvfrom(&self.udp, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((bytes, _, from)) => (bytes, from),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(errno) => {
                    state.error = Some(refusal(errno));
                    return state.waiters.wake();
                }
            };
            let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) else { continue };
            if let Some(bytes) = room.get(..bytes) {
                self.over_udp(state, inward(from), bytes);
            }
        }
    }

    fn wait(&self, patience: Patience, mut ready: impl FnMut(&mut State) -> bool) -> Outcome<()> {
        let mut once = |closely: bool| {
            let mut state = self.state();
            self.look(&mut state, closely);
            if state.closed { Err(Refusal(libc::EBADF)) } else { Ok(ready(&mut state)) }
        };
        if once(true)? {
            return Ok(());
        }
        if matches!(patience, Patience::None) {
            return Err(AGAIN);
        }
        let start = Instant::now();
        while start.elapsed() < SPIN {
            std::hint::spin_loop();
            if once(false)? {
                return Ok(());
            }
        }
        let waker = Waker::mine()?;
        loop {
            let left = patience.left()?;
            let mut behind = Vec::new();
            {
                let mut state = self.state();
                self.prepare(&mut state, &mut behind);
                if state.closed {
                    return Err(Refusal(libc::EBADF));
                }
                if ready(&mut state) {
                    return Ok(());
                }
                state.waiters.add(&waker);
            }
            let mut fds: Vec<_> = behind.iter().map(|fd| input(borrowed(*fd))).collect();
            fds.push(input(waker.fd()));
            let slept = waiting::sleep(&mut fds, left.as_ref());
            waker.quiet();
            self.woken(&waker);
            slept?;
        }
    }

    /// Arms all completion queues, looks again, and collects the descriptors to sleep on.
    fn prepare(&self, state: &mut State, fds: &mut Vec<RawFd>) {
        for path in &mut state.paths {
            path.arm();
        }
        self.look(state, true);
        fds.push(self.udp.as_fd().as_raw_fd());
        fds.extend(state.paths.iter().map(Path::fd));
        fds.extend(state.peers.values().filter_map(Peer::fd));
    }

    fn woken(&self, waker: &Arc<Waker>) {
        let mut state = self.state();
        state.waiters.remove(waker);
        for path in &mut state.paths {
            path.take_event();
        }
        self.look(&mut state, true);
    }

    /// `rshutdown`.
    pub(crate) fn shut_down(&self, how: c_int) -> Outcome<()> {
        let mut state = self.state();
        state.connected.ok_or(Refusal(libc::ENOTCONN))?;
        state.readable &= how == libc::SHUT_WR;
        state.writable &= how == libc::SHUT_RD;
        state.waiters.wake();
        Ok(())
    }

    /// `rclose`: first waits until sent datagrams have left.
    pub(crate) fn close(&self) {
        let patience = Patience::of(Some(std::time::Duration::from_millis(500)));
        let _ = self.wait(patience, |state| state.paths.iter().all(Path::all_sent));
        let mut state = self.state();
        (state.closed, state.readable, state.writable) = (true, false, false);
        state.waiters.wake();
    }
}
