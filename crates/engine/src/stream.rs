//! Queue pairs of iWARP: their link is a TCP connection. This file
//! sends; the other files of the folder receive ([`serving`]), access memory ([`memory`]) and
//! follow the queue pair's states ([`changes`]). The protocol is in crate `iwarp`.
//!
//! Work requests lie in queue memory as on other links, and their completions take the same way.
//! [`iwarp::Stream`] takes the place of the requester and the responder. FPDUs go through one
//! [`Output`] for each queue pair. If the socket takes no more, the queue pair waits until it does;
//! no thread waits. Principal type: [`part::StreamPart`].

mod changes;
pub(crate) mod dropping;
mod endings;
mod events;
mod faults;
mod gate;
mod leaving;
mod memory;
mod output;
pub(crate) mod part;
mod passing;
mod serving;
mod shown;
pub(crate) mod sockets;

use std::time::Duration;

use abi::capture::path;
use abi::fault::Direction;
use abi::queue::qp as word;
use abi::stream::state;
use iwarp::stream::work;
use iwarp::{Stag, Transmit};
use protocol::{Operation, SendOp, Time};

use crate::qp::{Inner, Qp, Receive};
use faults::Harm;
use memory::Access;
use output::Flushed;

/// The longest segment of ours. A receiver must take FPDUs in any TCP segments, so nothing is won
/// by shorter ones.
const MULPDU: usize = 32 * 1024;
/// Bytes that a queue pair sends before others get their turn.
const QUANTUM: usize = 1 << 20;

/// A stream and its socket, with the receive requests of this engine.
type Live = part::Live<Receive>;

fn duration(time: Time) -> Duration {
    Duration::from_nanos(time.0)
}

impl Qp {
    /// Sends what a queue pair of iWARP has to send, and writes its completions.
    pub(crate) fn pump_stream(&self, inner: &mut Inner) {
        let live = self.take_live(inner);
        self.pump_live(inner, live);
    }

    fn pump_live(&self, inner: &mut Inner, live: Option<Box<Live>>) {
        if let Some(mut live) = live {
            self.hand_requests_over(inner, &mut live);
            self.drive(inner, &mut live);
            self.put_live_back(inner, live);
        }
        self.flush_posted(inner);
        self.complete_sends(inner);
        self.show_arrived(inner);
    }

    fn take_live(&self, inner: &mut Inner) -> Option<Box<Live>> {
        inner.link.stream.as_mut()?.live.take()
    }

    /// Keeps a stream until both directions have ended.
    fn put_live_back(&self, inner: &mut Inner, live: Box<Live>) {
        show_state(inner, &live);
        let over = live.stream.state() == iwarp::State::Closed && live.output.is_empty() && live.end.is_none();
        if over {
            return self.engine().net.streams.forget(&live.socket);
        }
        let times = [live.stream.poll_timeout(), live.stalls_until, live.gate.until];
        if let Some(at) = times.into_iter().flatten().min() {
            self.look_again(inner, Time(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)));
        }
        if let Some(part) = &mut inner.link.stream {
            part.live = Some(live);
        }
    }

    /// Requests that no stream takes are flushed like those of any queue pair in the error state.
    fn flush_posted(&self, inner: &mut Inner) {
        let Some(part) = inner.link.stream.as_mut().filter(|part| part.live.is_none()) else { return };
        for op in std::mem::take(&mut part.posted) {
            let _ = inner.requester.post(op);
        }
    }

    fn hand_requests_over(&self, inner: &mut Inner, live: &mut Live) {
        while let Some(op) = inner.link.stream.as_mut().and_then(|part| part.posted.pop_front()) {
            let request = request(inner, &op);
            if live.stream.post(request).is_err() {
                // The stream ends: the requester flushes the request with the QP.
                let _ = inner.requester.post(op);
            } else if request.operation == work::Operation::Local
                && let Some(part) = &mut inner.link.stream
            {
                part.locals.push_back(op);
            }
        }
    }

    /// Sends until there is nothing to send or the socket is full, and handles the events.
    fn drive(&self, inner: &mut Inner, live: &mut Live) {
        let mut left = QUANTUM;
        while !live.is_broken && !self.stalls(live) {
            // Old output may have left no room for more.
            let had_output = !live.output.is_empty();
            let sent = self.fill_output(inner, live);
            if self.stalls(live) {
                break;
            }
            match live.output.flush(&live.socket, &mut live.sent) {
                Ok(Flushed::All) => live.is_full = false,
                Ok(Flushed::Full) => {
                    live.is_full = true;
                    break;
                }
                Err(_) => {
                    self.on_send_error(inner, live);
                    break;
                }
            }
            left = left.saturating_sub(sent);
            if sent == 0 && !had_output {
                break;
            }
            if left == 0 {
                // The socket has room, so the next round goes on here.
                live.is_full = true;
                break;
            }
        }
        self.complete_ended(inner, live);
        if live.output.is_empty()
            && let Some(end) = live.end.take()
        {
            self.end_socket(&live.socket, &live.addresses, end);
        }
        self.engine().net.streams.watch(self.qpn(), live);
    }

    /// Whether a fault rule holds the output back.
    fn stalls(&self, live: &mut Live) -> bool {
        live.stalls_until = live.stalls_until.filter(|until| duration(self.engine().now()) < *until);
        live.stalls_until.is_some()
    }

    /// The peer has closed or reset the connection. Messages that it sent before may still be in
    /// the socket, and the program gets them first.
    #[cold]
    fn on_send_error(&self, inner: &mut Inner, live: &mut Live) {
        live.output.clear();
        (live.end, live.is_full, live.is_broken) = (None, false, true);
        // Requests whose bytes are lost fail, so the send queue does not drain.
        inner.draining = inner.draining.map(|_| false);
        if live.peer_ended {
            live.stream.lost();
            self.heed_events(inner, live);
        }
    }

    /// Writes FPDUs to the output. Returns their bytes.
    fn fill_output(&self, inner: &mut Inner, live: &mut Live) -> usize {
        let now = duration(self.engine().now());
        let mut sent = 0;
        while live.end.is_none() && live.stalls_until.is_none() {
            let Live { stream, output, receives, addresses, stalls_until, .. } = live;
            let Some(room) = output.room(stream.room()) else { break };
            let mut access = Access { qp: self, inner, receives };
            match stream.poll_transmit(now, room, &mut access) {
                Transmit::Bytes(len) => {
                    let port = inner.attributes.port_num;
                    let is_ruled = self.engine().faults.is_on();
                    let harm = if is_ruled {
                        self.harm(Direction::Out, port, addresses, &mut room[..len])
                    } else {
                        Harm::default()
                    };
                    self.show_fpdu(addresses, path::WIRE_OUT, &room[..len], &harm.words);
                    if harm.resets {
                        stream.abort();
                        continue;
                    }
                    output.add(len);
                    sent += len;
                    *stalls_until = harm.until;
                }
                Transmit::Nothing | Transmit::Full => break,
                end => live.end = Some(end),
            }
            self.heed_events(inner, live);
        }
        self.heed_events(inner, live);
        sent
    }
}

/// Shows the agent the state of a stream, and how much it has carried.
fn show_state(inner: &Inner, live: &Live) {
    let state = match live.stream.state() {
        iwarp::State::Waiting => state::WAITING,
        iwarp::State::Open => state::OPEN,
        iwarp::State::Closing => state::CLOSING,
        iwarp::State::Terminate => state::TERMINATE,
        iwarp::State::Closed => state::CLOSED,
    };
    inner.store(word::STREAM, state);
    if let Some(view) = &inner.view {
        view.write(word::STREAM_SENT, &[live.sent, live.received]);
    }
}

/// A request as the stream takes it.
fn request(inner: &Inner, op: &SendOp) -> work::Request {
    let (stag, to) = (Stag(op.rkey), op.remote_addr);
    let operation = match op.operation {
        Operation::Write => work::Operation::Write { stag, to, immediate: None },
        Operation::Read => {
            let sink = inner.queues.sq.elements(op.slot, usize::from(op.length != 0)).next();
            let (sink, sink_to) = sink.map_or((Stag(0), 0), |sge| (Stag(sge.lkey), sge.addr));
            work::Operation::Read { source: stag, source_to: to, sink, sink_to }
        }
        Operation::CmpSwap => {
            let (compare, swap) = (op.compare, op.swap_add);
            let atomic = iwarp::rdmap::Atomic::CompareSwap { swap, swap_mask: !0, compare, compare_mask: !0 };
            work::Operation::Atomic { target: stag, target_to: to, atomic }
        }
        Operation::FetchAdd => {
            let atomic = iwarp::rdmap::Atomic::FetchAdd { add: op.swap_add, boundaries: 0 };
            work::Operation::Atomic { target: stag, target_to: to, atomic }
        }
        Operation::BindMw | Operation::LocalInv => work::Operation::Local,
        Operation::SendInv => work::Operation::Send { invalidate: Some(Stag(op.imm)), solicited: op.solicited },
        _ => work::Operation::Send { invalidate: None, solicited: op.solicited },
    };
    let has_data = matches!(operation, work::Operation::Send { .. } | work::Operation::Write { .. })
        || op.operation == Operation::Read;
    work::Request { work: op.slot.into(), operation, len: if has_data { op.length } else { 0 }, fence: op.fence }
}
