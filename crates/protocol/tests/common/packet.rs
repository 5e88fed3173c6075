//! The packets of a requester and of a responder, one by one, for tests that look at each of them. Principal type:
//! [`Packet`].

use softhca_protocol::{Requester, Responder, ResponseData, Run, Time};
use wire::Headers;

/// One packet: these headers, then bytes `[offset, offset + len)` of the request in `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) headers: Headers,
    pub(crate) slot: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// The packets of a run that the requester has just returned.
pub(crate) fn packets(requester: &Requester, run: &Run) -> Vec<Packet> {
    let headers = requester.headers(run);
    let packet = |index| Packet {
        headers: Headers { psn: run.psn(index), ack_req: run.ack_req(index), ..headers },
        slot: run.slot,
        offset: run.offset + index * run.len,
        len: run.len,
    };
    (0..run.count).map(packet).collect()
}

/// A requester that sends packets one by one.
pub(crate) trait OneByOne {
    /// Sends the next packet, if it may be sent now.
    fn poll_transmit(&mut self, now: Time) -> Option<Packet>;
}

impl OneByOne for Requester {
    fn poll_transmit(&mut self, now: Time) -> Option<Packet> {
        let run = self.poll_run(now)?.at_most(1);
        let packet = packets(self, &run).pop();
        self.sent(now, &run);
        packet
    }
}

/// An answer with its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) headers: Headers,
    pub(crate) source: ResponseData,
}

/// A responder that gives its answers one by one.
pub(crate) trait Answers {
    /// The next answer.
    fn poll_transmit(&mut self) -> Option<Answer>;
}

impl Answers for Responder {
    fn poll_transmit(&mut self) -> Option<Answer> {
        let response = self.poll_answer()?;
        Some(Answer { headers: self.headers(&response), source: response.source })
    }
}
