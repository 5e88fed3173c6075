//! Management datagrams of the connection manager for the switches of a topology: its messages, and
//! its requests to subnet administration with their answers. [`crate::cm`] writes them,
//! [`crate::mads`] carries them. Principal type: [`Outward`].

use std::collections::VecDeque;
use std::time::Duration;

use protocol::cm::Mad;

use crate::ids::PortId;

/// Maximum number of datagrams that wait. Further ones are lost, and their senders repeat them.
const WAITING_MAX: usize = 4096;

/// A datagram for the switches.
#[derive(Debug)]
pub(crate) struct Outward {
    /// The port that it leaves.
    pub(crate) from: PortId,
    /// The low bits of the source LID.
    pub(crate) path_bits: u8,
    /// The destination.
    pub(crate) lid: u16,
    pub(crate) sl: u8,
    pub(crate) pkey: u16,
    /// The global route, if the destination is in another subnet.
    pub(crate) route: Option<GrhFields>,
    pub(crate) mad: Mad,
    pub(crate) kind: OutwardKind,
}

/// What routers see of a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrhFields {
    pub(crate) dgid: [u8; 16],
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
}

/// What an [`Outward`] is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OutwardKind {
    /// A message of the connection manager, for a user, or 0.
    Message(u32),
    /// A request to subnet administration, and how long to wait for the answer.
    Question(Duration),
}

/// The answer to a question: its transaction, and the datagram, if one came in time.
#[derive(Debug)]
pub(crate) struct SaReply {
    pub(crate) transaction: u32,
    pub(crate) mad: Option<Mad>,
}

/// The datagrams that wait.
#[derive(Debug, Default)]
pub(crate) struct Queue(VecDeque<Outward>);

impl Queue {
    /// Adds a datagram. Returns false if it is lost.
    pub(crate) fn push(&mut self, outward: Outward) -> bool {
        let has_room = self.0.len() < WAITING_MAX && self.0.try_reserve(1).is_ok();
        if has_room {
            self.0.push_back(outward);
        }
        has_room
    }

    /// Takes them all.
    pub(crate) fn take(&mut self) -> VecDeque<Outward> {
        std::mem::take(&mut self.0)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
