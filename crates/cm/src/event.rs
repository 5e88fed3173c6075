//! Events: what happened to an id (`enum rdma_cm_event_type`), with the peer's data. The principal
//! type is [`Event`].

use std::fmt;

use abi::ah::AhAttr;
use abi::errno::Errno;
use abi::layout::Record;
use abi::ucma::PRIVATE_DATA_MAX;
use abi::ucma::connection::{NextEventAnswer, UdParam, known};
use bytemuck::bytes_of;
use engine::reason::{Note, ReasonKind, note};
use engine::{Result, refusal};

use crate::commands::addresses;
use crate::param::{Addresses, Ece, Gids, Id, Path, QpAttributes};

/// Kinds of events, by their numbers in `rdma_cma.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventKind(pub u32);

macro_rules! kinds {
    ($( $(#[doc = $doc:literal])+ $name:ident = $value:literal; )+) => {
        impl EventKind {
            $( $(#[doc = $doc])+ pub const $name: Self = Self($value); )+

            /// The name in `rdma_cma.h`, without its prefix.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $( $value => Some(stringify!($name)), )+ _ => None }
            }
        }
    };
}

kinds! {
    /// The address was resolved to a device.
    ADDR_RESOLVED = 0;
    /// The address could not be resolved.
    ADDR_ERROR = 1;
    /// The route was resolved.
    ROUTE_RESOLVED = 2;
    /// The route could not be resolved.
    ROUTE_ERROR = 3;
    /// A peer asks for a connection. The event's id is the new id; its cookie is the listener's.
    CONNECT_REQUEST = 4;
    /// The peer has accepted, and the caller must establish the connection.
    CONNECT_RESPONSE = 5;
    /// The connection failed.
    CONNECT_ERROR = 6;
    /// The peer does not answer.
    UNREACHABLE = 7;
    /// The peer rejected the request.
    REJECTED = 8;
    /// The connection is established.
    ESTABLISHED = 9;
    /// The connection has ended.
    DISCONNECTED = 10;
    /// The device is gone.
    DEVICE_REMOVAL = 11;
    /// The group was joined. The event's cookie is the membership's.
    MULTICAST_JOIN = 12;
    /// Joining the group failed, or the membership was lost.
    MULTICAST_ERROR = 13;
    /// The interface's address has changed.
    ADDR_CHANGE = 14;
    /// The QP may be used again.
    TIMEWAIT_EXIT = 15;
    /// Names were looked up.
    ADDRINFO_RESOLVED = 16;
    /// Looking names up failed.
    ADDRINFO_ERROR = 17;
    /// Written by a program (`rdma_write_cm_event(3)`).
    USER = 18;
    /// Written by a library for itself.
    INTERNAL = 19;
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "event {}", self.0),
        }
    }
}

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The caller's number for the id, for the membership, or for the listener of a request.
    pub cookie: u64,
    /// The id. For CONNECT_REQUEST it is the new id, which the caller must accept, reject or
    /// destroy.
    pub id: Id,
    /// The kind of event.
    pub kind: EventKind,
    /// 0; or a negative errno; or, for REJECTED, the reason of the IBA (volume 1, 12.6.7.2).
    pub status: i32,
    /// Enhanced connection establishment, in requests and responses.
    pub ece: Ece,
    /// The reason for a failure as a sentence; `engine::reason::note` has already recorded it.
    pub reason: Option<String>,
    /// What the agent knows about the id now, so that the caller need not ask.
    pub known: Known,
    /// The event's parameters, in the larger of their two forms.
    param: Box<UdParam>,
}

/// Facts that come with an event, so that the caller need not query them.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Comes with ADDR_RESOLVED and CONNECT_REQUEST.
    pub addresses: Option<(Addresses, Gids)>,
    /// Comes with ROUTE_RESOLVED and CONNECT_REQUEST.
    pub path: Option<Path>,
    /// Attributes for INIT, RTR and RTS, in this order. The first comes with all of these events,
    /// the others with CONNECT_REQUEST and CONNECT_RESPONSE.
    pub attributes: [Option<Box<QpAttributes>>; 3],
}

impl Known {
    fn read(answer: &NextEventAnswer) -> Self {
        let told = |bit: u32| answer.known & bit != 0;
        let gids = Gids { source: answer.sgid, destination: answer.dgid };
        let attributes = |bit, attributes: &QpAttributes| told(bit).then(|| Box::new(*attributes));
        Self {
            addresses: told(known::ADDRESSES).then(|| (addresses(&answer.addresses), gids)),
            path: Path::read(bytes_of(&answer.path)).filter(|_| told(known::PATH)),
            attributes: [
                attributes(known::INIT, &answer.init),
                attributes(known::RTR, &answer.rtr),
                attributes(known::RTS, &answer.rts),
            ],
        }
    }
}

/// The offset of a connection's numbers in the bytes of `param`.
const CONN_NUMBERS: usize = 8 + PRIVATE_DATA_MAX;

/// The parameters of a connected id's event.
#[derive(Clone, Copy, Debug)]
pub struct ConnEvent<'a> {
    /// The peer's QP.
    pub qp_num: u32,
    /// READs and atomics that this side may have to answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Whether the peer offers flow control.
    pub flow_control: bool,
    /// How often the peer retransmits.
    pub retry_count: u8,
    /// How often the peer retries after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Whether the peer's QP receives from an SRQ.
    pub srq: bool,
    /// The private data of the peer's program, with zeros up to the size of the message's field.
    pub private_data: &'a [u8],
}

/// The parameters of an event of a datagram id or a group.
#[derive(Clone, Copy, Debug)]
pub struct UdEvent<'a> {
    /// The peer's QP; 0xffffff for a group.
    pub qp_num: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its address vector: `struct ib_uverbs_ah_attr`.
    pub ah: AhAttr,
    /// The private data of the peer's program.
    pub private_data: &'a [u8],
}

impl Event {
    /// Parses an event from the event socket or from NEXT_EVENT's answer: the record, and possibly
    /// a sentence, which is recorded with `engine::reason::note`.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let short = || refusal(Errno::EIO, "the agent's event is too short");
        let next = NextEventAnswer::read(bytes).ok_or_else(short)?;
        let (record, known) = (next.event, Known::read(&next));
        let sentence = bytes.get(size_of::<NextEventAnswer>()..).unwrap_or_default();
        let reason = (!sentence.is_empty()).then(|| String::from_utf8_lossy(sentence).into_owned());
        if let Some(reason) = &reason {
            note(Note::new(ReasonKind::Event), format_args!("{reason}"));
        }
        Ok(Self {
            cookie: record.uid,
            id: Id(record.id),
            kind: EventKind(record.event),
            status: record.status.cast_signed(),
            ece: Ece { vendor_id: record.ece.vendor_id, options: record.ece.attr_mod },
            reason,
            known,
            param: Box::new(record.param),
        })
    }

    /// The parameters of a connected id's event.
    #[must_use]
    pub fn conn(&self) -> ConnEvent<'_> {
        let bytes = bytes_of(&*self.param);
        let number = |index: usize| bytes[CONN_NUMBERS + index];
        ConnEvent {
            qp_num: self.param.qp_num,
            srq: number(1) != 0,
            responder_resources: number(2),
            initiator_depth: number(3),
            flow_control: number(4) != 0,
            retry_count: number(5),
            rnr_retry_count: number(6),
            private_data: &bytes[8..8 + usize::from(number(0))],
        }
    }

    /// The parameters of an event of a datagram id or a group.
    #[must_use]
    pub fn ud(&self) -> UdEvent<'_> {
        let param = &*self.param;
        UdEvent {
            qp_num: param.qp_num,
            qkey: param.qkey,
            ah: param.ah_attr,
            private_data: &param.private_data[..usize::from(param.private_data_len)],
        }
    }

    /// The number that was written with a USER or INTERNAL event.
    #[must_use]
    pub fn arg(&self) -> u64 {
        let bytes = bytes_of(&*self.param);
        u64::from_ne_bytes(std::array::from_fn(|index| bytes[index]))
    }
}
