//! The exchange of start-up frames, as a state machine for each side. Not the bytes of the frames
//! ([`crate::startup`]), and not what follows ([`crate::Stream`]). Principal types: [`Initiator`],
//! [`Responder`]; both end with an [`Agreement`]. RFC 5044, section 7.1, and RFC 6581.
//!
//! | initiator | ends with |
//! |-----------|-----------|
//! | Asking: has sent its request, waits for the reply | the reply, an error, the deadline |
//! | Done | |
//!
//! | responder | ends with |
//! |-----------|-----------|
//! | Waiting for the request | the request, an error, the deadline |
//! | Asked: the program decides | `accept`, `reject`; any more data is an error |
//! | Done | |
//!
//! CRCs are used if either side asks for them. Each side says whether it wants markers in what it
//! receives. The initiator never has more READs outstanding than the responder serves, and the
//! other way round. Frames without enhanced fields do not say how many that is. Then each side
//! serves at least [`PLAIN_DEPTH`], and the program sees that number in the request.

use crate::error::Error;
use crate::fpdu;
use crate::quirks::Quirks;
use crate::startup::{Enhanced, Frame, HEADER_LEN, Kind, MOST_PRIVATE, RtrSet, UNKNOWN_DEPTH};
use crate::stream;
use crate::terminate::{Reason, Terminate};
use std::time::Duration;

/// READs and atomics that a peer may have outstanding if the frames do not say how many. Frames of
/// revision 1 (RFC 5044) have no field for it, and a program that takes the number from the request
/// needs one.
pub const PLAIN_DEPTH: u16 = 16;

/// What a side wants and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The revision of MPA, 1 or 2. Revision 2 is always enhanced. A responder takes the
    /// initiator's.
    pub revision: u8,
    /// Ask for CRCs.
    pub crc: bool,
    /// Ask for markers. Only for tests; nobody should want them.
    pub markers: bool,
    /// Send markers to a peer that asks for them. Otherwise such a peer is rejected.
    pub sends_markers: bool,
    /// READs and atomics that this side serves at a time.
    pub ird: u16,
    /// How far `ird` may be raised if the peer wants to have more outstanding.
    pub most_ird: u16,
    /// READs and atomics that this side has outstanding at most.
    pub ord: u16,
    /// The initiator asks for the peer-to-peer model, with these ready-to-receive messages.
    pub peer_to_peer: Option<RtrSet>,
    /// Work-arounds for the peer.
    pub quirks: Quirks,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            revision: 2,
            crc: true,
            markers: false,
            sends_markers: true,
            ird: 16,
            most_ird: 128,
            ord: 16,
            peer_to_peer: None,
            quirks: Quirks::default(),
        }
    }
}

impl Terms {
    /// The private data, if it is short enough.
    fn private(&self, enhanced: bool, private: &[u8]) -> Result<Vec<u8>, Error> {
        if private.len() > self.quirks.most_private(enhanced) {
            return Err(Error::PrivateLength(private.len()));
        }
        Ok(private.to_vec())
    }

    /// The IRD of this side if the frames do not say how many READs the peer has outstanding.
    fn plain_ird(&self) -> u16 {
        self.raised_ird(PLAIN_DEPTH)
    }

    /// The IRD of this side if the peer has `asked` READs outstanding.
    fn raised_ird(&self, asked: u16) -> u16 {
        if asked == UNKNOWN_DEPTH { self.ird } else { self.ird.max(asked.min(self.most_ird)) }
    }
}

/// A ready-to-receive message: the initiator's first message, which no program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// A SEND of no bytes.
    Send,
    /// A WRITE of no bytes.
    Write,
    /// A READ of no bytes.
    Read,
}

impl Rtr {
    /// The one message of a set. `None` if it has more or fewer.
    fn only(set: RtrSet) -> Option<Rtr> {
        match (set.send, set.write, set.read) {
            (true, false, false) => Some(Rtr::Send),
            (false, true, false) => Some(Rtr::Write),
            (false, false, true) => Some(Rtr::Read),
            _ => None,
        }
    }

    /// The message that a responder chooses: one that costs nothing, if possible.
    fn choose(set: RtrSet) -> Option<Rtr> {
        [(set.write, Rtr::Write), (set.read, Rtr::Read), (set.send, Rtr::Send)]
            .into_iter()
            .find_map(|(offered, rtr)| offered.then_some(rtr))
    }

    fn set(self) -> RtrSet {
        RtrSet { send: self == Rtr::Send, write: self == Rtr::Write, read: self == Rtr::Read }
    }
}

/// The side that opened the TCP connection, or the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the RFC's own names")]
pub enum Role {
    Initiator,
    Responder,
}

/// What both sides have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// This side.
    pub role: Role,
    /// The revision of MPA.
    pub revision: u8,
    /// FPDUs have CRCs.
    pub crc: bool,
    /// This side sends markers.
    pub sends_markers: bool,
    /// The peer sends markers.
    pub receives_markers: bool,
    /// READs and atomics that this side serves at a time.
    pub ird: u16,
    /// READs and atomics that this side has outstanding at most.
    pub ord: u16,
    /// The ready-to-receive message, with the peer-to-peer model.
    pub rtr: Option<Rtr>,
}

impl Agreement {
    /// A Terminate message of a stream without FPDUs, as its only FPDU.
    fn terminate(&self, reason: Reason) -> Vec<u8> {
        let mut sender = fpdu::Sender::new(self.crc, self.sends_markers);
        stream::terminate_fpdu(&mut sender, &Terminate { reason, failed: None })
    }
}

/// How the peer answered a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection exists.
    Accepted(Agreement, Vec<u8>),
    /// The peer's program rejects the connection, with private data.
    Rejected(Vec<u8>),
}

/// The side that opens the connection.
#[derive(Debug)]
pub struct Initiator {
    terms: Terms,
    request: Frame,
    output: Option<Vec<u8>>,
    input: Vec<u8>,
    deadline: Option<Duration>,
}

impl Initiator {
    /// Asks for a connection. The peer has to reply until `deadline`.
    ///
    /// # Errors
    /// The private data is too long.
    pub fn new(terms: Terms, private: &[u8], deadline: Duration) -> Result<Initiator, Error> {
        let enhanced = (terms.revision == 2).then(|| Enhanced {
            peer_to_peer: terms.peer_to_peer.is_some(),
            rtr: terms.peer_to_peer.unwrap_or_default(),
            ird: terms.ird,
            ord: terms.ord,
        });
        let request = Frame {
            kind: Kind::Request,
            markers: terms.markers,
            crc: terms.crc,
            reject: false,
            revision: terms.revision,
            enhanced,
            private: terms.private(enhanced.is_some(), private)?,
        };
        let output = Some(request.emit()?);
        Ok(Initiator { terms, request, output, input: Vec::new(), deadline: Some(deadline) })
    }

    /// The bytes to send next: the request, and after some errors a Terminate message.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.output.take()
    }

    /// When [`Initiator::expire`] is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// Takes bytes of the peer. Returns how many belong to the reply, and the answer if the reply
    /// is complete. Bytes behind it belong to the stream.
    ///
    /// # Errors
    /// The reply does not fit the request. The owner sends what is left to send and closes.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Option<Answer>), Error> {
        if self.deadline.is_none() {
            return Err(Error::Order);
        }
        let taken = bytes.len().min(HEADER_LEN + MOST_PRIVATE - self.input.len());
        self.input.extend_from_slice(&bytes[..taken]);
        match Frame::parse(Kind::Reply, &self.input) {
            Ok(None) => Ok((taken, None)),
            Ok(Some((reply, len))) => {
                self.deadline = None;
                let before = self.input.len() - taken;
                self.answer(reply).map(|answer| (len - before, Some(answer)))
            }
            Err(error) => {
                self.deadline = None;
                Err(error)
            }
        }
    }

    /// Compares the reply with the request.
    fn answer(&mut self, reply: Frame) -> Result<Answer, Error> {
        let terms = &self.terms;
        if reply.revision != self.request.revision {
            return Err(Error::Revision(reply.revision));
        }
        if reply.reject {
            return Ok(Answer::Rejected(reply.private));
        }
        if reply.enhanced.is_some() != self.request.enhanced.is_some() {
            return Err(Error::Mode);
        }
        if reply.markers && !terms.sends_markers {
            return Err(Error::Markers);
        }
        let mut agreement = Agreement {
            role: Role::Initiator,
            revision: reply.revision,
            crc: self.request.crc || reply.crc,
            sends_markers: reply.markers,
            receives_markers: self.request.markers,
            ird: terms.plain_ird(),
            ord: terms.ord,
            rtr: None,
        };
        if let Some(fields) = reply.enhanced
            && let Err(error) = agreement.enhance(terms, &fields)
        {
            self.output = error.terminate().map(|reason| agreement.terminate(reason));
            return Err(error);
        }
        Ok(Answer::Accepted(agreement, reply.private))
    }

    /// The same request in revision 1, for a new TCP connection. Makes sense if the peer closed the
    /// connection without a reply, or replied in revision 1: so do peers that do not understand
    /// revision 2. `None` if the request had revision 1.
    #[must_use]
    pub fn in_revision_1(&self, deadline: Duration) -> Option<Initiator> {
        let terms = Terms { revision: 1, ..self.terms };
        let retries = self.terms.revision > 1 && (self.input.is_empty() || self.replied_in_revision_1());
        Initiator::new(terms, &self.request.private, deadline).ok().filter(|_| retries)
    }

    fn replied_in_revision_1(&self) -> bool {
        matches!(Frame::parse(Kind::Reply, &self.input), Ok(Some((Frame { revision: 1, .. }, _))))
    }

    /// The peer closed the connection.
    #[must_use]
    pub fn closed(&mut self) -> Error {
        self.deadline = None;
        Error::Closed
    }

    /// Ends the exchange if the deadline is over.
    ///
    /// # Errors
    /// It is over.
    pub fn expire(&mut self, now: Duration) -> Result<(), Error> {
        expire(&mut self.deadline, now)
    }
}

impl Agreement {
    /// Takes over the enhanced fields of a reply.
    fn enhance(&mut self, terms: &Terms, reply: &Enhanced) -> Result<(), Error> {
        self.ird = terms.raised_ird(reply.ord);
        if reply.ord != UNKNOWN_DEPTH && reply.ord > self.ird {
            return Err(Error::Ird { asked: reply.ord, most: self.ird });
        }
        if reply.ird != UNKNOWN_DEPTH {
            self.ord = terms.ord.min(reply.ird);
        }
        if let Some(offered) = terms.peer_to_peer
            && reply.peer_to_peer
        {
            let rtr = Rtr::only(reply.rtr).ok_or(Error::Rtr)?;
            let known = match rtr {
                Rtr::Send => offered.send,
                Rtr::Write => offered.write,
                Rtr::Read => offered.read,
            };
            if !known && !terms.quirks.any_rtr {
                return Err(Error::Rtr);
            }
            self.rtr = Some(rtr);
        }
        Ok(())
    }
}

/// What the initiator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The revision of MPA.
    pub revision: u8,
    /// READs and atomics that the initiator serves at a time; [`PLAIN_DEPTH`] if it does not say.
    pub ird: u16,
    /// READs and atomics that the initiator has outstanding at most; [`PLAIN_DEPTH`] if it does not
    /// say.
    pub ord: u16,
    /// The program's private data.
    pub private: Vec<u8>,
}

/// The side that accepts the connection.
#[derive(Debug)]
pub struct Responder {
    terms: Terms,
    input: Vec<u8>,
    request: Option<Frame>,
    /// A reply that the machine itself sends, without asking the program.
    output: Option<Vec<u8>>,
    deadline: Option<Duration>,
    done: bool,
}

impl Responder {
    /// Waits for a request until `deadline`.
    #[must_use]
    pub fn new(terms: Terms, deadline: Duration) -> Responder {
        Responder { terms, input: Vec::new(), request: None, output: None, deadline: Some(deadline), done: false }
    }

    /// The bytes to send next: a rejection that this machine decided itself.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.output.take()
    }

    /// When [`Responder::expire`] is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// Takes bytes of the peer. Returns what the peer asks for if the request is complete.
    ///
    /// # Errors
    /// The request is invalid, or more data follows it. The owner sends what is left to send and
    /// closes.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Asked>, Error> {
        if self.done {
            return Err(Error::Order);
        }
        if self.request.is_some() && !bytes.is_empty() {
            return Err(self.fail(Error::Early));
        }
        let taken = bytes.len().min(HEADER_LEN + MOST_PRIVATE - self.input.len());
        self.input.extend_from_slice(&bytes[..taken]);
        match Frame::parse(Kind::Request, &self.input) {
            Ok(None) => Ok(None),
            Ok(Some((_, len))) if len < self.input.len() || taken < bytes.len() => Err(self.fail(Error::Early)),
            Ok(Some((request, _))) => self.asked(request).map(Some),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        (self.deadline, self.done) = (None, true);
        error
    }

    fn asked(&mut self, request: Frame) -> Result<Asked, Error> {
        self.deadline = None;
        if request.markers && !self.terms.sends_markers {
            let fields = request.enhanced.map(|_| Enhanced::default());
            self.output = Some(self.reply(&request, true, fields, Vec::new()).emit()?);
            return Err(self.fail(Error::Markers));
        }
        let plain = Enhanced { ird: PLAIN_DEPTH, ord: PLAIN_DEPTH, ..Enhanced::default() };
        let fields = request.enhanced.unwrap_or(plain);
        let asked =
            Asked { revision: request.revision, ird: fields.ird, ord: fields.ord, private: request.private.clone() };
        self.request = Some(request);
        Ok(asked)
    }

    fn reply(&self, request: &Frame, reject: bool, enhanced: Option<Enhanced>, private: Vec<u8>) -> Frame {
        Frame {
            kind: Kind::Reply,
            markers: self.terms.markers && !reject,
            crc: self.terms.crc || request.crc,
            reject,
            revision: request.revision,
            enhanced,
            private,
        }
    }

    /// Accepts the connection, with what this side serves and wants to have outstanding. Returns
    /// the reply to send and the agreement.
    ///
    /// # Errors
    /// The private data is too long, or no request waits for an answer.
    pub fn accept(&mut self, ird: u16, ord: u16, private: &[u8]) -> Result<(Vec<u8>, Agreement), Error> {
        let request = self.request.as_ref().filter(|_| !self.done).ok_or(Error::Order)?;
        let terms = Terms { ird, ord, ..self.terms };
        let private = terms.private(request.enhanced.is_some(), private)?;
        let mut agreement = Agreement {
            role: Role::Responder,
            revision: request.revision,
            crc: terms.crc || request.crc,
            sends_markers: request.markers,
            receives_markers: terms.markers,
            ird: terms.plain_ird(),
            ord,
            rtr: None,
        };
        let fields = request.enhanced.map(|asked| {
            agreement.ird = terms.raised_ird(asked.ord);
            if asked.ird != UNKNOWN_DEPTH {
                agreement.ord = ord.min(asked.ird);
            }
            agreement.rtr = Rtr::choose(asked.rtr).filter(|_| asked.peer_to_peer);
            let rtr = agreement.rtr.map(Rtr::set).unwrap_or_default();
            Enhanced { peer_to_peer: asked.peer_to_peer, rtr, ird: agreement.ird, ord: agreement.ord }
        });
        let bytes = self.reply(request, false, fields, private).emit()?;
        self.done = true;
        Ok((bytes, agreement))
    }

    /// Rejects the connection. Returns the reply to send, and how long the owner waits for the peer
    /// to close before it closes itself.
    ///
    /// # Errors
    /// The private data is too long, or no request waits for an answer.
    pub fn reject(&mut self, private: &[u8]) -> Result<(Vec<u8>, Duration), Error> {
        let request = self.request.as_ref().filter(|_| !self.done).ok_or(Error::Order)?;
        let private = self.terms.private(request.enhanced.is_some(), private)?;
        let fields = request.enhanced.map(|asked| Enhanced { peer_to_peer: false, rtr: RtrSet::default(), ..asked });
        let bytes = self.reply(request, true, fields, private).emit()?;
        self.done = true;
        Ok((bytes, self.terms.quirks.linger_after_reject))
    }

    /// The peer closed the connection.
    #[must_use]
    pub fn closed(&mut self) -> Error {
        self.fail(Error::Closed)
    }

    /// Ends the exchange if the deadline is over.
    ///
    /// # Errors
    /// It is over.
    pub fn expire(&mut self, now: Duration) -> Result<(), Error> {
        let expired = expire(&mut self.deadline, now);
        self.done |= expired.is_err();
        expired
    }
}

fn expire(deadline: &mut Option<Duration>, now: Duration) -> Result<(), Error> {
    match deadline.take_if(|deadline| *deadline <= now) {
        Some(_) => Err(Error::Timeout),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
