//! The checks of QP attributes that are legal but harmful on a lossy network, or with adapters that
//! follow the specification strictly.
//!
//! Not reported: rnr_retry 0 or 7, which programs choose deliberately; small MTUs; anything that
//! the agent refuses. Adds to [`Lint`].

use abi::qp::{ModifyQp, attr};
use protocol::{Fault, Service};

use super::Lint;
use super::finding::{Check, Finding};
use crate::qp::{Inner, Qp};

/// The largest packet sequence number.
const PSN: u32 = 0xff_ffff;

impl Lint {
    /// A QP was modified as `asked`, successfully.
    #[cold]
    pub(crate) fn modified(&self, qp: &Qp, asked: &ModifyQp) {
        let has = |bit: u32| asked.attr_mask & bit != 0;
        let qpn = qp.qpn();
        let mut findings = Vec::new();
        let mut found = |check, what: String| {
            findings.push(Finding::here(check, qpn, format!("ibv_modify_qp of QP {qpn:#x}: {what}")));
        };
        if matches!(qp.service, Service::Rc | Service::XrcIni) {
            if has(attr::TIMEOUT) && asked.timeout == 0 {
                found(Check::NoTimeout, "timeout 0 waits for ever for an answer that was lost".to_owned());
            }
            if has(attr::RETRY_CNT) && asked.retry_cnt == 0 {
                found(Check::NoRetry, "retry_cnt 0 ends the connection with the first packet that is lost".to_owned());
            }
        }
        for (name, bit, psn) in [("rq_psn", attr::RQ_PSN, asked.rq_psn), ("sq_psn", attr::SQ_PSN, asked.sq_psn)] {
            if has(bit) && psn > PSN {
                found(
                    Check::LongPsn,
                    format!("{name} {psn:#x} has more than 24 bits, of which the upper ones are lost"),
                );
            }
        }
        self.tell(findings);
    }

    /// This QP sends an RNR NAK, because it has no receive request.
    #[cold]
    pub(crate) fn not_ready(&self, qp: &Qp, inner: &Inner) {
        if inner.attributes.min_rnr_timer != 0 || !qp.service.is_reliable() {
            return;
        }
        let what = format!(
            "QP {:#x} had no receive request for a message, and its min_rnr_timer 0 tells the peer to wait for 655 ms",
            qp.qpn()
        );
        self.tell([Finding::nowhere(Check::SlowRnr, qp.qpn(), what)]);
    }

    /// A request of the peer was refused.
    #[cold]
    pub(crate) fn refused_peer(&self, qp: &Qp, fault: &Fault) {
        let Fault::TooManyReads { limit } = fault else { return };
        let what = format!(
            "QP {:#x} was asked for more READs and atomics at once than its max_dest_rd_atomic, which is {limit}: the peer's max_rd_atomic is larger",
            qp.qpn()
        );
        self.tell([Finding::nowhere(Check::ReadDepth, qp.qpn(), what)]);
    }
}
