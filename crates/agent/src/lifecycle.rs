//! The begin and the end of contexts: a client opens a device, and closes it or dies. The end is
//! done in pieces, so that the work of other users continues meanwhile.

use std::sync::Arc;

use abi::Errno;

use crate::context::Context;
use crate::headroom;
use crate::ids::{ContextId, Peer};
use crate::lanes::lane_gone;
use crate::queue_memory::QueueMemory;
use crate::reasons::ContextReasons;
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::world::World;

impl World {
    /// Opens `device` for a client.
    pub fn open(&mut self, device: usize, profile: u16, peer: Peer) -> Outcome<ContextId> {
        if self.devices.get(device).is_none() {
            return refuse(Errno::ENODEV, format!("there is no device {device}"));
        }
        headroom::check()?;
        shares::room_for_context(self, peer.uid)?;
        let Some(next) = self.last_context.checked_add(1) else {
            return refuse(Errno::ENOMEM, "every context number was used; restart the agent");
        };
        self.last_context = next;
        let id = ContextId(next);
        let closer = self.closers.of(peer.uid);
        let memory = QueueMemory::new(Arc::clone(&self.system), closer.clone());
        self.users.all.entry(peer.uid).or_default().contexts.insert(id);
        self.contexts.insert(id, Context::new(id, device, profile, peer, closer, memory));
        Ok(id)
    }

    /// Ends a context whose client has closed or died.
    pub fn close(&mut self, id: ContextId) {
        while !self.close_some(id, usize::MAX) {}
    }

    /// Like [`World::close`], in pieces of `most` objects. Returns true when the context is gone.
    /// Objects are destroyed before the objects on which they depend.
    pub fn close_some(&mut self, id: ContextId, most: usize) -> bool {
        use crate::commands::{ah, cq, dm, mr, mw, pd, qp, srq, xrc};
        let steps: [fn(&mut Self, ContextId, usize) -> usize; 12] = [
            ah::destroy_some,
            xrc::let_go_of_some,
            qp::destroy_some,
            srq::destroy_some,
            xrc::close_some,
            cq::destroy_some,
            cq::destroy_some_channels,
            mw::destroy_some,
            mr::destroy_some,
            dm::destroy_some,
            pd::destroy_some,
            Self::end_some_lanes,
        ];
        let Some(context) = self.contexts.get_mut(&id) else { return true };
        if !std::mem::replace(&mut context.ends, true) {
            crate::wire::delayed_acks::send(self, id);
        }
        let mut left = most;
        for step in steps {
            loop {
                if left == 0 {
                    return false;
                }
                match step(self, id, left) {
                    0 => break,
                    done => left = left.saturating_sub(done),
                }
            }
        }
        self.keep_counts(id);
        self.note_datagrams(id);
        self.tables.traffic.forget(id);
        self.keep_reasons(id);
        let neighbours = self.contexts.get_mut(&id).map(|context| std::mem::take(&mut context.neighbours));
        self.forget_faults(id, &neighbours.into_iter().flatten().collect::<Vec<_>>());
        // This happens before another context can get its QPNs, because the board still names this
        // context.
        self.wire.close(id.0);
        self.relays.forget(id);
        self.captures.forget(id);
        self.tables.paths.forget(id);
        self.numbers.forget(id);
        if let Some(context) = self.contexts.remove(&id) {
            self.users.forget(context.peer.uid, id);
        }
        true
    }

    /// Ends lanes of a context that ends or whose device a rule removed. The other ends get a push.
    pub(crate) fn end_some_lanes(&mut self, id: ContextId, most: usize) -> usize {
        let lanes = self.lanes.forget_some(id, most);
        if self.faults.is_on()
            && let Some(context) = self.contexts.get_mut(&id)
        {
            context.neighbours.extend(lanes.iter().map(|(_, other)| *other));
        }
        for (lane, other) in &lanes {
            if let Some(engine) = self.contexts.get_mut(other).and_then(|context| context.engine.as_mut()) {
                engine.push(lane_gone(*lane, id), Vec::new());
            }
        }
        lanes.len()
    }

    /// Keeps the reasons of a context that ends, so that users can ask for them for a while.
    fn keep_reasons(&mut self, id: ContextId) {
        if let Some(context) = self.contexts.get(&id)
            && let Some(ended) = ContextReasons::of(context, &self.devices[context.device].name)
        {
            self.ended.keep(ended);
        }
    }

    /// Keeps what a context has counted at its device's ports.
    fn keep_counts(&mut self, id: ContextId) {
        let Some(Context { device, events: Some(events), .. }) = self.contexts.get(&id) else { return };
        for (port, number) in self.devices.uncounted(*device).ports.iter_mut().zip(1..) {
            port.counted.violations.keep(events.violations(number));
            port.counted.hardware.iter_mut().zip(events.hw_counters(number)).for_each(|(sum, more)| *sum += more);
        }
    }
}
