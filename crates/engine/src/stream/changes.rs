//! How the states of a queue pair of iWARP follow its stream, and the stream the states. Adds to
//! [`Qp`].
//!
//! | change | effect |
//! |---|---|
//! | to RTS | the engine takes the connection from the agent |
//! | to SQD | the stream closes gracefully; outstanding requests make it an abort |
//! | to ERR | the same, and all requests are flushed |
//! | to RESET, end of the QP | the connection is aborted, or ends behind what is sent |

use std::collections::VecDeque;
use std::os::fd::AsFd;

use abi::command::number as command;
use abi::errno::Errno;
use abi::qp::{ModifyQp, attr};
use abi::stream::{StreamEnd, StreamOut, StreamTake, end_flags, stream_flags};
use iwarp::{Agreement, Config, Quirks, Role, Rtr, Stream};
use protocol::State;
use protocol::modify::{Attributes, counting};
use rustix::event::epoll::EventFlags;

use super::gate::Gate;
use super::output::Output;
use super::part::{Addresses, Receives};
use super::{Live, MULPDU, duration};
use crate::control::{Answer, too_many_open};
use crate::error::{Result, by_system, refusal};
use crate::qp::{Inner, Qp};
use crate::request;

/// The attributes that count for a queue pair of iWARP in a call that leaves its state. The others
/// are ignored, as Linux's siw ignores them: `rdma_init_qp_attr` gives only the port for RTS if
/// `rdma_accept` makes this change.
const COUNTING_IN_STATE: u32 = attr::ACCESS_FLAGS | attr::RATE_LIMIT;

impl Qp {
    /// Whether it is a queue pair of iWARP: it goes to RTS after the connection manager has
    /// accepted a request, and not before.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.lock().link.stream.is_some()
    }

    /// The attributes of a mask that count for this QP. `None`: there are none, and nothing changes.
    pub(crate) fn counting_attributes(&self, inner: &Inner, mask: u32) -> Option<u32> {
        let counts = counting(self.service, Attributes(mask)).0;
        match inner.link.stream.is_some() && counts & attr::STATE == 0 {
            true => Some(counts & COUNTING_IN_STATE).filter(|counts| *counts != 0),
            false => Some(counts),
        }
    }

    /// Whether a change takes the connection over.
    pub(crate) fn takes_stream(&self, inner: &Inner, new: &ModifyQp) -> bool {
        let goes = new.attr_mask & attr::STATE != 0 && u32::from(new.qp_state) == State::Rts as u32;
        inner.link.stream.is_some() && goes && inner.state == State::Rtr
    }

    /// Takes the connection from the agent, and begins its stream.
    pub(crate) fn take_stream(&self) -> Result<()> {
        let body = StreamTake { qp_handle: self.handle(), reserved: 0 };
        let given = self.engine().call(&request::private(command::STREAM_TAKE, &body, size_of::<StreamOut>()));
        let qpn = self.qpn();
        let begun = given.and_then(|given| {
            let mut inner = self.lock();
            if inner.is_dead() {
                // The agent may have heard of the end of the queue pair before.
                given.fds.iter().for_each(|socket| self.engine().net.network.reset(socket.as_fd()));
                Err(refusal(Errno::EINVAL, "it is destroyed"))
            } else {
                self.begin_stream(&mut inner, given)
            }
        });
        begun.map_err(|error| {
            // The agent has the socket, perhaps alone: it ends the connection and tells the program.
            let end = StreamEnd { qpn, flags: end_flags::NOT_TAKEN };
            let _ = self.engine().tell(&request::private(command::STREAM_END, &end, 0));
            refusal(error.errno, format!("QP {qpn:#x} cannot take its connection over: {}", error.reason))
        })
    }

    fn begin_stream(&self, inner: &mut Inner, given: Answer) -> Result<()> {
        let out: StreamOut = given.get(0)?;
        let socket = given.fds.into_iter().next();
        let socket = socket.ok_or_else(too_many_open)?;
        let depth = self.caps.max_send_wr as usize + 2;
        let config = Config { mulpdu: MULPDU, depth, quirks: Quirks::of(out.quirks), ..Config::default() };
        let stream = Stream::new(&agreement(&out), config, duration(self.engine().now()));
        self.engine().net.streams.add(self.qpn(), &socket).map_err(by_system)?;
        let addresses = Addresses::of(&socket);
        let live = Live {
            stream,
            socket,
            addresses,
            output: Output::new(),
            ended: VecDeque::with_capacity(depth),
            end: None,
            interest: EventFlags::IN | EventFlags::RDHUP,
            is_full: false,
            peer_ended: false,
            is_broken: false,
            stalls_until: None,
            gate: Gate::default(),
            sent: 0,
            received: 0,
            ord: out.ord,
            receives: Receives::default(),
        };
        if let Some(part) = &mut inner.link.stream {
            part.live = Some(Box::new(live));
        }
        // The helper thread must watch the sockets from now on.
        self.engine().waker.kick();
        Ok(())
    }

    /// Applies a change that the agent has allowed. The attributes are already merged.
    pub(crate) fn change_stream(&self, inner: &mut Inner, new: &ModifyQp, next: State) {
        match next {
            State::Sqd if inner.state == State::Rts => {
                let is_graceful = self.close_stream(inner);
                inner.set_state(next);
                if is_graceful {
                    // The event comes behind the completions of what the socket has not taken yet.
                    self.drain(inner, new);
                    self.complete_sends(inner);
                }
            }
            State::Err if inner.state != State::Err => {
                self.close_stream(inner);
                self.flushes(inner, format_args!("the program moved it there"));
                inner.set_state(State::Err);
                inner.requester.flush();
                self.complete_sends(inner);
                self.flush_receives(inner);
            }
            _ => inner.set_state(next),
        }
    }

    /// Closes the stream as gracefully as possible. Returns whether no request of this side was
    /// outstanding, and the socket takes what was sent.
    fn close_stream(&self, inner: &mut Inner) -> bool {
        let Some(mut live) = self.take_live(inner) else { return true };
        live.stream.close(duration(self.engine().now()));
        let is_graceful = live.stream.state() == iwarp::State::Closing;
        // The queue pair leaves its state by the program's will, so the end is no error of its own.
        let before = std::mem::replace(&mut inner.state, State::Err);
        self.heed_events(inner, &mut live);
        self.drive(inner, &mut live);
        inner.state = before;
        let is_broken = live.is_broken;
        self.put_live_back(inner, live);
        is_graceful && !is_broken
    }

    /// The QP fails for a reason of its own: the stream closes.
    pub(crate) fn end_stream(&self, inner: &mut Inner) {
        self.close_stream(inner);
    }

    /// Drops the stream: the QP is reset, or ends. What was sent goes out as far as the socket
    /// takes it. When the caller has released its locks, it calls [`Qp::finish_endings`].
    pub(crate) fn drop_stream(&self, inner: &mut Inner) {
        let Some(part) = &mut inner.link.stream else { return };
        part.posted.clear();
        part.locals.clear();
        let Some(mut live) = part.live.take() else { return };
        let _ = live.output.flush(&live.socket, &mut live.sent);
        self.engine().net.streams.forget(&live.socket);
        self.leave_connection(*live);
    }
}

fn agreement(out: &StreamOut) -> Agreement {
    let has = |flag: u32| out.flags & flag != 0;
    Agreement {
        role: if has(stream_flags::INITIATOR) { Role::Initiator } else { Role::Responder },
        revision: out.revision,
        crc: has(stream_flags::CRC),
        sends_markers: has(stream_flags::SENDS_MARKERS),
        receives_markers: has(stream_flags::RECEIVES_MARKERS),
        ird: out.ird,
        ord: out.ord,
        rtr: match out.rtr {
            1 => Some(Rtr::Send),
            2 => Some(Rtr::Write),
            3 => Some(Rtr::Read),
            _ => None,
        },
    }
}
