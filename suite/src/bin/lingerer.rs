//! A hostile program that passes descriptors to an agent: the last close of each descriptor blocks.
//! As a victim, it is a program of another user that the agent must serve meanwhile.
//!
//! `tests/users.rs` starts it as `lingerer attack SECONDS` and as `lingerer victim SECONDS`, with
//! `SOFTHCA_DIR` naming the agent's run directory. The attacker prints how often it has tried, and
//! how often the agent served a new client afterwards. The victim prints how long its commands
//! took. If the agent does not serve the victim, the victim never ends.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use abi::command::{legacy, number};
use abi::device::{GetContext, GetContextAnswer};
use abi::layout::Record;
use abi::open::{Open, profile};
use abi::pd::{AllocPd, AllocPdAnswer, DeallocPd};
use engine::{Control, SocketControl};
use shm::Socket;

/// Longer than any test waits for this program.
const LINGER: Duration = Duration::from_secs(3600);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A socket whose last close blocks until the peer, which is the second value, has gone.
fn lingering() -> Outcome<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER))?;
    Ok((socket.into(), peer))
}

fn open(run_dir: &Path) -> Outcome<SocketControl> {
    let control = SocketControl::open(&engine::rundir::node(run_dir, 0), 0)?;
    let context = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], size_of::<GetContextAnswer>() + 64);
    control.call(&context, &[])?;
    Ok(control)
}

/// Leaves a descriptor with the agent in one of four ways.
fn leave(run_dir: &Path, way: u32, fd: BorrowedFd<'_>) -> Outcome<Socket> {
    let node = if way % 4 == 3 { engine::rundir::admin(run_dir) } else { engine::rundir::node(run_dir, 0) };
    let socket = Socket::connect(&node)?;
    match way % 4 {
        // In order: with the opening message; with an invalid command; behind a message that ends
        // the connection, so the agent never reads it; with a request to the admin node.
        0 => socket.send(Open::new(profile::MAINLINE).bytes(), &[fd; 8])?,
        1 => {
            socket.send(Open::new(profile::MAINLINE).bytes(), &[])?;
            socket.send(&[0xff; 40], &[fd])?;
        }
        2 => {
            socket.send(&[0; 64], &[])?;
            socket.send(&[0; 64], &[fd]).or_else(ended)?;
        }
        _ => socket.send(b"{", &[fd])?,
    }
    Ok(socket)
}

/// Ignores EPIPE: the agent has closed the connection before this message.
fn ended(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

fn attack(run_dir: &Path, end: Instant) -> Outcome<()> {
    let (mut tries, mut served, mut turned_away) = (0, 0, 0);
    while Instant::now() < end {
        let (socket, peer) = lingering()?;
        let left = leave(run_dir, tries, socket.as_fd());
        // Either process may do the last close. A close in this process must not block this thread.
        let ours = std::thread::spawn(move || drop(socket));
        tries += 1;
        match open(run_dir) {
            Ok(_) => served += 1,
            // The agent refuses, because enough descriptors of this user wait to be closed.
            Err(_) => turned_away += 1,
        }
        drop((left, peer));
        ours.join().map_err(|_| "a thread has panicked")?;
    }
    println!("{tries} tries, {served} survivals, {turned_away} refusals");
    if served > 0 { Ok(()) } else { Err("nobody was served".into()) }
}

fn victim(run_dir: &Path, end: Instant) -> Outcome<()> {
    let control = open(run_dir)?;
    let mut times = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let answer = control.call(&legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12), &[])?;
        times.push(begun.elapsed());
        let pd = AllocPdAnswer::read(&answer.bytes).ok_or("a short answer")?;
        control.call(&legacy(number::DEALLOC_PD, &DeallocPd { pd_handle: pd.pd_handle }, &[], 0), &[])?;
    }
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    println!("{} commands, p50 {:?}, p99 {:?}, max {:?}", times.len(), at(50), at(99), times.last());
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(5);
    let end = Instant::now() + Duration::from_secs(seconds);
    match words.first().map(String::as_str) {
        Some("attack") => attack(&engine::rundir::default(), end),
        Some("victim") => victim(&engine::rundir::default(), end),
        _ => Err("usage: lingerer attack|victim SECONDS".into()),
    }
}
