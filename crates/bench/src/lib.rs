//! A load between two programs and what it makes: one operation, several sizes, some queue pairs and threads, measured.
//!
//! One side asks ([`ask`]), the other one answers ([`answer`]); they meet over a [`Talk`], which is any socket. What is wanted stands in a
//! [`Plan`], which the asking side sends to the other one; what comes of it are the [`Case`]s, one for each size, which
//! [`chart`] and [`plot`] show. Everything goes through the crate `softhca`, as the programs of its users do.
//!
//! It is not the command: options, processes and sockets are `softhca bench`'s.
#![forbid(unsafe_code)]

mod answering;
mod asking;
pub mod chart;
mod contents;
mod figures;
mod look;
mod plan;
pub mod plot;
mod session;
mod stream;
mod talk;
mod team;

pub use figures::{Case, Latency};
pub use plan::{Amount, Measure, Operation, Plan, Size};
pub use session::{Place, answer, ask};
pub use talk::Talk;

/// Why a measurement did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What is wanted cannot be measured.
    #[error("{0}")]
    Plan(String),
    /// The sockets by which the sides talk.
    #[error("talking to the other side: {0}")]
    Talk(#[from] std::io::Error),
    /// The other side says why it gave up.
    #[error("the other side: {0}")]
    Other(String),
    /// The other side is not there any more.
    #[error("the other side ended during the measurement")]
    Gone,
    /// Nothing happens although the other side is there.
    #[error("nothing has completed for {0} s, and the other side does not answer")]
    Stalled(u64),
    /// A request or a call failed.
    #[error(transparent)]
    Verbs(#[from] softhca::Error),
    /// What arrived is not what was sent.
    #[error("wrong contents: {0}")]
    Contents(String),
    /// The other side speaks another language.
    #[error("the other side runs another version of softhca bench: {0}")]
    Language(String),
}

impl From<softhca::Rejected> for Error {
    fn from(rejected: softhca::Rejected) -> Self {
        Self::Verbs(rejected.error)
    }
}

/// What a step gives.
pub type Result<T> = std::result::Result<T, Error>;
