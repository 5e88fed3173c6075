//! What time does: messages again, and again, until it is enough; rests that end. Adds to [`Cm`]. IBA 12.7.1 (retries), 12.9.8.4
//! (time-wait).

use super::{Attribute, Cm, Kind, PathState, State};
use crate::Time;

impl Cm {
    /// When to call [`Cm::on_time`]; `None` while nothing is waited for.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.table.next_time()
    }

    /// Time passed. Too early a call does nothing.
    pub fn on_time(&mut self, now: Time) {
        self.on_time_some(now, usize::MAX);
    }

    /// The same for the first `most` times that have come; [`Cm::next_time`] says whether there are more.
    pub fn on_time_some(&mut self, now: Time, most: usize) {
        for _ in 0..most {
            let Some(index) = self.table.pop_due(now) else { return };
            self.expire(now, index);
        }
    }

    /// The time of an entry has come, and its timer does not run any more.
    fn expire(&mut self, now: Time, index: u32) {
        let entry = self.table.entry_mut(index);
        let state = entry.facts.state;
        match state {
            // Who has asked for time once is not waited for so long again.
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::DreqSent
            | State::SidrReqSent => self.again(now, index, state),
            State::Established => self.suggest_again(now, index),
            State::TimeWait | State::Declined | State::SidrAnswered => self.rested(index, state),
            // These wait for users.
            State::Idle
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent
            | State::DreqRcvd
            | State::SidrReqRcvd => {}
        }
    }

    /// No answer: says the last message again, or gives up.
    fn again(&mut self, now: Time, index: u32, state: State) {
        let entry = self.table.entry_mut(index);
        if let Some(left) = entry.retries.checked_sub(1) {
            entry.retries = left;
            let deadline = now.after(entry.interval);
            self.table.arm(index, Some(deadline));
            self.repeat(index);
            return;
        }
        match state {
            State::ReqSent | State::MraReqRcvd => {
                self.tell(index, Kind::TimedOut { message: Attribute::Req });
                self.reject_for_time(index);
                self.idle(index);
            }
            State::RepSent | State::MraRepRcvd => {
                self.tell(index, Kind::TimedOut { message: Attribute::Rep });
                self.reject_for_time(index);
                self.rest(now, index, State::TimeWait);
            }
            State::DreqSent => {
                self.tell(index, Kind::TimedOut { message: Attribute::Dreq });
                self.rest(now, index, State::TimeWait);
            }
            _ => {
                self.tell(index, Kind::TimedOut { message: Attribute::SidrReq });
                self.idle(index);
            }
        }
    }

    /// No answer to LAP: says it again, or gives up; the connection goes on.
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
