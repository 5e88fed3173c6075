//! Establishing a connection: binding, listening, connecting, accepting. The two sides exchange
//! their buffers in the private data of the request and its answer.

use super::{Phase, State, StreamSocket};
use crate::entry::{Outcome, Refusal};
use crate::rsocket::address::Name;
use crate::rsocket::cm::{Endpoint, Incoming, Kind, News};
use crate::rsocket::link::Link;
use crate::rsocket::waiting::Patience;
use rsocket::connect::Hello;
use std::ffi::c_int;
use std::sync::Arc;

/// The time limit of the first attempt to resolve an address or a route, in milliseconds. Each
/// further attempt may take twice as long.
const FIRST_TRY: c_int = 1000;
/// The number of attempts for each.
const TRIES: u32 = 4;
/// `RDMA_OPTION_IB` and `RDMA_OPTION_IB_PATH`.
const OPTION_IB: (c_int, c_int) = (1, 1);

impl StreamSocket {
    /// `rbind`.
    pub(crate) fn bind(&self, name: &Name) -> Outcome<()> {
        let mut state = self.state();
        self.endpoint.bind(name)?;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// `rlisten`.
    pub(crate) fn listen(&self, backlog: c_int) -> Outcome<()> {
        let mut state = self.state();
        match state.phase {
            Phase::Listening => return Ok(()),
            Phase::New | Phase::Bound => {}
            _ => return Err(Refusal(libc::EINVAL)),
        }
        if state.phase == Phase::New {
            self.endpoint.bind(&Name::any(self.family))?;
        }
        self.endpoint.listen(backlog)?;
        state.phase = Phase::Listening;
        Ok(())
    }

    /// `rconnect`.
    pub(crate) fn connect(&self, name: &Name) -> Outcome<()> {
        let never_waits = {
            let mut state = self.state();
            match state.phase {
                Phase::New | Phase::Bound => {
                    state.destination = Some(*name);
                    state.tries = 0;
                    self.resolve_address(&mut state);
                }
                Phase::Connected => return Ok(()),
                Phase::Failed => return Err(Refusal(if state.error == 0 { libc::ENOTCONN } else { state.error })),
                Phase::Listening => return Err(Refusal(libc::EINVAL)),
                _ if state.settings.never_waits(0) => {
                    self.look(&mut state);
                    if state.phase.is_opening() {
                        return Err(Refusal(libc::EALREADY));
                    }
                }
                _ => {}
            }
            self.look(&mut state);
            state.settings.never_waits(0)
        };
        let patience = if never_waits { Patience::None } else { Patience::Endless };
        match self.wait(patience, |state| !state.phase.is_opening()) {
            Err(refusal) if refusal == super::AGAIN => return Err(Refusal(libc::EINPROGRESS)),
            other => other?,
        }
        let mut state = self.state();
        match state.phase {
            Phase::Connected => Ok(()),
            _ => Err(Refusal(std::mem::replace(&mut state.error, 0)).or(libc::ECONNREFUSED)),
        }
    }

    fn resolve_address(&self, state: &mut State) {
        let Some(name) = state.destination else { return };
        state.phase = Phase::ResolvingAddress;
        if let Err(refusal) = self.endpoint.resolve_address(None, &name, FIRST_TRY << state.tries.min(TRIES)) {
            self.fail(state, refusal.0);
        }
    }

    fn resolve_route(&self, state: &mut State) {
        state.phase = Phase::ResolvingRoute;
        let resolved = match state.settings.route.take() {
            Some(path) => self.endpoint.set_option(OPTION_IB.0, OPTION_IB.1, &path),
            None => self.endpoint.resolve_route(FIRST_TRY << state.tries.min(TRIES)),
        };
        if let Err(refusal) = resolved {
            self.fail(state, refusal.0);
        }
    }

    /// Takes the next step that an event allows.
    pub(super) fn open_further(&self, state: &mut State, news: &News) {
        match (state.phase, news.kind) {
            (Phase::ResolvingAddress, Kind::AddressResolved) => {
                state.tries = 0;
                self.resolve_route(state);
            }
            (Phase::ResolvingRoute, Kind::RouteResolved) => {
                if let Err(refusal) = self.request(state) {
                    self.fail(state, refusal.0);
                }
            }
            (Phase::ResolvingAddress, Kind::AddressError) | (Phase::ResolvingRoute, Kind::RouteError) => {
                state.tries += 1;
                if news.status != -libc::ETIMEDOUT || state.tries >= TRIES {
                    self.fail(state, errno_of(news.status).unwrap_or(libc::EHOSTUNREACH));
                } else if news.kind == Kind::AddressError {
                    self.resolve_address(state);
                } else {
                    self.resolve_route(state);
                }
            }
            (Phase::Connecting, Kind::Established) => self.answered(state, &news.private),
            (Phase::Accepting, Kind::Established) => self.is_up(state),
            (_, Kind::Rejected) => self.fail(state, libc::ECONNREFUSED),
            (_, Kind::Unreachable) => self.fail(state, errno_of(news.status).unwrap_or(libc::EHOSTUNREACH)),
            (_, Kind::ConnectError | Kind::Disconnected | Kind::DeviceRemoval) => self.fail(state, libc::ECONNRESET),
            _ => {}
        }
    }

    /// Makes the parts of the connection and sends the request.
    fn request(&self, state: &mut State) -> Outcome<()> {
        let link = Link::new(&self.endpoint, &state.settings)?;
        let hello = link.hello();
        let link = self.link.get_or_init(|| link);
        // Before there is a stream, no thread takes completions.
        debug_assert!(state.stream.is_none() && link.sizes().send_queue > 0);
        state.phase = Phase::Connecting;
        self.endpoint.connect(&hello.emit())
    }

    /// Handles the peer's acceptance.
    fn answered(&self, state: &mut State, private: &[u8]) {
        match (Hello::parse(private), self.link.get()) {
            (Ok(hello), Some(link)) => {
                state.stream = Some(link.stream(&hello));
                self.is_up(state);
            }
            (Err(violation), _) => {
                engine::reason!(
                    "rsocket {}: the peer that accepted the connection does not use the rsocket protocol: {violation}",
                    self.fd()
                );
                let _ = self.endpoint.disconnect();
                self.fail(state, libc::ECONNREFUSED);
            }
            (_, None) => self.fail(state, libc::ECONNREFUSED),
        }
    }

    fn is_up(&self, state: &mut State) {
        state.phase = Phase::Connected;
        self.look_for_completions(state, false);
        state.waiters.wake();
    }

    /// `raccept`: refuses an invalid request and takes the next one.
    pub(crate) fn accept(&self) -> Outcome<Arc<Self>> {
        loop {
            let patience = {
                let state = self.state();
                if state.phase != Phase::Listening {
                    return Err(Refusal(libc::EINVAL));
                }
                state.settings.receive_patience(0)
            };
            self.wait(patience, |state| !state.requests.is_empty())?;
            let Some((request, private)) = self.state().requests.pop_front() else { continue };
            match Hello::parse(&private) {
                Ok(hello) => match self.accepted(request, &hello) {
                    Ok(socket) => return Ok(Arc::new(socket)),
                    // A lack of descriptors or memory is a failure of this program. All other
                    // failures are between the peer and the agent.
                    Err(refusal) if matches!(refusal.0, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO) => {
                        return Err(refusal);
                    }
                    Err(_) => {}
                },
                Err(violation) => {
                    engine::reason!(
                        "rsocket {}: the peer that requested the connection does not use the rsocket protocol: {violation}",
                        self.fd()
                    );
                }
            }
        }
    }

    fn accepted(&self, request: Incoming, hello: &Hello) -> Outcome<Self> {
        let settings = self.state().settings.clone();
        let endpoint = Endpoint::of_request(request)?;
        let socket = Self::over(endpoint, self.family, settings, Phase::Accepting);
        let link = Link::new(&socket.endpoint, &socket.state().settings)?;
        let ours = link.hello();
        socket.state().stream = Some(link.stream(hello));
        let _ = socket.link.set(link);
        socket.endpoint.accept(&ours.emit())?;
        Ok(socket)
    }
}

/// The errno value in an event's status.
fn errno_of(status: i32) -> Option<c_int> {
    (-4095..0).contains(&status).then_some(-status)
}

impl Refusal {
    /// This refusal, or `errno` if its value is 0.
    fn or(self, errno: c_int) -> Self {
        if self.0 == 0 { Self(errno) } else { self }
    }
}
