//! The hooks of receive queues, and the checks of their buffers.
//!
//! Receive requests may share bytes: many programs post requests that never get a message. The
//! check reports a message that overwrites another one whose completion the program has not polled.
//! Adds to [`Lint`].

use protocol::{Service, State, Status};

use super::finding::{Check, Finding};
use super::shadow::{Awaiting, Landed, common, first, spans};
use super::{Lint, completions, conduct, memory};
use crate::core::Core;
use crate::qp::{Inner, Qp, Receive, RecvWr};

/// The bytes before each datagram in the buffer.
const GRH: u64 = 40;
/// The check compares with this many waiting messages, the newest first.
const LOOKED_AT: usize = 1024;

fn awaiting(wr_id: u64, wr: &RecvWr<'_>) -> Awaiting {
    Awaiting { wr_id, keys: wr.sges.iter().filter(|sge| sge.length > 0).map(|sge| sge.lkey).collect() }
}

impl Lint {
    /// A receive request was posted to a QP's own queue.
    #[cold]
    pub(crate) fn posted_receive(&self, qp: &Qp, inner: &Inner, wr: &RecvWr<'_>) {
        let size = qp.recv_cq.as_ref().map(|cq| (cq.handle(), cq.entries()));
        let wr_id = qp.user_wr_id(wr.wr_id);
        let awaiting = awaiting(wr_id, wr);
        let mut findings = Vec::new();
        let length: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if qp.service == Service::Ud && length < GRH {
            findings.push(short(qp.qpn(), wr_id, length, true));
        }
        {
            let shadow = &mut *self.shadow.lock();
            findings.extend(memory::stale_keys(shadow, qp.engine(), "ibv_post_recv", qp.qpn(), wr.sges));
            let receives = &mut shadow.queue(qp.qpn()).receives;
            if inner.state != State::Err {
                findings.extend(receives.go_on());
            }
            receives.waiting.push_back(awaiting);
            findings.extend(completions::expect_completion(shadow, "ibv_post_recv", size));
        }
        self.tell(findings);
    }

    /// A receive request was refused because the QP is in RESET.
    #[cold]
    pub(crate) fn refused_receive(&self, qp: &Qp, inner: &Inner) {
        self.tell(conduct::refused_receive(qp, inner));
    }

    /// A receive request was posted to an SRQ.
    #[cold]
    pub(crate) fn posted_shared(&self, core: &Core, srq: u32, wr: &RecvWr<'_>) {
        let awaiting = awaiting(wr.wr_id, wr);
        let findings = {
            let shadow = &mut *self.shadow.lock();
            let mut findings = memory::stale_keys(shadow, core, "ibv_post_srq_recv", srq, wr.sges);
            let receives = shadow.shared.entry(srq).or_default();
            findings.extend(receives.go_on());
            receives.waiting.push_back(awaiting);
            findings
        };
        self.tell(findings);
    }

    /// The oldest request of an SRQ was taken.
    #[cold]
    pub(crate) fn taken(&self, srq: u32) {
        let finding = self.shadow.lock().shared.get_mut(&srq).and_then(|receives| receives.take(false));
        self.tell(finding);
    }

    /// An SRQ was destroyed.
    #[cold]
    pub(crate) fn emptied_shared(&self, srq: u32) {
        self.shadow.lock().shared.remove(&srq);
    }

    /// A receive request is complete, with `bytes` of a message in its buffer.
    #[cold]
    pub(crate) fn receive_over(&self, qp: &Qp, inner: &Inner, receive: &Receive, bytes: u32, status: Status) {
        let list = match receive.index {
            Some(index) => {
                let count = receive.num_sge as usize;
                inner.queues.rq.elements(index, count).collect()
            }
            None => inner.incoming.shared.clone(),
        };
        let spans = first(&spans(&qp.engine().keys.extents, &list), u64::from(bytes));
        let wr_id = qp.user_wr_id(receive.wr_id);
        let mut findings = Vec::new();
        if receive.index.is_none() && qp.service == Service::Ud && u64::from(receive.length) < GRH {
            findings.push(short(qp.qpn(), wr_id, receive.length.into(), false));
        }
        {
            let shadow = &mut *self.shadow.lock();
            if receive.index.is_some() {
                findings.extend(shadow.queue(qp.qpn()).receives.take(status == Status::WrFlushErr));
            } else {
                // An SRQ belongs to no CQ. Which CQ gets the completion is known only now.
                let named = inner.xrc.named.as_ref().and_then(|srq| srq.xrc.as_ref()).map(|member| &member.cq);
                if let Some(cq) = qp.recv_cq.as_ref().or(named) {
                    shadow.cq(cq.handle()).expected += 1;
                }
            }
            let message = if status == Status::Success && !spans.is_empty() {
                let over = shadow.landed.iter().rev().take(LOOKED_AT).find(|old| common(&spans, &old.spans).is_some());
                if over.is_none() && shadow.landed.len() > LOOKED_AT {
                    self.report.miss("more than 1024 messages arrived whose completions were not polled");
                }
                findings.extend(over.map(|old| overwritten(qp.qpn(), wr_id, bytes, old)));
                shadow.messages += 1;
                let number = shadow.messages;
                shadow.landed.push_back(Landed { number, qpn: qp.qpn(), wr_id, spans });
                Some(number)
            } else {
                None
            };
            shadow.queue(qp.qpn()).arrived.push_back(message);
        }
        self.tell(findings);
    }
}

fn short(qpn: u32, wr_id: u64, length: u64, now: bool) -> Finding {
    let call = if now { "ibv_post_recv" } else { "ibv_post_srq_recv" };
    let what = format!(
        "{call} for UD QP {qpn:#x}, wr_id {wr_id:#x}: a buffer of {length} bytes, and each datagram brings {GRH} before its own"
    );
    if now { Finding::here(Check::ShortDatagram, qpn, what) } else { Finding::nowhere(Check::ShortDatagram, qpn, what) }
}

fn overwritten(qpn: u32, wr_id: u64, bytes: u32, old: &Landed) -> Finding {
    let what = format!(
        "ibv_post_recv on QP {qpn:#x}, wr_id {wr_id:#x}: a message of {bytes} bytes came to where that of wr_id {:#x} on QP {:#x} lies, whose completion was not polled yet",
        old.wr_id, old.qpn
    );
    Finding::nowhere(Check::OverwrittenMessage, qpn, what)
}
