//! The IPoIB interfaces of a topology's node, in the list of getifaddrs(3). There, programs find the
//! addresses of their devices: libfabric binds an id of the connection manager to each of them.
//!
//! The agent names the interfaces in a file of the node's run directory ([`abi::interfaces`]). Their
//! addresses need not exist on the host; the usual ones belong to its loopback interface. Other
//! calls (ioctl, rtnetlink, `/sys/class/net`) do not know the interfaces.

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::{null_mut, write};

use interpose::intercept;
use libc::{ifaddrs, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rustix::fs::{Mode, OFlags, open};

use crate::entry::{Out, Room};
use crate::next::Function;
use crate::root;

/// The longest file that is read.
const LONGEST: usize = 4096;

const FLAGS: c_int = libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_BROADCAST | libc::IFF_MULTICAST;

/// One entry of the list. All entries of a list are one allocation.
#[repr(C)]
struct Entry {
    list: ifaddrs,
    /// The C library has the name elsewhere. This tells its entries from these.
    name: [c_char; libc::IFNAMSIZ],
    address: sockaddr_storage,
    mask: sockaddr_storage,
    broadcast: sockaddr_storage,
}

intercept! {
    /// `getifaddrs`.
    fn getifaddrs(list: Out<*mut ifaddrs>) -> c_int as next => {
        let status = next(list);
        if status == 0 {
            let mut bytes = [0; LONGEST];
            list.change(|list| append(list, read_file(&mut bytes).unwrap_or_default()));
        }
        status
    };
    /// `freeifaddrs`.
    fn freeifaddrs(list: *mut ifaddrs) -> () as next => next(detach(list));
}

/// Appends interfaces to a list that the C library has made. Without memory, the list stays as it
/// is.
fn append(list: &mut *mut ifaddrs, text: &str) {
    let count = abi::interfaces::parse(text).count();
    // SAFETY: a plain allocation, which `detach` frees.
    let entries = if count == 0 { null_mut() } else { unsafe { libc::calloc(count, size_of::<Entry>()) } };
    if entries.is_null() {
        return;
    }
    let mut at: *mut *mut ifaddrs = list;
    // SAFETY: `at` is the caller's, or the link of an entry of the C library.
    while let Some(entry) = unsafe { (*at).as_mut() } {
        at = &raw mut entry.ifa_next;
    }
    for (index, (name, ip)) in abi::interfaces::parse(text).enumerate().take(count) {
        // SAFETY: one of the `count` entries, which all zeros make valid.
        let entry = unsafe { &mut *entries.cast::<Entry>().add(index) };
        fill(entry, name, ip);
        // SAFETY: `at` is the last link of the list.
        unsafe { *at = &raw mut entry.list };
        at = &raw mut entry.list.ifa_next;
    }
}

fn fill(entry: &mut Entry, name: &str, ip: IpAddr) {
    // The last byte stays 0.
    for (to, from) in entry.name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ.saturating_sub(1))) {
        *to = from.cast_signed();
    }
    let (mask, broadcast): (IpAddr, IpAddr) = match ip {
        IpAddr::V4(ip) => {
            // As the loopback interface has it, and otherwise a guess: nobody configures networks here.
            let mask = Ipv4Addr::from_bits(u32::MAX << if ip.is_loopback() { 24 } else { 8 });
            (mask.into(), (ip | !mask).into())
        }
        IpAddr::V6(_) => (Ipv6Addr::from(u128::MAX).into(), ip),
    };
    put(&mut entry.address, ip);
    put(&mut entry.mask, mask);
    put(&mut entry.broadcast, broadcast);
    entry.list.ifa_name = entry.name.as_mut_ptr();
    entry.list.ifa_flags = FLAGS.cast_unsigned();
    entry.list.ifa_addr = (&raw mut entry.address).cast();
    entry.list.ifa_netmask = (&raw mut entry.mask).cast();
    entry.list.ifa_ifu = (&raw mut entry.broadcast).cast();
}

fn put(room: &mut sockaddr_storage, ip: IpAddr) {
    let room: *mut sockaddr_storage = room;
    match ip {
        IpAddr::V4(ip) => {
            let address = sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: this storage is large enough for an address of any family, and aligned.
            unsafe { write(room.cast(), address) };
        }
        IpAddr::V6(ip) => {
            let address = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: 0,
            };
            // SAFETY: as above.
            unsafe { write(room.cast(), address) };
        }
    }
}

/// Frees the entries of this library, and returns the rest of the list for the C library.
fn detach(mut list: *mut ifaddrs) -> *mut ifaddrs {
    let mut at: *mut *mut ifaddrs = &raw mut list;
    // SAFETY: `at` is the variable, or the link of an entry of the list.
    while let Some(entry) = unsafe { (*at).as_mut() } {
        if is_own(entry) {
            // SAFETY: as above. The first of these entries is the last link of the C library's, and
            // the beginning of the allocation.
            unsafe { libc::free(std::mem::replace(&mut *at, null_mut()).cast()) };
            break;
        }
        at = &raw mut entry.ifa_next;
    }
    list
}

fn is_own(entry: &ifaddrs) -> bool {
    let name = (&raw const *entry).addr().wrapping_add(std::mem::offset_of!(Entry, name));
    entry.ifa_name.addr() == name
}

/// The node's file, if the process runs on a node. It is read without the functions that this
/// library replaces.
fn read_file(bytes: &mut [u8; LONGEST]) -> Option<&str> {
    let mut room = Room::new();
    let path = root::run_directory()?.chain(*b"/").chain(abi::interfaces::FILE.bytes());
    let path = room.hold(path).ok()?;
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    let length = rustix::io::read(&file, &mut bytes[..]).ok()?;
    std::str::from_utf8(bytes.get(..length)?).ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    /// The names and the bytes of the addresses.
    fn shown(list: *mut ifaddrs) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let mut at = list;
        while !at.is_null() {
            // SAFETY: an entry of the list, with a C string as its name and an address or NULL.
            let (name, address, next) = unsafe {
                let entry = &*at;
                let address = entry.ifa_addr.cast::<[u8; 8]>();
                let address = if address.is_null() { Vec::new() } else { (*address).to_vec() };
                (CStr::from_ptr(entry.ifa_name), address, entry.ifa_next)
            };
            found.push((name.to_str().expect("ASCII").to_owned(), address));
            at = next;
        }
        found
    }

    #[test]
    fn own_interfaces_come_last_and_are_freed_apart() {
        let mut list: *mut ifaddrs = null_mut();
        // SAFETY: the list is freed below.
        assert_eq!(unsafe { libc::getifaddrs(&raw mut list) }, 0);
        let before = shown(list);
        append(&mut list, "");
        assert_eq!(shown(list), before);
        append(&mut list, "ib0 127.1.0.1\nno interface\na-name-that-is-too-long fd00::1\n");
        let after = shown(list);
        assert_eq!(after[..before.len()], before);
        let [ib0, long] = &after[before.len()..] else { panic!("{after:?}") };
        assert_eq!(*ib0, ("ib0".to_owned(), vec![libc::AF_INET as u8, 0, 0, 0, 127, 1, 0, 1]));
        assert_eq!((long.0.as_str(), long.1[0]), ("a-name-that-is-", libc::AF_INET6 as u8));
        assert_eq!(shown(detach(list)), before);
        // SAFETY: `detach` has left what the C library has made.
        unsafe { libc::freeifaddrs(list) };
        assert!(detach(null_mut()).is_null());
        let mut list = null_mut();
        append(&mut list, "ib0 127.1.0.1");
        assert_eq!(shown(list).len(), 1);
        assert!(detach(list).is_null());
    }
}
