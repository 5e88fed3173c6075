//! The host's routes and neighbours, from rtnetlink: the address and interface through which
//! another host is reached, and whether it is there.
//!
//! rtnetlink answers within the call, so nothing here waits. The code parses only the needed parts
//! of the kernel's answers. The principal type is [`Routes`].

use std::io;
use std::net::{IpAddr, UdpSocket};

use abi::rtnetlink::{ERROR, HEADER, attributes, errno, half, ip as address, octets, push, word};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_REQUEST: u16 = 1;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;

/// The `rtm_type` of an address of this host.
const RTN_LOCAL: u8 = 2;

const NUD_INCOMPLETE: u16 = 0x01;
const NUD_FAILED: u16 = 0x20;

/// Length of the `struct rtmsg` or `struct ndmsg` behind the header.
const BODY: usize = 12;
/// The port that discards all datagrams (RFC 863).
const DISCARD: u16 = 9;

/// How a host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// The source address of packets, if the kernel names one.
    pub(crate) source: Option<IpAddr>,
    /// The interface of packets.
    pub(crate) ifindex: u32,
    /// The gateway, if packets go through one.
    pub(crate) gateway: Option<IpAddr>,
    /// It is this host.
    pub(crate) local: bool,
}

/// The state of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// It is there, or was there.
    There,
    /// The kernel is asking for it.
    Asked,
    /// It does not answer.
    Silent,
    /// The kernel has not asked for it.
    Unknown,
}

/// A connection to rtnetlink.
pub(crate) struct Routes {
    socket: Socket,
    sequence: u32,
}

impl Routes {
    /// Opens the connection. This fails where netlink may not be used.
    pub(crate) fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Answers come at once, so a read must not block.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The route to a host, from one source address or any, through one interface or any.
    pub(crate) fn route(&mut self, to: IpAddr, from: Option<IpAddr>, ifindex: u32) -> io::Result<Route> {
        let mut body = [0; BODY];
        body[0] = family(to);
        body[1] = bits(to);
        let mut attributes = Vec::with_capacity(64);
        push(&mut attributes, RTA_DST, &octets(to));
        if let Some(from) = from {
            body[2] = bits(from);
            push(&mut attributes, RTA_SRC, &octets(from));
        }
        if ifindex != 0 {
            push(&mut attributes, RTA_OIF, &ifindex.to_ne_bytes());
        }
        let answer = self.ask(RTM_GETROUTE, RTM_NEWROUTE, &body, &attributes)?;
        route_of(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The kernel's state of a neighbour.
    pub(crate) fn neighbour(&mut self, ip: IpAddr, ifindex: u32) -> io::Result<Neighbour> {
        let mut body = [0; BODY];
        body[0] = family(ip);
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let mut attributes = Vec::with_capacity(32);
        push(&mut attributes, NDA_DST, &octets(ip));
        match self.ask(RTM_GETNEIGH, RTM_NEWNEIGH, &body, &attributes) {
            Ok(answer) => Ok(half(&answer, 8).map_or(Neighbour::Unknown, neighbour_of)),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => {
                Ok(Neighbour::Unknown)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends one question and returns the body of the answer.
    fn ask(&mut self, kind: u16, expected: u16, body: &[u8; BODY], attributes: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = HEADER + BODY + attributes.len();
        let mut request = Vec::with_capacity(length);
        request.extend_from_slice(&(length as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&[0; 4]);
        request.extend_from_slice(body);
        request.extend_from_slice(attributes);
        self.socket.send(&request, 0)?;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            if word(&bytes, 8) != Some(self.sequence) {
                // This is a late answer to an earlier question.
                continue;
            }
            let (Some(length), Some(found)) = (word(&bytes, 0), half(&bytes, 4)) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let message = bytes.get(HEADER..length as usize).ok_or(io::ErrorKind::InvalidData)?;
            return match found {
                ERROR => Err(io::Error::from_raw_os_error(errno(message))),
                found if found == expected => Ok(message.to_vec()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

/// Makes the kernel ask for a neighbour, by an empty datagram to the discard port.
pub(crate) fn probe(from: IpAddr, to: IpAddr, scope: u32) -> io::Result<()> {
    let at = |ip: IpAddr, port: u16| match ip {
        IpAddr::V4(ip) => std::net::SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => std::net::SocketAddrV6::new(ip, port, 0, scope).into(),
    };
    let socket = UdpSocket::bind(at(from, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[], at(to, DISCARD)).map(|_| ())
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Parses a `struct rtmsg` with its attributes.
fn route_of(message: &[u8]) -> Option<Route> {
    let local = *message.get(..BODY)?.get(7)? == RTN_LOCAL;
    let mut route = Route { source: None, ifindex: 0, gateway: None, local };
    for (kind, value) in attributes(message, BODY) {
        match kind {
            RTA_OIF => route.ifindex = word(value, 0)?,
            RTA_PREFSRC => route.source = address(value),
            RTA_GATEWAY => route.gateway = address(value),
            // The address follows a family of two bytes.
            RTA_VIA => route.gateway = address(value.get(2..)?),
            _ => {}
        }
    }
    Some(route)
}

fn neighbour_of(state: u16) -> Neighbour {
    match state {
        0 => Neighbour::Unknown,
        state if state & NUD_FAILED != 0 => Neighbour::Silent,
        state if state & NUD_INCOMPLETE != 0 => Neighbour::Asked,
        _ => Neighbour::There,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_way_to_loopback() {
        let Ok(mut routes) = Routes::new() else { return }; // a sandbox without netlink
        let Ok(route) = routes.route(Ipv4Addr::LOCALHOST.into(), None, 0) else { return };
        assert!(route.local && route.ifindex != 0 && route.gateway.is_none(), "{route:?}");
        assert_eq!(route.source, Some(Ipv4Addr::LOCALHOST.into()));
        let neighbour = routes.neighbour(Ipv4Addr::new(127, 0, 0, 9).into(), route.ifindex);
        assert!(matches!(neighbour, Ok(Neighbour::Unknown | Neighbour::There)), "{neighbour:?}");
    }

    #[test]
    fn a_route_as_bytes() {
        let mut message = vec![0; BODY];
        let mut rest = Vec::new();
        push(&mut rest, RTA_OIF, &7_u32.to_ne_bytes());
        push(&mut rest, RTA_PREFSRC, &[10, 0, 0, 1]);
        push(&mut rest, RTA_VIA, &[10, 0, 10, 0, 0, 254]);
        message.extend(rest);
        let route = route_of(&message).expect("whole");
        let ip = |last| Some(IpAddr::from([10, 0, 0, last]));
        assert_eq!(route, Route { source: ip(1), ifindex: 7, gateway: ip(254), local: false });
        for length in 0..BODY {
            assert_eq!(route_of(&message[..length]), None);
        }
        for length in BODY..message.len() - 2 {
            assert!(route_of(&message[..length]).is_some_and(|route| route.gateway.is_none()));
        }
    }

    #[test]
    fn states_of_neighbours() {
        for (state, means) in [
            (0, Neighbour::Unknown),
            (0x01, Neighbour::Asked),
            (0x02, Neighbour::There),
            (0x04, Neighbour::There),
            (0x10, Neighbour::There),
            (0x20, Neighbour::Silent),
            (0x80, Neighbour::There),
        ] {
            assert_eq!(neighbour_of(state), means, "{state:#x}");
        }
    }
}
