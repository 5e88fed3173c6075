//! The receiving side of a transaction. Principal type: [`Receiver`].

use super::{Outcome, abort, answer, blank, data_offset, segment_of};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::mad::{Header, MAD_LEN, Mad};
use wire::rmpp::{
    END, FLAG_ACTIVE, FLAG_FIRST, FLAG_LAST, Header as Segment, Status, TYPE_ABORT, TYPE_ACK, TYPE_DATA, TYPE_STOP,
    VERSION,
};

/// What a receiver accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest message, in bytes, with its headers.
    pub longest: usize,
    /// How many segments the sender may be ahead.
    pub window: u32,
    /// How long the receiver waits for a segment before it aborts, and how long after the message
    /// it acknowledges repeated segments.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { longest: 16 << 20, window: 64, patience: Duration::from_secs(40) }
    }
}

/// Receives one message.
#[derive(Clone, Debug)]
pub struct Receiver {
    limits: Limits,
    /// The first segment: its headers are those of the message.
    first: Mad,
    offset: usize,
    message: Vec<u8>,
    /// Segments after a gap, inside of the window.
    early: BTreeMap<u32, Mad>,
    /// The last segment that arrived in order.
    arrived: u32,
    /// The last segment that the sender may send.
    window: u32,
    answer: Option<Mad>,
    deadline: Option<Duration>,
    outcome: Option<Outcome>,
}

impl Receiver {
    /// Begins with the segment that arrived first. Call [`Receiver::handle`] with it after that.
    #[must_use]
    pub fn new(first: &Mad, limits: Limits, now: Duration) -> Receiver {
        let offset = data_offset(Header::of(first).class);
        Receiver {
            limits,
            first: *first,
            offset,
            message: first[..offset].to_vec(),
            early: BTreeMap::new(),
            arrived: 0,
            window: limits.window.max(1),
            answer: None,
            deadline: Some(now.saturating_add(limits.patience)),
            outcome: None,
        }
    }

    /// Handles a segment, STOP or ABORT of this transaction.
    pub fn handle(&mut self, mad: &Mad, now: Duration) {
        let segment = segment_of(mad);
        if !segment.has(FLAG_ACTIVE) || matches!(self.outcome, Some(Outcome::Ended(_) | Outcome::Aborted(_))) {
            return;
        }
        match segment.kind {
            _ if segment.version != VERSION => self.abort(Status::UnsupportedVersion),
            TYPE_DATA => self.data(mad, &segment, now),
            TYPE_STOP | TYPE_ABORT if self.outcome.is_none() => self.end(Outcome::Ended(segment.status)),
            TYPE_STOP | TYPE_ABORT | TYPE_ACK => {}
            _ => self.abort(Status::BadType),
        }
    }

    fn data(&mut self, mad: &Mad, segment: &Segment, now: Duration) {
        if segment.segment <= self.arrived {
            // The sender did not see the ACK.
            if segment.segment != 0 {
                self.acknowledge();
            }
            return;
        }
        if self.outcome.is_some() || segment.segment > self.window {
            return;
        }
        if segment.status != Status::Normal as u8 {
            return self.abort(Status::IllegalStatus);
        }
        if segment.has(FLAG_FIRST) != (segment.segment == 1) {
            return self.abort(Status::InconsistentFirst);
        }
        self.deadline = Some(now.saturating_add(self.limits.patience));
        self.early.insert(segment.segment, *mad);
        while let Some(mad) = self.early.remove(&(self.arrived + 1)) {
            self.append(&mad);
            if self.outcome.is_some() {
                return;
            }
        }
        // The sender has nothing left to send before the next ACK.
        if self.arrived == 1 || self.arrived == self.window {
            self.window = self.arrived.saturating_add(self.limits.window.max(1));
            self.acknowledge();
        }
    }

    /// Appends the segment that is next in order.
    fn append(&mut self, mad: &Mad) {
        let segment = segment_of(mad);
        let last = segment.has(FLAG_LAST);
        // A length counts from the end of the RMPP header.
        let length = if last { segment.length as usize } else { MAD_LEN - END };
        let Some(data) = mad.get(self.offset..END.saturating_add(length)) else {
            return self.abort(Status::InconsistentLast);
        };
        if self.message.len() + data.len() > self.limits.longest {
            return self.abort(Status::ResourcesExhausted);
        }
        self.message.extend_from_slice(data);
        self.arrived += 1;
        if segment.segment == 1 {
            self.first = *mad;
            self.message[..self.offset].copy_from_slice(&mad[..self.offset]);
        }
        if last {
            self.early.clear();
            self.outcome = Some(Outcome::Delivered);
            self.acknowledge();
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.answer.take()
    }

    /// Handles the time: a message that stopped arriving is aborted.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        self.deadline = None;
        if self.outcome.is_none() {
            self.abort(Status::TimeTooLong);
        }
    }

    /// When [`Receiver::handle_timeout`] has something to do. Once there is no deadline, the
    /// receiver may be dropped.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// How many bytes it keeps.
    #[must_use]
    pub fn held(&self) -> usize {
        MAD_LEN + self.message.len() + self.early.len() * MAD_LEN
    }

    /// How the transaction ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Takes the message, once: the headers of the first segment, and then the data.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let complete = self.outcome == Some(Outcome::Delivered) && !self.message.is_empty();
        complete.then(|| std::mem::take(&mut self.message))
    }

    fn acknowledge(&mut self) {
        let ack = Segment { kind: TYPE_ACK, segment: self.arrived, length: self.window, ..blank() };
        self.answer = Some(answer(&self.first, ack));
    }

    fn abort(&mut self, status: Status) {
        self.answer = Some(abort(&self.first, status));
        self.end(Outcome::Aborted(status));
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
        self.deadline = None;
        self.message = Vec::new();
        self.early.clear();
    }
}
