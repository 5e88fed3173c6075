//! The requester half of a stream: the send queue, the segments of its messages, and the peer's
//! responses. Principal type: [`Requester`].
//!
//! | progress of a work request | next |
//! |----------------------------|------|
//! | Waiting  | for its turn, for a fence, for the ORD | Sending, Open or Done |
//! | Sending  | some segments are sent | Sending, Immediate or Done |
//! | Immediate | the WRITE is sent, its immediate data is not | Done |
//! | Open     | a READ or atomic waits for its response | Done |
//! | Done     | has a status, waits for all earlier work requests | completed |

use crate::ddp::{Header, Place, Stag, UNTAGGED_LEN};
use crate::fpdu::Sender;
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, QUEUE_REQUEST, QUEUE_SEND, ReadRequest};
use crate::stream::event::{Event, Status};
use crate::stream::memory::{Fault, Memory};
use crate::stream::work::{Immediate, Operation, PostError, Request};
use crate::terminate::{Reason, Terminate};
use std::collections::VecDeque;
use wire::icrc::Folding;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    Sending { sent: u32 },
    Immediate,
    Open,
    Done(Status),
}

#[derive(Debug)]
struct Posted {
    request: Request,
    progress: Progress,
    /// A ready-to-receive message: no completion.
    hidden: bool,
}

/// A READ or atomic that waits for its response.
#[derive(Debug)]
struct Open {
    /// The work request, counted from the first one of the stream.
    nth: u64,
    msn: u32,
    /// Bytes of the response that have arrived.
    received: u32,
}

/// The requester half of a stream.
#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<Posted>,
    /// The number of the first work request in `queue`, counted from the first one of the stream.
    first: u64,
    /// The place in `queue` of the work request that is sent next.
    next: usize,
    open: VecDeque<Open>,
    depth: usize,
    ord: usize,
    mulpdu: usize,
    send_msn: u32,
    request_msn: u32,
    response_msn: u32,
}

/// A work request met a buffer of its own program that is not there.
pub(super) struct Broken;

impl Requester {
    pub(super) fn new(depth: usize, ord: usize, mulpdu: usize) -> Requester {
        Requester {
            queue: VecDeque::new(),
            first: 0,
            next: 0,
            open: VecDeque::new(),
            depth,
            ord,
            mulpdu,
            send_msn: 1,
            request_msn: 1,
            response_msn: 1,
        }
    }

    /// Whether all work requests are done.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a message has begun and not ended.
    pub(super) fn in_message(&self) -> bool {
        self.queue.get(self.next).is_some_and(|posted| matches!(posted.progress, Progress::Sending { .. }))
    }

    pub(super) fn post(&mut self, request: Request) -> Result<(), PostError> {
        // The program knows nothing of the ready-to-receive message, which is the first one.
        let hidden = usize::from(self.queue.front().is_some_and(|posted| posted.hidden));
        if self.queue.len() >= self.depth + hidden {
            return Err(PostError::Full);
        }
        if request.operation.is_answered() && self.ord == 0 {
            return Err(PostError::NoReads);
        }
        self.queue.push_back(Posted { request, progress: Progress::Waiting, hidden: false });
        Ok(())
    }

    /// Queues a ready-to-receive message.
    pub(super) fn post_hidden(&mut self, operation: Operation) {
        let request = Request { work: 0, operation, len: 0, fence: false };
        self.queue.push_back(Posted { request, progress: Progress::Waiting, hidden: true });
    }

    /// Writes the next FPDU to `out` and returns its length; 0 if no FPDU waits.
    pub(super) fn transmit(
        &mut self,
        sender: &mut Sender,
        out: &mut [u8],
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) -> Result<usize, Broken> {
        while let Some(posted) = self.queue.get_mut(self.next) {
            let Posted { request, progress, hidden } = posted;
            let ready = match progress {
                Progress::Waiting if request.fence && !self.open.is_empty() => false,
                Progress::Waiting if request.operation.is_answered() => {
                    self.open.len() < self.ord.max(usize::from(*hidden))
                }
                _ => true,
            };
            if !ready {
                return Ok(0);
            }
            let (request, before) = (*request, *progress);
            let mut segment = Segment { sender, out, memory, mulpdu: self.mulpdu };
            let sent = match (request.operation, before) {
                (Operation::Local, _) => {
                    segment.memory.execute(request.work).map(|()| (0, Progress::Done(Status::Success)))
                }
                (Operation::Read { .. } | Operation::Atomic { .. }, _) => segment.request(&request, self.request_msn),
                (Operation::Immediate(immediate), _) => segment.immediate(immediate, self.send_msn),
                (Operation::Write { immediate: Some(immediate), .. }, Progress::Immediate) => {
                    segment.immediate(immediate, self.send_msn)
                }
                (_, before) => segment.data(&request, before, self.send_msn),
            };
            let (written, after) = match sent {
                Ok(sent) => sent,
                Err(fault) => {
                    posted.progress = Progress::Done(fault.local());
                    return Err(Broken);
                }
            };
            posted.progress = after;
            if after == Progress::Open {
                let nth = self.first + self.next as u64;
                self.open.push_back(Open { nth, msn: self.request_msn, received: 0 });
                self.request_msn = self.request_msn.wrapping_add(1);
            }
            if matches!(after, Progress::Done(_)) && request.operation.has_send_msn() {
                self.send_msn = self.send_msn.wrapping_add(1);
            }
            if matches!(after, Progress::Done(_) | Progress::Open) {
                self.next += 1;
                self.settle(events);
            }
            if written > 0 {
                return Ok(written);
            }
        }
        Ok(0)
    }

    /// Takes a segment of a READ response.
    pub(super) fn read_response(
        &mut self,
        (stag, to): (Stag, u64),
        last: bool,
        data: &[u8],
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Reason> {
        let is_read = |open: &Open| matches!(self.operation(open.nth), Operation::Read { .. });
        let at = self.open.iter().position(is_read).ok_or(Reason::TaggedStag)?;
        let open = &mut self.open[at];
        let posted = &mut self.queue[(open.nth - self.first) as usize];
        let Operation::Read { sink, sink_to, .. } = posted.request.operation else { return Err(Reason::TaggedStag) };
        if stag != sink {
            return Err(Reason::TaggedStag);
        }
        let left = (posted.request.len - open.received) as usize;
        if to != sink_to.wrapping_add(open.received.into()) || data.len() > left {
            return Err(Reason::TaggedBounds);
        }
        if last && data.len() < left {
            return Err(Reason::RdmapUnspecified);
        }
        if !data.is_empty()
            && let Err(fault) = memory.scatter(posted.request.work, open.received, data)
        {
            posted.progress = Progress::Done(fault.local());
            return Err(Reason::RdmapCatastrophic);
        }
        open.received += data.len() as u32;
        if last {
            posted.progress = Progress::Done(Status::Success);
            self.open.remove(at);
            self.settle(events);
        }
        Ok(())
    }

    /// Takes the response of an atomic.
    pub(super) fn atomic_response(
        &mut self,
        msn: u32,
        response: &AtomicResponse,
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Reason> {
        if msn != self.response_msn {
            return Err(Reason::UntaggedMsn);
        }
        let is_atomic = |open: &Open| matches!(self.operation(open.nth), Operation::Atomic { .. });
        let at = self.open.iter().position(is_atomic).ok_or(Reason::UntaggedNoBuffer)?;
        let Open { nth, msn, .. } = self.open[at];
        if response.id != msn {
            return Err(Reason::RdmapUnspecified);
        }
        let posted = &mut self.queue[(nth - self.first) as usize];
        if let Err(fault) = memory.scatter(posted.request.work, 0, &response.value.to_ne_bytes()) {
            posted.progress = Progress::Done(fault.local());
            return Err(Reason::RdmapCatastrophic);
        }
        posted.progress = Progress::Done(Status::Success);
        self.response_msn = self.response_msn.wrapping_add(1);
        self.open.remove(at);
        self.settle(events);
        Ok(())
    }

    fn operation(&self, nth: u64) -> &Operation {
        &self.queue[(nth - self.first) as usize].request.operation
    }

    /// Ends all work requests because the stream ends. A READ or atomic that the peer's Terminate
    /// message names gets the status that the message means. What is sent but waits for an earlier
    /// work request is flushed as well: nothing succeeds behind an error.
    pub(super) fn flush(&mut self, refused: Option<&Terminate>, events: &mut VecDeque<Event>) {
        if let Some(terminate) = refused
            && let Some(nth) = self.refused(terminate)
        {
            let posted = &mut self.queue[(nth - self.first) as usize];
            posted.progress = Progress::Done(Status::of_refused(terminate.reason));
        }
        self.open.clear();
        for posted in &mut self.queue {
            let failed = matches!(posted.progress, Progress::Done(status) if status != Status::Success);
            if !failed {
                posted.progress = Progress::Done(Status::Flushed);
            }
        }
        self.next = self.queue.len();
        self.settle(events);
    }

    /// The READ or atomic that a Terminate message names. siw repeats a READ with its length in
    /// place of its MSN. So a READ is known by what it asks for, and by its MSN if several READs
    /// ask for the same.
    fn refused(&self, terminate: &Terminate) -> Option<u64> {
        let failed = terminate.failed?;
        let Place::Untagged { queue: QUEUE_REQUEST, msn, .. } = failed.header()?.place else { return None };
        let repeated = failed.read_request();
        let fits = |open: &&Open| repeated.is_none_or(|repeated| self.read_request(open.nth) == Some(repeated));
        let with_msn = self.open.iter().filter(fits).find(|open| open.msn == msn);
        let other = || self.open.iter().find(fits).filter(|_| repeated.is_some());
        with_msn.or_else(other).map(|open| open.nth)
    }

    /// What a work request asks for, if it is a READ.
    fn read_request(&self, nth: u64) -> Option<ReadRequest> {
        let request = &self.queue[(nth - self.first) as usize].request;
        match request.operation {
            Operation::Read { source, source_to, sink, sink_to } => {
                Some(ReadRequest { sink, sink_to, size: request.len, source, source_to })
            }
            _ => None,
        }
    }

    /// Completes what is done at the front of the queue.
    fn settle(&mut self, events: &mut VecDeque<Event>) {
        while let Some(&Posted { request, progress: Progress::Done(status), hidden }) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
            self.next = self.next.saturating_sub(1);
            if !hidden {
                events.push_back(Event::Completed { work: request.work, status });
            }
        }
    }
}

/// Writes one segment.
struct Segment<'a, M> {
    sender: &'a mut Sender,
    out: &'a mut [u8],
    memory: &'a mut M,
    mulpdu: usize,
}

impl<M: Memory> Segment<'_, M> {
    /// A segment of a SEND or WRITE.
    fn data(&mut self, request: &Request, before: Progress, msn: u32) -> Result<(usize, Progress), Fault> {
        let sent = if let Progress::Sending { sent } = before { sent } else { 0 };
        let left = request.len - sent;
        let (opcode, place) = match request.operation {
            Operation::Write { stag, to, .. } => {
                (Opcode::Write, Place::Tagged { stag, to: to.wrapping_add(sent.into()) })
            }
            Operation::Send { invalidate, solicited } => {
                let opcode = Opcode::send(solicited, invalidate.is_some());
                let invalidate = invalidate.unwrap_or_default();
                (opcode, Place::Untagged { invalidate, queue: QUEUE_SEND, msn, offset: sent })
            }
            _ => return Err(Fault::Unsupported),
        };
        let mut header = Header { last: false, rdmap: opcode.emit(), place };
        let len = (left as usize).min(self.mulpdu - header.size()) as u32;
        header.last = len == left;
        let (memory, work) = (&mut *self.memory, request.work);
        let fetch = |offset: usize, piece: &mut [u8], folding: Option<&mut Folding>| {
            memory.gather(work, sent + offset as u32, piece, folding)
        };
        let written = frame(self.sender, self.out, &header, len as usize, fetch)?;
        let after = match request.operation {
            _ if !header.last => Progress::Sending { sent: sent + len },
            Operation::Write { immediate: Some(_), .. } => Progress::Immediate,
            _ => Progress::Done(Status::Success),
        };
        Ok((written, after))
    }

    fn immediate(&mut self, immediate: Immediate, msn: u32) -> Result<(usize, Progress), Fault> {
        let opcode = Opcode::immediate(immediate.solicited);
        let written = message(self.sender, self.out, opcode, msn, &immediate.data);
        Ok((written, Progress::Done(Status::Success)))
    }

    /// The request of a READ or atomic. An atomic's number is its MSN.
    fn request(&mut self, request: &Request, msn: u32) -> Result<(usize, Progress), Fault> {
        let written = match request.operation {
            Operation::Read { source, source_to, sink, sink_to } => {
                let mut payload = [0; ReadRequest::LEN];
                ReadRequest { sink, sink_to, size: request.len, source, source_to }.emit(&mut payload);
                message(self.sender, self.out, Opcode::ReadRequest, msn, &payload)
            }
            Operation::Atomic { target, target_to, atomic } => {
                let mut payload = [0; AtomicRequest::LEN];
                AtomicRequest { id: msn, target, target_to, atomic }.emit(&mut payload);
                message(self.sender, self.out, Opcode::AtomicRequest, msn, &payload)
            }
            _ => return Err(Fault::Unsupported),
        };
        Ok((written, Progress::Open))
    }
}

/// Writes an untagged message of one segment.
pub(super) fn message(sender: &mut Sender, out: &mut [u8], opcode: Opcode, msn: u32, payload: &[u8]) -> usize {
    let queue = opcode.queue().unwrap_or_default();
    let place = Place::Untagged { invalidate: Stag(0), queue, msn, offset: 0 };
    let header = Header { last: true, rdmap: opcode.emit(), place };
    let fetch = |offset: usize, piece: &mut [u8], _: Option<&mut Folding>| {
        piece.copy_from_slice(&payload[offset..offset + piece.len()]);
        Ok::<_, std::convert::Infallible>(false)
    };
    let Ok(written) = frame(sender, out, &header, payload.len(), fetch);
    written
}

/// Writes a WRITE without data, which needs no valid STag.
pub(super) fn empty_write(sender: &mut Sender, out: &mut [u8]) -> usize {
    let place = Place::Tagged { stag: Stag(1), to: 0 };
    let header = Header { last: true, rdmap: Opcode::Write.emit(), place };
    let Ok(written) = frame(sender, out, &header, 0, |_, _, _| Ok::<_, std::convert::Infallible>(false));
    written
}

/// Writes a segment.
pub(super) fn frame<E>(
    sender: &mut Sender,
    out: &mut [u8],
    header: &Header,
    len: usize,
    fetch: impl FnMut(usize, &mut [u8], Option<&mut Folding>) -> Result<bool, E>,
) -> Result<usize, E> {
    let mut bytes = [0; UNTAGGED_LEN];
    let used = header.emit(&mut bytes);
    sender.frame(out, &bytes[..used], len, fetch)
}
