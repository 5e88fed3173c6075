//! The sockets of the wire. Not who reads them, and not what is in a datagram. Principal type: [`Socket`].

use crate::address::socket_address;
use crate::control::{Control, number};
use crate::{Outgoing, PORT, Received, sys};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Source ports have the upper two bits set.
const PORTS_FROM: u16 = 0xc000;
const PORTS_MASK: u16 = 0x3fff;

const HOP_LIMIT: u8 = 64;
const BUFFER: i32 = 4 << 20;
/// Bursts of one segment size in a row that make it a habit.
const REPEATS: u32 = 16;

/// A UDP socket that never waits. One thread sends at a time: what is usual is told to the kernel once, and holds for whoever sends next.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
    /// The segment size that the kernel takes where a call says none, and how often the last one was asked for in a row.
    habit: AtomicU32,
    repeats: AtomicU32,
    /// The same for hop limit and traffic class, in one number.
    marks: AtomicU32,
    marks_repeats: AtomicU32,
}

impl Socket {
    /// A socket to send from: on `local` and the first free port from `hint` on in the range that RoCEv2 sends from.
    ///
    /// It is not connected and forbids fragments, so that the identification of its IPv4 packets is known (see also [`Socket::connect_sender`]). What it sends to a
    /// group comes back to this host too, for the other agents here.
    ///
    /// # Errors
    /// The host does not have the address (`EADDRNOTAVAIL`), all ports are taken (`EADDRINUSE`), or no descriptor is left.
    pub fn sender(local: IpAddr, scope_id: u32, hint: u16) -> io::Result<Socket> {
        let fd = unbound(&local)?;
        match local {
            IpAddr::V4(_) => {
                set(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
                set(&fd, libc::IPPROTO_IP, libc::IP_TTL, i32::from(HOP_LIMIT))?;
                set(&fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, i32::from(HOP_LIMIT))?;
            }
            IpAddr::V6(_) => {
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, i32::from(HOP_LIMIT))?;
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, i32::from(HOP_LIMIT))?;
            }
        }
        widen(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
        for step in 0..=PORTS_MASK {
            let port = PORTS_FROM | hint.wrapping_add(step) & PORTS_MASK;
            match bind(&fd, &socket_address(local, port, scope_id)) {
                Ok(()) => return Ok(Socket::from_fd(fd)),
                Err(rustix::io::Errno::ADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    /// A socket that receives what is sent to `local`, alone: nobody else can have the same address and port.
    ///
    /// # Errors
    /// Somebody has the port (`EADDRINUSE`), the host does not have the address (`EADDRNOTAVAIL`), or no descriptor is left.
    pub fn receiver(local: IpAddr, scope_id: u32) -> io::Result<Socket> {
        Socket::receiver_at(local, PORT, scope_id)
    }

    /// A receiver with a port of its own choice: for tests, which may run beside an agent and each other.
    pub(crate) fn receiver_at(local: IpAddr, port: u16, scope_id: u32) -> io::Result<Socket> {
        let fd = unbound(&local)?;
        receives(&fd, &local)?;
        bind(&fd, &socket_address(local, port, scope_id))?;
        Ok(Socket::from_fd(fd))
    }

    /// A socket that receives what comes to a multicast group by one interface. There may be several, also of other processes:
    /// each gets a copy.
    ///
    /// # Errors
    /// `group` is not a multicast address (`EINVAL`), there is no such interface (`ENODEV`), or a limit of the host is reached.
    pub fn group_receiver(group: IpAddr, ifindex: u32) -> io::Result<Socket> {
        if !group.is_multicast() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let fd = unbound(&group)?;
        receives(&fd, &group)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        bind(&fd, &socket_address(group, PORT, ifindex))?;
        match group {
            IpAddr::V4(group) => {
                // Otherwise it would also get what comes by an interface on which another socket is a member.
                set(&fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
                let member = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: ifindex.cast_signed(),
                };
                sys::set(fd.as_fd(), libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &member)?;
            }
            IpAddr::V6(group) => {
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
                let member = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: ifindex,
                };
                sys::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &member)?;
            }
        }
        Ok(Socket::from_fd(fd))
    }

    /// A socket that was made by [`Socket::receiver`] or [`Socket::group_receiver`], maybe in another process.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Socket {
        let socket = UdpSocket::from(fd);
        let local = socket.local_addr().unwrap_or_else(|_| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let [habit, repeats, marks_repeats] = [const { AtomicU32::new(0) }; 3];
        let marks = AtomicU32::new(u16::from_be_bytes([HOP_LIMIT, 0]).into());
        Socket { socket, local, habit, repeats, marks, marks_repeats }
    }

    /// From now on [`Socket::receive`] tells the hop limit, too. That costs a small part of each call, and only
    /// datagrams show it to programs.
    ///
    /// # Errors
    /// The socket is not usable any more.
    pub fn tell_hops(&self) -> io::Result<()> {
        let option = match self.local.ip() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        };
        sys::set(self.as_fd(), option.0, option.1, &1_i32)
    }

    /// How much memory that which waits to be received takes, in bytes, and how much it may.
    ///
    /// # Errors
    /// The kernel does not say it.
    pub fn fill(&self) -> io::Result<(usize, usize)> {
        sys::fill(self.as_fd()).map(|(used, room)| (used as usize, room as usize))
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The port that it is bound to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// Sends a datagram or a burst: all of it or nothing.
    ///
    /// # Errors
    /// There is no room (`WouldBlock`), no way to the destination, a segment is longer than the way carries (`EMSGSIZE`; for a
    /// burst, older kernels say `EINVAL`), or the interface cannot compute the checksums of a burst (`EIO`).
    pub fn send(&self, out: &Outgoing<'_>) -> io::Result<()> {
        let mut control = Control::new();
        let segment = if out.segment < out.bytes.len() { u16::try_from(out.segment).unwrap_or(0) } else { 0 };
        if !self.is_usual(segment, out.bytes.len()) {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment.to_ne_bytes());
        }
        let v4 = out.to.is_ipv4();
        let hop_limit = if out.hop_limit == 0 { HOP_LIMIT } else { out.hop_limit };
        if out.interface != 0 || !self.is_usually_marked(hop_limit, out.traffic_class) {
            let (level, hops, class) = if v4 {
                (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS)
            };
            control.push(level, hops, i32::from(hop_limit).to_ne_bytes());
            control.push(level, class, i32::from(out.traffic_class).to_ne_bytes());
        }
        if out.interface != 0 {
            self.leave_by(out.interface, v4, &mut control);
        }
        if !out.connected {
            return sys::send(self.socket.as_fd(), Some(&out.to), &control, out.bytes);
        }
        // News of an earlier datagram, which did not arrive, comes in the place of sending this one, once.
        match sys::send(self.socket.as_fd(), None, &control, out.bytes) {
            Err(error) if is_news(&error) => sys::send(self.socket.as_fd(), None, &control, out.bytes),
            done => done,
        }
    }

    /// Whether `len` bytes are cut into these segments (0: not at all) without saying so. A program that sends the same kind of burst
    /// again and again saves a part of each call if the kernel knows its habit.
    fn is_usual(&self, segment: u16, len: usize) -> bool {
        let habit = self.habit.load(Ordering::Relaxed);
        if segment == 0 {
            return habit == 0 || len <= habit as usize;
        }
        if u32::from(segment) == habit {
            return true;
        }
        if becomes_habit(&self.repeats, segment)
            && sys::set(self.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, &i32::from(segment)).is_ok()
        {
            self.habit.store(u32::from(segment), Ordering::Relaxed);
        }
        false
    }

    /// Whether the kernel gives a datagram for one host this hop limit and traffic class without being told: the last ones that were asked
    /// for often enough in a row.
    fn is_usually_marked(&self, hop_limit: u8, class: u8) -> bool {
        let marks = u16::from_be_bytes([hop_limit, class]);
        if u32::from(marks) == self.marks.load(Ordering::Relaxed) {
            return true;
        }
        if becomes_habit(&self.marks_repeats, marks) {
            let (level, hops_option, class_option) = match self.local.ip() {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS),
            };
            let set = |option, value: u8| sys::set(self.as_fd(), level, option, &i32::from(value));
            let done = set(hops_option, hop_limit).and_then(|()| set(class_option, class));
            // Half done is not done: everything is told, then.
            self.marks.store(if done.is_ok() { marks.into() } else { u32::MAX }, Ordering::Relaxed);
        }
        false
    }

    /// Receives a datagram, or several that the kernel merged, into `buffer`; what does not fit is cut off. `None`: nothing is
    /// there, or what was there is the news that an earlier datagram did not arrive, which is nobody's business here.
    ///
    /// # Errors
    /// The socket is not usable any more.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut control = Control::new();
        let (len, control_len, from) = match sys::receive(self.socket.as_fd(), buffer, &mut control, 0) {
            Ok(received) => received,
            Err(error) if passes(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(from) = from else { return Ok(None) };
        let mut received = Received { len, segment: len, from, traffic_class: 0, hop_limit: 0 };
        for (level, kind, data) in control.messages(control_len) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) if number(data) != 0 => received.segment = number(data).min(len),
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    received.traffic_class = number(data) as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    received.hop_limit = number(data) as u8;
                }
                _ => {}
            }
        }
        Ok(Some(received))
    }

    /// Receives a datagram, or several that the kernel merged, as [`Socket::receive`] does, but says only how long it is: that costs less. For who
    /// knows the rest.
    ///
    /// # Errors
    /// The socket is not usable any more.
    pub fn receive_bytes(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match sys::receive_bytes(self.socket.as_fd(), buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) if passes(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds the interface by which a multicast datagram leaves. With an interface, IPv4 takes the source address from here too.
    fn leave_by(&self, interface: u32, v4: bool, control: &mut Control) {
        let mut data = [0; 12];
        data[..4].copy_from_slice(&interface.to_ne_bytes());
        match self.local.ip() {
            IpAddr::V4(local) if v4 => {
                data[4..8].copy_from_slice(&local.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, data);
            }
            _ => {
                let mut data = [0; 20];
                data[16..].copy_from_slice(&interface.to_ne_bytes());
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, data);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Counts how often a value was asked for in a row; says whether that was often enough just now. Not atomic: of two senders at once one may
/// be counted as the other, and the habit be another one.
fn becomes_habit(repeats: &AtomicU32, value: u16) -> bool {
    let before = repeats.load(Ordering::Relaxed);
    let count = if before >> 16 == u32::from(value) { (before & 0xffff) + 1 } else { 1 };
    repeats.store(u32::from(value) << 16 | count.min(REPEATS + 1), Ordering::Relaxed);
    count == REPEATS
}

/// A socket of the address's family, closed on exec and not waiting.
pub(crate) fn unbound(address: &IpAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    if address.is_ipv6() {
        set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    Ok(fd)
}

/// What a receiver of either kind wants: merged segments, TTL and TOS, and on IPv6 also datagrams without a checksum, as some
/// adapters send them.
pub(crate) fn receives(fd: &OwnedFd, address: &IpAddr) -> io::Result<()> {
    set(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    if address.is_ipv6() {
        set(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    } else {
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    }
    widen(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
}

/// A large buffer: past the host's limit with the right to do so, otherwise up to it.
fn widen(fd: &OwnedFd, force: i32, ask: i32) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, force, BUFFER).or_else(|_| set(fd, libc::SOL_SOCKET, ask, BUFFER))
}

pub(crate) fn set(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    sys::set(fd.as_fd(), level, option, &value)
}

/// Whether an error of receiving says nothing about the socket: nothing is there, or an ICMP message came.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) || is_news(error)
}

/// Whether an error is what an ICMP message said about an earlier datagram.
fn is_news(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::PermissionDenied
    ) || matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::EPROTO | libc::ENOPROTOOPT | libc::EHOSTDOWN | libc::ENONET | libc::EOPNOTSUPP)
    )
}
