//! What a stream reports: completions, messages, and its end. Adds to [`Qp`].

use abi::cq::opcode as wc_opcode;
use abi::event::kind;
use abi::queue::qp as word;
use iwarp::{Close, Event, Reason, Received, Side, Transmit};
use protocol::{RecvEnd, State, Status};

use super::Live;
use super::part::EndedRequest;
use crate::cell::Path;
use crate::qp::{Inner, Qp};

/// A status of a stream, which has the verbs' numbers.
fn status(of: iwarp::Status) -> Status {
    match of {
        iwarp::Status::Success => Status::Success,
        iwarp::Status::LocalLength => Status::LocLenErr,
        iwarp::Status::LocalProtection => Status::LocProtErr,
        iwarp::Status::Flushed => Status::WrFlushErr,
        iwarp::Status::MemoryManagement => Status::MwBindErr,
        iwarp::Status::RemoteInvalidRequest => Status::RemInvReqErr,
        iwarp::Status::RemoteAccess => Status::RemAccessErr,
        iwarp::Status::RemoteOperation => Status::RemOpErr,
        iwarp::Status::General => Status::GeneralErr,
    }
}

impl Qp {
    /// Handles the events of a stream.
    pub(super) fn heed_events(&self, inner: &mut Inner, live: &mut Live) {
        while let Some(event) = live.stream.poll_event() {
            match event {
                Event::Ready => inner.established = true,
                Event::Completed { work, status: of } => {
                    let sent = live.sent + live.output.len() as u64;
                    live.ended.push_back(EndedRequest { slot: work as u32, status: status(of), sent });
                }
                Event::Received(received) => self.on_received(inner, live, &received),
                Event::ReceiveFailed { receive, status: of } => {
                    if let Some(receive) = live.receives.remove(receive) {
                        self.complete_receive(inner, &receive, status(of), None, wc_opcode::RECV, None);
                    }
                }
                Event::Terminated { by, terminate } => self.on_terminated(inner, live, by, terminate.reason),
                Event::Closed(close) => self.on_closed(inner, live, close),
            }
        }
    }

    /// Completes the requests whose bytes the socket has taken, or will not take because the output
    /// was dropped.
    pub(super) fn complete_ended(&self, inner: &mut Inner, live: &mut Live) {
        let all = live.output.is_empty();
        while let Some(ended) = live.ended.pop_front_if(|ended| all || ended.sent <= live.sent) {
            let is_lost = ended.status == Status::Success && ended.sent > live.sent;
            self.on_completed(inner, ended.slot, if is_lost { Status::WrFlushErr } else { ended.status });
        }
    }

    /// Whether requests of the stream complete before those that the requester holds.
    pub(crate) fn has_ended_requests(&self, inner: &Inner) -> bool {
        let live = inner.link.stream.as_ref().and_then(|part| part.live.as_ref());
        live.is_some_and(|live| !live.ended.is_empty())
    }

    fn on_completed(&self, inner: &mut Inner, slot: u32, status: Status) {
        // Local refusals were explained where they happened.
        if matches!(status, Status::RemAccessErr | Status::RemOpErr) {
            self.explain(inner, slot, status, &"the peer ended the stream because of this request", None);
        }
        self.show_send(inner, slot, status);
        inner.store(word::SQ_HEAD, inner.queues.sq.advance(slot));
    }

    fn on_received(&self, inner: &mut Inner, live: &mut Live, received: &Received) {
        let Some(receive) = live.receives.remove(received.receive) else { return };
        let end = RecvEnd {
            byte_len: received.len,
            imm: None,
            invalidate: received.invalidated.map(|stag| stag.0),
            solicited: received.solicited,
        };
        let end = Some((end, Path::default()));
        self.complete_receive(inner, &receive, Status::Success, end, wc_opcode::RECV, None);
    }

    /// A Terminate message goes out, or has come.
    #[cold]
    fn on_terminated(&self, inner: &mut Inner, live: &mut Live, by: Side, reason: Reason) {
        match by {
            Side::Us => {
                self.happened(format_args!("ended the stream: {reason}"));
                let (layer, kind, _) = reason.numbers();
                self.raise(match (layer, kind) {
                    // What a READ request of the peer names.
                    (0, 1) => kind::QP_REQ_ERR,
                    // What the data of a WRITE or of a response names.
                    (1, 1) => kind::QP_ACCESS_ERR,
                    _ => kind::QP_FATAL,
                });
            }
            Side::Peer => self.happened(format_args!("got a Terminate message: {reason}")),
        }
        self.end_by_stream(inner, live, format_args!("a Terminate message ended the stream: {reason}"));
    }

    /// The stream is over: the queue pair is in error, and its receive requests are flushed.
    #[cold]
    fn on_closed(&self, inner: &mut Inner, live: &mut Live, close: Close) {
        if matches!(close, Close::Lost | Close::Aborted | Close::TimedOut) {
            // A reset discards what waits, also an end that waits behind bytes that the peer does
            // not take. A graceful end goes out behind these bytes.
            live.output.clear();
            live.end = live.end.take().filter(|end| matches!(end, Transmit::Reset));
        }
        self.end_by_stream(inner, live, format_args!("{}", in_words(close)));
    }

    /// Moves the queue pair to the error state, unless it is there already, and tells the agent.
    fn end_by_stream(&self, inner: &mut Inner, live: &mut Live, why: std::fmt::Arguments<'_>) {
        // The events of receive requests that have arrived come first.
        if live.stream.state() == iwarp::State::Closed {
            for receive in live.receives.drain() {
                self.complete_receive(inner, &receive, Status::WrFlushErr, None, wc_opcode::RECV, None);
            }
        }
        if !matches!(inner.state, State::Err | State::Reset) {
            self.flushes(inner, why);
            inner.set_state(State::Err);
            inner.requester.flush();
            self.flush_receives(inner);
        }
        self.engine().report_stream_end(self.qpn());
    }
}

fn in_words(close: Close) -> &'static str {
    match close {
        Close::Graceful => "the peer closed the connection",
        Close::Terminated => "a Terminate message ended the stream",
        Close::Lost => "the TCP connection was lost",
        Close::Aborted => "the connection was aborted",
        Close::TimedOut => "the peer did not close the connection in time",
    }
}
