//! Ending a connection: one direction after the other, or both at once. Data sent before is
//! delivered first, if the peer accepts it.

use super::{Phase, State, StreamSocket};
use crate::entry::{Outcome, Refusal};
use crate::rsocket::verbs::Load;
use crate::rsocket::waiting::Patience;
use rsocket::Control;
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// How long closing waits for a peer that accepts no data, unless the program sets `SO_LINGER`.
const LINGER: Duration = Duration::from_secs(20);

impl StreamSocket {
    /// `rshutdown`: 0 ends reading, 1 ends writing, 2 ends both.
    pub(crate) fn shut_down(&self, how: c_int) -> Outcome<()> {
        if !(0..=2).contains(&how) {
            return Err(Refusal(libc::EINVAL));
        }
        self.finish(how != 1, how != 0, Some(Instant::now() + LINGER))
    }

    fn finish(&self, reading: bool, writing: bool, until: Option<Instant>) -> Outcome<()> {
        let control = {
            // A thread that is sending finishes its posts first.
            let _turn = self.sending.lock();
            let mut state = self.state();
            match state.phase {
                Phase::Connected | Phase::Accepting => {}
                // The socket stops listening: threads that wait for connections get an error.
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
            // If the time is over, the queue pair sends the rest.
            let _ = self.wait(patience, sent);
        }
        Ok(())
    }

    /// Sends a control message, if possible. Returns whether this is done; it is also done if the
    /// connection has ended.
    fn tell(&self, state: &mut State, control: Control) -> bool {
        let Some(stream) = &mut state.stream else { return true };
        if !stream.is_up() {
            return true;
        }
        let Some(transfer) = stream.control(control) else { return false };
        let _ = self.post(state, &transfer, Load::EMPTY);
        true
    }

    /// `rclose`: delivers sent data, tells the peer, and ends calls that are under way. The last
    /// user of the socket frees the rest.
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
            // An error means that the peer disconnected first, which has the same result.
            let _ = self.endpoint.disconnect();
        }
        state.waiters.wake();
    }
}
