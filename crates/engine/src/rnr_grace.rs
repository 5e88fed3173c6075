//! The RNR grace queue: requests that wait for a receive request.
//!
//! An adapter receives packets at link speed, independently of the processors. In software, any
//! thread that has a processor receives them. It may receive many packets while the program waits
//! for a processor to post receive requests. The peer would then get an RNR NAK only because the
//! program was interrupted. So a request of a reliable connection that finds no receive request is
//! kept for a short time, together with the requests after it, and is served when one is posted.
//! The peer gets an RNR NAK only after that time. To the peer it looks like a late answer.
//!
//! Requests behind a READ wait in the same queue, without an RNR NAK, while the path has no room for
//! the READ's data, which they may overwrite. A QP serves the queue in `rnr_grace/serving.rs`.
//! Principal type: [`RnrGraceQueue`].

mod serving;

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::{OUT_OF_ORDER_MAX, Time};
use shm::Source;
use wire::Psn;

use crate::cell::Packet;
use crate::kept::{KeptBytes, KeptPacket};
use crate::out_of_order::OutOfOrderBuffer;

/// The RNR grace time in nanoseconds: less than most ACK timeouts, and longer than processes
/// usually wait for a processor.
const RNR_GRACE: u64 = 50_000_000;
/// Bytes that wait at one QP, at most.
const AT_ONE: usize = 512 * 1024;

/// The waiting requests of one QP.
pub(crate) struct RnrGraceQueue {
    packets: VecDeque<KeptPacket>,
    bytes: usize,
    /// Bytes that the engine keeps.
    all: Arc<KeptBytes>,
    /// When the peer gets an RNR NAK. Never, if the requests wait for a READ.
    until: Time,
    /// The first request waits until the data of the READ before it is sent.
    behind_read: bool,
    /// The queue was full: its requests do not wait for READs any more.
    overtakes: bool,
    /// Out-of-order packets, if there are any.
    pub(crate) out_of_order: Option<Box<OutOfOrderBuffer>>,
    /// The packet of the last RNR NAK: when it is retransmitted, it does not wait again.
    refused: Option<Psn>,
}

impl RnrGraceQueue {
    pub(crate) fn new(all: Arc<KeptBytes>) -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            all,
            until: Time::NEVER,
            behind_read: false,
            overtakes: false,
            out_of_order: None,
            refused: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// When the peer gets an RNR NAK, if a request waits for a receive request.
    pub(crate) fn until(&self) -> Option<Time> {
        (!self.is_empty() && !self.behind_read).then_some(self.until)
    }

    /// Whether requests wait for the data of a READ to be sent.
    #[inline]
    pub(crate) fn is_behind_read(&self) -> bool {
        self.behind_read && !self.is_empty()
    }

    /// Drops all packets.
    pub(crate) fn clear(&mut self) {
        drop(self.take());
        self.out_of_order = None;
        self.refused = None;
    }

    /// Keeps a packet after `before` others, if there is room.
    fn keep(&mut self, before: usize, packet: &Packet, payload: Source<'_>) -> bool {
        if self.bytes + KeptPacket::bytes_of(payload.len()) > AT_ONE {
            return false;
        }
        let kept = KeptPacket::new(&self.all, packet, payload);
        kept.map(|kept| self.add(before, kept)).is_some()
    }

    fn add(&mut self, before: usize, kept: KeptPacket) {
        self.bytes += kept.bytes();
        self.packets.insert(before, kept);
    }

    /// How many waiting packets come before packet `psn`. `None` if it waits already, or is too
    /// late; then it is ignored as a duplicate.
    fn before(&self, psn: Psn) -> Option<usize> {
        let overtaken = self
            .packets
            .iter()
            .rev()
            .take(OUT_OF_ORDER_MAX + 1)
            .position(|kept| kept.packet.headers.psn.since(psn) <= 0)?;
        let before = self.packets.len() - overtaken;
        (self.packets[before - 1].packet.headers.psn != psn).then_some(before)
    }

    fn take(&mut self) -> VecDeque<KeptPacket> {
        (self.bytes, self.behind_read) = (0, false);
        std::mem::take(&mut self.packets)
    }
}
