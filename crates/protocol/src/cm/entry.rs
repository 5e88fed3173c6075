//! One id as the communication manager keeps it. Principal type: [`Entry`].

use super::{Connection, Origin, PathState, State};
use crate::Time;
use wire::cm::{Attribute, Gid, PathInfo};
use wire::mad::Mad;

/// Times shorter than this are not kept, whatever a peer asks for: it would make us send a message many times at once.
const SHORTEST: u64 = span(8);
/// What a peer says of times counts up to here, about 17 seconds: how long it may take to answer, how old its packets get. Else
/// it could make us keep things for hours.
const LONGEST: u64 = span(22);

/// The time that a timeout code stands for: 4.096 µs × 2^code. For the communication manager code 0 is no exception.
pub(super) const fn span(code: u8) -> u64 {
    4096 << (code & 0x1f)
}

/// The smallest code whose time is about as long as these two together. IBA 12.7.34 (local ACK timeout).
pub(super) fn together(first: u8, second: u8) -> u8 {
    let sum = span(first) + span(second);
    (0..31).find(|code| sum < span(*code) / 2 * 3).unwrap_or(31)
}

/// The message that says all again, should the peer ask.
#[derive(Debug)]
pub(super) struct Last {
    /// Which it is.
    pub(super) attribute: Attribute,
    /// As it was sent.
    pub(super) mad: Box<Mad>,
}

/// What is said about another alternate path. Its timer is the entry's, which no one else uses in [`State::Established`].
#[derive(Debug)]
pub(super) struct Suggested {
    /// Which LAP it is.
    pub(super) transaction: u64,
    /// The path, in the words of the LAP's sender.
    pub(super) info: PathInfo,
    /// How long a packet may be on its way along it; only its sender knows.
    pub(super) packet_life: u8,
    /// LAP, MRA or APR as we sent it; `None` while a LAP waits for its answer.
    pub(super) said: Option<Mad>,
}

/// One id.
#[derive(Debug)]
pub(super) struct Entry {
    /// What has been agreed on, and the state. Only the table changes the state.
    pub(super) facts: Connection,
    /// Where a suggestion for another path stands.
    pub(super) path_state: PathState,
    /// The suggestion, or the last one.
    pub(super) suggested: Option<Box<Suggested>>,
    /// Its user has destroyed it: it ends alone, and without a word to him.
    pub(super) orphan: bool,
    /// In its user's words, whose it is; 0 where nobody has said.
    pub(super) owner: u32,
    /// Our adapter.
    pub(super) ca_guid: u64,
    /// What our next message answers, or what we asked last.
    pub(super) transaction: u64,
    /// How long to wait for an answer.
    pub(super) interval: u64,
    /// How long a declined REQ's sender may still repeat it.
    pub(super) echo: u64,
    /// How often a message is repeated.
    pub(super) max_retries: u8,
    /// How often the last one still is.
    pub(super) retries: u8,
    /// What was said last.
    pub(super) last: Option<Last>,
    /// When something is to happen; [`Time::NEVER`] when nothing is. Only the table changes it.
    pub(super) deadline: Time,
    /// Which of the table's keys lead here. Only the table changes them.
    pub(super) known: Known,
}

/// Which keys lead to an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The peer's communication id, or the id of its question.
    pub(super) number: bool,
    /// The peer's queue pair.
    pub(super) qpn: bool,
}

impl Entry {
    /// One that knows these facts.
    pub(super) fn new(facts: Connection) -> Entry {
        Entry {
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

    /// Sets how long to wait for the peer's answers: what our user gives it, a code, and both ways of the packets.
    pub(super) fn set_interval(&mut self, response_timeout: u8) {
        let ways = 2 * span(self.facts.path.packet_life);
        self.interval = (span(response_timeout) + ways).max(SHORTEST);
    }

    /// The same, but it is the peer who says how long it takes.
    pub(super) fn set_claimed_interval(&mut self, response_timeout: u8) {
        self.set_interval(response_timeout);
        self.interval = self.interval.min(LONGEST);
    }

    /// Sets how long the peer may go on repeating its request: for its first tries.
    pub(super) fn set_echo(&mut self, response_timeout: u8) {
        self.echo = (3 * span(response_timeout)).clamp(SHORTEST, LONGEST);
    }

    /// How long packets of the connection may be on their way: what an acknowledgement may take.
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
        !matches!(self.facts.state, State::ReqSent | State::MraReqRcvd | State::SidrReqSent)
    }

    /// The key by which its number leads here.
    pub(super) fn number_key(&self) -> Key {
        let facts = &self.facts;
        match facts.state {
            State::SidrReqRcvd | State::SidrAnswered => Key::question(facts.remote_comm_id, facts.path.dgid),
            _ => Key::number(facts.remote_comm_id, facts.remote_ca_guid, facts.path.dgid),
        }
    }

    /// The key by which its queue pair leads here.
    pub(super) fn qpn_key(&self) -> Key {
        let facts = &self.facts;
        Key::qpn(facts.remote_qpn.value(), facts.remote_ca_guid, facts.path.dgid)
    }
}

/// By what a peer's message leads to an entry when it does not carry our number. The address is part of it: what another
/// address says about an adapter is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    kind: u8,
    number: u32,
    ca_guid: u64,
    gid: Gid,
}

impl Key {
    /// A connection by the peer's number for it.
    pub(super) fn number(number: u32, ca_guid: u64, gid: Gid) -> Key {
        Key { kind: 0, number, ca_guid, gid }
    }

    /// A connection by the peer's queue pair.
    pub(super) fn qpn(number: u32, ca_guid: u64, gid: Gid) -> Key {
        Key { kind: 1, number, ca_guid, gid }
    }

    /// A datagram service's question by the peer's number for it.
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
        assert_eq!(together(19, 15), 19);
        assert_eq!(together(19, 18), 20);
        assert_eq!(together(19, 19), 20);
        assert_eq!(together(15, 19), 19);
        assert_eq!(together(31, 31), 31);
    }
}
