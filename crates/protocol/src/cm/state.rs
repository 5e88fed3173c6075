//! The states of a connection, with the specification's names; not their transitions. IBA 12.9.5 to
//! 12.9.7. Principal type: [`CmState`].

use std::fmt;

/// The state of a connection, or of a SIDR request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CmState {
    /// The id has nothing more to do.
    #[default]
    Idle,
    /// REQ was sent.
    ReqSent,
    /// REQ was sent, and MRA came: the peer needs longer.
    MraReqRcvd,
    /// REQ came.
    ReqRcvd,
    /// REQ came, and MRA was sent: this side needs longer.
    MraReqSent,
    /// REP was sent.
    RepSent,
    /// REP was sent, and MRA came: the peer needs longer.
    MraRepRcvd,
    /// REP came.
    RepRcvd,
    /// REP came, and MRA was sent: this side needs longer.
    MraRepSent,
    /// Both sides may use the connection.
    Established,
    /// DREQ was sent.
    DreqSent,
    /// DREQ came.
    DreqRcvd,
    /// The connection has ended, but its packets may still be on their way.
    TimeWait,
    /// REQ came and was rejected. A repeated REQ gets the same answer.
    Declined,
    /// SIDR_REQ was sent.
    SidrReqSent,
    /// SIDR_REQ came.
    SidrReqRcvd,
    /// SIDR_REQ came and was answered. A repeated SIDR_REQ gets the same answer.
    SidrAnswered,
}

impl CmState {
    /// All states.
    pub const ALL: [CmState; 17] = [
        CmState::Idle,
        CmState::ReqSent,
        CmState::MraReqRcvd,
        CmState::ReqRcvd,
        CmState::MraReqSent,
        CmState::RepSent,
        CmState::MraRepRcvd,
        CmState::RepRcvd,
        CmState::MraRepSent,
        CmState::Established,
        CmState::DreqSent,
        CmState::DreqRcvd,
        CmState::TimeWait,
        CmState::Declined,
        CmState::SidrReqSent,
        CmState::SidrReqRcvd,
        CmState::SidrAnswered,
    ];

    /// Whether the connection occupies the peer's queue pair: from the message that names the queue
    /// pair until one side ends the connection.
    #[must_use]
    pub const fn holds_qpn(self) -> bool {
        matches!(
            self,
            CmState::ReqRcvd
                | CmState::MraReqSent
                | CmState::RepSent
                | CmState::MraRepRcvd
                | CmState::RepRcvd
                | CmState::MraRepSent
                | CmState::Established
        )
    }

    /// Whether a peer waits for the user's decision on its request.
    #[must_use]
    pub const fn is_undecided(self) -> bool {
        matches!(self, CmState::ReqRcvd | CmState::MraReqSent | CmState::SidrReqRcvd)
    }

    /// Whether only the end of a rest is still to come.
    #[must_use]
    pub const fn is_resting(self) -> bool {
        matches!(self, CmState::TimeWait | CmState::Declined | CmState::SidrAnswered)
    }
}

/// The specification's spelling.
impl fmt::Display for CmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CmState::Idle => "IDLE",
            CmState::ReqSent => "REQ_SENT",
            CmState::MraReqRcvd => "MRA_REQ_RCVD",
            CmState::ReqRcvd => "REQ_RCVD",
            CmState::MraReqSent => "MRA_REQ_SENT",
            CmState::RepSent => "REP_SENT",
            CmState::MraRepRcvd => "MRA_REP_RCVD",
            CmState::RepRcvd => "REP_RCVD",
            CmState::MraRepSent => "MRA_REP_SENT",
            CmState::Established => "ESTABLISHED",
            CmState::DreqSent => "DREQ_SENT",
            CmState::DreqRcvd => "DREQ_RCVD",
            CmState::TimeWait => "TIMEWAIT",
            CmState::Declined => "DECLINED",
            CmState::SidrReqSent => "SIDR_REQ_SENT",
            CmState::SidrReqRcvd => "SIDR_REQ_RCVD",
            CmState::SidrAnswered => "SIDR_ANSWERED",
        })
    }
}

/// The state of a suggestion for another alternate path. In all states except
/// [`CmState::Established`] it is `Idle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathState {
    /// There is no suggestion.
    #[default]
    Idle,
    /// LAP was sent.
    LapSent,
    /// LAP was sent, and MRA came: the peer needs longer.
    MraLapRcvd,
    /// LAP came.
    LapRcvd,
    /// LAP came, and MRA was sent: this side needs longer.
    MraLapSent,
}
