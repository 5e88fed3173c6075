//! The queue pair on one page: its services, its states, and every transition with the attributes
//! that it requires and allows.
//!
//! ```text
//!     RESET ──▶ INIT ──▶ RTR ──▶ RTS ◀──▶ SQD     any state ──▶ RESET, by modify
//!                                 ▲               any state but RESET ──▶ ERR, by modify
//!                                 │
//!                send error ──▶  SQE              UC, UD: a failed send stops only the send queue
//!                                ERR ◀── error    RC, XRC: send error; all: receive error
//! ```
//!
//! | state | post send | post receive | packets | send queue                                     |
//! |-------|-----------|--------------|---------|------------------------------------------------|
//! | RESET | refused   | refused      | dropped | –                                              |
//! | INIT  | refused   | queued       | dropped | –                                              |
//! | RTR   | refused   | queued       | served  | –                                              |
//! | RTS   | queued    | queued       | served  | runs                                           |
//! | SQD   | queued    | queued       | served  | completes the requests that have begun, drains |
//! | SQE   | flushed   | queued       | served  | flushes                                        |
//! | ERR   | flushed   | flushed      | dropped | flushes                                        |
//!
//! Not here: the check of a transition ([`crate::modify`]), and how a state treats packets
//! ([`crate::Requester`], [`crate::Responder`]). Principal types: [`State`], [`Service`],
//! [`TRANSITIONS`]. IBA 10.3.1 and 11.2.5.3.
//!
//! The IBA has no rate limit. softhca accepts one in the same transitions as Linux: INIT to RTR,
//! RTR to RTS, and RTS to RTS, for every service that sends.
//!
//! RESET → ERR is refused. A queue pair in RESET has nothing to flush, and Linux, for which
//! programs are written, refuses it too.

use crate::modify::Attributes;
use std::fmt;

/// What kind of connection a queue pair has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the IBA's own names")]
pub enum Service {
    /// Reliable connection: every message exactly once and in order, or an error.
    #[default]
    Rc,
    /// Unreliable connection: in order, but a message may be lost.
    Uc,
    /// Unreliable datagram: messages of one packet, to and from any queue pair.
    Ud,
    /// The initiator of an extended reliable connection: it has a send queue only.
    XrcIni,
    /// The target of an extended reliable connection. Messages go to the shared receive queue that
    /// they name.
    XrcTgt,
}

/// The state of a queue pair, with the verbs' numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum State {
    /// New, or reset.
    #[default]
    Reset = 0,
    /// Initialised: receive requests may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue is draining, or has drained.
    Sqd = 4,
    /// Send queue error; unreliable services only.
    Sqe = 5,
    /// Error: all requests are flushed.
    Err = 6,
}

/// One row of the table: the states before, the state after, and the rule of each service.
pub type Transition = (&'static [State], State, [Rule; 5]);

/// The attributes of a transition for one service: (required, optional). `None` if the service has
/// no such transition.
pub type Rule = Option<(Attributes, Attributes)>;

use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

const AC: Attributes = Attributes::ACCESS_FLAGS;
const AV: Attributes = Attributes::AV;
const CS: Attributes = Attributes::CUR_STATE;
const DQ: Attributes = Attributes::DEST_QPN;
const PK: Attributes = Attributes::PKEY_INDEX;
const PT: Attributes = Attributes::PORT;
const QK: Attributes = Attributes::QKEY;
const RP: Attributes = Attributes::RQ_PSN;
const SP: Attributes = Attributes::SQ_PSN;
const TO: Attributes = Attributes::TIMEOUT;
const ALT: Attributes = Attributes::ALT_PATH;
const MDA: Attributes = Attributes::MAX_DEST_RD_ATOMIC;
const MIG: Attributes = Attributes::PATH_MIG_STATE;
const MQA: Attributes = Attributes::MAX_QP_RD_ATOMIC;
const MTU: Attributes = Attributes::PATH_MTU;
const RNR: Attributes = Attributes::RNR_RETRY;
const RTL: Attributes = Attributes::RATE_LIMIT;
const RTY: Attributes = Attributes::RETRY_CNT;
const RTI: Attributes = Attributes::MIN_RNR_TIMER;
const SQN: Attributes = Attributes::EN_SQD_ASYNC_NOTIFY;

/// The union of these attributes.
macro_rules! set {
    ($($attribute:ident)*) => { Attributes(0 $(| $attribute.0)*) };
}
/// The rule `required; optional`.
macro_rules! rule {
    ($($required:ident)* ; $($optional:ident)*) => { Some((set!($($required)*), set!($($optional)*))) };
}
const NOTHING: Rule = rule!(;);

/// Every transition that exists, with its rules for RC, UC, UD, XRC initiator and XRC target. Every
/// other transition is refused.
#[rustfmt::skip]
pub const TRANSITIONS: &[Transition] = &[
    (&[Reset], Reset, [NOTHING, NOTHING, NOTHING, NOTHING, NOTHING]),
    (&[Reset], Init, [
        rule!(PK PT AC;),
        rule!(PK PT AC;),
        rule!(PK PT QK;),
        rule!(PK PT AC;),
        rule!(PK PT AC;),
    ]),
    (&[Init], Init, [
        rule!(; PK PT AC),
        rule!(; PK PT AC),
        rule!(; PK PT QK),
        rule!(; PK PT AC),
        rule!(; PK PT AC),
    ]),
    (&[Init], Rtr, [
        rule!(AV MTU DQ RP MDA RTI; ALT AC PK RTL),
        rule!(AV MTU DQ RP; ALT AC PK RTL),
        rule!(; PK QK RTL),
        rule!(AV MTU DQ RP; ALT AC PK RTL),
        rule!(AV MTU DQ RP MDA RTI; ALT AC PK),
    ]),
    (&[Rtr], Rts, [
        rule!(TO RTY RNR SP MQA; CS ALT AC RTI MIG RTL),
        rule!(SP; CS ALT AC MIG RTL),
        rule!(SP; CS QK RTL),
        rule!(TO RTY RNR SP MQA; CS ALT AC MIG RTL),
        rule!(TO SP; CS ALT AC RTI MIG),
    ]),
    (&[Rts], Rts, [
        rule!(; CS AC ALT MIG RTI RTL),
        rule!(; CS AC ALT MIG RTL),
        rule!(; CS QK RTL),
        rule!(; CS AC ALT MIG RTL),
        rule!(; CS AC ALT MIG RTI),
    ]),
    (&[Rts], Sqd, [rule!(; SQN), rule!(; SQN), rule!(; SQN), rule!(; SQN), rule!(; SQN)]),
    (&[Sqd], Rts, [
        rule!(; CS ALT AC RTI MIG),
        rule!(; CS ALT AC MIG),
        rule!(; CS QK),
        rule!(; CS ALT AC MIG),
        rule!(; CS ALT AC RTI MIG),
    ]),
    (&[Sqd], Sqd, [
        rule!(; PT AV TO RTY RNR MQA MDA ALT AC PK RTI MIG),
        rule!(; AV ALT AC PK MIG),
        rule!(; PK QK),
        rule!(; PT AV TO RTY RNR MQA ALT AC PK MIG),
        rule!(; PT AV TO MDA ALT AC PK RTI MIG),
    ]),
    (&[Sqe], Rts, [None, rule!(; CS AC), rule!(; CS QK), None, None]),
    (&[Init, Rtr, Rts, Sqd, Sqe, Err], Reset, [NOTHING, NOTHING, NOTHING, NOTHING, NOTHING]),
    (&[Init, Rtr, Rts, Sqd, Sqe, Err], Err, [NOTHING, NOTHING, NOTHING, NOTHING, NOTHING]),
];

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [State; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    /// The state with this number, if there is one.
    #[must_use]
    pub const fn from_u32(number: u32) -> Option<State> {
        if (number as usize) < State::ALL.len() { Some(State::ALL[number as usize]) } else { None }
    }

    /// The number that programs see.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self as u32
    }

    /// Whether send requests may be posted. In some states they are flushed.
    #[must_use]
    pub const fn takes_sends(self) -> bool {
        matches!(self, Rts | Sqd | Sqe | Err)
    }

    /// Whether receive requests may be posted. In some states they are flushed.
    #[must_use]
    pub const fn takes_receives(self) -> bool {
        !matches!(self, Reset)
    }

    /// Whether incoming requests are served.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Rtr | Rts | Sqd | Sqe)
    }
}

impl Service {
    /// All services, in the order of the columns of [`TRANSITIONS`].
    pub const ALL: [Service; 5] = [Service::Rc, Service::Uc, Service::Ud, Service::XrcIni, Service::XrcTgt];

    /// Whether every message arrives exactly once and in order, or the sender learns why it did
    /// not.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::XrcIni | Service::XrcTgt)
    }

    /// Whether the service serves requests of peers.
    #[must_use]
    pub const fn receives(self) -> bool {
        !matches!(self, Service::XrcIni)
    }

    /// The state that a failed send leads to.
    #[must_use]
    pub const fn after_send_error(self) -> State {
        if self.is_reliable() { Err } else { Sqe }
    }

    /// The transport of this service's packets.
    #[must_use]
    pub const fn transport(self) -> wire::Transport {
        match self {
            Service::Rc => wire::Transport::Rc,
            Service::Uc => wire::Transport::Uc,
            Service::Ud => wire::Transport::Ud,
            Service::XrcIni | Service::XrcTgt => wire::Transport::Xrc,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
            Service::XrcIni => "XRC_INI",
            Service::XrcTgt => "XRC_TGT",
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reset => "RESET",
            Init => "INIT",
            Rtr => "RTR",
            Rts => "RTS",
            Sqd => "SQD",
            Sqe => "SQE",
            Err => "ERR",
        })
    }
}
