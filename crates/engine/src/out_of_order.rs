//! Out-of-order packets: kept for a short time, and taken in order once the missing packets have
//! come.
//!
//! The state machines decide which packets to keep (`protocol::OutOfOrder` gives the reasons). This
//! file has the memory for them: a few packets for each end of a connection, and a limited number
//! of bytes for the engine. The packets have passed the usual checks before they get here, and are
//! later handed to the state machines as if they had just arrived. What a QP does with them is in
//! `out_of_order/keeping.rs`. A connection whose packets arrive in order has only an empty box.
//! Principal type: [`OutOfOrderBuffer`].

mod keeping;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::{OutOfOrder, Time};
use shm::{Sink, Source};

use crate::access;
use crate::cell::Packet;

/// How long a packet waits for a missing one, in nanoseconds: longer than most reordered packets
/// are late, and short compared with the cost of a loss.
const REORDER_TIME: u64 = 100_000;
/// How long it waits after the loss was reported: about the time until the retransmission comes.
const AFTERWARDS: u64 = 1_000_000;
/// Bytes that wait at all connections of an engine, at most, including those that wait for receive
/// requests.
const AT_ALL: usize = 8 << 20;

/// A packet and its payload, and the counter that includes both.
struct Kept {
    packet: Packet,
    payload: Box<[u8]>,
    all: Arc<AtomicUsize>,
}

impl Kept {
    fn new(all: &Arc<AtomicUsize>, packet: &Packet, payload: Source<'_>) -> Option<Self> {
        let len = usize::from(packet.len);
        let takes = size_of::<Self>() + len;
        if all.fetch_add(takes, Ordering::Relaxed) + takes > AT_ALL {
            all.fetch_sub(takes, Ordering::Relaxed);
            return None;
        }
        let mut kept = Self { packet: *packet, payload: vec![0; len].into_boxed_slice(), all: Arc::clone(all) };
        access::copy(&Sink::from(&mut kept.payload[..]), payload).is_ok().then_some(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.fetch_sub(size_of::<Self>() + self.payload.len(), Ordering::Relaxed);
    }
}

/// The waiting packets of one connection.
#[derive(Default)]
pub(crate) struct OutOfOrderBuffer {
    requests: OutOfOrder<Kept>,
    answers: OutOfOrder<Kept>,
}

impl OutOfOrderBuffer {
    /// When the wait ends.
    pub(crate) fn until(&self) -> Time {
        self.requests.until().min(self.answers.until())
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.answers.is_empty()
    }
}
