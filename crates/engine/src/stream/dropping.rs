//! Bytes that nobody wants any more.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Bytes that are dropped at once.
const PIECE: usize = 16 * 1024;

/// Reads and drops what has arrived at a TCP socket, until `most` bytes or a few more are dropped.
/// If a socket is closed with bytes to read, the kernel resets the connection, and the peer does
/// not get what was sent last (tcp(7), RFC 2525, section 2.17). Returns the number of bytes; `None`
/// if the peer has closed its direction, or the connection is gone.
pub fn drop_arrived(socket: impl AsFd, most: usize) -> Option<usize> {
    let mut bytes = [0; PIECE];
    let mut dropped = 0;
    while dropped < most {
        match recv(&socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => return None,
            Ok((_, len)) => dropped += len,
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(_) => return None,
        }
    }
    Some(dropped)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn bytes_are_dropped_up_to_a_bound_and_the_end_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut socket, _) = listener.accept().expect("it calls");
        peer.write_all(&[7; 3 * PIECE]).expect("sent");
        socket.peek(&mut [0]).expect("arrived");
        let mut left = 3 * PIECE;
        while left > 2 * PIECE {
            left -= drop_arrived(&socket, 1).expect("open");
        }
        assert!(left > PIECE, "more than asked for: {left} are left");
        socket.read_exact(&mut vec![0; left]).expect("the rest");
        assert_eq!(drop_arrived(&socket, 1), Some(0));
        drop(peer);
        assert_eq!(socket.peek(&mut [0]).expect("the end"), 0);
        assert_eq!(drop_arrived(&socket, 1), None);
    }
}
