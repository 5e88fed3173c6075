//! Plain UDP between two addresses, as fast as this machine can. The wire's bandwidth and latency
//! are compared with it.
//!
//! It is not RoCE: the datagrams contain zeros and a number. The sockets are those of softhca, with
//! the same offloads: both sides handle many segments in one call. `cargo xtask bench` starts these
//! programs in network namespaces. The principal type is [`UdpSide`].

use std::hint;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use clap::Subcommand;
use udp::{BATCH_MAX, Outgoing, PORT, Socket};

/// A stream has ended when no datagram arrives for this time.
const SILENCE: Duration = Duration::from_millis(300);

/// One side of a measurement.
#[derive(Debug, Subcommand)]
pub(crate) enum UdpSide {
    /// Receive until nothing comes any more; print bytes and seconds
    Receive {
        /// The address to receive at
        own: IpAddr,
    },
    /// Send as much as goes
    Send {
        /// The address to send from
        own: IpAddr,
        /// The address to send to
        peer: IpAddr,
        /// Bytes in a datagram
        segment: usize,
        /// How long
        seconds: u64,
    },
    /// Answer each datagram
    Answer {
        /// This side
        own: IpAddr,
        /// The other side
        peer: IpAddr,
        /// How many exchanges
        count: u64,
    },
    /// Send a datagram for each answer; print the microseconds of half an exchange
    Ask {
        /// This side
        own: IpAddr,
        /// The other side
        peer: IpAddr,
        /// How many exchanges
        count: u64,
    },
}

/// The line that a receiver prints when it listens.
pub(crate) const READY: &str = "ready";

/// Runs one side and prints its result.
pub(crate) fn run(side: &UdpSide) -> Result<(), String> {
    let done = match *side {
        UdpSide::Receive { own } => receive(own).map(|(bytes, seconds)| println!("{bytes} {seconds}")),
        UdpSide::Send { own, peer, segment, seconds } => send(own, peer, segment, Duration::from_secs(seconds)),
        UdpSide::Answer { own, peer, count } => answer(own, peer, count),
        UdpSide::Ask { own, peer, count } => ask(own, peer, count).map(|time| println!("{}", time * 1e6)),
    };
    done.map_err(|error| format!("{side:?}: {error}"))
}

fn receive(own: IpAddr) -> io::Result<(usize, f64)> {
    let socket = Socket::receiver(own, 0)?;
    println!("{READY}");
    let mut buffer = vec![0; 1 << 16];
    let mut first = None;
    let mut last = Instant::now();
    let mut bytes = 0;
    loop {
        if let Some(received) = socket.receive(&mut buffer)? {
            last = Instant::now();
            first.get_or_insert(last);
            bytes += received.len;
        } else if first.is_some() && last.elapsed() > SILENCE {
            return Ok((bytes, last.duration_since(first.unwrap_or(last)).as_secs_f64()));
        }
    }
}

fn send(own: IpAddr, peer: IpAddr, segment: usize, time: Duration) -> io::Result<()> {
    let socket = Socket::sender(own, 0, 0)?;
    let bytes = vec![0; BATCH_MAX / segment * segment];
    let started = Instant::now();
    while started.elapsed() < time {
        push(&socket, peer, segment, &bytes)?;
    }
    Ok(())
}

fn answer(own: IpAddr, peer: IpAddr, count: u64) -> io::Result<()> {
    let (socket, sender) = (Socket::receiver(own, 0)?, Socket::sender(own, 0, 0)?);
    println!("{READY}");
    (0..count).try_for_each(|_| {
        next(&socket)?;
        push(&sender, peer, 0, &[0; 8])
    })
}

fn ask(own: IpAddr, peer: IpAddr, count: u64) -> io::Result<f64> {
    let (socket, sender) = (Socket::receiver(own, 0)?, Socket::sender(own, 0, 0)?);
    let started = Instant::now();
    for _ in 0..count {
        push(&sender, peer, 0, &[0; 8])?;
        next(&socket)?;
    }
    Ok(started.elapsed().as_secs_f64() / count as f64 / 2.0)
}

/// Waits for a datagram without sleeping.
fn next(socket: &Socket) -> io::Result<()> {
    let mut buffer = [0; 64];
    while socket.receive(&mut buffer)?.is_none() {
        hint::spin_loop();
    }
    Ok(())
}

/// Sends, and tries again while the socket has no room.
fn push(socket: &Socket, peer: IpAddr, segment: usize, bytes: &[u8]) -> io::Result<()> {
    let to = SocketAddr::new(peer, PORT);
    let out = Outgoing {
        to,
        traffic_class: 0,
        service_level: 0,
        priority: None,
        hop_limit: 0,
        segment,
        interface: 0,
        connected: false,
        bytes,
    };
    loop {
        match socket.send(&out) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
            done => return done,
        }
    }
}
