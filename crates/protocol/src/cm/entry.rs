//! One id as the communication manager keeps it; not its keys and timers, which are in
//! [`super::table`]. Principal type: [`CmEntry`].

use super::origin::Origin;
use super::params::Connection;
use super::state::{CmState, PathState};
use crate::time::Time;
use wire::cm::{Attribute, Gid, PathInfo};
use wire::mad::Mad;

/// The shortest time that this side uses, even if a peer asks for less. With a shorter time, this
/// side would repeat a message many times in a row.
const SHORTEST: u64 = span(8);
/// The upper limit, about 17 seconds, for times that a peer claims: how long the peer may take to
/// answer, and how long its packets may be on their way. Without the limit, a peer could make this
/// side keep state for hours.
const LONGEST: u64 = span(22);

/// The duration of a timeout code: 4.096 µs × 2^code. For the communication manager, code 0 is no
/// exception.
pub(super) const fn span(code: u8) -> u64 {
    4096 << (code & 0x1f)
}

/// The smallest code whose time is about the sum of these two. IBA 12.7.34 (local ACK timeout).
pub(super) fn sum_of_timeout_codes(first: u8, second: u8) -> u8 {
    let sum = span(first) + span(second);
    (0..31).find(|code| sum < span(*code) / 2 * 3).unwrap_or(31)
}

/// The last message, for repetition.
#[derive(Debug)]
pub(super) struct Last {
    /// The kind of message.
    pub(super) attribute: Attribute,
    /// The datagram as it was sent.
    pub(super) mad: Box<Mad>,
}

/// A suggestion for another alternate path. It uses the entry's timer, which nothing else uses in
/// [`CmState::Established`].
#[derive(Debug)]
pub(super) struct Suggested {
    /// The transaction of the LAP.
    pub(super) transaction: u64,
    /// The path as seen by the LAP's sender.
    pub(super) info: PathInfo,
    /// The packet life time on the path; only its sender knows it.
    pub(super) packet_life: u8,
    /// The LAP, MRA or APR that this side sent; `None` while a received LAP waits for its answer.
    pub(super) said: Option<Mad>,
}

/// One id.
#[derive(Debug)]
pub(super) struct CmEntry {
    /// What both sides have agreed on, and the state. Only the table changes the state.
    pub(super) facts: Connection,
    /// The state of the suggestion for another path.
    pub(super) path_state: PathState,
    /// The current or the last suggestion.
    pub(super) suggested: Option<Box<Suggested>>,
    /// The user has destroyed the id. It ends by itself, without events.
    pub(super) orphan: bool,
    /// The owner's number; 0 if none was set.
    pub(super) owner: u32,
    /// Our adapter.
    pub(super) ca_guid: u64,
    /// The transaction that our next message answers, or that we began last.
    pub(super) transaction: u64,
    /// How long to wait for an answer.
    pub(super) interval: u64,
    /// How long the sender of a declined REQ may still repeat it.
    pub(super) echo: u64,
    /// The number of repetitions of a message.
    pub(super) max_retries: u8,
    /// The repetitions that are left for the last message.
    pub(super) retries: u8,
    /// The last message.
    pub(super) last: Option<Last>,
    /// When the timer ends; [`Time::NEVER`] if it does not run. Only the table changes it.
    pub(super) deadline: Time,
    /// The table's keys that lead here. Only the table changes them.
    pub(super) known: Known,
}

/// The keys that lead to an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The peer's communication id, or its SIDR request id.
    pub(super) number: bool,
    /// The peer's queue pair.
    pub(super) qpn: bool,
}

impl CmEntry {
    /// An entry with these facts.
    pub(super) fn new(facts: Connection) -> CmEntry {
        CmEntry {
            facts,
            path_state: PathState::Idle,
            suggested: None,
            orphan: false,
            owner: 0,
            ca_guid: 0,
            transaction: 0,
            interval: SHORTEST,
            echo: SHORTEST,
            max_retries: 0,
            retries: 0,
            last: None,
            deadline: Time::NEVER,
            known: Known::default(),
        }
    }

    /// Sets how long to wait for the peer's answers: the response timeout, a code from our user,
    /// plus the packets' way in both directions.
    pub(super) fn set_interval(&mut self, response_timeout: u8) {
        let ways = 2 * span(self.facts.path.packet_life);
        self.interval = (span(response_timeout) + ways).max(SHORTEST);
    }

    /// Like [`CmEntry::set_interval`], but the peer supplies the response timeout.
    pub(super) fn set_claimed_interval(&mut self, response_timeout: u8) {
        self.set_interval(response_timeout);
        self.interval = self.interval.min(LONGEST);
    }

    /// Sets how long the peer may repeat its request: the response timeouts of its first three
    /// tries.
    pub(super) fn set_echo(&mut self, response_timeout: u8) {
        self.echo = (3 * span(response_timeout)).clamp(SHORTEST, LONGEST);
    }

    /// How long packets of the connection may be on their way: the acknowledgement timeout.
    pub(super) fn rest(&self) -> u64 {
        span(self.facts.ack_timeout).clamp(SHORTEST, LONGEST)
    }

    /// Whether a datagram comes from the peer.
    pub(super) fn is_from(&self, origin: &Origin) -> bool {
        let alternate = self.facts.alternate.map(|path| path.dgid);
        origin.source == self.facts.path.dgid || Some(origin.source) == alternate
    }

    /// Whether the peer's number for the connection is known.
    pub(super) fn knows_remote(&self) -> bool {
        !matches!(self.facts.state, CmState::ReqSent | CmState::MraReqRcvd | CmState::SidrReqSent)
    }

    /// The key of the peer's number for the connection.
    pub(super) fn number_key(&self) -> Key {
        let facts = &self.facts;
        match facts.state {
            CmState::SidrReqRcvd | CmState::SidrAnswered => Key::question(facts.remote_comm_id, facts.path.dgid),
            _ => Key::number(facts.remote_comm_id, facts.remote_ca_guid, facts.path.dgid),
        }
    }

    /// The key of the peer's queue pair.
    pub(super) fn qpn_key(&self) -> Key {
        let facts = &self.facts;
        Key::qpn(facts.remote_qpn.value(), facts.remote_ca_guid, facts.path.dgid)
    }
}

/// Finds the entry of a peer's message that does not contain our number. The address is part of the
/// key, because another address's claims about an adapter are not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    kind: u8,
    number: u32,
    ca_guid: u64,
    gid: Gid,
}

impl Key {
    /// The key of a connection, by the peer's number for it.
    pub(super) fn number(number: u32, ca_guid: u64, gid: Gid) -> Key {
        Key { kind: 0, number, ca_guid, gid }
    }

    /// The key of a connection, by the peer's queue pair.
    pub(super) fn qpn(number: u32, ca_guid: u64, gid: Gid) -> Key {
        Key { kind: 1, number, ca_guid, gid }
    }

    /// The key of a SIDR request, by the peer's number for it.
    pub(super) fn question(number: u32, gid: Gid) -> Key {
        Key { kind: 2, number, ca_guid: 0, gid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_their_sums() {
        assert_eq!(span(0), 4096);
        assert_eq!(span(20), 4_294_967_296);
        assert_eq!(sum_of_timeout_codes(19, 15), 19);
        assert_eq!(sum_of_timeout_codes(19, 18), 20);
        assert_eq!(sum_of_timeout_codes(19, 19), 20);
        assert_eq!(sum_of_timeout_codes(15, 19), 19);
        assert_eq!(sum_of_timeout_codes(31, 31), 31);
    }
}
