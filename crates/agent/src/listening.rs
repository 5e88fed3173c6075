//! The listening sockets of an agent's nodes, accepting connections, and the descriptors for all of
//! this.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use shm::socket::{Listener, Socket};

use crate::closer::Closers;
use crate::foreign::Foreign;
use crate::ids::Peer;
use crate::rundir::RunDir;

/// This process as a client of its own agent.
pub(crate) fn ourselves() -> Peer {
    Peer {
        pid: std::process::id(),
        uid: rustix::process::getuid().as_raw(),
        comm: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
    }
}

pub(crate) fn listen_at(run_dir: &RunDir, name: &str) -> io::Result<Listener> {
    let path = run_dir.file(name);
    let listener = Listener::listen(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {}: {error}", path.display())))?;
    if run_dir.is_for_everybody() {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Listens at a node where each call is a connection. The kernel's queue of connections takes no
/// account of users. A short queue makes a program with many calls wait in its own `connect`, and
/// others do not wait behind its calls.
pub(crate) fn listen_for_calls(run_dir: &RunDir, name: &str) -> io::Result<Listener> {
    const CALLS: i32 = 8;
    let listener = listen_at(run_dir, name)?;
    rustix::net::listen(listener.as_fd(), CALLS)?;
    Ok(listener)
}

/// Accepts the next connection of a client.
pub(crate) fn accepted(listener: &Listener, spare: &mut Spare, closers: &mut Closers) -> Option<Socket> {
    spare.accept(
        || listener.accept(),
        |socket| {
            let uid = socket.peer_credentials().map_or(u32::MAX, |peer| peer.uid);
            drop(Foreign::new(socket, closers.of(uid)));
        },
    )
}

/// A spare descriptor, for the case that no other one is left.
#[derive(Debug)]
pub(crate) struct Spare(Option<OwnedFd>);

impl Spare {
    /// Accepts the next connection. If no descriptor is left, the spare one is used to reject the
    /// connection. Otherwise the connection would be reported again and again.
    pub(crate) fn accept<S>(&mut self, accept: impl Fn() -> io::Result<S>, turn_away: impl FnOnce(S)) -> Option<S> {
        match accept() {
            Ok(socket) => Some(socket),
            Err(error) if !lacks_descriptor(&error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::debug!(%error, "a connection has ended before it was accepted");
                }
                None
            }
            Err(error) => {
                tracing::debug!(%error, "a connection is turned away");
                drop(self.0.take());
                if let Ok(socket) = accept() {
                    turn_away(socket);
                }
                *self = Self::default();
                None
            }
        }
    }
}

/// Whether the error lasts until descriptors or memory are free again.
fn lacks_descriptor(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let lasting = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    lasting.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Default for Spare {
    fn default() -> Self {
        Self(std::fs::File::open("/").ok().map(OwnedFd::from))
    }
}

/// How many files an agent must be able to open. With fewer it would start but reject programs.
pub const FILES_MIN: u64 = 64;

/// Refuses a limit with which the agent could not serve any client.
pub(crate) fn require_descriptors(limit: Option<u64>) -> io::Result<()> {
    match limit {
        Some(limit) if limit < FILES_MIN => Err(io::Error::other(format!(
            "it may have {limit} files open only, and needs {FILES_MIN} or more: raise the limit (`ulimit -Hn {FILES_MIN}`)"
        ))),
        _ => Ok(()),
    }
}

/// Raises the limit as far as allowed, because each client costs some descriptors. Returns the
/// limit, or `None` if there is none.
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if raised.is_ok() { limit.maximum } else { limit.current }
}

/// How many mappings the system allows a process.
pub(crate) fn mapping_limit() -> u64 {
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    // Linux's default.
    said.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}
