//! Datagrams to a group: a copy for each member of this agent.
//!
//! A lane has no switch that could be congested, so a sender that is faster than a member waits for
//! it. The wait is short and happens once for each member that stops: a program that is stopped
//! misses datagrams, and does not keep the others from theirs. Copies for other hosts are not sent
//! here. Adds to [`Qp`].

use std::sync::Arc;

use protocol::Time;

use crate::access::Refusal;
use crate::board::Place;
use crate::mcast::Missing;
use crate::memory::DatagramEntry;
use crate::qp::{Inner, Lane, Qp};

/// How long a datagram waits for members whose lanes are full, in nanoseconds: longer than a busy
/// machine keeps a thread from running.
const PATIENCE: u64 = 200_000_000;

impl Qp {
    /// Sends a datagram to the members of a group on this agent. Returns false if it waits, because
    /// the lane to a member is full. It counts as sent even if no member has got it, as on a network.
    pub(super) fn send_to_members(
        self: &Arc<Self>,
        inner: &mut Inner,
        lanes: Vec<Arc<Lane>>,
        run: &protocol::Run,
        (entry, place): (&DatagramEntry, Place),
        now: Time,
    ) -> Result<bool, Refusal> {
        let missing = inner.ud.missing.take().filter(|missing| missing.slot == run.slot);
        let mut missing = missing.unwrap_or_else(|| Missing { slot: run.slot, lanes, until: now.after(PATIENCE) });
        let mut failed = None;
        missing.lanes.retain(|lane| {
            failed.is_none()
                && match self.send_datagram(inner, lane, run, entry, place) {
                    Ok(true) => {
                        lane.set_lagging(false);
                        false
                    }
                    Ok(false) => !lane.is_dead(),
                    Err(refusal) => {
                        failed = Some(refusal);
                        false
                    }
                }
        });
        if let Some(refusal) = failed {
            return Err(refusal);
        }
        let Some(lane) = missing.lanes.iter().find(|lane| !lane.is_lagging()) else {
            return Ok(true);
        };
        if missing.until <= now {
            missing.lanes.iter().for_each(|lane| lane.set_lagging(true));
            return Ok(true);
        }
        self.look_again(inner, missing.until);
        inner.link.blocked = true;
        lane.block(self, &self.engine().waker);
        inner.ud.missing = Some(missing);
        Ok(false)
    }
}
