//! What a request does, and why it failed. Principal type: [`Operation`].

use abi::cq::Wc;
use engine::Engine;
use protocol::Status;

use crate::error::Error;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A message that takes the peer's next receive.
    Send,
    /// A write to the peer's memory.
    Write,
    /// A read of the peer's memory.
    Read,
    /// A fetch-and-add on a word at the peer.
    FetchAdd,
    /// A compare-and-swap on a word at the peer.
    CompareSwap,
    /// A received message.
    Receive,
    /// A write of the peer to exposed memory with an immediate, which took this receive.
    ReceiveWrite,
    /// Several requests that were posted together. All of them are complete.
    Batch,
}

impl Operation {
    pub(crate) fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWrite)
    }
}

/// The error of a failed request, with its sentence.
pub(crate) fn failure(wc: &Wc, id: u64, engine: &Engine) -> Error {
    let status = status(wc.status);
    Error::Failed { status, id, qp: wc.qp_num, reason: reason(status, wc, engine).into() }
}

/// The engine's sentence about a failed request. `wc` has the request's name at the adapter.
pub(crate) fn reason(status: Status, wc: &Wc, engine: &Engine) -> Box<str> {
    match engine.why(wc.qp_num, wc.wr_id) {
        Some(sentence) => sentence.into(),
        None if status == Status::WrFlushErr => "flushed, because the queue pair is in the error state".into(),
        None => status.to_string().into(),
    }
}

/// The status with this number. A number that the engine does not use is a general error.
pub(crate) fn status(number: u32) -> Status {
    use Status as S;
    const ALL: [Status; 22] = [
        S::Success,
        S::LocLenErr,
        S::LocQpOpErr,
        S::LocEecOpErr,
        S::LocProtErr,
        S::WrFlushErr,
        S::MwBindErr,
        S::BadRespErr,
        S::LocAccessErr,
        S::RemInvReqErr,
        S::RemAccessErr,
        S::RemOpErr,
        S::RetryExcErr,
        S::RnrRetryExcErr,
        S::LocRddViolErr,
        S::RemInvRdReqErr,
        S::RemAbortErr,
        S::InvEecnErr,
        S::InvEecStateErr,
        S::FatalErr,
        S::RespTimeoutErr,
        S::GeneralErr,
    ];
    ALL.get(number as usize).copied().unwrap_or(Status::GeneralErr)
}
