//! What becomes of completions: the hooks of CQs, and the check that a CQ holds what may come.
//!
//! A CQ may be smaller than the queues on it, for a program may know how much it has outstanding. What counts is how much is: signaled
//! sends, receive requests of the QPs' own queues, and completions that wait to be polled.

use abi::cq::{Wc, opcode};

use super::Lint;
use super::finding::{Check, Finding};
use super::ledger::Ledger;
use protocol::Status;

/// One completion more may come to a CQ, which is named by handle and size.
pub(super) fn owes(ledger: &mut Ledger, call: &str, cq: Option<(u32, u32)>) -> Option<Finding> {
    let (handle, size) = cq?;
    let owing = ledger.cq(handle);
    owing.owed += 1;
    let owed = owing.owed;
    (owed > i64::from(size)).then(|| {
        let what = format!(
            "{call}: CQ {handle} has {size} entries, and {owed} requests and completions of its queues are outstanding"
        );
        Finding::here(Check::SmallCq, handle, what)
    })
}

impl Lint {
    /// A completion came to a CQ.
    #[cold]
    pub(crate) fn came(&self, cq: u32, wc: &Wc) {
        let ledger = &mut *self.ledger.lock();
        let is_receive = wc.opcode & opcode::RECV != 0;
        let queue = ledger.queues.get_mut(&wc.qp_num).filter(|_| is_receive);
        let message = queue.and_then(|queue| queue.arrived.pop_front()).flatten();
        ledger.cq(cq).shown.push_back((wc.qp_num, message));
    }

    /// The program has polled the oldest completion of a CQ.
    #[cold]
    pub(crate) fn polled(&self, cq: u32, wc: &Wc) {
        let ledger = &mut *self.ledger.lock();
        let owing = ledger.cq(cq);
        owing.owed -= 1;
        if let Some((_, message)) = owing.shown.pop_front() {
            ledger.seen(message);
        }
        let failed = wc.status != Status::Success.as_u32() && wc.status != Status::WrFlushErr.as_u32();
        if failed && let Some(queue) = ledger.queues.get_mut(&wc.qp_num) {
            queue.failed = true;
        }
    }

    /// The completions of one QP were taken out of a CQ.
    #[cold]
    pub(crate) fn purged(&self, cq: u32, qpn: u32) {
        let ledger = &mut *self.ledger.lock();
        let owing = ledger.cq(cq);
        let (gone, stay): (Vec<_>, Vec<_>) = owing.shown.drain(..).partition(|(of, _)| *of == qpn);
        owing.shown = stay.into();
        owing.owed -= gone.len() as i64;
        gone.into_iter().for_each(|(_, message)| ledger.seen(message));
    }

    /// A CQ was destroyed.
    #[cold]
    pub(crate) fn forgotten(&self, cq: u32) {
        self.ledger.lock().cqs.remove(&cq);
    }
}
