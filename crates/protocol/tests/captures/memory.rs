//! The memory that the responder's program registered. Principal type: [`Memory`].

use crate::script::Packet;
use crate::table::Conversation;
use softhca_protocol::Nak;
use std::collections::BTreeMap;

/// Bytes that the program registered.
const SIZE: u64 = 16384;

/// The responder's memory.
pub(crate) struct Memory {
    base: u64,
    keys: &'static [u32],
    bytes: BTreeMap<u64, u8>,
}

impl Memory {
    /// The memory as the program filled it: byte i is 7 i + 3 + i / 256. If the capture does not
    /// show its address, the memory is wherever requests go, and [`Memory::learn`] learns its
    /// contents.
    pub(crate) fn new(conversation: &Conversation) -> Memory {
        let (base, keys) = conversation.memory;
        let mut bytes = BTreeMap::new();
        if base != 0 {
            let filled = |i: u64| (i.wrapping_mul(7) + 3 + (i >> 8)) as u8;
            bytes.extend((0..SIZE).map(|i| (base + i, filled(i))));
        }
        Memory { base, keys, bytes }
    }

    /// Whether its contents are known.
    pub(crate) fn is_known(&self) -> bool {
        self.base != 0
    }

    /// Handles a READ. If the contents are unknown, the following answers supply them.
    pub(crate) fn learn(&mut self, request: &Packet, next: &[Packet]) {
        let is_read = request.headers.opcode.operation == wire::Operation::ReadRequest;
        if let Some(answer) = next.iter().find(|packet| packet.headers.opcode.is_read_response())
            && is_read
            && !self.is_known()
        {
            self.write(request.headers.reth.va, &answer.payload);
        }
    }

    pub(crate) fn check(&self, va: u64, rkey: u32, len: u32) -> Result<(), Nak> {
        let inside = va >= self.base && va + u64::from(len) <= self.base + SIZE;
        let open = self.base == 0 || len == 0 || inside && self.keys.contains(&rkey);
        if open { Ok(()) } else { Err(Nak::RemoteAccess) }
    }

    pub(crate) fn write(&mut self, va: u64, payload: &[u8]) {
        self.bytes.extend((va..).zip(payload.iter().copied()));
    }

    pub(crate) fn read(&self, va: u64, len: u32) -> Vec<u8> {
        (va..va + u64::from(len)).map(|at| self.bytes[&at]).collect()
    }

    /// Writes a new word, and returns the old one.
    pub(crate) fn update(&mut self, va: u64, new: impl FnOnce(u64) -> u64) -> u64 {
        let old = u64::from_le_bytes(self.read(va, 8).try_into().unwrap());
        self.write(va, &new(old).to_le_bytes());
        old
    }
}
