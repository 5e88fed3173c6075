//! The states of a connection, with the specification's names; not their transitions. IBA 12.9.5 to
//! 12.9.7. Principal type: [`State`].

use std::fmt;

/// The state of a connection, or of a SIDR request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
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

impl State {
    /// All states.
    pub const ALL: [State; 17] = [
        State::Idle,
        State::ReqSent,
        State::MraReqRcvd,
        State::ReqRcvd,
        State::MraReqSent,
        State::RepSent,
        State::MraRepRcvd,
        State::RepRcvd,
        State::MraRepSent,
        State::Established,
        State::DreqSent,
        State::DreqRcvd,
        State::TimeWait,
        State::Declined,
        State::SidrReqSent,
        State::SidrReqRcvd,
        State::SidrAnswered,
    ];

    /// Whether the connection occupies the peer's queue pair: from the message that names the queue
    /// pair until one side ends the connection.
    #[must_use]
    pub const fn holds_qpn(self) -> bool {
        matches!(
            self,
            State::ReqRcvd
                | State::MraReqSent
                | State::RepSent
                | State::MraRepRcvd
                | State::RepRcvd
                | State::MraRepSent
                | State::Established
        )
    }

    /// Whether a peer waits for the user's decision on its request.
    #[must_use]
    pub const fn is_undecided(self) -> bool {
        matches!(self, State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd)
    }

    /// Whether only the end of a rest is still to come.
    #[must_use]
    pub const fn is_resting(self) -> bool {
        matches!(self, State::TimeWait | State::Declined | State::SidrAnswered)
    }
}

/// The specification's spelling.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle => "IDLE",
            State::ReqSent => "REQ_SENT",
            State::MraReqRcvd => "MRA_REQ_RCVD",
            State::ReqRcvd => "REQ_RCVD",
            State::MraReqSent => "MRA_REQ_SENT",
            State::RepSent => "REP_SENT",
            State::MraRepRcvd => "MRA_REP_RCVD",
            State::RepRcvd => "REP_RCVD",
            State::MraRepSent => "MRA_REP_SENT",
            State::Established => "ESTABLISHED",
            State::DreqSent => "DREQ_SENT",
            State::DreqRcvd => "DREQ_RCVD",
            State::TimeWait => "TIMEWAIT",
            State::Declined => "DECLINED",
            State::SidrReqSent => "SIDR_REQ_SENT",
            State::SidrReqRcvd => "SIDR_REQ_RCVD",
            State::SidrAnswered => "SIDR_ANSWERED",
        })
    }
}

/// The state of a suggestion for another alternate path. In all states except
/// [`State::Established`] it is `Idle`.
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
