//! The requests of a scope that are in progress, and what became of the others. Principal type:
//! [`Tally`].

use abi::cq::Wc;
use engine::Engine;
use parking_lot::{Condvar, Mutex};
use protocol::Status;

use crate::error::Error;
use crate::operation::{failure, status};

/// Counts the requests of a scope.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) state: Mutex<Count>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Count {
    pub(crate) under_way: usize,
    pub(crate) received: Vec<(u64, usize)>,
    pub(crate) failed: Option<Error>,
}

impl Tally {
    /// Counts the end of one request.
    pub(crate) fn done(&self, wc: &Wc, id: u64, engine: &Engine) {
        let mut count = self.state.lock();
        count.under_way -= 1;
        match status(wc.status) {
            Status::Success => count.received.push((id, wc.byte_len as usize)),
            // The first failure is the cause; the others follow from it.
            _ if count.failed.is_none() => count.failed = Some(failure(wc, id, engine)),
            _ => {}
        }
        self.changed.notify_all();
    }
}
