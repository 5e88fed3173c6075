//! The responder half of a stream: it places the peer's SENDs and WRITEs, and answers its READs and
//! atomics. Principal type: [`Responder`].
//!
//! A READ request waits in a queue of IRD places until all of its response is sent. The memory is
//! read when a segment of the response is sent, so a slow peer costs no memory.

use crate::ddp::{Header, Place, Stag, UNTAGGED_LEN};
use crate::fpdu::Sender;
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, QUEUE_REQUEST, ReadRequest};
use crate::stream::event::{Event, Received, Status};
use crate::stream::memory::{Memory, Receive};
use crate::stream::requester::{frame, message};
use crate::terminate::{Failed, Reason, Terminate};
use std::collections::VecDeque;
use wire::icrc::Folding;

/// A SEND of which not all segments have arrived.
#[derive(Debug)]
struct Arriving {
    receive: Receive,
    opcode: Opcode,
    received: u32,
}

/// A response that is not sent, or not all of it.
#[derive(Debug)]
enum Response {
    Read {
        request: ReadRequest,
        msn: u32,
        sent: u32,
    },
    Atomic(AtomicResponse),
    /// The end of the stream, behind the responses to earlier requests.
    End(Terminate),
}

/// The responder half of a stream.
#[derive(Debug)]
pub(super) struct Responder {
    arriving: Option<Arriving>,
    responses: VecDeque<Response>,
    ird: usize,
    mulpdu: usize,
    send_msn: u32,
    request_msn: u32,
    response_msn: u32,
    /// The first SEND is the peer's ready-to-receive message.
    skips_send: bool,
}

impl Responder {
    pub(super) fn new(ird: usize, mulpdu: usize, skips_send: bool) -> Responder {
        Responder {
            arriving: None,
            responses: VecDeque::new(),
            ird,
            mulpdu,
            send_msn: 1,
            request_msn: 1,
            response_msn: 1,
            skips_send,
        }
    }

    /// Whether there is nothing to answer.
    pub(super) fn is_idle(&self) -> bool {
        self.responses.is_empty()
    }

    /// The Terminate message of a refused access, which ends the stream behind the responses that
    /// wait.
    pub(super) fn ending(&self) -> Option<Terminate> {
        match self.responses.back() {
            Some(Response::End(terminate)) => Some(*terminate),
            _ => None,
        }
    }

    /// Ends the stream behind the responses that wait.
    pub(super) fn end(&mut self, terminate: Terminate) {
        self.responses.push_back(Response::End(terminate));
    }

    /// Whether a SEND has arrived in part.
    pub(super) fn in_send(&self) -> bool {
        self.arriving.is_some()
    }

    /// Whether a response has begun and not ended.
    pub(super) fn in_message(&self) -> bool {
        matches!(self.responses.front(), Some(Response::Read { sent: 1.., .. }))
    }

    /// Ends everything because the stream ends.
    pub(super) fn flush(&mut self, status: Status, events: &mut VecDeque<Event>) {
        self.responses.clear();
        if let Some(arriving) = self.arriving.take() {
            events.push_back(Event::ReceiveFailed { receive: arriving.receive.id, status });
        }
    }

    /// Takes a segment of a WRITE. One without data needs no valid STag.
    pub(super) fn write(&self, stag: Stag, to: u64, data: &[u8], memory: &mut impl Memory) -> Result<(), Reason> {
        if data.is_empty() {
            return Ok(());
        }
        to.checked_add(data.len() as u64).ok_or(Reason::TaggedWrap)?;
        memory.write(stag, to, data).map_err(|fault| fault.tagged())
    }

    /// Takes a segment of a SEND.
    pub(super) fn send(
        &mut self,
        opcode: Opcode,
        header: &Header,
        data: &[u8],
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Reason> {
        let Place::Untagged { invalidate, msn, offset, .. } = header.place else { return Err(Reason::RdmapOpcode) };
        if msn != self.send_msn {
            return Err(Reason::UntaggedMsn);
        }
        if std::mem::take(&mut self.skips_send) && header.last && data.is_empty() {
            self.send_msn = self.send_msn.wrapping_add(1);
            return Ok(());
        }
        if self.arriving.as_ref().map_or(0, |arriving| arriving.received) != offset {
            return Err(Reason::UntaggedOffset);
        }
        let (id, len) = self.place(opcode, data, memory, events)?;
        if !header.last {
            return Ok(());
        }
        self.arriving = None;
        self.send_msn = self.send_msn.wrapping_add(1);
        let invalidated = opcode.invalidates().then_some(invalidate);
        if let Some(stag) = invalidated
            && let Err(fault) = memory.invalidate(stag)
        {
            events.push_back(Event::ReceiveFailed { receive: id, status: Status::RemoteInvalidRequest });
            return Err(fault.request());
        }
        let solicited = opcode.is_solicited();
        events.push_back(Event::Received(Received { receive: id, len, solicited, invalidated, immediate: None }));
        Ok(())
    }

    /// Puts the data of a SEND into its receive request, which the first segment takes. Returns the
    /// request's number, and how many bytes have come.
    fn place(
        &mut self,
        opcode: Opcode,
        data: &[u8],
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) -> Result<(u64, u32), Reason> {
        let arriving = match &mut self.arriving {
            Some(arriving) => arriving,
            empty => {
                let receive = memory.take_receive().ok_or(Reason::UntaggedNoBuffer)?;
                empty.insert(Arriving { receive, opcode, received: 0 })
            }
        };
        let id = arriving.receive.id;
        let mut refuse = |status, reason| {
            events.push_back(Event::ReceiveFailed { receive: id, status });
            Err(reason)
        };
        if arriving.opcode != opcode {
            self.arriving = None;
            return refuse(Status::General, Reason::RdmapOpcode);
        }
        if data.len() > (arriving.receive.len - arriving.received) as usize {
            self.arriving = None;
            return refuse(Status::LocalLength, Reason::UntaggedTooLong);
        }
        if !data.is_empty()
            && let Err(fault) = memory.fill(id, arriving.received, data)
        {
            self.arriving = None;
            return refuse(fault.local(), Reason::RdmapCatastrophic);
        }
        arriving.received += data.len() as u32;
        Ok((id, arriving.received))
    }

    /// Takes immediate data.
    pub(super) fn immediate(
        &mut self,
        (opcode, msn): (Opcode, u32),
        data: [u8; 8],
        memory: &mut impl Memory,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Reason> {
        if msn != self.send_msn {
            return Err(Reason::UntaggedMsn);
        }
        if self.arriving.is_some() {
            return Err(Reason::RdmapOpcode);
        }
        let receive = memory.take_receive().ok_or(Reason::UntaggedNoBuffer)?.id;
        self.send_msn = self.send_msn.wrapping_add(1);
        let solicited = opcode.is_solicited();
        events.push_back(Event::Received(Received {
            receive,
            len: 0,
            solicited,
            invalidated: None,
            immediate: Some(data),
        }));
        Ok(())
    }

    /// Checks the number of a READ or atomic, and that there is a place for its response.
    fn take_request(&mut self, msn: u32) -> Result<(), Reason> {
        if msn != self.request_msn {
            return Err(Reason::UntaggedMsn);
        }
        if self.responses.len() >= self.ird {
            return Err(Reason::RdmapStream);
        }
        self.request_msn = self.request_msn.wrapping_add(1);
        Ok(())
    }

    /// Takes a READ request. One of no bytes needs no valid STag.
    pub(super) fn read_request(
        &mut self,
        msn: u32,
        request: ReadRequest,
        memory: &mut impl Memory,
    ) -> Result<(), Reason> {
        self.take_request(msn)?;
        if request.size > 0 {
            request.source_to.checked_add(request.size.into()).ok_or(Reason::ProtectionWrap)?;
            memory.readable(request.source, request.source_to, request.size).map_err(|fault| fault.request())?;
        }
        self.responses.push_back(Response::Read { request, msn, sent: 0 });
        Ok(())
    }

    /// Takes an atomic request and carries it out.
    pub(super) fn atomic_request(
        &mut self,
        msn: u32,
        request: &AtomicRequest,
        memory: &mut impl Memory,
    ) -> Result<(), Reason> {
        self.take_request(msn)?;
        request.target_to.checked_add(8).ok_or(Reason::ProtectionWrap)?;
        let value =
            memory.atomic(request.target, request.target_to, &request.atomic).map_err(|fault| fault.request())?;
        self.responses.push_back(Response::Atomic(AtomicResponse { id: request.id, value }));
        Ok(())
    }

    /// Writes the next FPDU of a response to `out` and returns its length; 0 if no FPDU waits.
    ///
    /// # Errors
    /// The memory of a READ is not there any longer, or a refused access ends the stream here.
    /// The Terminate message says so.
    pub(super) fn transmit(
        &mut self,
        sender: &mut Sender,
        out: &mut [u8],
        memory: &mut impl Memory,
    ) -> Result<usize, Terminate> {
        let written = match self.responses.front_mut() {
            None => return Ok(0),
            Some(Response::End(terminate)) => return Err(*terminate),
            Some(Response::Atomic(response)) => {
                let mut payload = [0; AtomicResponse::LEN];
                response.emit(&mut payload);
                let msn = self.response_msn;
                self.response_msn = msn.wrapping_add(1);
                message(sender, out, Opcode::AtomicResponse, msn, &payload)
            }
            Some(Response::Read { request, msn, sent }) => {
                let (left, at) = (request.size - *sent, u64::from(*sent));
                let place = Place::Tagged { stag: request.sink, to: request.sink_to.wrapping_add(at) };
                let mut header = Header { last: false, rdmap: Opcode::ReadResponse.emit(), place };
                let len = (left as usize).min(self.mulpdu - header.size()) as u32;
                header.last = len == left;
                let from = request.source_to.wrapping_add(at);
                let fetch = |offset: usize, piece: &mut [u8], folding: Option<&mut Folding>| {
                    memory.read(request.source, from.wrapping_add(offset as u64), piece, folding)
                };
                let written = frame(sender, out, &header, len as usize, fetch)
                    .map_err(|fault| Terminate { reason: fault.request(), failed: failed_read(*msn, request) })?;
                *sent += len;
                if !header.last {
                    return Ok(written);
                }
                written
            }
        };
        self.responses.pop_front();
        Ok(written)
    }
}

/// What a Terminate message repeats of a READ request.
fn failed_read(msn: u32, request: &ReadRequest) -> Option<Failed> {
    let place = Place::Untagged { invalidate: Stag(0), queue: QUEUE_REQUEST, msn, offset: 0 };
    let mut header = [0; UNTAGGED_LEN];
    Header { last: true, rdmap: Opcode::ReadRequest.emit(), place }.emit(&mut header);
    let mut payload = [0; ReadRequest::LEN];
    request.emit(&mut payload);
    Failed::new(&[&header[..], &payload].concat())
}
