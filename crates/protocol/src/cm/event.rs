//! What the communication manager gives out: datagrams to send, and what its users should know. Principal types: [`Output`],
//! [`Event`], [`Kind`].

use super::{Id, Origin, Path};
use wire::cm::{Apr, Attribute, Data, Dreq, Ece, Lap, Mra, Rej, Rep, Req, SidrRep, SidrReq};
use wire::mad::Mad;

/// One thing to send or to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "they are taken out one at a time and live on the stack")]
pub enum Output {
    /// Send this datagram to QP 1 at the path's other end.
    Send {
        /// The way: from `sgid` to `dgid`.
        path: Path,
        /// The datagram.
        mad: Mad,
        /// Whose it is: the owner of the id that says it, 0 where there is none.
        owner: u32,
    },
    /// Tell the user of an id.
    Event(Event),
}

/// Something happened to an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub id: Id,
    /// What.
    pub kind: Kind,
}

/// What happened. Where a message is the cause, it is in here with all its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "they are taken out one at a time and live on the stack")]
pub enum Kind {
    /// A peer asks for a connection. The id is new: reply, reject, forget or destroy it.
    Incoming {
        /// What it asks for.
        req: Req,
        /// Where it came from.
        origin: Origin,
        /// Its vendor options.
        ece: Ece,
    },
    /// The peer agrees: [`super::Cm::ready`] or [`super::Cm::reject`] follow.
    Agreed {
        /// To what.
        rep: Rep,
        /// Its vendor options.
        ece: Ece,
    },
    /// The peer needs longer to answer.
    Later(Mra),
    /// The passive side may use the connection.
    Established {
        /// The RTU's private data; `None` when data came before it.
        private_data: Option<Data<224>>,
    },
    /// The peer rejects, or ends without a DREQ. The id has nothing more to do, but may rest ([`Kind::Rested`]) if its state says so.
    Rejected(Rej),
    /// The queue pair at the other end asked for another connection while this one was thought to be up, so this one is gone: of
    /// an established one, DREQ has been sent as by [`super::Cm::disconnect`]; of another, REJ.
    PeerForgot,
    /// The peer did not answer this message, often enough repeated. After REQ, REP and SIDR_REQ there is no connection, after DREQ
    /// the id rests as if DREP had come; after LAP the connection goes on.
    TimedOut {
        /// Which message.
        message: Attribute,
    },
    /// The peer ends the connection: [`super::Cm::disconnect`] answers it.
    DisconnectWanted(Dreq),
    /// The connection has ended, on our wish: DREP came, or the peer's own DREQ.
    Disconnected {
        /// The DREP's private data, or none when both sides asked at once.
        private_data: Option<Data<224>>,
    },
    /// The time-wait is over: the queue pair may be used for another connection.
    Rested,
    /// The peer suggests another alternate path: [`super::Cm::answer_path`] follows.
    PathSuggested(Lap),
    /// The peer answered our suggestion.
    PathAnswered(Apr),
    /// A peer asks for the queue pair of a service. The id is new: [`super::Cm::sidr_reply`] follows.
    SidrIncoming {
        /// What it asks for.
        req: SidrReq,
        /// Where it came from.
        origin: Origin,
    },
    /// The peer answered our question, well or badly.
    SidrAnswered {
        /// What it says.
        rep: SidrRep,
        /// Its vendor options.
        ece: Ece,
    },
}
