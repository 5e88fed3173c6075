//! The status of a completion: how a work request ended, with the verbs' numbers. Not the reason:
//! see [`crate::Reason`] and [`crate::Fault`]. Principal type: [`Status`].

use std::fmt;

/// Completion status. The numbers are those of the verbs (`enum ibv_wc_status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the verbs' own")]
pub enum Status {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

impl Status {
    /// The number that programs see.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Success => "success",
            Status::LocLenErr => "local length error",
            Status::LocQpOpErr => "local QP operation error",
            Status::LocEecOpErr => "local EE context operation error",
            Status::LocProtErr => "local protection error",
            Status::WrFlushErr => "flushed",
            Status::MwBindErr => "memory window bind error",
            Status::BadRespErr => "bad response",
            Status::LocAccessErr => "local access error",
            Status::RemInvReqErr => "remote invalid request error",
            Status::RemAccessErr => "remote access error",
            Status::RemOpErr => "remote operation error",
            Status::RetryExcErr => "transport retries exhausted",
            Status::RnrRetryExcErr => "receiver-not-ready retries exhausted",
            Status::LocRddViolErr => "local RDD violation",
            Status::RemInvRdReqErr => "remote invalid RD request",
            Status::RemAbortErr => "remote abort",
            Status::InvEecnErr => "invalid EE context number",
            Status::InvEecStateErr => "invalid EE context state",
            Status::FatalErr => "fatal error",
            Status::RespTimeoutErr => "response timeout",
            Status::GeneralErr => "general error",
        })
    }
}
