//! Why the requests of one QP failed: what a program asks for with a request's name when it has got its completion.
//!
//! A QP that nothing has failed on has a null pointer here. One that has keeps the first cause for which it went to the error state,
//! which is why everything behind it was flushed, and the sentences of its last requests that failed for a reason of their own.
//! Principal method: [`Qp::why`].

use std::collections::VecDeque;
use std::fmt;

use abi::errno::Errno;
use parking_lot::Mutex;
use protocol::Status;

use crate::engine::Engine;
use crate::qp::{Inner, Qp, Route};
use crate::reason::{Kind, Note, note};

/// How many requests with sentences of their own one QP remembers.
const KEPT: usize = 32;

/// What one QP remembers, from the first failure on.
#[derive(Default)]
pub(crate) struct Why(Mutex<Option<Box<Known>>>);

#[derive(Default)]
struct Known {
    /// Why it went to the error state.
    cause: Option<String>,
    requests: VecDeque<Request>,
}

struct Request {
    wr_id: u64,
    sentence: String,
    /// It was not posted: what has the name later is another one.
    refused: bool,
}

impl Known {
    fn remember(&mut self, wr_id: u64, sentence: String, refused: bool) {
        if self.requests.len() == KEPT {
            self.requests.pop_front();
        }
        self.requests.push_back(Request { wr_id, sentence, refused });
    }

    /// The QP goes to the error state. What was refused before has been posted again, and is flushed, maybe.
    fn caused(&mut self, cause: impl FnOnce() -> String) {
        if self.cause.is_none() {
            self.cause = Some(cause());
            self.requests.retain(|request| !request.refused);
        }
    }
}

impl Qp {
    /// Notes that a request ended with an error of its own, and remembers it. The first one is why its QP is in error.
    #[cold]
    pub(crate) fn failed(&self, wr_id: u64, status: Status, why: &dyn fmt::Display) {
        let mut sentence = format!("{status}: {why}");
        if let Some(advice) = advice(status) {
            sentence += "; ";
            sentence += advice;
        }
        let about = Note {
            qpn: self.qpn(),
            wr_id: Some(wr_id),
            status: status.as_u32(),
            ..self.engine().reasons.note(Kind::Failed)
        };
        note(about, format_args!("QP {:#x}, wr_id {wr_id:#x}: {sentence}", self.qpn()));
        let mut known = self.why.0.lock();
        let known = known.get_or_insert_default();
        known.caused(|| format!("wr_id {wr_id:#x} failed: {status}: {why}"));
        known.remember(wr_id, sentence, false);
    }

    /// Notes that a request was not taken, and remembers it; gives the errno.
    #[cold]
    pub(crate) fn refused(&self, errno: Errno, wr_id: u64, call: &str, why: &str) -> Errno {
        let about = Note { qpn: self.qpn(), wr_id: Some(wr_id), ..self.engine().reasons.note(Kind::Refused) };
        note(about, format_args!("{call} on QP {:#x}: {why}", self.qpn()));
        let sentence = format!("{call}: {why} ({errno})");
        self.why.0.lock().get_or_insert_default().remember(wr_id, sentence, true);
        errno
    }

    /// Notes what happened to the QP, and remembers it as why it is in error, unless there was something before.
    #[cold]
    pub(crate) fn happened(&self, what: fmt::Arguments<'_>) {
        self.note(what);
        self.caused(format_args!("it {what}"));
    }

    /// Notes what happened to the QP.
    #[cold]
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        let about = Note { qpn: self.qpn(), ..self.engine().reasons.note(Kind::Noted) };
        note(about, format_args!("QP {:#x} {what}", self.qpn()));
    }

    /// Remembers why the QP is in error, unless there was something before.
    #[cold]
    fn caused(&self, what: fmt::Arguments<'_>) {
        self.why.0.lock().get_or_insert_default().caused(|| what.to_string());
    }

    /// The QP is about to go to the error state, for `cause` unless there was something before: remembers it, and says what is flushed.
    #[cold]
    pub(crate) fn flushes(&self, inner: &Inner, cause: fmt::Arguments<'_>) {
        self.caused(cause);
        self.says_flushed(inner.requester.outstanding(), self.receives_left(inner));
    }

    /// Says how many requests are given back now that the QP goes to the error state, and why: once, as there may be thousands.
    #[cold]
    pub(crate) fn says_flushed(&self, sends: u32, receives: u32) {
        if sends == 0 && receives == 0 {
            return;
        }
        let cause = self.cause().unwrap_or_else(|| "unknown".into());
        let status = Status::WrFlushErr.as_u32();
        let about = Note { qpn: self.qpn(), status, ..self.engine().reasons.note(Kind::Flushed) };
        note(
            about,
            format_args!(
                "QP {:#x}: {sends} send and {receives} receive requests are flushed, for the QP went to the error state: {cause}",
                self.qpn()
            ),
        );
    }

    /// Why the QP is in error, if it is.
    #[must_use]
    pub fn cause(&self) -> Option<String> {
        self.why.0.lock().as_ref()?.cause.clone()
    }

    /// Why a request of this QP failed, or was refused: the sentence that belongs to the last one of that name. One that was flushed is
    /// explained by what brought the QP to the error state first. `None` if nothing has failed here.
    #[must_use]
    pub fn why(&self, wr_id: u64) -> Option<String> {
        let known = self.why.0.lock();
        let known = known.as_ref()?;
        let own = known.requests.iter().rev().find(|request| request.wr_id == wr_id);
        let sentence = own.map(|own| own.sentence.clone()).or_else(|| {
            let cause = known.cause.as_ref()?;
            Some(format!("flushed: not carried out, for the QP went to the error state: {cause}"))
        })?;
        Some(format!("QP {:#x}, wr_id {wr_id:#x}: {sentence}", self.qpn()))
    }

    /// The QP has left the error state.
    pub(crate) fn recovered(&self) {
        if let Some(known) = &mut *self.why.0.lock() {
            known.cause = None;
        }
    }

    /// The QP begins anew.
    pub(crate) fn forget_why(&self) {
        *self.why.0.lock() = None;
    }

    /// Where the peer is, for a sentence.
    pub(crate) fn peer_in_words(&self, inner: &Inner) -> String {
        match &inner.route {
            Route::Lane(lane) => format!(" (peer: process {} on this host)", lane.pid),
            Route::Wire(flow) => format!(" (peer: {})", flow.target.to.ip()),
            Route::Unknown | Route::Opening(_) => {
                format!(" (peer: {})", crate::network::address(inner.attributes.dest.dgid))
            }
        }
    }
}

impl Engine {
    /// Why a request of a QP failed: see [`Qp::why`].
    #[must_use]
    pub fn why(&self, qpn: u32, wr_id: u64) -> Option<String> {
        self.qps.find(qpn)?.why(wr_id)
    }
}

/// What a program can do about a status.
fn advice(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::LocLenErr => "post receive buffers as long as the longest message",
        Status::LocQpOpErr => {
            "the operation or its length is not possible on this QP: see its type, attributes and sizes"
        }
        Status::LocProtErr => {
            "check lkey, address and length, that the region is registered on the QP's PD, and its access flags"
        }
        Status::MwBindErr => "check the window, its region and the region's MW_BIND right",
        Status::LocAccessErr => "is the memory still mapped and writable?",
        Status::RemInvReqErr => {
            "the peer's receive buffer is too short for it, or the peer's QP does not serve the operation; the peer's reasons say which"
        }
        Status::RemAccessErr => {
            "check rkey, address and length, and the remote rights of the peer's region and QP; the peer's reasons say which"
        }
        Status::RemOpErr => "the peer could not carry it out; the peer's reasons say why",
        Status::RetryExcErr => "does the peer's program still run, with its QP in RTR, at this address?",
        Status::RnrRetryExcErr => "the peer has to post receive requests in time; rnr_retry 7 waits for ever",
        Status::BadRespErr => "are both sides of one build?",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SUCCESS needs no advice and WR_FLUSH_ERR has its QP's cause; no engine gives the others.
    const NOT_GIVEN: [&str; 13] = [
        "SUCCESS",
        "LOC_EEC_OP_ERR",
        "WR_FLUSH_ERR",
        "LOC_RDD_VIOL_ERR",
        "REM_INV_RD_REQ_ERR",
        "REM_ABORT_ERR",
        "INV_EECN_ERR",
        "INV_EEC_STATE_ERR",
        "FATAL_ERR",
        "RESP_TIMEOUT_ERR",
        "GENERAL_ERR",
        "TM_ERR",
        "TM_RNDV_INCOMPLETE",
    ];

    /// Each status that a completion may have says what to do.
    #[test]
    fn every_status_that_an_engine_gives_has_advice() {
        let given = [
            Status::LocLenErr,
            Status::LocQpOpErr,
            Status::LocProtErr,
            Status::MwBindErr,
            Status::BadRespErr,
            Status::LocAccessErr,
            Status::RemInvReqErr,
            Status::RemAccessErr,
            Status::RemOpErr,
            Status::RetryExcErr,
            Status::RnrRetryExcErr,
        ];
        for status in given {
            assert!(advice(status).is_some_and(|advice| advice.len() > 10), "{status}");
        }
        // All others are of services that there are not, or explained by what came first.
        let other = |number: u64| !given.iter().any(|status| u64::from(status.as_u32()) == number);
        let names = abi::cq::status::ALL.iter().filter(|known| other(known.value)).map(|known| known.name);
        let left: Vec<&str> = names.collect();
        assert_eq!(left, NOT_GIVEN);
    }

    #[test]
    fn only_the_last_requests_are_remembered() {
        let mut known = Known::default();
        (0..1000).for_each(|wr_id| known.remember(wr_id, String::new(), wr_id % 2 == 0));
        assert_eq!(known.requests.len(), KEPT);
        assert_eq!(known.requests.back().map(|request| request.wr_id), Some(999));
        // What was refused before the error may have been posted again.
        known.caused(String::new);
        assert_eq!(known.requests.len(), KEPT / 2);
    }
}
