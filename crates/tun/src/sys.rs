//! TUNSETIFF, the one ioctl request that this crate needs and rustix does not have. Principal
//! function: [`make`].

use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `_IOW('T', 202, int)`. In spite of its name, the argument is a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
/// `IFF_TUN`: packets of IP, without a header of a link layer.
const TUN: u16 = 0x0001;
/// `IFF_NO_PI`: without a header of the driver.
const NO_PACKET_INFORMATION: u16 = 0x1000;
/// `IFF_TUN_EXCL`: only if there is no interface of this name.
const EXCLUSIVE: u16 = 0x8000;

/// `struct ifreq`, with the flags of its union.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the interface `name`, which is at most 15 bytes, and binds it to the open file.
pub(crate) fn make(file: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = Request { name: [0; 16], flags: TUN | NO_PACKET_INFORMATION | EXCLUSIVE, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq` of 40 bytes. `Request` has its size and
    // layout, and any bytes are a valid one.
    let set = unsafe { Updater::<TUNSETIFF, Request>::new(&mut request) };
    // SAFETY: as above; the request has no other effect on the memory of this process.
    Ok(unsafe { ioctl(file, set) }?)
}

const _: () = assert!(size_of::<Request>() == 40, "struct ifreq has 40 bytes on 64-bit Linux");
