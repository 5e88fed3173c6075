//! The MTU of each network interface, by rtnetlink.
//!
//! Of the kernel's long answer only the index and the MTU are read, by hand: a kernel that is newer than a decoder for all
//! of it then cannot make them unreadable.

use std::collections::BTreeMap;
use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const IFLA_MTU: u16 = 4;
/// A netlink header, and a `struct ifinfomsg` behind it.
const HEADER: usize = 16;
const IFINFO: usize = 16;

/// MTU in bytes by interface index.
pub(super) fn mtus() -> io::Result<BTreeMap<u32, u32>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = [0_u8; HEADER + IFINFO];
    request[..4].copy_from_slice(&((HEADER + IFINFO) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    socket.send(&request, 0)?;
    let mut found = BTreeMap::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        if bytes.is_empty() || take(&bytes, &mut found)? {
            return Ok(found);
        }
    }
}

/// Adds what one datagram says to `found`; true when it was the last one.
fn take(mut bytes: &[u8], found: &mut BTreeMap<u32, u32>) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (word(bytes, 0), half(bytes, 4)) {
        let length = length as usize;
        let Some(message) = bytes.get(HEADER..length) else { return Ok(false) };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = word(message, 0).unwrap_or_default().cast_signed();
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            RTM_NEWLINK => found.extend(index_and_mtu(message)),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads a `struct ifinfomsg` with its attributes.
fn index_and_mtu(message: &[u8]) -> Option<(u32, u32)> {
    let index = word(message, 4)?;
    let mut attributes = message.get(IFINFO..)?;
    loop {
        let length = usize::from(half(attributes, 0)?);
        if half(attributes, 2)? == IFLA_MTU {
            return Some((index, word(attributes, 4)?));
        }
        // An attribute is four bytes long at least; a shorter one would never end.
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_mtu() {
        let Ok(found) = mtus() else { return }; // a sandbox without netlink
        assert!(found.values().any(|mtu| *mtu >= 1280), "{found:?}");
    }

    #[test]
    fn what_is_cut_short_is_left_out() {
        let attribute = |kind: u16, value: u32| {
            [8_u16.to_ne_bytes(), kind.to_ne_bytes()]
                .concat()
                .into_iter()
                .chain(value.to_ne_bytes())
                .collect::<Vec<_>>()
        };
        let mut message = vec![0; IFINFO];
        message[4] = 7;
        message.extend(attribute(9, 1));
        assert_eq!(index_and_mtu(&message), None);
        message.extend(attribute(IFLA_MTU, 1400));
        assert_eq!(index_and_mtu(&message), Some((7, 1400)));
        for length in 0..message.len() {
            assert_eq!(index_and_mtu(&message[..length]), None);
        }
        let zero = vec![0; 64];
        assert_eq!(index_and_mtu(&zero), None, "attributes without a length end");
        assert!(!take(&zero, &mut BTreeMap::new()).expect("nothing is said"));
    }
}
