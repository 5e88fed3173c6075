//! The doors of an agent: sockets that listen at nodes, who comes through them, and descriptors for all of that.

use std::io;
use std::os::fd::OwnedFd;
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

/// The next connection. When there is no descriptor left for it, the spare one serves to turn it away; it would be there
/// again and again otherwise.
pub(crate) fn accepted(listener: &Listener, spare: &mut Option<OwnedFd>, closers: &mut Closers) -> Option<Socket> {
    match listener.accept() {
        Ok(socket) => Some(socket),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => {
            tracing::warn!(%error, "a connection is turned away");
            drop(spare.take());
            if let Ok(socket) = listener.accept() {
                let uid = socket.peer_credentials().map_or(u32::MAX, |peer| peer.uid);
                drop(Foreign::new(socket, closers.of(uid)));
            }
            *spare = spare_descriptor();
            None
        }
    }
}

pub(crate) fn spare_descriptor() -> Option<OwnedFd> {
    std::fs::File::open("/").ok().map(OwnedFd::from)
}

/// Files that an agent has to be able to have open. With fewer it would start, and turn programs away.
pub const FILES_MIN: u64 = 64;

/// Refuses a limit with which nobody could be served.
pub(crate) fn require_descriptors(limit: Option<u64>) -> io::Result<()> {
    match limit {
        Some(limit) if limit < FILES_MIN => Err(io::Error::other(format!(
            "it may have {limit} files open only, and needs {FILES_MIN} or more: raise the limit (`ulimit -Hn {FILES_MIN}`)"
        ))),
        _ => Ok(()),
    }
}

/// Each client costs some descriptors: take as many as we may. How many that are; nothing if there is no limit.
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if raised.is_ok() { limit.maximum } else { limit.current }
}

/// How many mappings the system lets a process have.
pub(crate) fn mapping_limit() -> u64 {
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    // What Linux says unless somebody has changed it.
    said.and_then(|text| text.trim().parse().ok()).unwrap_or(65_530)
}
