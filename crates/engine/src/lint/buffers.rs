//! The checks of READs and atomics against the requests posted around them, by the bytes that they
//! use on both sides.
//!
//! Everything that one QP sends before a READ reaches the peer before the READ's response comes. So
//! only the other order needs a fence. Overlapping responses of at most eight bytes are not
//! reported: many programs use one dummy buffer for responses that they ignore. Principal function:
//! [`posted`].

use super::finding::{Check, Finding};
use super::shadow::{Posted, Shadow, Span, Work, common};
use crate::qp::Qp;

/// The longest response that may go to a dummy buffer.
const DUMMY: u64 = 8;

/// The mistakes of `new`, before it is added.
pub(super) fn posted(shadow: &Shadow, qp: &Qp, new: &Posted, fenced: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(local(shadow, qp, new, fenced));
    if !fenced {
        findings.extend(remote(shadow, qp, new));
    }
    findings
}

fn brings(work: Work) -> bool {
    matches!(work, Work::Reads | Work::Atomic)
}

fn is_dummy(spans: &[Span]) -> bool {
    spans.iter().map(|span| span.len).sum::<u64>() <= DUMMY
}

fn local(shadow: &Shadow, qp: &Qp, new: &Posted, fenced: bool) -> Option<Finding> {
    if new.work == Work::Nothing {
        return None;
    }
    for (qpn, queue) in &shadow.queues {
        let same = *qpn == qp.qpn();
        for old in &queue.sends {
            let harm = match (brings(old.work), brings(new.work)) {
                (true, true) => !(is_dummy(&old.spans) && is_dummy(&new.spans)),
                (true, false) => !(same && fenced),
                (false, true) => old.work == Work::Sends && !same,
                (false, false) => false,
            };
            let Some(span) = common(&new.spans, &old.spans).filter(|_| harm) else { continue };
            let (check, how) = match (brings(old.work), brings(new.work)) {
                (true, true) => (Check::BusyBuffer, "brings bytes to where the READ"),
                (true, false) => (Check::MissingFence, "sends bytes that are still to be brought by the READ"),
                _ => (Check::BusyBuffer, "brings bytes to where the send"),
            };
            let what = format!(
                "ibv_post_send on QP {:#x}, wr_id {:#x}: it {how} with wr_id {:#x} of QP {qpn:#x}{} ({} bytes at {:#x})",
                qp.qpn(),
                new.wr_id,
                old.wr_id,
                if check == Check::BusyBuffer { " is at work" } else { "" },
                span.len,
                span.start
            );
            return Some(Finding::here(check, qp.qpn(), what));
        }
    }
    None
}

/// The responder may carry out an earlier READ or atomic of the same QP again, or later than `new`,
/// unless something orders them.
fn remote(shadow: &Shadow, qp: &Qp, new: &Posted) -> Option<Finding> {
    let (key, span) = new.remote?;
    let inline_write = new.work == Work::Nothing;
    if !(inline_write || matches!(new.work, Work::Sends | Work::Atomic)) {
        return None;
    }
    let before = shadow.queues.get(&qp.qpn())?;
    let harms = |old: &&Posted| {
        // Two atomics in a row are in order: most such words are used by atomics only.
        let ordered = old.work == Work::Atomic && new.work == Work::Atomic;
        brings(old.work) && !ordered && old.remote.is_some_and(|(old, bytes)| old == key && bytes.overlaps(span))
    };
    let old = before.sends.iter().find(harms)?;
    let what = format!(
        "ibv_post_send on QP {:#x}, wr_id {:#x}: it changes {} bytes at {:#x} of the peer that the {} with wr_id {:#x} is still to fetch",
        qp.qpn(),
        new.wr_id,
        span.len,
        span.start,
        if old.work == Work::Atomic { "atomic" } else { "READ" },
        old.wr_id
    );
    Some(Finding::here(Check::MissingRemoteFence, qp.qpn(), what))
}
