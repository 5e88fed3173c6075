//! Why a connection could not be started. Not why a running stream ends ([`crate::Reason`]).
//! Principal type: [`Error`].

use crate::terminate::Reason;

/// Why a connection could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The peer's bytes are no start-up frame.
    #[error("the peer's first bytes are not the key of an MPA start-up frame")]
    Key,
    /// The revision is unknown, or not the one that was asked for.
    #[error("the peer's start-up frame has MPA revision {0}, which does not fit")]
    Revision(u8),
    /// More private data than a frame may have.
    #[error("{0} bytes of private data are more than an MPA start-up frame may have")]
    PrivateLength(usize),
    /// Enhanced mode without its fields.
    #[error("{0} bytes of private data are too short for the fields of enhanced mode")]
    EnhancedLength(usize),
    /// Only one side has enhanced mode.
    #[error("the peer's reply does not have the mode, enhanced or plain, of the request")]
    Mode,
    /// The peer sent data before it was allowed to.
    #[error("the peer sent data behind its request, before the reply")]
    Early,
    /// The peer asks for markers, and this side was told not to send them.
    #[error("the peer asks for markers")]
    Markers,
    /// The peer wants more READs outstanding than this side serves.
    #[error("the peer wants {asked} READs outstanding, and this side serves at most {most}")]
    Ird {
        /// What the peer wants.
        asked: u16,
        /// What this side serves.
        most: u16,
    },
    /// The peer chose a ready-to-receive message that was not offered.
    #[error("the peer chose no ready-to-receive message that this side offered")]
    Rtr,
    /// The peer did not send its frame in time.
    #[error("the peer did not send its MPA start-up frame in time")]
    Timeout,
    /// The peer closed the connection before its frame was complete.
    #[error("the peer closed the connection before its MPA start-up frame was complete")]
    Closed,
    /// The owner called a function that does not fit the state of the exchange.
    #[error("the exchange of MPA start-up frames does not wait for this call")]
    Order,
}

impl Error {
    /// The reason of the Terminate message that the initiator sends for this error. RFC 6581,
    /// section 9. `None` if the connection is closed without one.
    #[must_use]
    pub const fn terminate(&self) -> Option<Reason> {
        match self {
            Error::Ird { .. } => Some(Reason::MpaIrd),
            Error::Rtr => Some(Reason::MpaNoRtr),
            _ => None,
        }
    }
}
