//! The hooks of CQs, and the check that a CQ can hold all completions that may come.
//!
//! A CQ may be smaller than the queues on it, because a program may know how much it has
//! outstanding. The check counts what is outstanding: signaled sends, receive requests of the QPs'
//! own queues, and completions that the program has not polled. Adds to [`Lint`].

use abi::cq::{Wc, opcode};

use super::Lint;
use super::finding::{Check, Finding};
use super::shadow::Shadow;
use protocol::Status;

/// Counts one more completion that may come to a CQ, given by handle and size.
pub(super) fn expect_completion(shadow: &mut Shadow, call: &str, cq: Option<(u32, u32)>) -> Option<Finding> {
    let (handle, size) = cq?;
    let cq_shadow = shadow.cq(handle);
    cq_shadow.expected += 1;
    let expected = cq_shadow.expected;
    (expected > i64::from(size)).then(|| {
        let what = format!(
            "{call}: CQ {handle} has {size} entries, and {expected} requests and completions of its queues are outstanding"
        );
        Finding::here(Check::SmallCq, handle, what)
    })
}

impl Lint {
    /// A completion was added to a CQ.
    #[cold]
    pub(crate) fn came(&self, cq: u32, wc: &Wc) {
        let shadow = &mut *self.shadow.lock();
        let is_receive = wc.opcode & opcode::RECV != 0;
        let queue = shadow.queues.get_mut(&wc.qp_num).filter(|_| is_receive);
        let message = queue.and_then(|queue| queue.arrived.pop_front()).flatten();
        shadow.cq(cq).shown.push_back((wc.qp_num, message));
    }

    /// The program has polled the oldest completion of a CQ.
    #[cold]
    pub(crate) fn polled(&self, cq: u32, wc: &Wc) {
        let shadow = &mut *self.shadow.lock();
        let cq_shadow = shadow.cq(cq);
        cq_shadow.expected -= 1;
        if let Some((_, message)) = cq_shadow.shown.pop_front() {
            shadow.seen(message);
        }
        let failed = wc.status != Status::Success.as_u32() && wc.status != Status::WrFlushErr.as_u32();
        if failed && let Some(queue) = shadow.queues.get_mut(&wc.qp_num) {
            queue.failed = true;
        }
    }

    /// The completions of one QP were removed from a CQ.
    #[cold]
    pub(crate) fn purged(&self, cq: u32, qpn: u32) {
        let shadow = &mut *self.shadow.lock();
        let cq_shadow = shadow.cq(cq);
        let (gone, stay): (Vec<_>, Vec<_>) = cq_shadow.shown.drain(..).partition(|(of, _)| *of == qpn);
        cq_shadow.shown = stay.into();
        cq_shadow.expected -= gone.len() as i64;
        gone.into_iter().for_each(|(_, message)| shadow.seen(message));
    }

    /// A CQ was destroyed.
    #[cold]
    pub(crate) fn forgotten(&self, cq: u32) {
        self.shadow.lock().cqs.remove(&cq);
    }
}
