//! A stream socket: unconnected, a listener, or a connection. The principal type is
//! [`StreamSocket`].
//!
//! All changing data is in [`State`], under one lock. No thread holds this lock while it sleeps or
//! copies data. [`opening`] establishes a connection, [`transfer`] moves bytes, [`closing`] ends
//! the connection. The socket takes events of the connection manager while the connection is being
//! established, and when its descriptor is readable. It polls completions in every call that needs
//! them.

mod closing;
mod opening;
mod transfer;
mod watched;

use super::AGAIN;
use super::cm::{Endpoint, Incoming, Kind, News};
use super::iomap::Maps;
use super::link::Link;
use super::settings::Settings;
use super::verbs::Load;
use super::waiting::{self, Patience, SPIN, Waiters, Waker, input, is_ready, next_spin};
use crate::entry::{Outcome, Refusal};
use crate::layout::Wc;
use bytemuck::Zeroable;
use parking_lot::{Mutex, MutexGuard};
use rsocket::Stream;
use rsocket::stream::{Transfer, Work};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How many completions are polled at a time.
const BATCH: usize = 32;
/// After this many unsuccessful calls, a socket that never sleeps looks for events of the
/// connection manager.
const IN_VAIN: u32 = 256;

/// The state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    New,
    Bound,
    Listening,
    ResolvingAddress,
    ResolvingRoute,
    Connecting,
    Accepting,
    Connected,
    Failed,
}

impl Phase {
    /// Whether a connection is being established.
    pub(crate) fn is_opening(self) -> bool {
        matches!(self, Self::ResolvingAddress | Self::ResolvingRoute | Self::Connecting | Self::Accepting)
    }
}

/// A stream socket.
pub(crate) struct StreamSocket {
    /// The parts of a connection. They are dropped before the id, and the id's queue pair is
    /// destroyed before them.
    link: OnceLock<Link>,
    endpoint: Endpoint,
    family: c_int,
    state: Mutex<State>,
    /// Held by the thread that sends, and by the thread that takes received bytes, so that bytes
    /// stay in order.
    sending: Mutex<()>,
    receiving: Mutex<()>,
}

/// The changing part of a socket.
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) settings: Settings,
    /// The connection, from `Connecting` (or `Accepting`) on.
    pub(crate) stream: Option<Stream>,
    /// Requests that the listener has not answered yet, with their private data.
    requests: VecDeque<(Incoming, Vec<u8>)>,
    /// The destination while a connection is being established, and the number of attempts.
    destination: Option<super::address::Name>,
    tries: u32,
    pub(crate) maps: Maps,
    /// `SO_ERROR`.
    pub(crate) error: c_int,
    waiters: Waiters,
    /// Whether the next completion raises an event.
    armed: bool,
    /// How long the next wait spins before it sleeps.
    spin: Duration,
    /// The time since when the send ring has had no room for a waiting sender.
    crowded: Option<Instant>,
    in_vain: u32,
    /// Whether the program has closed the socket. Calls that are under way then end.
    closed: bool,
}

impl StreamSocket {
    /// Makes an unconnected socket.
    pub(crate) fn new(family: c_int, settings: Settings) -> Outcome<Self> {
        Ok(Self::over(Endpoint::new(false)?, family, settings, Phase::New))
    }

    fn over(endpoint: Endpoint, family: c_int, settings: Settings, phase: Phase) -> Self {
        let state = State {
            phase,
            settings,
            stream: None,
            requests: VecDeque::new(),
            destination: None,
            tries: 0,
            maps: Maps::default(),
            error: 0,
            waiters: Waiters::default(),
            armed: false,
            spin: SPIN,
            crowded: None,
            in_vain: 0,
            closed: false,
        };
        Self {
            link: OnceLock::new(),
            endpoint,
            family,
            state: Mutex::new(state),
            sending: Mutex::new(()),
            receiving: Mutex::new(()),
        }
    }

    /// The descriptor by which the program knows the socket.
    pub(crate) fn fd(&self) -> RawFd {
        self.endpoint.number()
    }

    /// The address family that it was made for.
    pub(crate) fn family(&self) -> c_int {
        self.family
    }

    /// The changing part.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The socket's id.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The parts of the connection, once they exist.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Polls completions. While the connection is being established, also takes events. Neither
    /// needs the kernel.
    fn look(&self, state: &mut State) {
        if state.phase.is_opening() || state.phase == Phase::Listening {
            self.look_for_news(state);
        }
        self.look_for_completions(state, false);
    }

    /// Handles the events of the connection manager.
    fn look_for_news(&self, state: &mut State) {
        loop {
            match self.endpoint.news() {
                Ok(Some(news)) => self.take_news(state, news),
                Ok(None) => return,
                // The agent has ended.
                Err(refusal) => {
                    if state.phase != Phase::Failed && state.phase != Phase::New {
                        self.fail(state, refusal.0);
                    }
                    return;
                }
            }
        }
    }

    fn take_news(&self, state: &mut State, news: News) {
        match (state.phase, news.kind) {
            (Phase::Listening, Kind::Request) => {
                state.requests.extend(news.request.map(|request| (request, news.private)));
                state.waiters.wake();
            }
            (phase, _) if phase.is_opening() => self.open_further(state, &news),
            (Phase::Connected, Kind::Disconnected | Kind::DeviceRemoval) => {
                // What this side has acknowledged is complete when its queue pair has ended, but
                // not before: another thread may still be about to write the completions. An error
                // means that the connection is gone already.
                let _ = self.endpoint.disconnect();
                self.look_for_completions(state, true);
                if let Some(stream) = &mut state.stream {
                    stream.close();
                }
                state.waiters.wake();
            }
            _ => {}
        }
    }

    /// Polls completions, posts new receives for the used ones, and sends grants that are due.
    /// `ended`: the peer has disconnected, so flushed transfers are no failure.
    fn look_for_completions(&self, state: &mut State, ended: bool) {
        let (Some(link), Some(stream)) = (self.link.get(), &mut state.stream) else { return };
        let mut room = [Wc::zeroed(); BATCH];
        let (mut seen, mut failed) = (0, 0);
        loop {
            let count = link.completions.poll(&mut room);
            let (mut used, mut words) = (0, [0; BATCH]);
            for wc in room.iter().take(count) {
                match Work::of(wc.wr_id) {
                    Some(Work::Receive { word }) if wc.status == 0 => {
                        words[used] = word;
                        used += 1;
                        let message = link.words.message(word, wc, stream.peer_order());
                        if let Err(violation) = message.and_then(|message| stream.received(message)) {
                            stream.fail();
                            engine::reason!(
                                "rsocket {}: the connection is given up: of its peer, {violation}",
                                self.fd()
                            );
                            failed = libc::EPROTO;
                        }
                    }
                    Some(Work::Receive { .. }) | None => {}
                    Some(work) => {
                        let is_well = wc.status == 0 || ended;
                        if !is_well && stream.is_up() {
                            failed = libc::ECONNRESET;
                        }
                        stream.completed(work, is_well);
                    }
                }
            }
            let goes_on = stream.is_up() && !ended;
            if used > 0 && goes_on && link.words.post(&link.queue, words.into_iter().take(used)).is_err() {
                stream.fail();
                failed = libc::EIO;
            }
            seen += count;
            if count < BATCH {
                break;
            }
        }
        while let Some(index) = stream.wanted_entry() {
            if stream.take_entry(link.entry(index)) {
                link.clear_entry(index);
            }
        }
        // A peer that has not yet said that it is ready might lose grants.
        if state.phase == Phase::Connected && !ended {
            grant(link, stream);
        }
        if failed != 0 {
            state.error = failed;
        }
        if seen > 0 {
            state.waiters.wake();
        }
    }

    /// Ends a connection that cannot be established or is lost.
    fn fail(&self, state: &mut State, errno: c_int) {
        if let Some(stream) = &mut state.stream {
            stream.fail();
        }
        if state.phase != Phase::Connected {
            state.phase = Phase::Failed;
        }
        state.error = errno;
        state.waiters.wake();
    }

    /// Waits until `ready`. Fails with EAGAIN when the time is over, and with EBADF when the
    /// program closes the socket meanwhile.
    pub(crate) fn wait(&self, patience: Patience, mut ready: impl FnMut(&mut State) -> bool) -> Outcome<()> {
        if self.try_once(&mut ready)? {
            return Ok(());
        }
        if matches!(patience, Patience::None) {
            return self.in_vain(&mut ready);
        }
        let start = Instant::now();
        let spin = self.state().spin;
        while start.elapsed() < spin {
            std::hint::spin_loop();
            if self.try_once(&mut ready)? {
                return Ok(());
            }
        }
        let waker = Waker::mine()?;
        loop {
            let left = patience.left()?;
            {
                let mut state = self.state();
                self.arm(&mut state);
                self.look(&mut state);
                if ready(&mut state) {
                    state.spin = next_spin(start.elapsed());
                    return Ok(());
                }
                if state.closed {
                    return Err(Refusal(libc::EBADF));
                }
                state.waiters.add(&waker);
            }
            let cq = self.link.get().map_or(waker.fd(), |link| link.completions.fd());
            let mut fds = [input(self.endpoint.fd()), input(cq), input(waker.fd())];
            let slept = waiting::sleep(&mut fds, left.as_ref());
            let [news, completions, woken] = &fds;
            if is_ready(woken) {
                waker.quiet();
            }
            self.woken(&waker, is_ready(news), is_ready(completions));
            slept?;
        }
    }

    fn try_once(&self, ready: &mut impl FnMut(&mut State) -> bool) -> Outcome<bool> {
        let mut state = self.state();
        self.look(&mut state);
        if state.closed { Err(Refusal(libc::EBADF)) } else { Ok(ready(&mut state)) }
    }

    /// Counts an unsuccessful call. Because of this count, a program that never sleeps also learns
    /// that the peer has ended.
    fn in_vain(&self, ready: &mut impl FnMut(&mut State) -> bool) -> Outcome<()> {
        let mut state = self.state();
        state.in_vain = state.in_vain.wrapping_add(1);
        if state.in_vain.is_multiple_of(IN_VAIN) {
            self.look_for_news(&mut state);
        }
        if ready(&mut state) { Ok(()) } else { Err(AGAIN) }
    }

    /// Makes sure that the next completion raises an event.
    fn arm(&self, state: &mut State) {
        if let Some(link) = self.link.get()
            && !state.armed
        {
            link.completions.arm();
            state.armed = true;
        }
    }

    /// Called after a thread has slept: takes the events that woke it.
    fn woken(&self, waker: &Arc<Waker>, news: bool, completions: bool) {
        let mut state = self.state();
        state.waiters.remove(waker);
        if completions && self.link.get().is_some_and(|link| link.completions.take_event()) {
            state.armed = false;
        }
        if news {
            self.look_for_news(&mut state);
        }
    }

    /// Posts a transfer. If posting fails, the connection ends.
    fn post(&self, state: &mut State, transfer: &Transfer, load: Load) -> Outcome<()> {
        let link = self.link.get().ok_or(Refusal(libc::ENOTCONN))?;
        link.queue.transfer(transfer, load).inspect_err(|_| self.fail(state, libc::ECONNRESET))
    }

    /// Sends a keepalive, which shows a dead peer.
    pub(crate) fn keep_alive(&self) {
        let mut state = self.state();
        self.look(&mut state);
        let Some(stream) = state.stream.as_mut().filter(|stream| stream.is_up()) else { return };
        if let Some(transfer) = stream.control(rsocket::Control::Keepalive) {
            let _ = self.post(&mut state, &transfer, Load::EMPTY);
        }
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        self.endpoint.end_queue();
    }
}

/// Sends the grants that are due.
fn grant(link: &Link, stream: &mut Stream) {
    while let Some(grant) = stream.grant() {
        let entry = grant.entry.unwrap_or_default();
        let load = if grant.entry.is_some() { Load::inline(entry.as_ptr(), 16) } else { Load::EMPTY };
        if link.queue.transfer(&grant.transfer, load).is_err() {
            stream.fail();
            return;
        }
    }
}
