//! The checks of what a program does in which state: requests that no state takes, and requests again and again after a failure.

use protocol::State;

use super::finding::{Check, Finding};
use super::shadow::Queue;
use crate::qp::{Inner, Qp};

/// So many sends are posted by programs that do not look at the status of completions, and not by those that have some under way.
const AGAIN: u32 = 16;

pub(super) fn refused_send(qp: &Qp, inner: &Inner) -> Option<Finding> {
    (!inner.is_dead() && !inner.state.takes_sends()).then(|| wrong_state(qp, inner, "ibv_post_send"))
}

pub(super) fn refused_receive(qp: &Qp, inner: &Inner) -> Option<Finding> {
    (!inner.is_dead() && inner.state == State::Reset).then(|| wrong_state(qp, inner, "ibv_post_recv"))
}

fn wrong_state(qp: &Qp, inner: &Inner, call: &str) -> Finding {
    let what = format!("{call} on QP {:#x}: refused, for the QP is in state {:?}", qp.qpn(), inner.state);
    Finding::here(Check::WrongState, qp.qpn(), what)
}

/// A request that is posted to a QP in error ends at once; whoever has polled why, knows that.
pub(super) fn posted_after_failure(queue: &mut Queue, qp: &Qp, inner: &Inner) -> Option<Finding> {
    if !queue.failed || inner.state != State::Err {
        return None;
    }
    queue.since += 1;
    (queue.since == AGAIN).then(|| {
        let what = format!(
            "ibv_post_send on QP {:#x}: {AGAIN} sends were posted after the program polled a completion with an error, and the QP is in the error state",
            qp.qpn()
        );
        Finding::here(Check::IgnoredError, qp.qpn(), what)
    })
}
