//! The network interfaces, from rtnetlink: their names, MAC addresses, MTUs, speeds, and whether they
//! are running.
//!
//! The code parses only the needed parts of the kernel's long answer. A decoder for all of it could
//! fail on a newer kernel. The principal type is [`Link`].

use std::collections::BTreeMap;
use std::io;

use abi::netlink::messages;
use abi::rtnetlink::{DONE, ERROR, HEADER, attributes, errno, word};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_IFALIAS: u16 = 20;
/// `IFF_UP | IFF_RUNNING`: switched on, and with a carrier if the interface has one.
const RUNNING: u32 = 0x41;
/// Length of the `struct ifinfomsg` behind the header.
const IFINFO: usize = 16;

/// The alias of an interface of `softhca ipoib`. Its addresses are no GIDs, because its packets are
/// packets of a port of an agent, and its MTU is not that of the network.
pub const IPOIB_ALIAS: &str = "softhca ipoib";

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address; `None` if it has none, as loopback.
    pub mac: Option<[u8; 6]>,
    /// Its MTU in bytes; 0 if the kernel does not report one.
    pub mtu: u32,
    /// Its speed in Mb/s; 0 if it has none, as loopback.
    pub speed: u32,
    /// Whether packets can pass: it is up and has a carrier.
    pub runs: bool,
    /// Whether it is an interface of `softhca ipoib`.
    pub is_ipoib: bool,
}

/// MTU in bytes by interface index; 0 for an interface of `softhca ipoib`.
pub(super) fn mtus() -> io::Result<BTreeMap<u32, u32>> {
    let mtu = |link: Link| (link.index, if link.is_ipoib { 0 } else { link.mtu });
    Ok(host_links()?.into_iter().filter(|link| link.mtu != 0).map(mtu).collect())
}

/// The interfaces of this network namespace.
pub fn host_links() -> io::Result<Vec<Link>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = [0_u8; HEADER + IFINFO];
    request[..4].copy_from_slice(&((HEADER + IFINFO) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    socket.send(&request, 0)?;
    let mut found = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        if bytes.is_empty() || take(&bytes, &mut found)? {
            found.iter_mut().for_each(|link| link.speed = speed(&link.name));
            return Ok(found);
        }
    }
}

/// The speed of an interface in Mb/s. rtnetlink does not tell it. A driver without a speed answers
/// with -1 or an error.
fn speed(name: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).unwrap_or_default();
    text.trim().parse::<i32>().ok().and_then(|mbps| u32::try_from(mbps).ok()).unwrap_or(0)
}

/// Adds the interfaces of one datagram to `found`. Returns true if it was the last datagram.
fn take(bytes: &[u8], found: &mut Vec<Link>) -> io::Result<bool> {
    for (header, message) in messages(bytes) {
        match header.kind {
            DONE => return Ok(true),
            ERROR => return Err(io::Error::from_raw_os_error(errno(message))),
            RTM_NEWLINK => found.extend(link(message)),
            _ => {}
        }
    }
    Ok(false)
}

/// Parses a `struct ifinfomsg` with its attributes.
fn link(message: &[u8]) -> Option<Link> {
    let flags = word(message.get(..IFINFO)?, 8)?;
    let mut link = Link { index: word(message, 4)?, runs: flags & RUNNING == RUNNING, ..Link::default() };
    for (number, value) in attributes(message, IFINFO) {
        match number {
            IFLA_ADDRESS => link.mac = value.try_into().ok().filter(|mac| *mac != [0; 6]),
            IFLA_MTU => link.mtu = word(value, 0).unwrap_or_default(),
            IFLA_IFNAME => link.name = String::from_utf8_lossy(text(value)).into_owned(),
            IFLA_IFALIAS => link.is_ipoib = text(value) == IPOIB_ALIAS.as_bytes(),
            _ => {}
        }
    }
    Some(link)
}

/// A text up to its zero.
fn text(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use abi::rtnetlink::push;

    use super::*;

    #[test]
    fn loopback_has_an_mtu() {
        let Ok(found) = mtus() else { return }; // a sandbox without netlink
        assert!(found.values().any(|mtu| *mtu >= 1280), "{found:?}");
    }

    #[test]
    fn loopback_has_a_name_and_runs() {
        let Ok(found) = host_links() else { return }; // a sandbox without netlink
        let up = std::fs::read_to_string("/sys/class/net/lo/flags").unwrap_or_default();
        let up = u32::from_str_radix(up.trim().trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 != 0);
        let lo = found.iter().find(|link| link.name == "lo").expect("every namespace has it");
        assert_eq!(lo.runs, up, "{lo:?}");
    }

    #[test]
    fn loopback_has_no_mac_address() {
        let mut message = vec![0; IFINFO];
        push(&mut message, IFLA_ADDRESS, &[0; 6]);
        assert_eq!(link(&message).map(|link| link.mac), Some(None));
        // That of InfiniBand is longer.
        push(&mut message, IFLA_ADDRESS, &[1; 20]);
        assert_eq!(link(&message).map(|link| link.mac), Some(None));
    }

    #[test]
    fn a_truncated_netlink_attribute_is_left_out() {
        let mut message = vec![0; IFINFO];
        message[4] = 7;
        message[8] = 0x41;
        push(&mut message, 9, &[1]);
        let bare = Link { index: 7, runs: true, ..Link::default() };
        assert_eq!(link(&message), Some(bare.clone()));
        push(&mut message, IFLA_IFNAME, b"eth0\0");
        push(&mut message, IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7]);
        push(&mut message, IFLA_MTU, &1400_u32.to_ne_bytes());
        let whole = Link { name: "eth0".to_owned(), mac: Some([2, 0, 0, 0, 0, 7]), mtu: 1400, ..bare };
        assert_eq!(link(&message), Some(whole.clone()));
        message[8] = 1;
        assert_eq!(link(&message), Some(Link { runs: false, ..whole.clone() }), "switched on, and without a carrier");
        for length in 0..message.len() {
            assert!(link(&message[..length]).is_none_or(|cut| cut.mtu == 0), "{length}");
            assert!(length >= IFINFO || link(&message[..length]).is_none(), "{length}");
        }
    }
}
