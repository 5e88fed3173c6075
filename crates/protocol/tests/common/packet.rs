//! The packets of a requester and of a responder, one by one, for tests that look at each of them.
//! Principal type: [`Packet`].

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
    assert_eq!((headers.psn, headers.ack_req), (run.psn(0), run.ack_req(0)), "those of the first packet");
    let packet = |index| Packet {
        headers: encoded(&Headers { psn: run.psn(index), ack_req: run.ack_req(index), ..headers }, |bytes| {
            requester.emit(run, index, bytes)
        }),
        slot: run.slot,
        offset: run.offset + index * run.len,
        len: run.len,
    };
    (0..run.count).map(packet).collect()
}

/// The headers, of which `emit` must encode each byte.
fn encoded(headers: &Headers, emit: impl FnOnce(&mut [u8]) -> usize) -> Headers {
    let [mut expected, mut found] = [[0xaa; wire::MAX_LEN]; 2];
    let len = headers.emit(&mut expected).expect("room for all headers");
    assert_eq!((emit(&mut found), found), (len, expected), "{headers}");
    *headers
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

/// A responder that returns its answers as headers.
pub(crate) trait Answers {
    /// The next answer of one packet.
    fn poll_transmit(&mut self) -> Option<Answer>;

    /// The headers of the next packets, up to `most`, and the source of their payload.
    fn poll_packets(&mut self, most: u32) -> Option<(Vec<Headers>, ResponseData)>;
}

impl Answers for Responder {
    fn poll_transmit(&mut self) -> Option<Answer> {
        let (headers, source) = self.poll_packets(1)?;
        Some(Answer { headers: headers[0], source })
    }

    fn poll_packets(&mut self, most: u32) -> Option<(Vec<Headers>, ResponseData)> {
        let response = self.poll_answer(most)?;
        assert!((1..=most).contains(&response.count));
        let packets = (0..response.count).map(|index| {
            let headers = Headers { psn: response.psn + index, ..self.headers(&response) };
            encoded(&headers, |bytes| self.emit(&response, index, bytes))
        });
        Some((packets.collect(), response.source))
    }
}
