//! The output of the communication manager: datagrams to send, and events for its users. Only data,
//! no behaviour. Principal types: [`Output`], [`Event`], [`Kind`].

use super::Id;
use super::origin::{Origin, Path};
use wire::cm::{Apr, Attribute, Data, Dreq, Ece, Lap, Mra, Rej, Rep, Req, SidrRep, SidrReq};
use wire::mad::Mad;

/// A datagram or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "they are taken out one at a time and live on the stack")]
pub enum Output {
    /// Send this datagram to QP 1 at the path's other end.
    Send {
        /// The path: from `sgid` to `dgid`.
        path: Path,
        /// The datagram.
        mad: Mad,
        /// The owner of the id that sends the datagram; 0 if there is no owner.
        owner: u32,
    },
    /// Report this event to the user of an id.
    Event(Event),
}

/// An event of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The id.
    pub id: Id,
    /// What happened.
    pub kind: Kind,
}

/// What happened. If a message is the cause, the event has all fields of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "they are taken out one at a time and live on the stack")]
pub enum Kind {
    /// A peer requests a connection. The id is new: reply, reject, forget or destroy it.
    Incoming {
        /// The request.
        req: Req,
        /// The sender.
        origin: Origin,
        /// Its vendor options.
        ece: Ece,
    },
    /// The peer agrees. Call [`super::Cm::ready`] or [`super::Cm::reject`].
    Agreed {
        /// The reply.
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
    /// The peer rejects the connection, or ends it without a DREQ. The id has nothing more to do;
    /// in some states it rests until [`Kind::Rested`].
    Rejected(Rej),
    /// The peer's queue pair requested another connection while this one seemed to be up, so this
    /// one is gone. For an established connection, DREQ has been sent as by
    /// [`super::Cm::disconnect`]; in other states, REJ has been sent.
    PeerForgot,
    /// The peer did not answer this message, although it was repeated. After REQ, REP and SIDR_REQ
    /// there is no connection. After DREQ, the id rests as if DREP had come. After LAP, the
    /// connection continues.
    TimedOut {
        /// Which message.
        message: Attribute,
    },
    /// The peer ends the connection. Answer with [`super::Cm::disconnect`].
    DisconnectWanted(Dreq),
    /// The connection has ended at our request: DREP came, or the peer's own DREQ.
    Disconnected {
        /// The DREP's private data; `None` if both sides sent DREQ at once.
        private_data: Option<Data<224>>,
    },
    /// The time-wait is over: the queue pair may be used for another connection.
    Rested,
    /// The peer suggests another alternate path. Answer with [`super::Cm::answer_path`].
    PathSuggested(Lap),
    /// The peer answered our suggestion.
    PathAnswered(Apr),
    /// A peer asks for the queue pair of a service. The id is new: answer with
    /// [`super::Cm::sidr_reply`].
    SidrIncoming {
        /// The request.
        req: SidrReq,
        /// The sender.
        origin: Origin,
    },
    /// The peer answered our SIDR request, with success or failure.
    SidrAnswered {
        /// The answer.
        rep: SidrRep,
        /// Its vendor options.
        ece: Ece,
    },
}
