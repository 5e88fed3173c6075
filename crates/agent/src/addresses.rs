//! The host's addresses and the MTUs of their interfaces, read once and then watched, over
//! rtnetlink.
//!
//! The agent reads the whole list at the start, and again after every notice of a change. The list
//! is small. Reading all of it cannot miss a change, not even if notices were lost. [`crate::gids`]
//! makes GIDs from the list. The principal type is [`AddressWatch`].

mod links;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::gids::HostAddress;

pub use links::{IPOIB_ALIAS, Link, host_links};

/// Multicast groups of rtnetlink for interfaces and addresses (`RTNLGRP_LINK`,
/// `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`).
const LINKS: u32 = 1;
const IPV4_ADDRESSES: u32 = 5;
const IPV6_ADDRESSES: u32 = 9;

/// The assumed MTU of an interface whose MTU the kernel does not report: every Ethernet supports
/// it.
const USUAL_MTU: u32 = 1500;

/// A subscription to changes of the host's addresses and interfaces.
pub struct AddressWatch {
    notices: Socket,
}

impl AddressWatch {
    /// Subscribes. This fails where netlink may not be used; such a host has only GID index 0.
    pub fn new() -> io::Result<Self> {
        let mut notices = Socket::new(NETLINK_ROUTE)?;
        notices.bind_auto()?;
        notices.add_membership(LINKS)?;
        notices.add_membership(IPV4_ADDRESSES)?;
        notices.add_membership(IPV6_ADDRESSES)?;
        notices.set_non_blocking(true)?;
        Ok(Self { notices })
    }

    /// Discards the notices that have arrived. The caller reads the whole list next.
    pub fn drain(&self) {
        loop {
            match self.notices.recv_from_full() {
                Ok((bytes, _)) if !bytes.is_empty() => {}
                // ENOBUFS means that notices were lost. There may be more to read, and the list is
                // read anyway.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
                _ => return,
            }
        }
    }
}

impl AsFd for AddressWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }
}

/// The addresses of this network namespace, in the kernel's order.
#[derive(Debug, Default)]
pub struct HostAddresses {
    /// Those that programs can use.
    pub usable: Vec<HostAddress>,
    /// Those for which duplicate address detection runs.
    pub tentative: Vec<HostAddress>,
}

impl HostAddresses {
    /// Reads all addresses from the kernel.
    ///
    /// # Errors
    /// Netlink may not be used, or the kernel's answer cannot be read.
    pub fn read() -> io::Result<Self> {
        read_addresses()
    }

    /// All addresses, also those that are not usable yet.
    pub fn all(&self) -> Vec<HostAddress> {
        [&self.usable[..], &self.tentative].concat()
    }

    /// Adds the address of one message. An address whose duplicate was found is left out: when it
    /// becomes usable, another notice comes. So is an address of `softhca ipoib`, whose MTU is 0
    /// here.
    fn add(&mut self, message: &AddressMessage, mtus: &BTreeMap<u32, u32>) {
        let Some(address) = address(message, mtus) else { return };
        let flags = message.header.flags;
        if flags.contains(AddressHeaderFlags::Dadfailed) {
            return;
        }
        if flags.contains(AddressHeaderFlags::Tentative) {
            self.tentative.push(address);
        } else {
            self.usable.push(address);
        }
    }
}

fn read_addresses() -> io::Result<HostAddresses> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    header.sequence_number = 1;
    let ask = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(ask));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    // A change after these requests causes a notice.
    let mtus = links::mtus()?;
    socket.send(&bytes, 0)?;
    let mut found = HostAddresses::default();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        if bytes.is_empty() || take(&bytes, &mtus, &mut found)? {
            return Ok(found);
        }
    }
}

/// The host's addresses among `wanted`, in the order of `wanted`, and the addresses that the host
/// does not have. If the host has 127.0.0.1, it has every address of 127.0.0.0/8, although the
/// kernel lists only that one.
pub fn chosen(host: &[HostAddress], wanted: &[IpAddr]) -> (Vec<HostAddress>, Vec<IpAddr>) {
    let mut missing = Vec::new();
    let mut found = Vec::new();
    for ip in wanted {
        let four = |ip: &IpAddr| ip.is_ipv4() && ip.is_loopback();
        let same = host.iter().find(|address| address.ip == *ip);
        let near = || host.iter().find(|address| four(&address.ip) && four(ip));
        match same.or_else(near) {
            Some(address) => found.push(HostAddress { ip: *ip, ..*address }),
            None => missing.push(*ip),
        }
    }
    (found, missing)
}

/// Adds the addresses of one datagram to `found`. Returns true if it was the last datagram.
fn take(mut bytes: &[u8], mtus: &BTreeMap<u32, u32>, found: &mut HostAddresses) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => found.add(&address, mtus),
            _ => {}
        }
        // Messages are padded to four bytes. A length of zero would cause an endless loop.
        let length = (message.header.length as usize).next_multiple_of(4);
        if length == 0 || length >= bytes.len() {
            return Ok(false);
        }
        bytes = &bytes[length..];
    }
    Ok(false)
}

/// The address of one message; `None` for an address of `softhca ipoib`.
fn address(message: &AddressMessage, mtus: &BTreeMap<u32, u32>) -> Option<HostAddress> {
    // On a point-to-point link, `Address` is the peer's and `Local` is the host's.
    let ifindex = message.header.index;
    let (mtu, prefix) = (mtus.get(&ifindex).copied().unwrap_or(USUAL_MTU), message.header.prefix_len);
    if mtu == 0 {
        return None;
    }
    let here = |ip| HostAddress { ip, ifindex, mtu, prefix };
    let mut ip = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => return Some(here(*local)),
            AddressAttribute::Address(address) => ip = Some(*address),
            _ => {}
        }
    }
    ip.map(here)
}

/// The name of an interface, for messages and for the device mirror.
pub fn interface_name(ifindex: u32) -> Option<String> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::index_to_name(socket, ifindex).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_addresses_of_this_host() {
        let Ok(addresses) = HostAddresses::read() else { return }; // a sandbox without netlink
        for address in &addresses.all() {
            assert!(interface_name(address.ifindex).is_some(), "{address:?} has an interface");
        }
        AddressWatch::new().expect("a watch can be had where the list can").drain();
    }

    #[test]
    fn only_what_was_asked_for_and_all_of_127() {
        let address =
            |text: &str, ifindex| HostAddress { ip: text.parse().expect(text), ifindex, mtu: 1500, prefix: 8 };
        let ip = |text: &str| -> IpAddr { text.parse().expect(text) };
        let host = [address("127.0.0.1", 1), address("10.0.0.1", 2), address("::1", 1)];
        let (found, missing) = chosen(&host, &[ip("127.0.0.3"), ip("10.0.0.1"), ip("10.0.0.2"), ip("::2")]);
        assert_eq!(found, [address("127.0.0.3", 1), host[1]]);
        assert_eq!(missing, [ip("10.0.0.2"), ip("::2")]);
        assert_eq!(chosen(&host[1..], &[ip("127.0.0.1")]).1, [ip("127.0.0.1")]);
    }
}
