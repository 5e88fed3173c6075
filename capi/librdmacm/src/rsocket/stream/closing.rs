//! A connection ends: one side after the other, or both at once. What was sent before is delivered first, if the peer takes it.

use super::{Phase, State, StreamSocket};
use crate::entry::{Outcome, Refusal};
use crate::rsocket::verbs::Load;
use crate::rsocket::waiting::Patience;
use rsocket::Control;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// How long closing waits for a peer that takes nothing, if the program has not said (`SO_LINGER`).
const LINGER: Duration = Duration::from_secs(20);

impl StreamSocket {
    /// `rshutdown`: 0 no more reading, 1 no more writing, 2 both.
    pub(crate) fn shut_down(&self, how: c_int) -> Outcome<()> {
        if !(0..=2).contains(&how) {
            return Err(Refusal(libc::EINVAL));
        }
        self.finish(how != 1, how != 0, Some(Instant::now() + LINGER))
    }

    fn finish(&self, reading: bool, writing: bool, until: Option<Instant>) -> Outcome<()> {
        let control = {
            // Whoever is sending has finished what he posts.
            let _turn = self.sending.lock();
            let mut state = self.state();
            match state.phase {
                Phase::Connected | Phase::Accepting => {}
                // A listener is no more one: who waits for connections gets an error.
                Phase::Listening => {
                    state.phase = Phase::Failed;
                    state.error = libc::EINVAL;
                    state.waiters.wake();
                    return Ok(());
                }
                _ => return Err(Refusal(libc::ENOTCONN)),
            }
            let stream = state.stream.as_mut().ok_or(Refusal(libc::ENOTCONN))?;
            let control = stream.shut_down(reading, writing);
            state.waiters.wake();
            control
        };
        let patience = until.map_or(Patience::None, Patience::Until);
        if let Some(control) = control {
            let told = self.wait(patience, |state| self.tell(state, control));
            if told.is_err() {
                return Ok(());
            }
        }
        if writing {
            let sent =
                |state: &mut State| state.stream.as_ref().is_none_or(|stream| stream.all_sent() || !stream.is_up());
            // Who is not patient enough leaves the rest to the queue pair.
            let _ = self.wait(patience, sent);
        }
        Ok(())
    }

    /// Says it, if that is possible; it is done as well when the connection has ended.
    fn tell(&self, state: &mut State, control: Control) -> bool {
        let Some(stream) = &mut state.stream else { return true };
        if !stream.is_up() {
            return true;
        }
        let Some(transfer) = stream.control(control) else { return false };
        let _ = self.post(state, &transfer, Load::EMPTY);
        true
    }

    /// `rclose`: delivers what was sent, tells the peer, and ends calls that are under way. The rest goes with the last user.
    pub(crate) fn close(&self) {
        let linger = {
            let state = self.state();
            match state.settings.linger {
                Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
                None => LINGER,
            }
        };
        let _ = self.finish(true, true, Instant::now().checked_add(linger).filter(|_| !linger.is_zero()));
        let mut state = self.state();
        state.closed = true;
        state.requests.clear();
        state.maps.clear();
        if self.link.get().is_some() && state.phase != Phase::Failed {
            // An error says that the peer was faster, which is as well.
            let _ = self.endpoint.disconnect();
        }
        state.waiters.wake();
    }
}
