//! Requests that wait for an answer: timeouts, retries, and the rule of transaction ids. Not the
//! way to the peer. Principal type: [`Transactions`].
//!
//! A transaction id has 64 bits. The client chooses the lower 32. The upper 32 are the number of
//! the client's registration, as Linux does it: two clients that count alike stay apart. An answer
//! keeps the id of its request. Who forges one must know both halves; as in Linux, nothing else
//! tells whether an answer comes from the node that was asked.

use std::collections::BTreeMap;
use std::time::Duration;
use wire::mad::{
    Header, METHOD_GET, METHOD_REPORT, METHOD_SEND, METHOD_SET, METHOD_TRAP, METHOD_TRAP_REPRESS, Mad, RESPONSE,
};

/// The requests that one client may have outstanding.
pub const MOST: usize = 1024;

/// The number of a registration. It is the upper half of the client's transaction ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registration(pub u32);

impl Registration {
    /// The registration whose transaction this is.
    #[must_use]
    pub const fn of(transaction: u64) -> Registration {
        Registration((transaction >> 32) as u32)
    }

    /// The transaction id on the wire, of the id that the client chose.
    #[must_use]
    pub const fn transaction(self, chosen: u64) -> u64 {
        (self.0 as u64) << 32 | chosen & 0xffff_ffff
    }

    /// Puts the registration into a datagram that the client sends. Answers keep their ids.
    pub fn mark(self, mad: &mut Mad) {
        let mut header = Header::of(mad);
        if !is_response(&header) {
            header.transaction = self.transaction(header.transaction);
            header.emit_to(mad);
        }
    }
}

/// Whether a datagram answers another one. TrapRepress has no response bit, but answers a Trap.
#[must_use]
pub const fn is_response(header: &Header) -> bool {
    header.method & RESPONSE != 0 || header.method == METHOD_TRAP_REPRESS
}

/// Whether an answer with this header can be for a request with that header.
#[must_use]
pub const fn answers(answer: &Header, request: &Header) -> bool {
    let method = match request.method {
        METHOD_TRAP => METHOD_TRAP_REPRESS,
        METHOD_SEND => METHOD_SEND | RESPONSE,
        METHOD_REPORT => METHOD_REPORT | RESPONSE,
        // A Set is answered as a Get is.
        METHOD_SET => METHOD_GET | RESPONSE,
        other => other | RESPONSE,
    };
    answer.transaction == request.transaction && answer.class == request.class && answer.method == method
}

/// Why a request cannot wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The client has too many requests outstanding.
    #[error("{MOST} requests wait for an answer; wait for some of them")]
    Full,
    /// A request of the same class with the same transaction id waits for an answer.
    #[error("a request with this transaction id waits for an answer; use another id")]
    InUse,
}

/// A request that waits. `P` is what the caller needs to send it again.
#[derive(Clone, Debug)]
struct Waiting<P> {
    header: Header,
    request: P,
    timeout: Duration,
    retries: u32,
    deadline: Duration,
}

/// What [`Transactions::poll`] asks of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due<P> {
    /// Send the request again.
    Again(P),
    /// The request got no answer. It goes back to the client.
    Unanswered(P),
}

/// The outstanding requests of one client.
#[derive(Clone, Debug)]
pub struct Transactions<P> {
    waiting: BTreeMap<(u64, u8), Waiting<P>>,
    deadlines: BTreeMap<(Duration, u64, u8), ()>,
}

impl<P> Default for Transactions<P> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), deadlines: BTreeMap::new() }
    }
}

impl<P: Clone> Transactions<P> {
    /// Begins to wait. The caller has sent `request`, whose header has its transaction id on the
    /// wire.
    ///
    /// # Errors
    /// The id is in use, or the client has [`MOST`] requests outstanding.
    pub fn begin(
        &mut self,
        header: Header,
        request: P,
        timeout: Duration,
        retries: u32,
        now: Duration,
    ) -> Result<(), TransactionError> {
        let key = (header.transaction, header.class);
        if self.waiting.contains_key(&key) {
            return Err(TransactionError::InUse);
        }
        if self.waiting.len() == MOST {
            return Err(TransactionError::Full);
        }
        let deadline = now.saturating_add(timeout);
        self.deadlines.insert((deadline, key.0, key.1), ());
        self.waiting.insert(key, Waiting { header, request, timeout, retries, deadline });
        Ok(())
    }

    /// Ends the transaction that a datagram answers, and returns its request. `None`: the datagram
    /// answers no request, or answered it before, so it is dropped.
    pub fn answer(&mut self, answer: &Header) -> Option<P> {
        let key = (answer.transaction, answer.class);
        if !answers(answer, &self.waiting.get(&key)?.header) {
            return None;
        }
        self.take(key).map(|waiting| waiting.request)
    }

    /// Whether a request waits for this answer.
    #[must_use]
    pub fn expects(&self, answer: &Header) -> bool {
        let waiting = self.waiting.get(&(answer.transaction, answer.class));
        waiting.is_some_and(|waiting| answers(answer, &waiting.header))
    }

    /// Ends a transaction without an answer, and returns its request: the client cancels it, or the
    /// datagram could not be sent.
    pub fn cancel(&mut self, transaction: u64, class: u8) -> Option<P> {
        self.take((transaction, class)).map(|waiting| waiting.request)
    }

    /// Lets a transaction wait longer: a part of the answer has arrived.
    pub fn extend(&mut self, transaction: u64, class: u8, now: Duration) {
        let Some(waiting) = self.waiting.get_mut(&(transaction, class)) else { return };
        self.deadlines.remove(&(waiting.deadline, transaction, class));
        waiting.deadline = now.saturating_add(waiting.timeout);
        self.deadlines.insert((waiting.deadline, transaction, class), ());
    }

    /// The next thing that is due at `now`. Call it until it returns nothing.
    pub fn poll(&mut self, now: Duration) -> Option<Due<P>> {
        let (&(deadline, transaction, class), ()) = self.deadlines.first_key_value()?;
        if deadline > now {
            return None;
        }
        let key = (transaction, class);
        let waiting = self.waiting.get_mut(&key)?;
        let Some(left) = waiting.retries.checked_sub(1) else {
            return self.take(key).map(|waiting| Due::Unanswered(waiting.request));
        };
        waiting.retries = left;
        let request = waiting.request.clone();
        self.extend(transaction, class, now);
        Some(Due::Again(request))
    }

    /// When [`Transactions::poll`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadlines.first_key_value().map(|((deadline, ..), ())| *deadline)
    }

    /// How many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn take(&mut self, key: (u64, u8)) -> Option<Waiting<P>> {
        let waiting = self.waiting.remove(&key)?;
        self.deadlines.remove(&(waiting.deadline, key.0, key.1));
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::mad::{CLASS_PM, CLASS_SA};

    const MS: Duration = Duration::from_millis(1);

    fn header(method: u8, transaction: u64) -> Header {
        Header { class: CLASS_SA, method, transaction, ..Header::default() }
    }

    #[test]
    fn the_upper_half_of_a_request_is_the_registration() {
        let own = Registration(7);
        let mut mad = [0; 256];
        header(METHOD_GET, 0xdead_beef_0000_0001).emit_to(&mut mad);
        own.mark(&mut mad);
        let marked = Header::of(&mad);
        assert_eq!(marked.transaction, 0x7_0000_0001);
        assert_eq!(Registration::of(marked.transaction), own);
        for answer in [METHOD_GET | RESPONSE, METHOD_TRAP_REPRESS] {
            header(answer, 0xdead_beef_0000_0001).emit_to(&mut mad);
            own.mark(&mut mad);
            assert_eq!(Header::of(&mad).transaction, 0xdead_beef_0000_0001, "answers keep their id");
        }
    }

    #[test]
    fn an_answer_ends_its_request_once() {
        let mut transactions = Transactions::default();
        transactions.begin(header(METHOD_SET, 1), "set", 10 * MS, 0, MS).unwrap();
        assert_eq!(transactions.begin(header(METHOD_GET, 1), "get", MS, 0, MS), Err(TransactionError::InUse));
        assert_eq!(transactions.answer(&header(METHOD_SET | RESPONSE, 1)), None, "a Set gets a Get response");
        assert_eq!(transactions.answer(&header(METHOD_GET | RESPONSE, 2)), None);
        let other = Header { class: CLASS_PM, ..header(METHOD_GET | RESPONSE, 1) };
        assert_eq!(transactions.answer(&other), None);
        assert_eq!(transactions.answer(&header(METHOD_GET | RESPONSE, 1)), Some("set"));
        assert_eq!(transactions.answer(&header(METHOD_GET | RESPONSE, 1)), None);
        assert!(transactions.is_empty() && transactions.deadline().is_none());
    }

    #[test]
    fn a_request_is_sent_again_and_then_comes_back() {
        let mut transactions = Transactions::default();
        transactions.begin(header(METHOD_GET, 1), 'a', 10 * MS, 2, Duration::ZERO).unwrap();
        assert_eq!(transactions.poll(9 * MS), None);
        assert_eq!(transactions.poll(10 * MS), Some(Due::Again('a')));
        assert_eq!(transactions.poll(10 * MS), None);
        assert_eq!(transactions.deadline(), Some(20 * MS));
        transactions.extend(1, CLASS_SA, 15 * MS);
        assert_eq!(transactions.poll(20 * MS), None);
        assert_eq!(transactions.poll(25 * MS), Some(Due::Again('a')));
        assert_eq!(transactions.poll(35 * MS), Some(Due::Unanswered('a')));
        assert!(transactions.is_empty());
    }

    #[test]
    fn a_trap_is_answered_by_a_repress() {
        assert!(answers(&header(METHOD_TRAP_REPRESS, 5), &header(METHOD_TRAP, 5)));
        assert!(answers(&header(METHOD_REPORT | RESPONSE, 5), &header(METHOD_REPORT, 5)));
        assert!(!answers(&header(METHOD_TRAP | RESPONSE, 5), &header(METHOD_TRAP, 5)));
    }

    #[test]
    fn a_client_cannot_make_it_hold_more_than_the_limit() {
        let mut transactions = Transactions::default();
        for transaction in 0..MOST as u64 {
            transactions.begin(header(METHOD_GET, transaction), (), MS, 0, MS).unwrap();
        }
        assert_eq!(transactions.begin(header(METHOD_GET, 1 << 20), (), MS, 0, MS), Err(TransactionError::Full));
        assert_eq!(transactions.cancel(3, CLASS_SA), Some(()));
        assert_eq!(transactions.len(), MOST - 1);
        assert_eq!(transactions.begin(header(METHOD_GET, 1 << 20), (), Duration::MAX, 0, MS), Ok(()));
    }
}
