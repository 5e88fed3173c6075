//! The hooks of the send queue, and the check that some send requests give completions. Adds to
//! [`Lint`].

use abi::post::{opcode, send_flags};
use protocol::{Service, State, Status};

use super::finding::{Check, Finding};
use super::shadow::{Posted, ShadowQp, Span, Work, spans};
use super::site::Site;
use super::{Lint, buffers, changed, completions, conduct, memory};
use crate::qp::{Inner, Qp};
use crate::send::SendWr;

impl Lint {
    /// A send request was posted to `slot`, or refused.
    #[cold]
    pub(crate) fn posted_send(&self, qp: &Qp, inner: &Inner, slot: u32, wr: &SendWr<'_>, taken: bool) {
        if !taken {
            self.tell(conduct::refused_send(qp, inner));
            return;
        }
        let engine = qp.engine();
        let work = work(wr);
        let touched = if work == Work::Nothing { &[][..] } else { wr.sges };
        let expected = qp.sq_sig_all || wr.send_flags & send_flags::SIGNALED != 0;
        let length = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let posted = Posted {
            slot,
            wr_id: qp.user_wr_id(wr.wr_id),
            work,
            sges: touched.to_vec(),
            spans: spans(&engine.keys.extents, touched),
            remote: has_remote(wr.opcode)
                .then(|| (wr.rkey, Span { start: wr.remote_addr, len: if work == Work::Atomic { 8 } else { length } })),
            expected,
            sum: if work == Work::Sends { changed::sum(engine, qp.pd, touched) } else { None },
            site: Site::capture(),
        };
        let size = qp.send_cq.as_ref().map(|cq| (cq.handle(), cq.entries()));
        let mut findings = Vec::new();
        {
            let shadow = &mut *self.shadow.lock();
            findings.extend(memory::stale_keys(shadow, engine, "ibv_post_send", qp.qpn(), touched));
            findings.extend(buffers::posted(shadow, qp, &posted, wr.send_flags & send_flags::FENCE != 0));
            let queue = shadow.queue(qp.qpn());
            if inner.state != State::Err {
                findings.extend(queue.receives.go_on());
            }
            findings.extend(conduct::posted_after_failure(queue, qp, inner));
            findings.extend(unsignaled(queue, qp, expected));
            queue.sends.push_back(posted);
            if expected {
                findings.extend(completions::expect_completion(shadow, "ibv_post_send", size));
            }
        }
        self.tell(findings);
    }

    /// The send request in `slot` is complete; `shown` says whether it has a completion.
    #[cold]
    pub(crate) fn send_over(&self, qp: &Qp, slot: u32, status: Status, shown: bool) {
        let posted = {
            let shadow = &mut *self.shadow.lock();
            let sends = &mut shadow.queue(qp.qpn()).sends;
            let Some(at) = sends.iter().position(|posted| posted.slot == slot) else { return };
            let posted = sends.remove(at);
            // An unrequested completion: the request failed.
            if shown
                && posted.as_ref().is_some_and(|posted| !posted.expected)
                && let Some(cq) = &qp.send_cq
            {
                shadow.cq(cq.handle()).expected += 1;
            }
            posted
        };
        if status == Status::Success
            && let Some(posted) = posted
        {
            self.tell(changed::compare(qp, posted));
        }
    }

    /// The QP is reset or destroyed: it has no outstanding requests any more. [`Lint::purged`]
    /// handles its completions in CQs.
    #[cold]
    pub(crate) fn emptied(&self, qp: &Qp) {
        let shadow = &mut *self.shadow.lock();
        let Some(queue) = shadow.queues.remove(&qp.qpn()) else { return };
        let sends = queue.sends.iter().filter(|posted| posted.expected).count();
        if let Some(cq) = &qp.send_cq {
            shadow.cq(cq.handle()).expected -= sends as i64;
        }
        if let Some(cq) = &qp.recv_cq {
            shadow.cq(cq.handle()).expected -= (queue.receives.waiting.len() + queue.arrived.len()) as i64;
        }
        queue.arrived.into_iter().for_each(|message| shadow.seen(message));
    }
}

fn work(wr: &SendWr<'_>) -> Work {
    match wr.opcode {
        _ if wr.send_flags & send_flags::INLINE != 0 => Work::Nothing,
        opcode::RDMA_WRITE
        | opcode::RDMA_WRITE_WITH_IMM
        | opcode::SEND
        | opcode::SEND_WITH_IMM
        | opcode::SEND_WITH_INV => Work::Sends,
        opcode::RDMA_READ => Work::Reads,
        opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD => Work::Atomic,
        _ => Work::Nothing,
    }
}

fn has_remote(number: u32) -> bool {
    matches!(
        number,
        opcode::RDMA_WRITE
            | opcode::RDMA_WRITE_WITH_IMM
            | opcode::RDMA_READ
            | opcode::ATOMIC_CMP_AND_SWP
            | opcode::ATOMIC_FETCH_AND_ADD
    )
}

/// A queue that is full of requests without completions stays full, because no completion reports
/// its progress.
fn unsignaled(queue: &mut ShadowQp, qp: &Qp, signaled: bool) -> Option<Finding> {
    queue.unsignaled = if signaled { 0 } else { queue.unsignaled + 1 };
    let depth = qp.caps.max_send_wr;
    (queue.unsignaled == depth && qp.service != Service::XrcTgt).then(|| {
        let what = format!(
            "ibv_post_send on QP {:#x}: {depth} requests in a row without IBV_SEND_SIGNALED fill its send queue, and no completion will ever say that there is room",
            qp.qpn()
        );
        Finding::here(Check::UnsignaledQueue, qp.qpn(), what)
    })
}
