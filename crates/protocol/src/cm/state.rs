//! The states of a connection. IBA 12.9.5 to 12.9.7, in the specification's words. Principal type: [`State`].

use std::fmt;

/// Where a connection, or a question for a datagram service, stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It has nothing more to do.
    #[default]
    Idle,
    /// REQ was sent.
    ReqSent,
    /// REQ was sent, and the peer needs longer.
    MraReqRcvd,
    /// REQ came.
    ReqRcvd,
    /// REQ came, and the peer knows that we need longer.
    MraReqSent,
    /// REP was sent.
    RepSent,
    /// REP was sent, and the peer needs longer.
    MraRepRcvd,
    /// REP came.
    RepRcvd,
    /// REP came, and the peer knows that we need longer.
    MraRepSent,
    /// Both sides may use the connection.
    Established,
    /// DREQ was sent.
    DreqSent,
    /// DREQ came.
    DreqRcvd,
    /// It has ended; packets of it may still be on their way.
    TimeWait,
    /// REQ came and was rejected; should it come again, it gets the same answer.
    Declined,
    /// SIDR_REQ was sent.
    SidrReqSent,
    /// SIDR_REQ came.
    SidrReqRcvd,
    /// SIDR_REQ came and was answered; should it come again, it gets the same answer.
    SidrAnswered,
}

impl State {
    /// All of them.
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

    /// Whether the peer's queue pair is taken by the connection: from the message that names it until one side ends it.
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

    /// Whether a peer waits for what the user says to its request.
    #[must_use]
    pub const fn is_undecided(self) -> bool {
        matches!(self, State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd)
    }

    /// Whether nothing will happen any more but the end of a rest.
    #[must_use]
    pub const fn is_resting(self) -> bool {
        matches!(self, State::TimeWait | State::Declined | State::SidrAnswered)
    }
}

/// As the specification writes it.
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

/// Where a suggestion for another alternate path stands; only in [`State::Established`] it is anything but `Idle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathState {
    /// There is none.
    #[default]
    Idle,
    /// LAP was sent.
    LapSent,
    /// LAP was sent, and the peer needs longer.
    MraLapRcvd,
    /// LAP came.
    LapRcvd,
    /// LAP came, and the peer knows that we need longer.
    MraLapSent,
}
