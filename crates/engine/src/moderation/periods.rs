//! Sets the moderation of CQs, and ends their periods. Adds to [`Cq`] and [`Engine`].

use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::cq::ExModifyCq;
use protocol::Time;

use super::{MODERATE, Moderation, PERIODS};
use crate::cq::Cq;
use crate::engine::Engine;
use crate::error::Result;
use crate::request;

impl Cq {
    /// Sets moderation: an event waits for `count` completions, for at most `period` microseconds
    /// from the first one. A count or period of 0 sends each event at once, which is the default.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn moderate(self: &Arc<Self>, count: u16, period: u16) -> Result<()> {
        self.engine().check_process()?;
        let body = ExModifyCq {
            cq_handle: self.handle(),
            attr_mask: MODERATE,
            cq_count: count,
            cq_period: period,
            ..ExModifyCq::default()
        };
        self.engine().call(&request::private(command::EX_MODIFY_CQ, &body, 0))?;
        let moderation = Moderation::new(count, period);
        if moderation.is_some() {
            let mut known = self.engine().moderated.lock();
            known.retain(|cq| cq.strong_count() > 0 && !std::ptr::eq(cq.as_ptr(), &raw const **self));
            known.push(Arc::downgrade(self));
        }
        self.set_moderation(moderation);
        Ok(())
    }
}

impl Engine {
    /// Sets a timer to check the moderated CQs at `at`.
    pub(crate) fn end_period_at(&self, at: Time) {
        if self.timers.set(at, PERIODS) {
            self.waker.attend();
        }
    }

    /// Sends the pending events whose period is over.
    pub(crate) fn end_periods(&self, now: Time) {
        let known: Vec<_> = self.moderated.lock().iter().filter_map(Weak::upgrade).collect();
        for cq in known {
            cq.end_period(now);
        }
    }
}
