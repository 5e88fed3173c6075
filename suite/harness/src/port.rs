//! TCP ports for programs that exchange their addresses over TCP: reserves ports, and waits until a
//! program listens.
//!
//! A reservation is an abstract unix socket named after the port. It ends with the process that
//! holds it and leaves no file behind. Two suites that run at the same time never pick the same
//! port. The ports are below the kernel's ephemeral range. The principal type is [`Port`].

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use crate::wait;

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port that no other part of any suite on this host uses while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// Reserves a port that nothing listens on.
    pub fn reserve() -> Result<Self, String> {
        let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap_or(0);
        for step in 0..COUNT {
            let number = FIRST + (start + step) % COUNT;
            let Some(claim) = claim(&format!("softhca-suite-port-{number}")) else { continue };
            if TcpListener::bind(("0.0.0.0", number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        Err("no free TCP port".to_owned())
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Claims a name on this host for as long as the value lives. `None`: the name is already claimed.
pub(crate) fn claim(name: &str) -> Option<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()
}

/// Waits until a socket listens on the port, as the process `pid` sees the network.
///
/// This function reads the kernel's table instead of connecting, because the programs accept one
/// connection only.
pub fn wait_for_listener(pid: u32, port: u16, limit: Duration, mut gone: impl FnMut() -> bool) -> Result<(), String> {
    const LISTEN: &str = "0A";
    wait_for_socket(&["tcp", "tcp6"], LISTEN, (pid, port), limit, &mut gone)
}

/// Waits until a datagram socket is bound to the port, as the process `pid` sees the network.
pub fn wait_for_datagrams(pid: u32, port: u16, limit: Duration, mut gone: impl FnMut() -> bool) -> Result<(), String> {
    const UNCONNECTED: &str = "07";
    wait_for_socket(&["udp", "udp6"], UNCONNECTED, (pid, port), limit, &mut gone)
}

fn wait_for_socket(
    tables: &[&str],
    state: &str,
    (pid, port): (u32, u16),
    limit: Duration,
    gone: &mut dyn FnMut() -> bool,
) -> Result<(), String> {
    let there = wait::until(limit, &format!("a socket on port {port}"), || {
        if listed(tables, state, pid, port) { Some(true) } else { gone().then_some(false) }
    })?;
    if there { Ok(()) } else { Err(format!("the server ended before it had a socket on port {port}")) }
}

fn listed(tables: &[&str], state: &str, pid: u32, port: u16) -> bool {
    let port = format!(":{port:04X}");
    tables.iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default().lines().skip(1).any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let local = columns.next().unwrap_or_default();
            columns.next();
            local.ends_with(&port) && columns.next() == Some(state)
        })
    })
}
