//! A connection of this library to a node of the agent: a unix socket of type SOCK_SEQPACKET, which
//! preserves message boundaries. The principal type is [`Connection`].

use std::ffi::c_int;

use crate::entry::{Refusal, Room};
use crate::{root, socket};

/// A connection, which is closed with the value.
#[derive(Debug)]
pub(crate) struct Connection(c_int);

impl Connection {
    /// Connects to a node of this process's run directory. Without an agent, the result is
    /// `nobody`.
    pub(crate) fn to(node: &str, nobody: Refusal) -> Result<Self, Refusal> {
        let connection = Self(socket::open()?);
        connection.connect(node).map_err(|_| nobody)?;
        Ok(connection)
    }

    /// Sets the options that the program asked for: SOCK_CLOEXEC, SOCK_NONBLOCK or neither.
    pub(crate) fn settle(&self, options: c_int) -> Result<(), Refusal> {
        socket::settle(self.0, options)
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.0
    }

    /// The descriptor, which is not closed here.
    pub(crate) fn keep(mut self) -> c_int {
        std::mem::replace(&mut self.0, -1)
    }

    fn connect(&self, node: &str) -> Result<(), Refusal> {
        const NO_FOLDER: Refusal = Refusal(libc::ENOENT);
        let (mut room, mut short) = (Room::new(), Room::new());
        let name = b"/".iter().chain(node.as_bytes()).copied();
        let path = room.hold(root::run_directory().ok_or(NO_FOLDER)?.chain(name.clone()))?;
        match socket::connect_to(self.0, path) {
            // A path that is too long for a socket address is reached through its folder's
            // descriptor.
            Err(Refusal(libc::ENAMETOOLONG)) => {
                let folder = room.hold(root::run_directory().ok_or(NO_FOLDER)?).and_then(socket::open_folder)?;
                let number = decimal(folder.unsigned_abs());
                let path = b"/proc/self/fd/".iter().copied().chain(number).chain(name);
                let connected = short.hold(path).and_then(|path| socket::connect_to(self.0, path));
                socket::close(folder);
                connected
            }
            connected => connected,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.0 >= 0 {
            socket::close(self.0);
        }
    }
}

/// The digits of a number.
fn decimal(number: u32) -> impl Iterator<Item = u8> {
    let places = (0..10).rev().map(|place| 10_u32.pow(place));
    let digits = places.filter(move |place| *place == 1 || number >= *place);
    digits.map(move |place| b'0' + (number / place % 10) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        for number in [0, 7, 10, 909, 65_535, u32::MAX] {
            assert_eq!(decimal(number).collect::<Vec<_>>(), number.to_string().into_bytes());
        }
    }
}
