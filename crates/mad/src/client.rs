//! What a client of management datagrams has outstanding: its requests, and messages that are sent
//! or received in segments. Not the way to the peer, and not which client a datagram is for
//! ([`crate::dispatch`]). Principal type: [`Client`].
//!
//! The caller gives the client what arrives for it ([`Client::receive`]) and the time
//! ([`Client::handle_timeout`]), sends what [`Client::poll_transmit`] returns, and hands on what
//! [`Client::poll_event`] returns. An address `A` is whatever the caller needs to reach a peer.

use crate::dispatch::has_rmpp;
use crate::rmpp::{Limits, Outcome, Receiver, Sender, data_offset, segment_of};
use crate::transactions::{self, Due, Registration, Transactions, is_response};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::mad::{Header, LEN, MAD_LEN, Mad};
use wire::rmpp::{FLAG_ACTIVE, TYPE_ABORT, TYPE_ACK, TYPE_DATA, TYPE_STOP};

/// The requests that are sent again, or given up, in one call.
const BATCH: usize = 16;
/// The messages that a client may be sending in segments, and as many that it may be receiving.
pub const FLOWS: usize = 64;
/// How long a sender of segments waits for an acknowledgement if its client waits for no answer.
const USUAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often segments without an acknowledgement are sent again, at least.
const SEGMENT_RETRIES: u32 = 3;

/// What a client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<A> {
    /// A message has arrived: one datagram, or the headers and the data of all segments.
    Received(A, Vec<u8>),
    /// A message of the client got no answer in time, or did not reach its peer.
    Unanswered(A, Vec<u8>),
}

/// Why a message is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It is no datagram, or too long for one and not marked as segmented.
    #[error("the message has {0} bytes; a datagram has {MAD_LEN}, and longer messages need RMPP")]
    Length(usize),
    /// The request cannot wait for its answer.
    #[error(transparent)]
    Transaction(#[from] transactions::TransactionError),
    /// Too many messages are being sent in segments.
    #[error("{FLOWS} messages are being sent in segments; wait for some of them")]
    Full,
}

/// A message of the client, and where it goes.
#[derive(Clone, Debug)]
struct OutgoingMessage<A> {
    to: A,
    message: Vec<u8>,
}

/// A message that is sent in segments.
#[derive(Clone, Debug)]
struct Sending<A> {
    sender: Sender,
    request: OutgoingMessage<A>,
    /// How long the client waits for the answer, and how often it asks again; nothing if it waits
    /// for none.
    wait: Option<(Duration, u32)>,
}

/// A transaction with a peer: its address, the id and the class.
type Flow<A> = (A, u64, u8);

/// One client.
#[derive(Clone, Debug)]
pub struct Client<A> {
    registration: Registration,
    /// Segments are this machine's work, and not the client's own.
    rmpp: bool,
    longest: usize,
    requests: Transactions<OutgoingMessage<A>>,
    senders: BTreeMap<Flow<A>, Sending<A>>,
    receivers: BTreeMap<Flow<A>, Receiver>,
    transmits: VecDeque<(A, Mad)>,
    events: VecDeque<Event<A>>,
}

impl<A: Clone + Ord> Client<A> {
    /// A client with nothing outstanding. With `rmpp`, its messages have up to `longest` bytes.
    #[must_use]
    pub fn new(registration: Registration, rmpp: bool, longest: usize) -> Self {
        Self {
            registration,
            rmpp,
            longest,
            requests: Transactions::default(),
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Sends a message. A request with a `timeout` waits for its answer, and is sent again up to
    /// `retries` times. The message is sent in segments if its RMPP header is active. The rest of
    /// that header is this machine's, as with Linux.
    ///
    /// # Errors
    /// The message is not sent.
    pub fn send(
        &mut self,
        to: A,
        message: &[u8],
        timeout: Duration,
        retries: u32,
        now: Duration,
    ) -> Result<(), SendError> {
        if message.len() < LEN {
            return Err(SendError::Length(message.len()));
        }
        let mut first = [0; MAD_LEN];
        let known = message.len().min(MAD_LEN);
        first[..known].copy_from_slice(&message[..known]);
        self.registration.mark(&mut first);
        let header = Header::of(&first);
        let wait = (!timeout.is_zero() && !is_response(&header)).then_some((timeout, retries));
        let mut message = message.to_vec();
        message[..LEN].copy_from_slice(&first[..LEN]);
        let request = OutgoingMessage { to: to.clone(), message };
        if self.rmpp && has_rmpp(header.class) && segment_of(&first).flags & FLAG_ACTIVE != 0 {
            return self.send_segments(&first, request, wait, timeout, now);
        }
        if request.message.len() > MAD_LEN {
            return Err(SendError::Length(request.message.len()));
        }
        if let Some((timeout, retries)) = wait {
            self.requests.begin(header, request, timeout, retries, now)?;
        }
        self.transmits.push_back((to, first));
        Ok(())
    }

    fn send_segments(
        &mut self,
        first: &Mad,
        mut request: OutgoingMessage<A>,
        wait: Option<(Duration, u32)>,
        timeout: Duration,
        now: Duration,
    ) -> Result<(), SendError> {
        let header = Header::of(first);
        let length = request.message.len();
        let data = request.message.get(data_offset(header.class)..).ok_or(SendError::Length(length))?.to_vec();
        if length > self.longest {
            return Err(SendError::Length(length));
        }
        // What waits for the answer is sent again as one datagram at most.
        request.message.truncate(MAD_LEN);
        request.message.shrink_to_fit();
        let flow = (request.to.clone(), header.transaction, header.class);
        if self.senders.contains_key(&flow) {
            return Err(transactions::TransactionError::InUse.into());
        }
        if self.senders.len() == FLOWS {
            return Err(SendError::Full);
        }
        let timeout = if timeout.is_zero() { USUAL_TIMEOUT } else { timeout };
        let retries = wait.map_or(0, |(_, retries)| retries).max(SEGMENT_RETRIES);
        let sender = Sender::new(first, data, timeout, retries).ok_or(SendError::Length(length))?;
        self.senders.insert(flow.clone(), Sending { sender, request, wait });
        self.follow_sender(&flow, now);
        Ok(())
    }

    /// Handles a datagram for this client.
    pub fn receive(&mut self, from: A, mad: &Mad, now: Duration) {
        let header = Header::of(mad);
        let segment = segment_of(mad);
        if !self.rmpp || !has_rmpp(header.class) || segment.flags & FLAG_ACTIVE == 0 {
            return self.complete(from, mad.to_vec());
        }
        let flow = (from, header.transaction, header.class);
        match segment.kind {
            TYPE_DATA => self.receive_segment(flow, mad, now),
            TYPE_ACK | TYPE_STOP | TYPE_ABORT => {
                if let Some(sending) = self.senders.get_mut(&flow) {
                    sending.sender.handle(mad);
                    self.follow_sender(&flow, now);
                } else if segment.kind != TYPE_ACK
                    && let Some(receiver) = self.receivers.get_mut(&flow)
                {
                    receiver.handle(mad, now);
                    self.follow_receiver(&flow);
                }
            }
            _ => {}
        }
    }

    fn receive_segment(&mut self, flow: Flow<A>, mad: &Mad, now: Duration) {
        if !self.receivers.contains_key(&flow) {
            // An answer that nobody waits for is dropped.
            let header = Header::of(mad);
            let expected = !is_response(&header) || self.requests.expects(&header);
            if !expected || !self.has_room_for_receiver() {
                return;
            }
            let limits = Limits { longest: self.longest, ..Limits::default() };
            self.receivers.insert(flow.clone(), Receiver::new(mad, limits, now));
        }
        let (_, transaction, class) = flow;
        self.requests.extend(transaction, class, now);
        if let Some(receiver) = self.receivers.get_mut(&flow) {
            receiver.handle(mad, now);
        }
        self.follow_receiver(&flow);
    }

    /// Makes room for one more receiver. A receiver that has its message only acknowledges repeated
    /// segments, so the one that has done so for longest gives way.
    fn has_room_for_receiver(&mut self) -> bool {
        if self.receivers.len() < FLOWS {
            return true;
        }
        let over = self.receivers.iter().filter(|(_, receiver)| receiver.outcome().is_some());
        let oldest = over.min_by_key(|(_, receiver)| receiver.deadline()).map(|(flow, _)| flow.clone());
        oldest.is_some_and(|flow| self.receivers.remove(&flow).is_some())
    }

    /// Sends what a receiver of segments has to say, and hands on its message.
    fn follow_receiver(&mut self, flow: &Flow<A>) {
        let Some(receiver) = self.receivers.get_mut(flow) else { return };
        if let Some(answer) = receiver.poll_transmit() {
            self.transmits.push_back((flow.0.clone(), answer));
        }
        // It stays for a while, to acknowledge segments that are repeated.
        let (message, is_over) = (receiver.take(), receiver.deadline().is_none());
        if is_over {
            self.receivers.remove(flow);
        }
        if let Some(message) = message {
            self.complete(flow.0.clone(), message);
        }
    }

    /// Sends what a sender of segments has to say, and ends it when its message is delivered or has
    /// failed.
    fn follow_sender(&mut self, flow: &Flow<A>, now: Duration) {
        let Some(sending) = self.senders.get_mut(flow) else { return };
        while let Some(mad) = sending.sender.poll_transmit(now) {
            self.transmits.push_back((flow.0.clone(), mad));
        }
        let Some(outcome) = sending.sender.outcome() else { return };
        let Some(Sending { request, wait, .. }) = self.senders.remove(flow) else { return };
        let OutgoingMessage { to, message } = request.clone();
        match (outcome, wait) {
            (Outcome::Delivered, None) => {}
            (Outcome::Delivered, Some((timeout, retries))) => {
                let header = message.first_chunk().map(Header::parse).unwrap_or_default();
                if self.requests.begin(header, request, timeout, retries, now).is_err() {
                    self.events.push_back(Event::Unanswered(to, message));
                }
            }
            (Outcome::Ended(_) | Outcome::Aborted(_), _) => self.events.push_back(Event::Unanswered(to, message)),
        }
    }

    /// A whole message has arrived.
    fn complete(&mut self, from: A, message: Vec<u8>) {
        let header = message.first_chunk().map(Header::parse).unwrap_or_default();
        if !is_response(&header) || self.requests.answer(&header).is_some() {
            self.events.push_back(Event::Received(from, message));
        }
    }

    /// Handles the time. If many requests are due, [`Client::deadline`] is still over afterwards.
    pub fn handle_timeout(&mut self, now: Duration) {
        for due in (0..BATCH).map_while(|_| self.requests.poll(now)).collect::<Vec<_>>() {
            match due {
                Due::Again(OutgoingMessage { to, message }) => {
                    let mut mad = [0; MAD_LEN];
                    let known = message.len().min(MAD_LEN);
                    mad[..known].copy_from_slice(&message[..known]);
                    self.transmits.push_back((to, mad));
                }
                Due::Unanswered(OutgoingMessage { to, message }) => {
                    self.events.push_back(Event::Unanswered(to, message))
                }
            }
        }
        let is_due = |deadline: Option<Duration>| deadline.is_some_and(|deadline| deadline <= now);
        let senders = self.senders.iter().filter(|(_, sending)| is_due(sending.sender.deadline()));
        for flow in senders.map(|(flow, _)| flow.clone()).collect::<Vec<_>>() {
            if let Some(sending) = self.senders.get_mut(&flow) {
                sending.sender.handle_timeout(now);
            }
            self.follow_sender(&flow, now);
        }
        let receivers = self.receivers.iter().filter(|(_, receiver)| is_due(receiver.deadline()));
        for flow in receivers.map(|(flow, _)| flow.clone()).collect::<Vec<_>>() {
            if let Some(receiver) = self.receivers.get_mut(&flow) {
                receiver.handle_timeout(now);
            }
            self.follow_receiver(&flow);
        }
    }

    /// To whom messages are being sent in segments: once for each message.
    pub fn sending(&self) -> impl Iterator<Item = &A> {
        self.senders.keys().map(|(to, ..)| to)
    }

    /// How many bytes the client keeps: messages that are sent and received in segments, and
    /// requests without an answer.
    #[must_use]
    pub fn held(&self) -> usize {
        let senders = self.senders.values().map(|sending| MAD_LEN + sending.sender.held()).sum::<usize>();
        let receivers = self.receivers.values().map(Receiver::held).sum::<usize>();
        senders + receivers + self.requests.len() * MAD_LEN
    }

    /// When [`Client::handle_timeout`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let senders = self.senders.values().filter_map(|sending| sending.sender.deadline());
        let receivers = self.receivers.values().filter_map(Receiver::deadline);
        self.requests.deadline().into_iter().chain(senders).chain(receivers).min()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<(A, Mad)> {
        self.transmits.pop_front()
    }

    /// The next thing that the client receives.
    pub fn poll_event(&mut self) -> Option<Event<A>> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::layout::Layout;
    use wire::mad::{CLASS_SA, METHOD_GET, METHOD_GET_TABLE, RESPONSE};
    use wire::rmpp::{FLAG_FIRST, FLAG_LAST, Header as Segment, OFFSET, VERSION};

    const SECOND: Duration = Duration::from_secs(1);

    fn client(number: u32) -> Client<u16> {
        Client::new(Registration(number), true, 1 << 20)
    }

    fn mad(method: u8, transaction: u64) -> Mad {
        let mut mad = [0; MAD_LEN];
        Header { base_version: 1, class: CLASS_SA, class_version: 2, method, transaction, ..Header::default() }
            .emit_to(&mut mad);
        mad
    }

    /// Carries all datagrams between two clients until both are silent.
    fn exchange(one: &mut Client<u16>, other: &mut Client<u16>, mut lost: impl FnMut(&Mad) -> bool) {
        loop {
            let (to, back) = (one.poll_transmit(), other.poll_transmit());
            if to.is_none() && back.is_none() {
                return;
            }
            if let Some((_, mad)) = to.filter(|(_, mad)| !lost(mad)) {
                other.receive(1, &mad, SECOND);
            }
            if let Some((_, mad)) = back.filter(|(_, mad)| !lost(mad)) {
                one.receive(2, &mad, SECOND);
            }
        }
    }

    #[test]
    fn a_request_gets_its_answer_once() {
        let mut client = client(7);
        client.send(2, &mad(METHOD_GET, 9), SECOND, 0, Duration::ZERO).unwrap();
        let (to, sent) = client.poll_transmit().unwrap();
        assert_eq!((to, Header::of(&sent).transaction), (2, 7 << 32 | 9));
        let again = client.send(2, &mad(METHOD_GET, 9), SECOND, 0, Duration::ZERO);
        assert_eq!(again, Err(transactions::TransactionError::InUse.into()));
        let answer = mad(METHOD_GET | RESPONSE, 7 << 32 | 9);
        for expected in [Some(Event::Received(2, answer.to_vec())), None] {
            client.receive(2, &answer, Duration::ZERO);
            assert_eq!(client.poll_event(), expected);
        }
        assert_eq!(client.deadline(), None);
    }

    #[test]
    fn a_request_without_an_answer_is_repeated_and_comes_back() {
        let mut client = client(7);
        client.send(2, &mad(METHOD_GET, 9), SECOND, 1, Duration::ZERO).unwrap();
        let sent = client.poll_transmit();
        client.handle_timeout(SECOND);
        assert_eq!((client.poll_transmit(), client.poll_event()), (sent, None));
        client.handle_timeout(2 * SECOND);
        assert_eq!(client.poll_event(), sent.map(|(to, mad)| Event::Unanswered(to, mad.to_vec())));
        assert_eq!(client.deadline(), None);
    }

    #[test]
    fn a_long_answer_passes_in_segments_also_when_some_are_lost() {
        let (mut requester, mut server) = (client(7), client(8));
        requester.send(2, &mad(METHOD_GET_TABLE, 9), 9 * SECOND, 0, Duration::ZERO).unwrap();
        exchange(&mut requester, &mut server, |_| false);
        let Some(Event::Received(1, request)) = server.poll_event() else { panic!("the request") };
        let transaction = Header::parse(request.first_chunk().unwrap()).transaction;
        let mut first = mad(METHOD_GET_TABLE | RESPONSE, transaction);
        // As opensm does.
        Segment { flags: FLAG_ACTIVE, ..Segment::default() }.write(&mut first[OFFSET..]);
        let mut message = first[..wire::sa::DATA].to_vec();
        message.extend((0..30_000_u32).map(|at| (at % 251) as u8));
        server.send(1, &message, Duration::ZERO, 0, Duration::ZERO).unwrap();
        let mut count = 0;
        exchange(&mut requester, &mut server, |_| {
            count += 1;
            count % 10 == 5
        });
        let mut now = Duration::ZERO;
        let received = loop {
            if let Some(event) = requester.poll_event() {
                break event;
            }
            now += 2 * SECOND;
            assert!(now < 60 * SECOND, "it arrives");
            server.handle_timeout(now);
            exchange(&mut requester, &mut server, |_| false);
        };
        let Event::Received(2, received) = received else { panic!("{received:?}") };
        assert_eq!(received[wire::sa::DATA..], message[wire::sa::DATA..]);
        assert_eq!(server.poll_event(), None, "an answer waits for nothing");
        requester.handle_timeout(90 * SECOND);
        assert_eq!(requester.deadline(), None);
    }

    #[test]
    fn a_message_that_nobody_acknowledges_comes_back() {
        let mut client = client(7);
        let mut first = mad(METHOD_GET_TABLE | RESPONSE, 1);
        Segment { version: VERSION, kind: TYPE_DATA, flags: FLAG_ACTIVE, ..Segment::default() }
            .write(&mut first[OFFSET..]);
        client.send(2, &first, SECOND, 0, Duration::ZERO).unwrap();
        for second in 0..9 {
            client.handle_timeout(second * SECOND);
        }
        assert!(matches!(client.poll_event(), Some(Event::Unanswered(2, _))));
        assert_eq!(client.deadline(), None);
    }

    #[test]
    fn receivers_that_have_their_message_give_way_to_new_ones() {
        let mut client = client(7);
        for chosen in 0..3 * FLOWS as u64 {
            client.send(2, &mad(METHOD_GET_TABLE, chosen), SECOND, 0, Duration::ZERO).unwrap();
            let mut segment = mad(METHOD_GET_TABLE | RESPONSE, 7 << 32 | chosen);
            let flags = FLAG_ACTIVE | FLAG_FIRST | FLAG_LAST;
            let (kind, length) = (TYPE_DATA, (MAD_LEN - wire::rmpp::END) as u32);
            Segment { version: VERSION, kind, flags, segment: 1, length, ..Segment::default() }
                .write(&mut segment[OFFSET..]);
            client.receive(2, &segment, Duration::from_nanos(chosen));
            assert!(matches!(client.poll_event(), Some(Event::Received(2, _))), "answer {chosen}");
        }
        assert_eq!(client.receivers.len(), FLOWS);
    }

    #[test]
    fn segments_of_an_unexpected_answer_and_messages_without_room_are_dropped() {
        let mut client = client(7);
        let mut segment = mad(METHOD_GET_TABLE | RESPONSE, 7 << 32 | 3);
        Segment { version: VERSION, kind: TYPE_DATA, flags: FLAG_ACTIVE | 3, segment: 1, ..Segment::default() }
            .write(&mut segment[OFFSET..]);
        client.receive(2, &segment, Duration::ZERO);
        assert_eq!((client.poll_event(), client.deadline()), (None, None));
        for transaction in 0..1000 {
            segment[8..16].copy_from_slice(&u64::to_be_bytes(transaction));
            segment[3] = METHOD_GET_TABLE;
            client.receive(2, &segment, Duration::ZERO);
        }
        assert!(client.receivers.len() <= FLOWS);
        assert_eq!(client.send(2, &[0; 9], SECOND, 0, SECOND), Err(SendError::Length(9)));
        assert_eq!(client.send(2, &[0; 300], SECOND, 0, SECOND), Err(SendError::Length(300)));
    }
}
