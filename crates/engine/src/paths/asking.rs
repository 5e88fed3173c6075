//! Asks the agent for paths, and forgets them when the agent says so. Adds to [`Engine`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::command::number as command;
use abi::errno::Errno;
use abi::private::{PathResolve, PathResolveAnswer};

use super::{PATHS, Passage, PathState, Way};
use crate::control::Answer;
use crate::engine::Engine;
use crate::error::{Result, refusal};
use crate::request;

/// How often the agent may ask for patience.
const TRIES: usize = 64;

impl Engine {
    /// What is known of a way.
    pub(crate) fn passage(&self, way: &Way) -> PathState {
        if !self.board.has_paths() {
            return PathState::Free;
        }
        self.paths.known.read().get(way).map_or(PathState::Nothing, |passage| PathState::Passage(Arc::clone(passage)))
    }

    /// Changes when answers may have changed.
    pub(crate) fn path_version(&self) -> u32 {
        self.paths.version.load(Ordering::Acquire)
    }

    /// Asks the agent what passes. Waits for it.
    pub(crate) fn resolve_path(&self, way: &Way) -> Result<()> {
        let (dgid, hop_limit, traffic_class) = way.route;
        let body = PathResolve {
            dgid,
            to_device: way.to.device,
            to_port: way.to.port as u8,
            port: way.from,
            dlid: way.dlid,
            hop_limit,
            traffic_class,
            ..PathResolve::default()
        };
        let request = request::private(command::PATH_RESOLVE, &body, size_of::<PathResolveAnswer>());
        for _ in 0..TRIES {
            let answer: PathResolveAnswer = self.call_patiently(&request)?.get(0)?;
            let mut known = self.paths.known.write();
            if known.len() >= PATHS {
                known.clear();
            }
            known.insert(*way, Arc::new(Passage::from(&answer)));
            // The answer may be older than a push that this engine has handled.
            if self.board.path_epoch() == answer.epoch {
                return Ok(());
            }
            known.remove(way);
        }
        Err(refusal(Errno::EAGAIN, "the tables of the switches change all the time"))
    }

    /// Sends a command that the agent answers from the fabric. While the agent looks there, it asks
    /// for patience.
    pub(crate) fn call_patiently(&self, request: &[u8]) -> Result<Answer> {
        let mut tries = 0;
        loop {
            match self.call(request) {
                Err(error) if error.errno == Errno::EAGAIN && tries < TRIES => tries += 1,
                done => return done,
            }
        }
    }

    /// The agent's answers have changed: connections look for their routes again.
    pub(crate) fn paths_changed(self: &Arc<Self>) {
        self.paths.known.write().clear();
        self.paths.version.fetch_add(1, Ordering::Release);
        self.ports_changed();
    }
}
