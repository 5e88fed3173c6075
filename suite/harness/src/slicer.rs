//! A TCP proxy that cuts the bytes of its connections into pieces of random lengths, passes some
//! pieces on late, and others together with what comes behind them. TCP allows any segments, so no program may notice. The principal type is
//! [`Slicer`].

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

/// The longest piece.
const PIECE_MAX: u64 = 4096;
/// One of so many pieces is late.
const LATE: u64 = 16;
/// One of so many pieces waits for others, and the most bytes that go together.
const JOINED: u64 = 8;
const JOINED_MAX: usize = 64 * 1024;

/// A proxy before a server. Its threads end with its connections.
#[derive(Debug)]
pub struct Slicer {
    at: SocketAddr,
}

impl Slicer {
    /// Starts a proxy on loopback that connects to a port there. The `seed` decides the pieces.
    pub fn before(port: u16, seed: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let at = listener.local_addr()?;
        // The thread ends with the process, because it waits for the next connection.
        thread::spawn(move || {
            for (number, caller) in (1..).zip(listener.incoming()) {
                let Ok(caller) = caller else { return };
                let Some(server) = connect(port) else { continue };
                let (Ok(other_caller), Ok(other_server)) = (caller.try_clone(), server.try_clone()) else { return };
                let seed = seed.wrapping_mul(31).wrapping_add(2 * number);
                thread::spawn(move || slice(caller, server, seed));
                thread::spawn(move || slice(other_server, other_caller, seed + 1));
            }
        });
        Ok(Self { at })
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.at.port()
    }
}

/// Connects to the server. The caller has its connection already, so a server that does not listen
/// yet gets time.
fn connect(port: u16) -> Option<TcpStream> {
    (0..1000).find_map(|_| {
        let server = TcpStream::connect(("127.0.0.1", port)).ok();
        if server.is_none() {
            thread::sleep(Duration::from_millis(10));
        }
        server
    })
}

/// Copies one direction in pieces, until its end.
fn slice(mut from: TcpStream, mut to: TcpStream, seed: u64) {
    let _ = to.set_nodelay(true);
    let mut random = Random(seed);
    let mut bytes = vec![0; JOINED_MAX];
    loop {
        // Short pieces are frequent: they cut headers.
        let most = if random.below(2) == 0 { 1 + random.below(24) } else { 1 + random.below(PIECE_MAX) };
        match from.read(&mut bytes[..most as usize]) {
            Ok(0) | Err(_) => break,
            Ok(mut len) => {
                if random.below(LATE) == 0 {
                    thread::sleep(Duration::from_micros(random.below(2000)));
                }
                if random.below(JOINED) == 0 {
                    thread::sleep(Duration::from_micros(random.below(2000)));
                    // The end and an error come again with the next read.
                    while let Ok((more @ 1.., _)) = recv(&from, &mut bytes[len..], RecvFlags::DONTWAIT) {
                        len += more;
                    }
                }
                if to.write_all(&bytes[..len]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
