//! Error numbers as they cross the socket: [`Errno`], with a name and a plain meaning for each that
//! softhca uses.
//!
//! These values are not the C library's `errno`. The crates in `capi` set `errno` from them.

use std::fmt;

/// A Linux error number (positive).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($( $name:ident = $value:literal, $meaning:literal; )+) => {
        impl Errno {
            $( #[doc = $meaning] pub const $name: Errno = Errno($value); )+

            /// Every error number that has a name here.
            pub const ALL: &[Errno] = &[$( Errno::$name ),+];

            /// The symbolic name, if it has one here.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $( $value => Some(stringify!($name)), )+ _ => None }
            }

            /// The meaning, in a few words.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self.0 { $( $value => $meaning, )+ _ => "error number without a name here" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such entry";
    ESRCH = 3, "no such engine or process";
    EINTR = 4, "interrupted by a signal";
    EIO = 5, "the device or its agent is gone";
    ENXIO = 6, "no such object";
    E2BIG = 7, "longer than allowed";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "nothing there at the moment";
    ENOMEM = 12, "out of memory or of room in a queue";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "still in use";
    EEXIST = 17, "exists already";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "no such request for this file";
    ENOSPC = 28, "not enough room for the answer";
    EPIPE = 32, "the other side is gone";
    ERANGE = 34, "out of range";
    ENOSYS = 38, "command not implemented";
    ENODATA = 61, "entry is empty";
    ETIME = 62, "timer expired";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EMSGSIZE = 90, "message too long";
    EPROTONOSUPPORT = 93, "version not supported";
    EOPNOTSUPP = 95, "not supported";
    EAFNOSUPPORT = 97, "address family not supported";
    EADDRINUSE = 98, "address is in use";
    EADDRNOTAVAIL = 99, "not an address of this host";
    ENETUNREACH = 101, "network is not reachable";
    ECONNRESET = 104, "connection was reset";
    ENOBUFS = 105, "no buffer space";
    EISCONN = 106, "connected already";
    ENOTCONN = 107, "not connected";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "nobody listens there";
    EHOSTUNREACH = 113, "host is not reachable";
}

impl Errno {
    /// The number as a reply's status: negative.
    #[must_use]
    pub fn to_status(self) -> i32 {
        -self.0
    }

    /// Reads a reply's status: 0 is success, a negative value is an error number.
    ///
    /// # Errors
    /// The error number that the status carries; a positive status, which no agent sends, is
    /// EPROTO.
    pub fn from_status(status: i32) -> Result<(), Errno> {
        match status {
            0 => Ok(()),
            i32::MIN | 1.. => Err(Errno::EPROTO),
            negative => Err(Errno(-negative)),
        }
    }
}

/// The status of an outcome: 0, or the negative error number.
#[must_use]
pub fn status<T>(outcome: &Result<T, Errno>) -> i32 {
    match outcome {
        Ok(_) => 0,
        Err(errno) => errno.to_status(),
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.meaning()),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_and_explains() {
        assert_eq!(Errno::EBUSY.to_string(), "EBUSY (still in use)");
        assert_eq!(Errno(4095).to_string(), "errno 4095");
        assert_eq!(format!("{:?}", Errno::EINVAL), "EINVAL");
    }

    #[test]
    fn status_goes_both_ways() {
        assert_eq!(Errno::from_status(0), Ok(()));
        assert_eq!(Errno::from_status(Errno::ENOSPC.to_status()), Err(Errno::ENOSPC));
        assert_eq!(Errno::from_status(5), Err(Errno::EPROTO));
        assert_eq!(Errno::from_status(i32::MIN), Err(Errno::EPROTO));
        assert_eq!(status::<()>(&Err(Errno::EIO)), -5);
        assert_eq!(status(&Ok(3)), 0);
    }

    #[test]
    fn numbers_are_those_of_linux() {
        for &errno in Errno::ALL {
            let kind = std::io::Error::from(errno).to_string();
            assert!(!kind.starts_with("Unknown error"), "{errno:?}: {kind}");
        }
    }
}
