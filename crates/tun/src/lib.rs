//! TUN devices of Linux: network interfaces without a link layer. The program reads the IP packets
//! that the host sends by the interface, and writes those that the host receives. Before each
//! packet is a header that says what is left to do for it: a checksum, or to cut a long packet of
//! TCP or UDP into segments (`struct virtio_net_hdr`).
//!
//! It knows nothing of RDMA, and neither addresses nor the MTU of an interface: those are
//! rtnetlink's. Principal type: [`Tun`].
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the ioctl requests that make the interface")]
mod sys;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// The file that makes TUN devices.
pub const FILE: &str = "/dev/net/tun";

/// The longest name of an interface, in bytes.
pub const NAME_MAX: usize = 15;

/// The length of the header before a packet.
pub const HEADER: usize = 10;

/// The longest packet, which is cut into segments.
pub const PACKET_MAX: usize = 65535;

/// A network interface that exists as long as this value. Reads and writes never wait.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
}

/// Why there is no interface.
#[derive(Debug)]
pub enum Error {
    /// [`FILE`] cannot be opened.
    File(io::Error),
    /// The name is empty, too long, or has a character that no name may have.
    Name,
    /// The kernel refuses the interface: EPERM without the right (CAP_NET_ADMIN), EBUSY if the name
    /// is taken by a TUN device, EINVAL if it is taken by another interface.
    Interface(io::Error),
}

impl Tun {
    /// Makes an interface with this name. It is down, and has no address.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn create(name: &str) -> Result<Self, Error> {
        let valid = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
        if name.is_empty() || name.len() > NAME_MAX || name == "." || name == ".." || !name.bytes().all(valid) {
            return Err(Error::Name);
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(FILE, flags, Mode::empty()).map_err(|error| Error::File(error.into()))?;
        sys::make(fd.as_fd(), name).map_err(Error::Interface)?;
        Ok(Self { fd })
    }

    /// Reads the next packet that the host sends, with its header. A packet that is longer than
    /// `packet` is cut off.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn read(&self, header: &mut [u8; HEADER], packet: &mut [u8]) -> io::Result<usize> {
        let length = rustix::io::readv(&self.fd, &mut [IoSliceMut::new(header), IoSliceMut::new(packet)])?;
        Ok(length.saturating_sub(HEADER))
    }

    /// Writes a packet that the host receives: its header, and the packet in parts.
    ///
    /// # Errors
    /// EINVAL if it is no IP packet or the header does not fit to it, EIO while the interface is
    /// down.
    pub fn write(&self, header: &[u8; HEADER], packet: &[&[u8]]) -> io::Result<()> {
        let header = std::iter::once(IoSlice::new(header));
        let all: Vec<IoSlice<'_>> = header.chain(packet.iter().map(|part| IoSlice::new(part))).collect();
        rustix::io::writev(&self.fd, &all)?;
        Ok(())
    }
}

/// Readable when the host sends a packet.
impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, NAME_MAX, Tun};

    #[test]
    fn names_that_no_interface_can_have_are_refused_before_the_kernel_is_asked() {
        let long = "i".repeat(NAME_MAX + 1);
        for name in ["", ".", "..", "a b", "a/b", "ib0:1", "ib%d", &long] {
            assert!(matches!(Tun::create(name), Err(Error::Name)), "{name:?}");
        }
    }
}
