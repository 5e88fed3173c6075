//! The sending side of a transaction. Principal type: [`Sender`].

use super::{Outcome, abort, blank, data_offset, put_segment, segment_of};
use std::time::Duration;
use wire::mad::{Header, MAD_LEN, Mad};
use wire::rmpp::{
    FLAG_ACTIVE, FLAG_FIRST, FLAG_LAST, Header as Segment, Status, TYPE_ABORT, TYPE_ACK, TYPE_DATA, TYPE_STOP, VERSION,
};

/// Sends one message.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The headers that each segment repeats.
    headers: Mad,
    offset: usize,
    data: Vec<u8>,
    segments: u32,
    /// The last segment that the receiver has.
    acknowledged: u32,
    /// The last segment that may be sent.
    window: u32,
    /// The last segment that was sent since the last timeout.
    sent: u32,
    /// The last segment that was ever sent.
    furthest: u32,
    timeout: Duration,
    retries: u32,
    left: u32,
    deadline: Option<Duration>,
    last_word: Option<Mad>,
    outcome: Option<Outcome>,
}

impl Sender {
    /// Prepares a message: the headers of `first`, and then `data`. A segment is sent again after
    /// `timeout`, at most `retries` times without progress.
    ///
    /// Returns `None` if the message is too long for the protocol.
    #[must_use]
    pub fn new(first: &Mad, data: Vec<u8>, timeout: Duration, retries: u32) -> Option<Sender> {
        let offset = data_offset(Header::of(first).class);
        let segments = u32::try_from(data.len().div_ceil(MAD_LEN - offset).max(1)).ok()?;
        segments.checked_mul(Sender::PAYLOAD)?;
        Some(Sender {
            headers: *first,
            offset,
            data,
            segments,
            acknowledged: 0,
            window: 1,
            sent: 0,
            furthest: 0,
            timeout,
            retries,
            left: retries,
            deadline: None,
            last_word: None,
            outcome: None,
        })
    }

    /// What a whole segment counts in a length: all behind the RMPP header.
    const PAYLOAD: u32 = (MAD_LEN - wire::rmpp::END) as u32;

    /// The next datagram to send.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Mad> {
        if let Some(last_word) = self.last_word.take() {
            return Some(last_word);
        }
        if self.outcome.is_some() || self.sent >= self.window.min(self.segments) {
            return None;
        }
        self.sent += 1;
        self.furthest = self.furthest.max(self.sent);
        self.deadline = Some(now.saturating_add(self.timeout));
        Some(self.segment(self.sent))
    }

    /// Handles an ACK, STOP or ABORT for this transaction.
    pub fn handle(&mut self, mad: &Mad) {
        let segment = segment_of(mad);
        if self.outcome.is_some() || !segment.has(FLAG_ACTIVE) {
            return;
        }
        match segment.kind {
            _ if segment.version != VERSION => self.abort(Status::UnsupportedVersion),
            TYPE_ACK => self.acknowledge(&segment),
            TYPE_STOP | TYPE_ABORT => self.end(Outcome::Ended(segment.status)),
            TYPE_DATA => {}
            _ => self.abort(Status::BadType),
        }
    }

    fn acknowledge(&mut self, ack: &Segment) {
        if ack.status != Status::Normal as u8 {
            self.abort(Status::IllegalStatus);
        } else if ack.length < ack.segment {
            self.abort(Status::NewWindowTooSmall);
        } else if ack.segment > self.furthest {
            self.abort(Status::SegmentTooBig);
        } else if ack.segment >= self.acknowledged {
            if ack.segment > self.acknowledged {
                self.left = self.retries;
            }
            self.acknowledged = ack.segment;
            self.sent = self.sent.max(ack.segment);
            self.window = self.window.max(ack.length);
            if self.acknowledged == self.segments {
                self.end(Outcome::Delivered);
            }
        }
    }

    /// Handles the time: what was not acknowledged is sent again, or the transaction ends.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.abort(Status::TooManyRetries);
            return;
        };
        self.left = left;
        self.sent = self.acknowledged;
        // Also if the receiver's window lets nothing leave: its patience is not endless.
        self.deadline = Some(now.saturating_add(self.timeout));
    }

    /// When [`Sender::handle_timeout`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// How many bytes of data it keeps.
    #[must_use]
    pub fn held(&self) -> usize {
        self.data.len()
    }

    /// How the transaction ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    fn abort(&mut self, status: Status) {
        // The peer expects the method of the data, so the method of the answer is turned back.
        let mut last_word = abort(&self.headers, status);
        last_word[3] = self.headers[3];
        self.last_word = Some(last_word);
        self.end(Outcome::Aborted(status));
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
        self.deadline = None;
    }

    /// Builds segment `number`, from 1 to the number of segments.
    fn segment(&self, number: u32) -> Mad {
        let room = MAD_LEN - self.offset;
        let from = (number as usize - 1) * room;
        let data = self.data.get(from..).unwrap_or_default();
        let data = &data[..data.len().min(room)];
        let mut mad = self.headers;
        mad[self.offset..].fill(0);
        mad[self.offset..self.offset + data.len()].copy_from_slice(data);
        let (first, last) = (number == 1, number == self.segments);
        // The room that the last segment leaves counts for the whole message, too.
        let unused = u32::try_from(self.segments as usize * room - self.data.len()).unwrap_or(0);
        let length = match (first, last) {
            (_, true) => Sender::PAYLOAD - unused,
            (true, false) => self.segments * Sender::PAYLOAD - unused,
            (false, false) => 0,
        };
        let mut flags = FLAG_ACTIVE;
        if first {
            flags |= FLAG_FIRST;
        }
        if last {
            flags |= FLAG_LAST;
        }
        put_segment(&mut mad, Segment { kind: TYPE_DATA, flags, segment: number, length, ..blank() });
        mad
    }
}
