//! Records why requests of a QP fail, and answers a program that asks. Adds to [`Qp`] and
//! [`Engine`].

use std::fmt;

use protocol::Status;

use super::{End, Names};
use crate::engine::Engine;
use crate::post_error::{Brief, PostCause, PostError, WorkQueue};
use crate::qp::{Inner, Qp, Route};
use crate::reason::{Note, ReasonKind, note};

impl Qp {
    /// Makes sentences name requests by the numbers of their user, for a caller that posts them
    /// with its own numbers. The first call counts. `names` is called under the locks of the QP: it
    /// must not call the engine.
    pub fn name_requests(&self, names: Names) {
        let _ = self.why.1.set(names);
    }

    /// The number by which the user knows a request.
    pub(crate) fn user_wr_id(&self, wr_id: u64) -> u64 {
        self.why.1.get().and_then(|names| names(wr_id)).unwrap_or(wr_id)
    }

    /// Notes and remembers that a request ended with its own error. The first such error is why its
    /// QP is in error. The caller gives the advice, because one status has several causes.
    #[cold]
    pub(crate) fn failed(&self, wr_id: u64, status: Status, why: &dyn fmt::Display, advice: Option<&str>) {
        let mut sentence = format!("{status}: {why}");
        if let Some(advice) = advice {
            sentence += "; ";
            sentence += advice;
        }
        let shown = self.user_wr_id(wr_id);
        let about = Note {
            qpn: self.qpn(),
            wr_id: Some(shown),
            status: status.as_u32(),
            ..self.engine().reasons.note(ReasonKind::Failed)
        };
        note(about, format_args!("QP {:#x}, wr_id {shown:#x}: {sentence}", self.qpn()));
        let mut known = self.why.0.lock();
        let known = known.get_or_insert_default();
        known.caused(|| format!("wr_id {shown:#x} failed: {status}: {why}"));
        known.remember(wr_id, End::Failed(sentence));
    }

    /// Notes and remembers that the send queue refused a request.
    #[cold]
    pub(crate) fn refused_send(&self, wr_id: u64, cause: PostCause) -> PostError {
        self.refused(wr_id, PostError { queue: WorkQueue::Send(self.qpn()), cause })
    }

    /// Notes and remembers that the receive queue refused a request.
    #[cold]
    pub(crate) fn refused_receive(&self, wr_id: u64, cause: PostCause) -> PostError {
        self.refused(wr_id, PostError { queue: WorkQueue::Receive(self.qpn()), cause })
    }

    fn refused(&self, wr_id: u64, error: PostError) -> PostError {
        // Many programs post until the queue is full, and poll then. So a full queue is no refusal.
        let kind = if error.is_full() { ReasonKind::Noted } else { ReasonKind::Refused };
        let shown = Some(self.user_wr_id(wr_id));
        let about = Note { qpn: self.qpn(), wr_id: shown, ..self.engine().reasons.note(kind) };
        note(about, format_args!("{error}"));
        self.why.0.lock().get_or_insert_default().remember(wr_id, End::Refused(error));
        error
    }

    /// Notes an event of the QP, which the program also gets as an async event. The event becomes
    /// the cause of the error state, unless there is an earlier cause.
    #[cold]
    pub(crate) fn happened(&self, what: fmt::Arguments<'_>) {
        self.note_as(ReasonKind::Event, what);
        self.caused(format_args!("it {what}"));
    }

    /// Notes a fact about the QP.
    #[cold]
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.note_as(ReasonKind::Noted, what);
    }

    fn note_as(&self, kind: ReasonKind, what: fmt::Arguments<'_>) {
        let about = Note { qpn: self.qpn(), ..self.engine().reasons.note(kind) };
        note(about, format_args!("QP {:#x} {what}", self.qpn()));
    }

    /// Remembers why the QP is in error, unless there is an earlier cause.
    #[cold]
    fn caused(&self, what: fmt::Arguments<'_>) {
        self.why.0.lock().get_or_insert_default().caused(|| what.to_string());
    }

    /// The QP is about to go to the error state. Remembers `cause`, unless there is an earlier
    /// cause, and notes how many requests are flushed.
    #[cold]
    pub(crate) fn flushes(&self, inner: &Inner, cause: fmt::Arguments<'_>) {
        self.caused(cause);
        self.says_flushed(inner.requester.outstanding(), self.receives_left(inner));
    }

    /// Notes how many requests are flushed because the QP goes to the error state, and why. One
    /// note for all, because there may be thousands.
    #[cold]
    pub(crate) fn says_flushed(&self, sends: u32, receives: u32) {
        if sends == 0 && receives == 0 {
            return;
        }
        let cause = self.cause().unwrap_or_else(|| "unknown".into());
        let status = Status::WrFlushErr.as_u32();
        let about = Note { qpn: self.qpn(), status, ..self.engine().reasons.note(ReasonKind::Flushed) };
        note(
            about,
            format_args!(
                "QP {:#x}: {sends} send and {receives} receive requests are flushed, because the QP entered the error state: {cause}",
                self.qpn()
            ),
        );
    }

    /// Why the QP is in error, if it is.
    #[must_use]
    pub fn cause(&self) -> Option<String> {
        self.why.0.lock().as_ref()?.cause.clone()
    }

    /// Why a request of this QP failed or was refused: the sentence of the last request with this
    /// `wr_id`. A flushed request is explained by the first cause of the error state. `None` if
    /// nothing has failed here.
    #[must_use]
    pub fn why(&self, wr_id: u64) -> Option<String> {
        let sentence = self.explanation(wr_id)?;
        Some(format!("QP {:#x}, wr_id {:#x}: {sentence}", self.qpn(), self.user_wr_id(wr_id)))
    }

    /// As [`Qp::why`], without the names of QP and request.
    fn explanation(&self, wr_id: u64) -> Option<String> {
        let known = self.why.0.lock();
        let known = known.as_ref()?;
        let own = known.requests.iter().rev().find(|request| request.wr_id == wr_id);
        match own.map(|own| &own.end) {
            Some(End::Failed(sentence)) => Some(sentence.clone()),
            Some(End::Refused(error)) => Some(format!("{} ({})", Brief(*error), error.errno())),
            None => {
                let cause = known.cause.as_ref()?;
                Some(format!("flushed without execution, because the QP entered the error state: {cause}"))
            }
        }
    }

    /// The QP has left the error state.
    pub(crate) fn recovered(&self) {
        if let Some(known) = &mut *self.why.0.lock() {
            known.cause = None;
        }
    }

    /// The QP is reset.
    pub(crate) fn forget_why(&self) {
        *self.why.0.lock() = None;
    }

    /// The peer's location, for a sentence.
    pub(crate) fn peer_in_words(&self, inner: &Inner) -> String {
        match &inner.link.route {
            Route::Lane(lane) => format!(" (peer: process {} on this host)", lane.pid),
            Route::Wire(flow) => format!(" (peer: {})", flow.target.to.ip()),
            Route::Unknown | Route::Opening(_) if inner.attributes.dest.dgid != [0; 16] => {
                format!(" (peer: {})", crate::network::address(inner.attributes.dest.dgid))
            }
            // Addressed by LID, for which no address is known here.
            Route::Unknown | Route::Opening(_) if inner.attributes.dest.dlid != 0 => {
                format!(" (peer: LID {})", inner.attributes.dest.dlid)
            }
            Route::Unknown | Route::Opening(_) => String::new(),
        }
    }
}

impl Engine {
    /// Why a request of a QP failed: as [`Qp::why`], without the names of QP and request.
    #[must_use]
    pub fn why(&self, qpn: u32, wr_id: u64) -> Option<String> {
        self.qps.find(qpn)?.explanation(wr_id)
    }
}
