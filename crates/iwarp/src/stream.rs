//! One RDMAP stream: one TCP connection after start-up, and one queue pair. Not the sockets, and
//! not the memory: the owner passes bytes in and out, and [`Memory`] carries out the accesses.
//! Principal type: [`Stream`].
//!
//! | state     | post   | bytes of the peer | sends | the peer closes |
//! |-----------|--------|-------------------|-------|-----------------|
//! | Waiting   | queued | the first FPDU leads to Open | nothing | Closed |
//! | Open      | queued | served | everything | idle: Closed, gracefully; else Closed, lost |
//! | Closing   | refused | served until our end is sent | responses, the end | Closed, gracefully |
//! | Terminate | refused | dropped | the Terminate message, then the end | Closed |
//! | Closed    | refused | dropped | what is left to say | – |
//!
//! The responder of a connection begins in Waiting, because it must not send before the initiator
//! (RFC 5044, section 7.1.3). `close` leads to Closing if the send queue is empty, otherwise it
//! aborts. A mistake of the peer, and a Terminate message of the peer, lead to Terminate. If the
//! mistake is an access that is not allowed, the responses to earlier requests go out first; what
//! the peer sends after its mistake is dropped. Each work request completes once, before
//! [`Event::Closed`].
//!
//! Messages go out in the order in which they were posted, and whole: a message and a response take
//! turns. A work request with a fence waits for all earlier READs and atomics. Completions have the
//! order of the posts, so a WRITE behind a READ waits for the READ. RFC 5040, section 5.5.
//!
//! What a peer can make a stream hold is bounded: one FPDU that has arrived in part, IRD responses,
//! and for each call of [`Stream::receive`] one event for each 20 bytes.

pub mod event;
pub mod memory;
mod nudges;
mod requester;
mod responder;
pub mod work;

use crate::ddp::{Header, Place, Stag};
use crate::fpdu::{self, Receiver, Sender};
use crate::negotiation::{Agreement, Role, Rtr};
use crate::quirks::Quirks;
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, QUEUE_ATOMIC, ReadRequest};
use crate::terminate::{Failed, Layout, Reason, Terminate};
use event::{Close, Event, Side, Status};
use memory::Memory;
use nudges::Nudges;
use requester::{Requester, empty_write, message};
use responder::Responder;
use std::collections::VecDeque;
use std::time::Duration;
use work::{Operation, PostError, Request};

/// How often bytes of the peer may hold the end back; see [`Quirks::hold_end`].
const HOLDS: u32 = 10;

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The responder waits for the initiator's first FPDU.
    Waiting,
    /// Both sides send and receive.
    Open,
    /// This side sends no more requests; it waits for the peer's end.
    Closing,
    /// A Terminate message ends the stream; this side waits for the peer's end.
    Terminate,
    /// The stream is over.
    Closed,
}

/// How a stream works, beside what start-up agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The longest segment that is sent; see [`fpdu::mulpdu`].
    pub mulpdu: usize,
    /// Work requests in the send queue.
    pub depth: usize,
    /// How long this side waits for the peer's end.
    pub linger: Duration,
    /// Work-arounds for the peer.
    pub quirks: Quirks,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mulpdu: fpdu::mulpdu(1448, false),
            depth: 128,
            linger: Duration::from_secs(5),
            quirks: Quirks::default(),
        }
    }
}

/// What to do with the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// There is nothing to send now.
    Nothing,
    /// The buffer is shorter than [`Stream::room`].
    Full,
    /// So many bytes at the beginning of the buffer are to be sent.
    Bytes(usize),
    /// Close the sending direction, behind all bytes.
    Finish,
    /// Reset the connection.
    Reset,
}

/// One RDMAP stream.
#[derive(Debug)]
pub struct Stream {
    receiver: Receiver,
    sender: Sender,
    requester: Requester,
    responder: Responder,
    state: State,
    config: Config,
    events: VecDeque<Event>,
    /// The Terminate message to send.
    terminate: Option<Terminate>,
    /// How to end the sending direction when there is nothing else to send.
    end: Option<Transmit>,
    /// The next message is a response, if there is one.
    response_next: bool,
    /// Nothing is sent before this time.
    hold: Option<Duration>,
    nudges: Nudges,
    /// This side's end is not sent before this time.
    hold_end: Option<Duration>,
    /// When the stream ends without the peer's end.
    deadline: Option<Duration>,
}

impl Stream {
    /// The stream of a connection that has just been made.
    #[must_use]
    pub fn new(agreement: &Agreement, config: Config, now: Duration) -> Stream {
        let initiator = agreement.role == Role::Initiator;
        let mulpdu = config.mulpdu.clamp(128, 64768);
        let mut requester = Requester::new(config.depth, agreement.ord.into(), mulpdu);
        let ird = usize::from(agreement.ird).max(usize::from(agreement.rtr == Some(Rtr::Read)));
        if let Some(rtr) = agreement.rtr.filter(|_| initiator) {
            let stag = Stag(1);
            requester.post_hidden(match rtr {
                Rtr::Send => Operation::Send { invalidate: None, solicited: false },
                Rtr::Write => Operation::Write { stag, to: 0, immediate: None },
                Rtr::Read => Operation::Read { source: stag, source_to: 0, sink: stag, sink_to: 0 },
            });
        }
        let waits = !initiator && (agreement.rtr.is_some() || !config.quirks.responder_first);
        // A responder that waits sends only after the peer has, and needs no hold.
        let hold = Some(config.quirks.hold_first_fpdu).filter(|hold| !waits && !hold.is_zero());
        let nudges = Nudges::new(if initiator { config.quirks.nudge } else { Duration::ZERO });
        Stream {
            receiver: Receiver::new(agreement.crc, agreement.receives_markers),
            sender: Sender::new(agreement.crc, agreement.sends_markers),
            requester,
            responder: Responder::new(ird, mulpdu, !initiator && agreement.rtr == Some(Rtr::Send)),
            state: if waits { State::Waiting } else { State::Open },
            config: Config { mulpdu, ..config },
            events: VecDeque::new(),
            terminate: None,
            end: None,
            response_next: false,
            hold: hold.map(|hold| now + hold),
            nudges,
            hold_end: None,
            deadline: None,
        }
    }

    /// The state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the next byte of the peer begins an FPDU.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.receiver.is_between()
    }

    /// The bytes of the peer that complete the FPDU of which some have arrived; see
    /// [`Receiver::missing`].
    #[must_use]
    pub fn missing(&self) -> Option<usize> {
        self.receiver.missing()
    }

    /// Whether all work requests are done and all requests of the peer are answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requester.is_idle() && self.responder.is_idle()
    }

    /// The bytes that a buffer for [`Stream::poll_transmit`] has at least.
    #[must_use]
    pub fn room(&self) -> usize {
        self.sender.room(self.config.mulpdu)
    }

    /// Posts a work request.
    ///
    /// # Errors
    /// The stream does not take it.
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        match self.state {
            State::Waiting | State::Open => self.requester.post(request),
            State::Closing | State::Terminate | State::Closed => Err(PostError::Closed),
        }
    }

    /// The next event. The owner takes all of them after each call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Writes the next FPDU to the beginning of `out`, or says what else to do with the connection.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut [u8], memory: &mut impl Memory) -> Transmit {
        if self.end == Some(Transmit::Reset) {
            self.end = None;
            return Transmit::Reset;
        }
        if self.state == State::Waiting || self.hold.is_some_and(|hold| now < hold) {
            return Transmit::Nothing;
        }
        self.hold = None;
        if out.len() < self.room() {
            return Transmit::Full;
        }
        let mut written = self.next_fpdu(now, out, memory);
        if written == 0 && self.is_nudged() && self.nudges.may_leave(now) {
            written = empty_write(&mut self.sender, out);
        }
        if written > 0 {
            self.nudges.sent(now);
            if self.responder.ending().is_some() {
                // The peer takes responses: it has the time for the next one.
                self.deadline = Some(now + self.config.linger);
            }
            return Transmit::Bytes(written);
        }
        if self.end_wait(now).is_some() {
            return Transmit::Nothing;
        }
        self.end.take().unwrap_or(Transmit::Nothing)
    }

    /// Whether the peer needs nudges. The end is one, too.
    fn is_nudged(&self) -> bool {
        self.state == State::Open && self.responder.ending().is_none()
    }

    /// Until when bytes that arrive now hold the end back. A peer that never stops sending cannot
    /// hold an end back for longer than [`HOLDS`] times.
    fn held_end(&self, now: Duration) -> Duration {
        let Config { linger, quirks, .. } = self.config;
        let most = self.deadline.map(|deadline| deadline.saturating_sub(linger) + HOLDS * quirks.hold_end);
        most.unwrap_or(Duration::MAX).min(now + quirks.hold_end)
    }

    /// How long the owner must still wait before it closes its direction.
    #[must_use]
    pub fn end_wait(&self, now: Duration) -> Option<Duration> {
        self.hold_end?.checked_sub(now).filter(|wait| !wait.is_zero())
    }

    fn next_fpdu(&mut self, now: Duration, out: &mut [u8], memory: &mut impl Memory) -> usize {
        if matches!(self.state, State::Open | State::Closing) {
            let responds = self.responder.in_message() || self.response_next && !self.requester.in_message();
            for responds in [responds, !responds] {
                if let written @ 1.. = self.half(now, responds, out, memory) {
                    self.response_next = !responds;
                    return written;
                }
            }
        }
        let Some(terminate) = self.terminate.take() else { return 0 };
        let mut payload = [0; Terminate::MOST];
        let len = terminate.emit(&mut payload);
        message(&mut self.sender, out, Opcode::Terminate, 1, &payload[..len])
    }

    /// The next FPDU of one half.
    fn half(&mut self, now: Duration, responds: bool, out: &mut [u8], memory: &mut impl Memory) -> usize {
        if responds {
            return self.responder.transmit(&mut self.sender, out, memory).unwrap_or_else(|terminate| {
                self.fail(now, terminate);
                0
            });
        }
        self.requester.transmit(&mut self.sender, out, memory, &mut self.events).unwrap_or_else(|_| {
            self.fail(now, Terminate { reason: Reason::RdmapCatastrophic, failed: None });
            0
        })
    }

    /// Takes bytes of the peer.
    pub fn receive(&mut self, now: Duration, mut bytes: &[u8], memory: &mut impl Memory) {
        if !self.config.quirks.hold_end.is_zero() {
            self.hold_end = Some(self.held_end(now));
        }
        self.hold = self.hold.filter(|hold| now < *hold);
        while matches!(self.state, State::Waiting | State::Open | State::Closing) && self.responder.ending().is_none() {
            let Stream { receiver, requester, responder, events, config, .. } = self;
            let segment = match receiver.next(&mut bytes) {
                Ok(Some(segment)) => segment,
                Ok(None) => return,
                Err(reason) => return self.fail(now, Terminate { reason, failed: None }),
            };
            let mut arrival = Arrival { requester, responder, events, config };
            let taken = arrival.take(segment, memory);
            let failed = if taken.is_err() { Failed::new(segment) } else { None };
            if self.state == State::Waiting {
                self.state = State::Open;
                self.events.push_back(Event::Ready);
            }
            match taken {
                Ok(None) => {}
                Ok(Some(terminate)) => self.terminated(now, terminate),
                Err(reason) if reason.is_protection() && !self.responder.is_idle() => {
                    self.responder.end(Terminate { reason, failed });
                    self.deadline = Some(now + self.config.linger);
                }
                Err(reason) => self.fail(now, Terminate { reason, failed }),
            }
            // The end of this side is out, so a new READ cannot be answered.
            if self.state == State::Closing && self.end.is_none() && !self.responder.is_idle() {
                self.finish(Close::Lost, Some(Transmit::Reset));
            }
        }
    }

    /// The peer closed its sending direction.
    pub fn receive_end(&mut self) {
        if let (State::Open, Some(terminate)) = (self.state, self.responder.ending()) {
            // The peer does not wait for the responses and the Terminate message behind them.
            self.events.push_back(Event::Terminated { by: Side::Us, terminate });
            return self.finish(Close::Terminated, Some(Transmit::Reset));
        }
        let whole = self.receiver.is_between() && !self.responder.in_send();
        match self.state {
            State::Closed => {}
            State::Terminate => self.finish(Close::Terminated, self.end),
            State::Closing if whole => self.finish(Close::Graceful, self.end),
            State::Waiting | State::Open if whole && self.requester.is_idle() => {
                self.finish(Close::Graceful, Some(Transmit::Finish));
            }
            _ => self.finish(Close::Lost, Some(Transmit::Reset)),
        }
    }

    /// The TCP connection is gone.
    pub fn lost(&mut self) {
        let close = if self.state == State::Terminate { Close::Terminated } else { Close::Lost };
        self.terminate = None;
        self.finish(close, None);
    }

    /// Closes gracefully. Work requests in the send queue make it an abort.
    pub fn close(&mut self, now: Duration) {
        match self.state {
            State::Waiting | State::Open if self.requester.is_idle() => {
                self.state = State::Closing;
                self.end = Some(Transmit::Finish);
                self.deadline = Some(now + self.config.linger);
            }
            State::Waiting | State::Open => self.abort(),
            State::Closing | State::Terminate | State::Closed => {}
        }
    }

    /// Closes at once. Everything that is not done is flushed.
    pub fn abort(&mut self) {
        self.terminate = None;
        self.finish(Close::Aborted, Some(Transmit::Reset));
    }

    /// When [`Stream::handle_timeout`] is due, or [`Stream::poll_transmit`] has something to send.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let hold_end = self.hold_end.filter(|_| self.end.is_some());
        let nudge = self.nudges.due().filter(|_| self.is_nudged());
        [self.hold, hold_end, nudge, self.deadline].into_iter().flatten().min()
    }

    /// Ends a stream whose peer does not close in time.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.hold_end = self.hold_end.filter(|hold| now < *hold);
        self.nudges.may_leave(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.terminate = None;
            self.finish(Close::TimedOut, Some(Transmit::Reset));
        }
    }

    /// Ends the stream because of a mistake of the peer, or of the own program.
    fn fail(&mut self, now: Duration, terminate: Terminate) {
        self.terminate = Some(terminate);
        self.end_with(now, Side::Us, terminate);
    }

    /// The peer ends the stream.
    fn terminated(&mut self, now: Duration, terminate: Terminate) {
        self.end_with(now, Side::Peer, terminate);
    }

    fn end_with(&mut self, now: Duration, by: Side, terminate: Terminate) {
        self.state = State::Terminate;
        self.end = Some(Transmit::Finish);
        self.deadline = Some(now + self.config.linger);
        let (refused, status) = match by {
            Side::Us => (None, Status::General),
            Side::Peer => (Some(&terminate), Status::Flushed),
        };
        // The owner flushes the receive requests that the stream has not taken, and they come later.
        self.responder.flush(status, &mut self.events);
        self.events.push_back(Event::Terminated { by, terminate });
        self.requester.flush(refused, &mut self.events);
    }

    fn finish(&mut self, close: Close, end: Option<Transmit>) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        (self.end, self.deadline) = (end, None);
        (self.hold, self.hold_end) = (None, None);
        self.responder.flush(Status::Flushed, &mut self.events);
        self.requester.flush(None, &mut self.events);
        self.events.push_back(Event::Closed(close));
    }
}

/// The parts of a stream that a segment of the peer changes.
struct Arrival<'a> {
    requester: &'a mut Requester,
    responder: &'a mut Responder,
    events: &'a mut VecDeque<Event>,
    config: &'a Config,
}

impl Arrival<'_> {
    /// Takes a segment. Returns the peer's Terminate message, if it is one.
    fn take(&mut self, segment: &[u8], memory: &mut impl Memory) -> Result<Option<Terminate>, Reason> {
        let (header, data) = Header::parse(segment)?;
        let opcode = Opcode::parse(header.rdmap)?;
        match (header.place, opcode) {
            (Place::Tagged { stag, to }, Opcode::Write) => self.responder.write(stag, to, data, memory)?,
            (Place::Tagged { stag, to }, Opcode::ReadResponse) => {
                self.requester.read_response((stag, to), header.last, data, memory, self.events)?;
            }
            (Place::Untagged { queue, .. }, _) if queue > QUEUE_ATOMIC => return Err(Reason::UntaggedQueue),
            (Place::Untagged { queue, msn, .. }, _) if opcode.queue() == Some(queue) => {
                return self.untagged(opcode, msn, &header, data, memory);
            }
            _ => return Err(Reason::RdmapOpcode),
        }
        Ok(None)
    }

    fn untagged(
        &mut self,
        opcode: Opcode,
        msn: u32,
        header: &Header,
        data: &[u8],
        memory: &mut impl Memory,
    ) -> Result<Option<Terminate>, Reason> {
        match opcode {
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(whole(header, data)?);
                self.responder.read_request(msn, request, memory)?;
            }
            Opcode::AtomicRequest => {
                let request = AtomicRequest::parse(whole(header, data)?)?;
                self.responder.atomic_request(msn, &request, memory)?;
            }
            Opcode::AtomicResponse => {
                let response = AtomicResponse::parse(whole(header, data)?);
                self.requester.atomic_response(msn, &response, memory, self.events)?;
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.responder.immediate((opcode, msn), *whole(header, data)?, memory, self.events)?;
            }
            Opcode::Terminate => {
                let doubtful = if self.config.quirks.siw_terminate { Layout::Siw } else { Layout::Rfc };
                return Terminate::parse(data, doubtful).map(|(terminate, _)| Some(terminate));
            }
            _ => self.responder.send(opcode, header, data, memory, self.events)?,
        }
        Ok(None)
    }
}

/// The payload of a message that has one segment of a known length.
fn whole<'a, const LEN: usize>(header: &Header, data: &'a [u8]) -> Result<&'a [u8; LEN], Reason> {
    match header.place {
        Place::Untagged { offset: 1.., .. } => Err(Reason::UntaggedOffset),
        _ if data.len() > LEN || !header.last => Err(Reason::UntaggedTooLong),
        _ => data.try_into().map_err(|_| Reason::RdmapUnspecified),
    }
}

/// The FPDU of a Terminate message that is the first one of its stream.
pub(crate) fn terminate_fpdu(sender: &mut Sender, terminate: &Terminate) -> Vec<u8> {
    let mut payload = [0; Terminate::MOST];
    let len = terminate.emit(&mut payload);
    let mut out = vec![0; sender.room(Terminate::MOST + crate::ddp::UNTAGGED_LEN)];
    let written = message(sender, &mut out, Opcode::Terminate, 1, &payload[..len]);
    out.truncate(written);
    out
}
