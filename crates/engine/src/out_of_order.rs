//! Out-of-order packets: kept for a short time, and taken in order once the missing packets have
//! arrived.
//!
//! The state machines decide which packets to keep (`protocol::OutOfOrder` gives the reasons). This
//! file has a few places for them, for each end of a connection. The packets have passed the usual
//! checks before they get here, and are later handed to the state machines as if they had just
//! arrived. What a QP does with them is in `out_of_order/keeping.rs`. A connection whose packets
//! arrive in order has only an empty box. Principal type: [`OutOfOrderBuffer`].

mod keeping;

use protocol::{OutOfOrder, Time};

use crate::kept::KeptPacket;

/// How long a packet waits for a missing one, in nanoseconds: longer than most reordered packets
/// are late, and short compared with the cost of a loss.
const REORDER_TIME: u64 = 100_000;
/// How long it waits after the loss was reported: about the time until the retransmission comes.
const AFTERWARDS: u64 = 1_000_000;
/// The waiting packets of one connection.
#[derive(Default)]
pub(crate) struct OutOfOrderBuffer {
    requests: OutOfOrder<KeptPacket>,
    answers: OutOfOrder<KeptPacket>,
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
