//! Checks of calls against the QP's state: requests that the state does not allow, and repeated
//! requests after a failure.

use protocol::State;

use super::finding::{Check, Finding};
use super::shadow::ShadowQp;
use crate::qp::{Inner, Qp};

/// A program that posts this many sends after a failure ignores the status of completions. A
/// program that only had sends under way posts fewer.
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

/// A request to a QP in error fails at once. A program that has polled the failed completion knows
/// this.
pub(super) fn posted_after_failure(queue: &mut ShadowQp, qp: &Qp, inner: &Inner) -> Option<Finding> {
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
