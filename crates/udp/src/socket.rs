//! The sockets of the wire. This module does not decide who reads them, and does not parse
//! datagrams. Principal type: [`Socket`].

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
/// Number of consecutive bursts with one segment size after which it becomes the socket's default.
const REPEATS: u32 = 16;

/// A non-blocking UDP socket. One thread sends at a time. The options that most calls share are set
/// on the socket once, and hold for all later senders.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
    /// The segment size that the kernel uses if a call does not name one, and how often in a row
    /// the last one was used.
    segment_option: AtomicU32,
    repeats: AtomicU32,
    /// As `segment_option`, for priority, hop limit and traffic class, in one number.
    marks: AtomicU32,
    marks_repeats: AtomicU32,
}

impl Socket {
    /// A send socket: bound to `local` and the first free port from `hint` on in the range of
    /// RoCEv2 source ports.
    ///
    /// The socket is not connected and forbids fragments, so that the identification of its IPv4
    /// packets is known (see also [`Socket::connect_sender`]). What it sends to a group comes back
    /// to this host too, for the host's other agents.
    ///
    /// # Errors
    /// The host does not have the address (`EADDRNOTAVAIL`), all ports are taken (`EADDRINUSE`), or
    /// no descriptor is left.
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
        widen(fd.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
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

    /// A socket that receives what is sent to `local`, exclusively: no other socket can have the
    /// same address and port.
    ///
    /// # Errors
    /// Another socket has the port (`EADDRINUSE`), the host does not have the address
    /// (`EADDRNOTAVAIL`), or no descriptor is left.
    pub fn receiver(local: IpAddr, scope_id: u32) -> io::Result<Socket> {
        Socket::receiver_at(local, PORT, scope_id)
    }

    /// A receiver with another port: for tests, which may run in parallel with an agent and with
    /// each other.
    pub(crate) fn receiver_at(local: IpAddr, port: u16, scope_id: u32) -> io::Result<Socket> {
        let fd = unbound(&local)?;
        receives(&fd, &local)?;
        bind(&fd, &socket_address(local, port, scope_id))?;
        Ok(Socket::from_fd(fd))
    }

    /// A socket that receives the datagrams of a multicast group that arrive at one interface.
    /// There may be several, also of other processes: each gets a copy.
    ///
    /// # Errors
    /// `group` is not a multicast address (`EINVAL`), there is no such interface (`ENODEV`), or a
    /// limit of the host is reached.
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
                // Otherwise the socket would also receive datagrams from an interface on which
                // another socket is a member.
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

    /// Wraps a socket from [`Socket::receiver`] or [`Socket::group_receiver`], possibly of another
    /// process.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Socket {
        let socket = UdpSocket::from(fd);
        let local = socket.local_addr().unwrap_or_else(|_| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let [segment_option, repeats, marks_repeats] = [const { AtomicU32::new(0) }; 3];
        let marks = AtomicU32::new(u16::from_be_bytes([HOP_LIMIT, 0]).into());
        Socket { socket, local, segment_option, repeats, marks, marks_repeats }
    }

    /// From now on [`Socket::receive`] returns the hop limit, too. This costs a small part of each
    /// call, and programs see the hop limit only in datagrams.
    ///
    /// # Errors
    /// The socket cannot be used any more.
    pub fn tell_hops(&self) -> io::Result<()> {
        let option = match self.local.ip() {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTTL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        };
        sys::set(self.as_fd(), option.0, option.1, &1_i32)
    }

    /// Bytes of memory that the unread datagrams take, and the limit.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn fill(&self) -> io::Result<(usize, usize)> {
        sys::fill(self.as_fd()).map(|(used, room)| (used as usize, room as usize))
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The port that the socket is bound to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// Sends a datagram or a burst: all of it or nothing.
    ///
    /// # Errors
    /// There is no room (`WouldBlock`), no route to the destination, a segment is longer than the
    /// route's MTU (`EMSGSIZE`; for a burst, older kernels return `EINVAL`), or the interface
    /// cannot compute the checksums of a burst (`EIO`).
    pub fn send(&self, out: &Outgoing<'_>) -> io::Result<()> {
        let mut control = Control::new();
        let segment = if out.segment < out.bytes.len() { u16::try_from(out.segment).unwrap_or(0) } else { 0 };
        if !self.is_usual(segment, out.bytes.len()) {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment.to_ne_bytes());
        }
        let v4 = out.to.is_ipv4();
        let hop_limit = if out.hop_limit == 0 { HOP_LIMIT } else { out.hop_limit };
        let (level, hops, class) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS)
        };
        let is_usual = self.is_usually_marked(hop_limit, out.traffic_class, out.priority);
        if out.interface != 0 || !is_usual {
            control.push(level, hops, i32::from(hop_limit).to_ne_bytes());
        }
        // With this message, an IPv4 datagram would have the priority of its class.
        if !is_usual {
            control.push(level, class, i32::from(out.traffic_class).to_ne_bytes());
        }
        if out.interface != 0 {
            self.leave_by(out.interface, v4, &mut control);
        }
        if !out.connected {
            return sys::send(self.socket.as_fd(), Some(&out.to), &control, out.bytes);
        }
        // The kernel reports the ICMP error of an earlier datagram instead of sending this one,
        // once.
        match sys::send(self.socket.as_fd(), None, &control, out.bytes) {
            Err(error) if is_news(&error) => sys::send(self.socket.as_fd(), None, &control, out.bytes),
            done => done,
        }
    }

    /// Whether the kernel splits `len` bytes into these segments (0: does not split) without a
    /// control message. Repeated bursts of one kind save a part of each call if their segment size
    /// is the socket's default.
    fn is_usual(&self, segment: u16, len: usize) -> bool {
        let segment_option = self.segment_option.load(Ordering::Relaxed);
        if segment == 0 {
            return segment_option == 0 || len <= segment_option as usize;
        }
        if u32::from(segment) == segment_option {
            return true;
        }
        if becomes_usual(&self.repeats, segment)
            && sys::set(self.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, &i32::from(segment)).is_ok()
        {
            self.segment_option.store(u32::from(segment), Ordering::Relaxed);
        }
        false
    }

    /// Whether the kernel sends a datagram to one host with this hop limit and traffic class
    /// without control messages: they are the last ones that were used often enough in a row. With
    /// a priority they are set at once, because older kernels have no control message for it.
    fn is_usually_marked(&self, hop_limit: u8, class: u8, priority: Option<u8>) -> bool {
        let marks = u32::from_be_bytes([0, priority.map_or(0, |priority| priority + 1), hop_limit, class]);
        if marks == self.marks.load(Ordering::Relaxed) {
            return true;
        }
        let mut is_set = false;
        if priority.is_some() || becomes_usual(&self.marks_repeats, u16::from_be_bytes([hop_limit, class])) {
            let (level, hops_option, class_option) = match self.local.ip() {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS),
            };
            let set = |option, value: u8| sys::set(self.as_fd(), level, option, &i32::from(value));
            let done = set(hops_option, hop_limit).and_then(|()| set(class_option, class));
            // An IPv4 class changes the priority too, so this is the last.
            let done = done.and_then(|()| match priority {
                Some(priority) => sys::set(self.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, &i32::from(priority)),
                None => Ok(()),
            });
            // After a partial failure the defaults are unknown, so each call sends all control
            // messages.
            self.marks.store(if done.is_ok() { marks } else { u32::MAX }, Ordering::Relaxed);
            is_set = priority.is_some() && done.is_ok();
        }
        is_set
    }

    /// Receives a datagram, or several that the kernel merged, into `buffer`, and truncates what
    /// does not fit. Returns `None` when there is no datagram, or when the kernel reports that an
    /// earlier datagram did not arrive, which callers do not need.
    ///
    /// # Errors
    /// The socket cannot be used any more.
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

    /// As [`Socket::receive`], but returns only the length, which costs less. For callers that know
    /// sender and segment size.
    ///
    /// # Errors
    /// The socket cannot be used any more.
    pub fn receive_bytes(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match sys::receive_bytes(self.socket.as_fd(), buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) if passes(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds the interface to send a multicast datagram by. With an interface, IPv4 takes the source
    /// address from this message too.
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

/// Counts how often in a row a value was used; returns whether it has just reached the limit. This
/// is not atomic: of two concurrent senders one may be counted as the other, and another value
/// become the default.
fn becomes_usual(repeats: &AtomicU32, value: u16) -> bool {
    let before = repeats.load(Ordering::Relaxed);
    let count = if before >> 16 == u32::from(value) { (before & 0xffff) + 1 } else { 1 };
    repeats.store(u32::from(value) << 16 | count.min(REPEATS + 1), Ordering::Relaxed);
    count == REPEATS
}

/// A non-blocking socket of the address's family, closed on exec.
pub(crate) fn unbound(address: &IpAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    if address.is_ipv6() {
        set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    Ok(fd)
}

/// Sets the options of all receivers: merged segments, TTL and TOS, and on IPv6 also datagrams
/// without a checksum, which some adapters send.
pub(crate) fn receives(fd: &OwnedFd, address: &IpAddr) -> io::Result<()> {
    set(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    if address.is_ipv6() {
        set(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    } else {
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    }
    widen_receive_buffer(fd.as_fd())
}

/// Gives a socket a large receive buffer, as [`Socket`] has. In that of the system's default
/// (`net.core.rmem_default`), some 200 short datagrams have room.
///
/// # Errors
/// Those of setsockopt(2).
pub fn widen_receive_buffer(fd: BorrowedFd<'_>) -> io::Result<()> {
    widen(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
}

/// Sets a large buffer: beyond the host's limit if the process may do that, otherwise up to the
/// limit.
fn widen(fd: BorrowedFd<'_>, force: i32, ask: i32) -> io::Result<()> {
    let to = |option| sys::set(fd, libc::SOL_SOCKET, option, &BUFFER);
    to(force).or_else(|_| to(ask))
}

pub(crate) fn set(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    sys::set(fd.as_fd(), level, option, &value)
}

/// Whether a receive error says nothing about the socket: there is no datagram, or an ICMP message
/// came.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) || is_news(error)
}

/// Whether an error reports an ICMP message about an earlier datagram.
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
