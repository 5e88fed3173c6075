//! Why the requests of one QP failed. A program asks with the `wr_id` of a request after it has
//! polled the completion.
//!
//! A QP without failures has a null pointer here. A QP with failures keeps two things: the first
//! cause for which it went to the error state, which explains all flushed requests; and the
//! sentences of the last requests that failed for their own reason. Principal type: [`Why`].

mod sentences;

use std::collections::VecDeque;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::post_error::PostError;

/// How many requests with their own sentences one QP remembers.
const KEPT: usize = 32;

/// Returns the number that a user gave to the request with this `wr_id`; `None` if it is not known.
pub type Names = Box<dyn Fn(u64) -> Option<u64> + Send + Sync>;

/// What one QP remembers since its first failure, and how sentences name its requests.
#[derive(Default)]
pub(crate) struct Why(Mutex<Option<Box<KnownReason>>>, OnceLock<Names>);

#[derive(Default)]
struct KnownReason {
    /// Why the QP went to the error state.
    cause: Option<String>,
    requests: VecDeque<Request>,
}

struct Request {
    wr_id: u64,
    end: End,
}

/// How a request ended.
enum End {
    /// With its own error, which this sentence explains.
    Failed(String),
    /// It was not posted. A later request with the same `wr_id` is another request.
    Refused(PostError),
}

impl KnownReason {
    fn remember(&mut self, wr_id: u64, end: End) {
        if self.requests.len() == KEPT {
            self.requests.pop_front();
        }
        self.requests.push_back(Request { wr_id, end });
    }

    /// The QP goes to the error state. A refused request may have been posted again and is then
    /// flushed, so its refusal is forgotten.
    fn caused(&mut self, cause: impl FnOnce() -> String) {
        if self.cause.is_none() {
            self.cause = Some(cause());
            self.requests.retain(|request| matches!(request.end, End::Failed(_)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::post_error::{PostCause, WorkQueue};

    #[test]
    fn only_the_last_requests_are_remembered() {
        let mut known = KnownReason::default();
        let refused = PostError { queue: WorkQueue::Send(1), cause: PostCause::NoAddress };
        let end = |wr_id| if wr_id % 2 == 0 { End::Refused(refused) } else { End::Failed(String::new()) };
        (0..1000).for_each(|wr_id| known.remember(wr_id, end(wr_id)));
        assert_eq!(known.requests.len(), KEPT);
        assert_eq!(known.requests.back().map(|request| request.wr_id), Some(999));
        // A request that was refused before the error may have been posted again.
        known.caused(String::new);
        assert_eq!(known.requests.len(), KEPT / 2);
    }
}
