//! TUNSETIFF and TUNSETOFFLOAD, the ioctl requests that this crate needs and rustix does not have.
//! Principal function: [`make`].

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl, opcode};

/// `_IOW('T', 202, int)`. In spite of its name, the argument is a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
/// `_IOW('T', 208, unsigned int)`. The argument is the number itself.
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
/// `IFF_TUN`: packets of IP, without a header of a link layer.
const TUN: u16 = 0x0001;
/// `IFF_NO_PI`: without a header of the driver.
const NO_PACKET_INFORMATION: u16 = 0x1000;
/// `IFF_VNET_HDR`: with a `struct virtio_net_hdr` before each packet.
const OFFLOAD_HEADER: u16 = 0x4000;
/// `IFF_TUN_EXCL`: only if there is no interface of this name.
const EXCLUSIVE: u16 = 0x8000;

/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6` and `TUN_F_TSO_ECN`: the host leaves checksums and the
/// cutting of TCP to the program.
const TCP: usize = 0x0f;
/// `TUN_F_USO4` and `TUN_F_USO6`: also the cutting of UDP. Linux 6.2.
const UDP: usize = 0x60;

/// `struct ifreq`, with the flags of its union.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the interface `name`, which is at most 15 bytes, and binds it to the open file.
pub(crate) fn make(file: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = TUN | NO_PACKET_INFORMATION | OFFLOAD_HEADER | EXCLUSIVE;
    let mut request = Request { name: [0; 16], flags, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq` of 40 bytes. `Request` has its size and
    // layout, and any bytes are a valid one.
    let set = unsafe { Updater::<TUNSETIFF, Request>::new(&mut request) };
    // SAFETY: as above; the request has no other effect on the memory of this process.
    unsafe { ioctl(file, set) }?;
    match offload(file, TCP | UDP) {
        Err(Errno::INVAL) => Ok(offload(file, TCP)?),
        done => Ok(done?),
    }
}

/// Says what the host may leave to the program.
fn offload(file: BorrowedFd<'_>, what: usize) -> rustix::io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes a number, and refuses one that it does not know.
    let set = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(what) };
    // SAFETY: as above; the request does not touch the memory of this process.
    unsafe { ioctl(file, set) }
}

const _: () = assert!(size_of::<Request>() == 40, "struct ifreq has 40 bytes on 64-bit Linux");
