//! What `softhca ipoib` needs of rtnetlink: to set up its interface, and to read the interface's
//! addresses and the routes out of it.
//!
//! As in the agent, the code parses only the needed parts of the kernel's answers. The principal
//! type is [`Netlink`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use abi::netlink::messages;
use abi::rtnetlink::{DONE, ERROR, HEADER, attributes, errno, half, ip, octets, push, word};
use ipoib::{OwnAddress, Route};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::options::Network;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const CHANGE: u16 = 0x005;
/// As [`CHANGE`], with `NLM_F_CREATE | NLM_F_EXCL`.
const ADD: u16 = 0x605;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// Lengths of `struct ifaddrmsg` and `struct rtmsg`.
const IFADDRMSG: usize = 8;
const RTMSG: usize = 12;

const IFF_UP: u32 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_IFALIAS: u16 = 20;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
/// `IFA_F_NODAD`: nobody else answers for the address on a TUN device.
const NO_DETECTION: u8 = 0x02;
/// `RTNLGRP_LINK`, and those of addresses and routes of IPv4 and IPv6.
const CHANGES: [u32; 5] = [1, 5, 7, 9, 11];

/// Connections to rtnetlink: one for requests, one for changes.
pub(crate) struct Netlink {
    requests: Socket,
    changes: Socket,
    ifindex: u32,
}

impl Netlink {
    /// For an interface.
    pub(crate) fn new(interface: &str) -> io::Result<Self> {
        let any = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None)?;
        let ifindex = rustix::net::netdevice::name_to_index(any, interface)?;
        let mut requests = Socket::new(NETLINK_ROUTE)?;
        requests.bind_auto()?;
        requests.connect(&SocketAddr::new(0, 0))?;
        let mut changes = Socket::new(NETLINK_ROUTE)?;
        changes.bind_auto()?;
        CHANGES.iter().try_for_each(|group| changes.add_membership(*group))?;
        changes.set_non_blocking(true)?;
        Ok(Self { requests, changes, ifindex })
    }

    /// Discards the notices that have arrived. Returns whether there were any.
    pub(crate) fn drain(&self) -> bool {
        let mut some = false;
        // An error other than EAGAIN means that notices were lost: the caller reads everything.
        while self.changes.recv_from_full().is_ok_and(|(bytes, _)| !bytes.is_empty()) {
            some = true;
        }
        some
    }

    /// Marks the interface, so that agents do not make GIDs of its addresses. Then gives it its MTU
    /// and switches it on.
    pub(crate) fn set_up(&self, mtu: u32) -> io::Result<()> {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        push(&mut body, IFLA_IFALIAS, agent::addresses::IPOIB_ALIAS.as_bytes());
        push(&mut body, IFLA_MTU, &mtu.to_ne_bytes());
        self.request(RTM_NEWLINK, CHANGE, &body, |_, _| ())?;
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        body[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
        body[12..16].copy_from_slice(&IFF_UP.to_ne_bytes());
        self.request(RTM_NEWLINK, CHANGE, &body, |_, _| ())
    }

    /// Adds an address to the interface.
    pub(crate) fn add_address(&self, network: Network) -> io::Result<()> {
        let family =
            if network.ip.is_ipv4() { rustix::net::AddressFamily::INET } else { rustix::net::AddressFamily::INET6 };
        let mut body = vec![family.as_raw() as u8, network.prefix, NO_DETECTION, 0];
        body.extend(self.ifindex.to_ne_bytes());
        let bytes = octets(network.ip);
        push(&mut body, IFA_LOCAL, &bytes);
        push(&mut body, IFA_ADDRESS, &bytes);
        if let IpAddr::V4(ip) = network.ip
            && network.prefix < 31
        {
            push(&mut body, IFA_BROADCAST, &(ip.to_bits() | u32::MAX >> network.prefix).to_be_bytes());
        }
        self.request(RTM_NEWADDR, ADD, &body, |_, _| ())
    }

    /// The addresses of the interface.
    pub(crate) fn addresses(&self) -> io::Result<Vec<OwnAddress>> {
        let mut found = Vec::new();
        self.request(RTM_GETADDR, DUMP, &[0; IFADDRMSG], |kind, message| {
            if kind == RTM_NEWADDR && word(message, 4) == Some(self.ifindex) {
                found.extend(address(message));
            }
        })?;
        Ok(found)
    }

    /// The routes out of the interface.
    pub(crate) fn routes(&self) -> io::Result<Vec<Route>> {
        let mut found = Vec::new();
        self.request(RTM_GETROUTE, DUMP, &[0; RTMSG], |kind, message| {
            if kind == RTM_NEWROUTE {
                found.extend(route(message, self.ifindex));
            }
        })?;
        Ok(found)
    }

    /// Sends a request, and takes the messages of the answer up to its end.
    fn request(&self, kind: u16, flags: u16, body: &[u8], mut take: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let mut request = vec![0; HEADER];
        request[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&flags.to_ne_bytes());
        request.extend(body);
        self.requests.send(&request, 0)?;
        loop {
            let (answer, _) = self.requests.recv_from_full()?;
            if answer.is_empty() {
                return Ok(());
            }
            for (header, message) in messages(&answer) {
                match (header.kind, errno(message)) {
                    (DONE, _) | (ERROR, 0) => return Ok(()),
                    (ERROR, errno) => return Err(io::Error::from_raw_os_error(errno)),
                    (kind, _) => take(kind, message),
                }
            }
        }
    }
}

/// Readable when addresses, routes or interfaces have changed.
impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

fn address(message: &[u8]) -> Option<OwnAddress> {
    let prefix = *message.get(1)?;
    let (mut local, mut far) = (None, None);
    for (kind, value) in attributes(message, IFADDRMSG) {
        match kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => far = ip(value),
            _ => {}
        }
    }
    Some(OwnAddress { ip: local.or(far)?, prefix })
}

fn route(message: &[u8], ifindex: u32) -> Option<Route> {
    let (prefix, kind) = (*message.get(1)?, *message.get(7)?);
    if kind != RTN_UNICAST {
        return None;
    }
    let inet = rustix::net::AddressFamily::INET.as_raw() as u8;
    let nowhere =
        if message[0] == inet { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let (mut to, mut gateway, mut out, mut metric) = (nowhere, None, None, 0);
    for (kind, value) in attributes(message, RTMSG) {
        match kind {
            RTA_DST => to = ip(value)?,
            RTA_GATEWAY => gateway = ip(value),
            // The family, and an address of it.
            RTA_VIA => gateway = ip(value.get(2..)?),
            RTA_OIF => out = word(value, 0),
            RTA_PRIORITY => metric = word(value, 0)?,
            RTA_MULTIPATH => (out, gateway) = next_hop(value, ifindex)?,
            _ => {}
        }
    }
    (out == Some(ifindex)).then_some(Route { to, prefix, gateway, metric })
}

/// The first next hop of a route that leads out of the interface: `struct rtnexthop` with its
/// attributes.
fn next_hop(mut hops: &[u8], ifindex: u32) -> Option<(Option<u32>, Option<IpAddr>)> {
    while let Some(length) = half(hops, 0) {
        let hop = hops.get(..usize::from(length)).filter(|hop| hop.len() >= 8)?;
        if word(hop, 4) == Some(ifindex) {
            let gateway = attributes(hop, 8).find_map(|(kind, value)| match kind {
                RTA_GATEWAY => ip(value),
                RTA_VIA => ip(value.get(2..)?),
                _ => None,
            });
            return Some((Some(ifindex), gateway));
        }
        hops = hops.get(usize::from(length).next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_OIF, RTA_PRIORITY, push, route};

    #[test]
    fn a_route_of_another_interface_is_left_out_also_among_several_next_hops() {
        let mut plain = vec![2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        push(&mut plain, RTA_DST, &[10, 2, 0, 0]);
        push(&mut plain, RTA_PRIORITY, &50_u32.to_ne_bytes());
        let mut several = plain.clone();
        push(&mut plain, RTA_GATEWAY, &[10, 1, 0, 9]);
        push(&mut plain, RTA_OIF, &7_u32.to_ne_bytes());
        let found = route(&plain, 7).expect("a route");
        assert_eq!((found.prefix, found.metric, found.gateway), (24, 50, Some([10, 1, 0, 9].into())));
        assert_eq!(route(&plain, 8), None);
        let mut hops = Vec::new();
        for ifindex in [6_u32, 7] {
            hops.extend(16_u16.to_ne_bytes());
            hops.extend([0, 0]);
            hops.extend(ifindex.to_ne_bytes());
            push(&mut hops, RTA_GATEWAY, &[10, 1, 0, ifindex as u8]);
        }
        push(&mut several, RTA_MULTIPATH, &hops);
        assert_eq!(route(&several, 7).and_then(|route| route.gateway), Some([10, 1, 0, 7].into()));
        assert_eq!(route(&several, 8), None);
        for cut in 0..several.len() {
            let _ = route(&several[..cut], 7);
        }
    }
}
