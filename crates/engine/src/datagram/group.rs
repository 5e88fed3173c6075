//! Datagrams to a group: a copy for each member of this agent.
//!
//! A lane has no switch that could be congested, so a sender that is faster than a member waits for
//! it. A program that is stopped misses datagrams, and does not keep the others from theirs
//! ([`Patience`](crate::lane)). Copies for other hosts are not sent here. Adds to [`Qp`].

use std::sync::Arc;

use protocol::Time;

use crate::access::Refusal;
use crate::board::DevicePort;
use crate::mcast::Missing;
use crate::memory::DatagramEntry;
use crate::put::Sent;
use crate::qp::{Inner, Lane, Qp};

/// How often a datagram tries members other than the one for which it waits, in nanoseconds. This
/// is also what such a member may be charged for another one's delay.
const RETRY: u64 = 2_000_000;

impl Qp {
    /// Sends a datagram to the members of a group on this agent. Returns false if it waits, because
    /// the lane to a member is full. It counts as sent even if no member has got it, as on a network.
    pub(super) fn send_to_members(
        self: &Arc<Self>,
        inner: &mut Inner,
        lanes: Vec<Arc<Lane>>,
        run: &protocol::Run,
        (entry, place): (&DatagramEntry, DevicePort),
        now: Time,
    ) -> Result<bool, Refusal> {
        let missing = inner.ud.missing.take().filter(|missing| missing.slot == run.slot);
        let mut missing = missing.unwrap_or(Missing { slot: run.slot, lanes, since: now });
        let waited = now.0.saturating_sub(missing.since.0);
        let mut failed = None;
        missing.lanes.retain(|lane| {
            failed.is_none()
                && match self.send_datagram(inner, lane, run, entry, place) {
                    Sent::Yes | Sent::Lost => {
                        lane.patience.on_taken(waited);
                        false
                    }
                    Sent::Full if waited >= lane.patience.left() => {
                        lane.patience.on_lost();
                        false
                    }
                    Sent::Full => !lane.is_dead(),
                    Sent::Refused(refusal) => {
                        failed = Some(refusal);
                        false
                    }
                }
        });
        if let Some(refusal) = failed {
            return Err(refusal);
        }
        let left = |lane: &&Arc<Lane>| lane.patience.left();
        let (Some(least), Some(lane)) = (missing.lanes.iter().min_by_key(left), missing.lanes.iter().max_by_key(left))
        else {
            return Ok(true);
        };
        // Room on the one lane is noticed at once, and on the others soon.
        self.look_again(inner, missing.since.after(least.patience.left()).min(now.after(RETRY)));
        inner.link.blocked = true;
        lane.block(self, &self.engine().waker);
        inner.ud.missing = Some(missing);
        Ok(false)
    }
}
