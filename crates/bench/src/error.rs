//! Why a measurement fails. The principal type is [`Error`].

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan cannot be measured.
    #[error("{0}")]
    Plan(String),
    /// The sockets between the two sides failed.
    #[error("talking to the other side: {0}")]
    Talk(#[from] std::io::Error),
    /// The other side reports why it gave up.
    #[error("the other side: {0}")]
    Other(String),
    /// The other side has ended.
    #[error("the other side ended during the measurement")]
    Gone,
    /// Nothing completes, although the other side exists.
    #[error("nothing has completed for {0} s, and the other side does not answer")]
    Stalled(u64),
    /// A request or a call failed.
    #[error(transparent)]
    Verbs(#[from] softhca::Error),
    /// The data that arrived differs from the data that was sent.
    #[error("wrong contents: {0}")]
    Contents(String),
    /// The other side uses another protocol.
    #[error("the other side runs another version of softhca bench: {0}")]
    Language(String),
}

impl From<softhca::Rejected> for Error {
    fn from(rejected: softhca::Rejected) -> Self {
        Self::Verbs(rejected.error)
    }
}

/// The result of a step.
pub type Result<T> = std::result::Result<T, Error>;
