//! An open `umadN`: its registrations, and the datagrams that wait for its program. The principal
//! type is [`UmadFile`].

use std::collections::VecDeque;

use abi::Record;
use abi::umad::client::Key;
use abi::umad::{AGENTS_MAX, PIECE, SHORT_HEADER, UserMad};
use mad::transactions::Registration;

use super::way::{PortId, Way};

/// Maximum number of messages, and of their bytes, that wait for a program; the first one may be
/// longer. Further ones are lost, as in a kernel.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 4 << 20;

/// One open file.
#[derive(Debug)]
pub(super) struct UmadFile {
    pub(super) uid: u32,
    /// The process that has opened it.
    pub(super) pid: u32,
    pub(super) at: PortId,
    pub(super) key: Key,
    agents: [Option<Registration>; AGENTS_MAX],
    /// It has had a registration.
    pub(super) was_used: bool,
    /// Headers have a P_Key index.
    pub(super) has_pkey_index: bool,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How much of the first message the program has.
    passed: usize,
}

impl UmadFile {
    /// A file without registrations.
    pub(super) fn new((pid, uid): (u32, u32), at: PortId, key: Key) -> Self {
        let agents = [None; AGENTS_MAX];
        let waiting = VecDeque::new();
        Self { uid, pid, at, key, agents, was_used: false, has_pkey_index: false, waiting, bytes: 0, passed: 0 }
    }

    /// The first id without a registration.
    pub(super) fn free_id(&self) -> Option<usize> {
        self.agents.iter().position(Option::is_none)
    }

    /// The registration with this id.
    pub(super) fn agent(&self, id: u32) -> Option<Registration> {
        *self.agents.get(id as usize)?
    }

    /// Gives a registration this id, or takes it away. Returns what was there.
    pub(super) fn set_agent(&mut self, id: usize, agent: Option<Registration>) -> Option<Registration> {
        std::mem::replace(self.agents.get_mut(id)?, agent)
    }

    /// All registrations.
    pub(super) fn agents(&self) -> impl Iterator<Item = Registration> + '_ {
        self.agents.iter().copied().flatten()
    }

    /// How long the header of a record is.
    pub(super) fn header_len(&self) -> usize {
        if self.has_pkey_index { size_of::<UserMad>() } else { SHORT_HEADER }
    }

    /// Keeps a message for the program: from `way`, or back to it with the errno `status`.
    pub(super) fn push(&mut self, id: u32, status: u32, way: &Way, message: &[u8]) {
        let length = self.header_len() + message.len();
        let is_full = self.bytes + length > WAITING_BYTES_MAX && !self.waiting.is_empty();
        if self.waiting.len() >= WAITING_MAX || is_full {
            tracing::debug!(uid = self.uid, "a program does not read its MADs: one is lost");
            return;
        }
        let header = UserMad { id, status, length: length as u32, ..way.header() };
        let mut record = Vec::with_capacity(length);
        record.extend_from_slice(&header.bytes()[..self.header_len()]);
        record.extend_from_slice(message);
        self.bytes += length;
        self.waiting.push_back(record);
    }

    /// How many bytes wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The next packet of the first message that waits.
    pub(super) fn first(&self) -> Option<&[u8]> {
        self.waiting.front()?.get(self.passed..)?.chunks(PIECE).next()
    }

    /// Removes this packet.
    pub(super) fn pop(&mut self) {
        self.passed += self.first().map_or(0, <[u8]>::len);
        if let Some(record) = self.waiting.pop_front_if(|record| record.len() <= self.passed) {
            self.bytes -= record.len();
            self.passed = 0;
        }
    }
}
