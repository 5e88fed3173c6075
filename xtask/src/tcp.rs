//! A plain TCP ping-pong that spins. The latency of iWARP, which runs over TCP, is compared with
//! it.
//!
//! `cargo xtask bench` starts the two sides in network namespaces. The principal type is
//! [`TcpSide`].

use std::hint;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use clap::Subcommand;

use crate::udp::READY;

/// Bytes of a message.
const LEN: usize = 8;

/// One side of the ping-pong.
#[derive(Debug, Subcommand)]
pub(crate) enum TcpSide {
    /// Answer each message
    Answer {
        /// The address to listen at
        own: IpAddr,
        /// The port to listen at
        port: u16,
        /// How many exchanges
        count: u64,
    },
    /// Send a message for each answer; print the median of half an exchange in microseconds
    Ask {
        /// The other side
        peer: IpAddr,
        /// Its port
        port: u16,
        /// How many exchanges
        count: u64,
    },
}

/// Runs one side and prints its result.
pub(crate) fn run(side: &TcpSide) -> Result<(), String> {
    let done = match *side {
        TcpSide::Answer { own, port, count } => answer(SocketAddr::new(own, port), count),
        TcpSide::Ask { peer, port, count } => {
            ask(SocketAddr::new(peer, port), count).map(|time| println!("{}", time * 1e6))
        }
    };
    done.map_err(|error| format!("{side:?}: {error}"))
}

fn answer(own: SocketAddr, count: u64) -> io::Result<()> {
    let listener = TcpListener::bind(own)?;
    println!("{READY}");
    let mut stream = polled(listener.accept()?.0)?;
    (0..count).try_for_each(|_| {
        next(&mut stream)?;
        stream.write_all(&[0; LEN])
    })
}

fn ask(peer: SocketAddr, count: u64) -> io::Result<f64> {
    let mut stream = polled(TcpStream::connect(peer)?)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        stream.write_all(&[0; LEN])?;
        next(&mut stream)?;
        times.push(started.elapsed().as_secs_f64() / 2.0);
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().ok_or_else(|| ErrorKind::InvalidInput.into())
}

fn polled(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Waits for a message without sleeping.
fn next(stream: &mut TcpStream) -> io::Result<()> {
    let (mut buffer, mut have) = ([0; LEN], 0);
    while have < LEN {
        match stream.read(&mut buffer[have..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => have += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
