//! The timers: messages are repeated until the retries are used up, and rests end. What a message
//! does when it arrives is not here. Adds to [`Cm`]. IBA 12.7.1 (retries), 12.9.8.4 (time-wait).

use super::event::Kind;
use super::state::{CmState, PathState};
use super::{Attribute, Cm};
use crate::time::Time;

impl Cm {
    /// When to call [`Cm::on_time`]; `None` while no timer runs.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.table.next_time()
    }

    /// Time has passed. A call that is too early does nothing.
    pub fn on_time(&mut self, now: Time) {
        self.on_time_some(now, usize::MAX);
    }

    /// Like [`Cm::on_time`], but handles at most `most` timers. [`Cm::next_time`] says whether
    /// there are more.
    pub fn on_time_some(&mut self, now: Time, most: usize) {
        for _ in 0..most {
            let Some(index) = self.table.pop_due(now) else { return };
            self.expire(now, index);
        }
    }

    /// Handles the end of an entry's timer, which has stopped.
    fn expire(&mut self, now: Time, index: u32) {
        let entry = self.table.entry_mut(index);
        let state = entry.facts.state;
        match state {
            // A peer that has sent MRA does not get the longer time again.
            CmState::ReqSent
            | CmState::MraReqRcvd
            | CmState::RepSent
            | CmState::MraRepRcvd
            | CmState::DreqSent
            | CmState::SidrReqSent => self.again(now, index, state),
            CmState::Established => self.suggest_again(now, index),
            CmState::TimeWait | CmState::Declined | CmState::SidrAnswered => self.rested(index, state),
            // These states wait for users.
            CmState::Idle
            | CmState::ReqRcvd
            | CmState::MraReqSent
            | CmState::RepRcvd
            | CmState::MraRepSent
            | CmState::DreqRcvd
            | CmState::SidrReqRcvd => {}
        }
    }

    /// No answer came: repeats the last message, or gives up.
    fn again(&mut self, now: Time, index: u32, state: CmState) {
        let entry = self.table.entry_mut(index);
        if let Some(left) = entry.retries.checked_sub(1) {
            entry.retries = left;
            let deadline = now.after(entry.interval);
            self.table.arm(index, Some(deadline));
            self.repeat(index);
            return;
        }
        match state {
            CmState::ReqSent | CmState::MraReqRcvd => {
                self.tell(index, Kind::TimedOut { message: Attribute::Req });
                self.reject_for_time(index);
                self.idle(index);
            }
            CmState::RepSent | CmState::MraRepRcvd => {
                self.tell(index, Kind::TimedOut { message: Attribute::Rep });
                self.reject_for_time(index);
                self.rest(now, index, CmState::TimeWait);
            }
            CmState::DreqSent => {
                self.tell(index, Kind::TimedOut { message: Attribute::Dreq });
                self.rest(now, index, CmState::TimeWait);
            }
            _ => {
                self.tell(index, Kind::TimedOut { message: Attribute::SidrReq });
                self.idle(index);
            }
        }
    }

    /// No answer to LAP came: repeats it, or gives up. The connection continues.
    fn suggest_again(&mut self, now: Time, index: u32) {
        let entry = self.table.entry_mut(index);
        if let Some(left) = entry.retries.checked_sub(1) {
            entry.retries = left;
            let deadline = now.after(entry.interval);
            self.table.arm(index, Some(deadline));
            self.repeat_of_path(index);
        } else {
            entry.path_state = PathState::Idle;
            entry.suggested = None;
            self.tell(index, Kind::TimedOut { message: Attribute::Lap });
        }
    }
}
